"""What every late-rank rule must do, whatever the reason it is about."""

from __future__ import annotations

from typing import ClassVar

import pytest

from ddiag.rulekit import Abstain, Confidence, Severity
from tests.rules.checking import check, evidence, findings, the_finding

CAUSES = ("compute", "device", "input", "host", "unknown")
VALUES = {"compute_ms": 38.0, "input_ms": 38.0, "host_ms": 38.0, "kernel_slowdown": 1.3}


class LateRankCases:
    rule_id: ClassVar[str]
    cause: ClassVar[str]
    column: ClassVar[str]

    def late(self, rank: int = 3, **change: object) -> dict[str, object]:
        return {"late": {"rank": rank, "cause": self.cause, self.column: VALUES[self.column], **change}}

    @pytest.mark.parametrize("rank", [0, 3, 7])
    def test_names_the_late_rank_its_host_and_nobody_else(self, rank: int) -> None:
        found = the_finding(self.rule_id, late_ranks=self.late(rank))
        assert found.culprits.ranks == (rank,)
        assert found.culprits.hosts == (("node-a" if rank < 4 else "node-b"),)
        assert found.victims == tuple(r for r in range(8) if r != rank)
        assert f"rank {rank} arrives last" in found.title

    def test_costs_what_the_others_wait_for_it(self) -> None:
        found = the_finding(self.rule_id, late_ranks=self.late())
        assert found.cost.ms_per_step == pytest.approx(40.0 * 0.9)
        assert found.severity is Severity.WARNING
        assert found.confidence is Confidence.HIGH
        assert VALUES[self.column] in [row.value for row in found.evidence]

    def test_critical_when_the_waiting_is_a_quarter_of_the_step(self) -> None:
        found = the_finding(self.rule_id, late_ranks={**self.late(), "wait_ms_per_step": 80.0})
        assert found.severity is Severity.CRITICAL

    def test_one_step_lowers_confidence(self) -> None:
        found = the_finding(self.rule_id, steps=1, late_ranks=self.late())
        assert found.confidence is not Confidence.HIGH

    def test_what_could_be_chance_lowers_confidence(self) -> None:
        found = the_finding(self.rule_id, late_ranks=self.late(p_value=0.2))
        assert found.confidence is not Confidence.HIGH

    def test_other_reasons_belong_to_other_rules(self) -> None:
        for cause in CAUSES:
            if cause != self.cause:
                assert findings(self.rule_id, late_ranks=self.late(cause=cause)) == []

    def test_nobody_stands_out(self) -> None:
        assert findings(self.rule_id, late_ranks={**self.late(), "persistent_rank": None}) == []

    def test_waiting_that_does_not_matter_is_quiet(self) -> None:
        assert findings(self.rule_id, late_ranks={**self.late(), "wait_ms_per_step": 6.0}) == []

    def test_waiting_where_the_hosts_set_the_pace_is_quiet(self) -> None:
        """The devices would idle anyway, and nobody falls behind: the rank only began late."""
        assert findings(self.rule_id, late_ranks=self.late(), step_budget={"host_ms": 150.0}) == []

    @pytest.mark.parametrize(
        "change",
        [{"host_ms": 90.0}, {"host_ms": dict.fromkeys(range(7), 150.0)}, {"sync_ms": 10.0}, {"compute_ms": {3: 60.0}}],
        ids=["too little to hide it", "a rank kept busy", "hosts wait for devices", "falls further behind"],
    )
    def test_waiting_that_idle_time_does_not_hide_is_told(self, change: dict[str, object]) -> None:
        assert findings(self.rule_id, late_ranks=self.late(), step_budget={"host_ms": 150.0, **change})

    def test_a_note_on_the_evidence_reaches_the_reader(self) -> None:
        found = the_finding(self.rule_id, late_ranks={**self.late(), "note": "one step only"})
        assert found.doubt.startswith("one step only")
        assert evidence(found, "waiting").unit == "of step"

    def test_alone_nobody_is_late(self) -> None:
        assert findings(self.rule_id, job_facts={"ranks": (0,)}) == []


ON_CPUS = {"device_kind": "cpu"}


class StarvingCases(LateRankCases):
    """Rules whose late rank may as well have been without a CPU."""

    def test_unknown_load_of_a_cpu_job_names_nobody(self) -> None:
        (said,) = check(self.rule_id, late_ranks=self.late(), job_facts=ON_CPUS, host_load=None)
        assert isinstance(said, Abstain)
        assert "CPUs had to be shared" in said.reason
        assert "ddiag run" in said.capture

    def test_a_crowded_host_of_a_cpu_job_names_nobody(self) -> None:
        load = {"runnable_per_cpu": 3.0, "waiting_share": 0.5}
        (said,) = check(self.rule_id, late_ranks=self.late(), job_facts=ON_CPUS, host_load=load)
        assert isinstance(said, Abstain)
        assert "3.0 threads want to run per CPU" in said.reason

    def test_the_load_of_hosts_says_nothing_of_devices(self) -> None:
        assert the_finding(self.rule_id, late_ranks=self.late(), host_load=None).confidence is Confidence.HIGH
