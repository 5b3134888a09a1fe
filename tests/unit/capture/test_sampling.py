"""A dear tier looks at as many steps as its budget allows, and at the same ones on every rank."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ddiag.capture.hooks.sampling import BUDGET, FIRST_STEPS, Share


def settled(step_ns: int, cost_ns: int, steps: int = 400) -> tuple[Share, float]:
    """A share after some steps, and the mean cost it allowed relative to the step time."""
    share, spent = Share(), 0
    for step in range(steps):
        looked = share.looks_at(step)
        cost = cost_ns if looked else None
        spent += (cost or 0) if step >= FIRST_STEPS else 0
        share.step_ended(step_ns + (cost or 0), cost)
    return share, spent / ((steps - FIRST_STEPS) * step_ns)


def test_cheap_looks_are_taken_at_every_step() -> None:
    share, _ = settled(step_ns=1_000_000_000, cost_ns=2_000_000)
    assert share.every == 1


def test_dear_looks_are_taken_at_few() -> None:
    share, spent = settled(step_ns=50_000_000, cost_ns=3_000_000, steps=2000)
    assert share.every == 32
    assert spent < BUDGET


@given(step_ns=st.integers(1_000_000, 10**10), cost_ns=st.integers(0, 10**8))
def test_the_mean_cost_stays_in_the_budget(step_ns: int, cost_ns: int) -> None:
    share, _ = settled(step_ns, cost_ns, steps=60)
    assert cost_ns / share.every <= BUDGET * step_ns * 1.01 or share.every == 4096


@given(st.integers(1, 10**7), st.integers(1, 10**7))
def test_ranks_with_different_costs_share_the_steps_of_the_most_careful(one_ns: int, other_ns: int) -> None:
    one, _ = settled(10**8, one_ns)
    other, _ = settled(10**8, other_ns)
    careful, eager = sorted((one, other), key=lambda share: -share.every)
    looked = [step for step in range(5000) if careful.looks_at(step)]
    assert all(eager.looks_at(step) for step in looked)


def test_the_first_steps_are_always_looked_at() -> None:
    share = Share()
    share.step_ended(10**6, 10**9)
    assert [step for step in range(20) if share.looks_at(step)] == list(range(FIRST_STEPS))
