from ddiag.rulekit import Severity
from tests.rules.checking import check, evidence, findings, the_finding

MIB = 1 << 20


def test_a_pool_that_grows_on_one_rank_names_it() -> None:
    found = the_finding("DD604", pinned_memory={"grows": {5: MIB}})
    assert found.culprits.ranks == (5,)
    assert found.title.startswith("pinned host memory grows by 1 MiB per step and rank")
    assert evidence(found, "growth").value == MIB


def test_it_is_a_warning_when_the_host_is_soon_full() -> None:
    everywhere = dict.fromkeys(range(8), MIB)
    found = the_finding("DD604", pinned_memory={"grows": everywhere, "free_bytes": 8.0 * 1000 * MIB})
    assert found.severity is Severity.WARNING
    assert "in about 1,000 steps" in found.title
    assert found.culprits.ranks == ()
    assert the_finding("DD604", pinned_memory={"grows": everywhere}).severity is Severity.INFO
    assert the_finding("DD604", pinned_memory={"grows": everywhere, "free_bytes": None}).severity is Severity.INFO


def test_a_slow_or_short_growth_is_a_pool_that_fills_up() -> None:
    assert findings("DD604", pinned_memory={"grows": {5: 1000.0}}) == []
    assert findings("DD604", pinned_memory={"grows": {5: 0.03 * (1 << 30) / 2500 * 2}}) == []


def test_a_trace_has_no_such_counter() -> None:
    assert check("DD604", pinned_memory=None) == []
