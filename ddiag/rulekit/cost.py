"""What every rule needs to say what a finding costs and how bad that is, in one place."""

from __future__ import annotations

from collections.abc import Iterable

from ddiag.model.signals import JobFacts, StepBudget
from ddiag.rulekit.finding import Cost, Severity

HOURS_PER_DAY = 24.0


def step_cost(ms_per_step: float, budget: StepBudget, facts: JobFacts, *, share: float | None = None) -> Cost:
    """Cost of *ms_per_step*: its share of the step, and device-hours lost per 24 h on all ranks of the job.

    The share is that of the median step, or *share* where the finding's title states another.
    """
    if budget.step_ms <= 0:
        return Cost(ms_per_step=ms_per_step)
    share = min(ms_per_step / budget.step_ms if share is None else share, 1.0)
    ranks = facts.world_size or len(facts.ranks)
    hours = share * ranks * HOURS_PER_DAY if facts.device_kind != "cpu" else None
    return Cost(ms_per_step=ms_per_step, step_share=share, gpu_hours=hours)


def severity_for(share: float, *, warning: float, critical: float) -> Severity:
    """Severity by share of the step (0-1); below *warning* it is information."""
    if share >= critical:
        return Severity.CRITICAL
    return Severity.WARNING if share >= warning else Severity.INFO


def name_ranks(ranks: Iterable[int], most: int = 8) -> str:
    """'rank 3', 'ranks 1, 2 and 5', 'ranks 0-7' or 'ranks 0, 1, 2, … (64 in all)'."""
    numbers = sorted(set(ranks))
    if not numbers:
        return "no rank"
    if len(numbers) == 1:
        return f"rank {numbers[0]}"
    if len(numbers) > 2 and numbers == list(range(numbers[0], numbers[-1] + 1)):
        return f"ranks {numbers[0]}–{numbers[-1]}"
    if len(numbers) > most:
        return f"ranks {', '.join(map(str, numbers[:3]))}, … ({len(numbers)} in all)"
    return f"ranks {', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"


def human_bytes(amount: float) -> str:
    """1536 -> '1.5 KiB'; binary units, three significant digits at most."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(amount) < 1024:
            return f"{_digits(amount)} {unit}"
        amount /= 1024
    return f"{_digits(amount)} TiB"


def _digits(amount: float) -> str:
    return f"{amount:.0f}" if abs(amount) >= 100 else f"{amount:.3g}"
