"""Diagnoses worth showing: healthy, one rank input-bound, a late rank of eight, a thousand ranks, hostile text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from ddiag.model.run import Coverage, InputFile, Run
from ddiag.model.signals import Signals
from ddiag.reporters.html import HtmlReporter
from ddiag.rulekit.diagnosis import Diagnosis, Status, Verdict
from ddiag.rulekit.finding import Abstention, Confidence, Cost, Culprits, Evidence, Finding, Role, Severity
from tests.builders import RunBuilder
from tests.factories import make_signals

STEP_MS = 200.0
CHECKED = ("DD101", "DD102", "DD201", "DD401", "DD502", "DD601", "DD1001")
HOSTILE = "</script><script>hacked=1</script>\"'><img src=x onerror=hacked=1>&amp;\u2028\u2029\x07{{ 7*7 }}"
"""Text that would break out of HTML text, an attribute, a script, JSON or a template."""


@dataclass(frozen=True)
class Case:
    diagnosis: Diagnosis
    signals: Signals
    run: Run

    def html(self) -> str:
        return HtmlReporter(generated_at="2025-11-30 07:00 UTC").render(self.diagnosis, self.signals, self.run)


def make_finding(**changed: Any) -> Finding:
    """Rank 7's input is late, critical."""
    healthy: dict[str, Any] = {
        "rule": "DD502",
        "root_cause": "RC-43",
        "title": "rank 7 arrives last because its input is late; the others wait 58.0 ms per step (29%)",
        "severity": Severity.CRITICAL,
        "confidence": Confidence.HIGH,
        "culprits": Culprits(ranks=(7,), hosts=("node-b",), where="train.py:88 in next_batch"),
        "victims": tuple(range(7)),
        "cost": Cost(ms_per_step=58.0, step_share=0.29, gpu_hours=55.7),
        "evidence": (
            Evidence("arrives last", "195 of 200", "collectives", None, "shortest duration of the call"),
            Evidence("waiting", 0.29, "of step", 0.05, "mean over ranks"),
            Evidence("input wait", 60.123, "ms/step", 10.0, "loader spans of rank 7"),
        ),
        "fix": ("`num_workers=8` for the loader of rank 7", "check the CPU limit of node-b"),
        "verify": "`ddiag analyze NEW_TRACES` shows the same input wait on every rank",
        "why": "its collectives are the shortest of all ranks",
        "doubt": "all ranks waiting for input at once",
        "references": ("https://pytorch.org/docs/stable/data.html",),
    }
    return Finding(**{**healthy, **changed})


def consequence(**changed: Any) -> Finding:
    """The exposed communication that the late rank explains."""
    given = {
        "rule": "DD402",
        "root_cause": "RC-51",
        "title": "31% of communication is exposed",
        "severity": Severity.WARNING,
        "culprits": Culprits(groups=("0",)),
        "victims": (),
        "role": Role.CONSEQUENCE,
        "explained_by": "DD502",
        "fix": ("raise `bucket_cap_mb`",),
        **changed,
    }
    return make_finding(**given)


def make_diagnosis(findings: Sequence[Finding] = (), *, ranks: int = 8, **changed: Any) -> Diagnosis:
    """A diagnosis of *findings*; healthy without any."""
    status = Status.DEGRADED if findings else Status.HEALTHY
    headline = findings[0].title + "." if findings else "No problem found by 7 rules over 8 ranks."
    files = tuple(InputFile(f"traces/rank{r}.json.gz", "kineto", 12_000_000, r, 123_456) for r in range(ranks))
    given = {
        "verdict": Verdict(status, headline, findings[0].rule if findings else None),
        "findings": tuple(findings),
        "abstentions": (
            Abstention("DD603", ("Memory",), "profile with `profile_memory=True`", "memory grows from step to step"),
        ),
        "coverage": Coverage(inputs=files, ranks_seen=tuple(range(ranks)), ranks_expected=tuple(range(ranks))),
        "rules_checked": CHECKED,
        "ddiag_version": "0.1.0",
        **changed,
    }
    return Diagnosis(**given)


def busy_run(ranks: int = 8, steps: int = 5, *, kernel: str = "ampere_bf16_gemm_128x64", per_step: int = 40) -> Run:
    """Kernels, copies and synchronisations that fit the factories' 200 ms steps."""
    story = RunBuilder(world_size=ranks)
    for rank in range(ranks):
        story.rank(rank)
        for step in range(steps):
            start = step * STEP_MS
            story.copy("h2d", start + 5, 0.6)
            for k in range(per_step):
                story.kernel(kernel, start + 8 + k * 4, 3.6)
            story.api("cudaStreamSynchronize", start + 190, 6.0)
    return story.build()


def healthy_case() -> Case:
    return Case(make_diagnosis(), make_signals(), busy_run())


def late_rank_case(findings: Sequence[Finding] | None = None) -> Case:
    """Rank 7 of 8 waits for input and everybody waits for rank 7."""
    waits = {**dict.fromkeys(range(7), 58.0), 7: 1.0}
    signals = make_signals(
        late_ranks={"late": {"rank": 7, "cause": "input", "input_ms": 56.0}},
        input_wait={"stall_by_rank": {7: 60.0}},
        step_budget={"comm_wait_ms": waits, "input_ms": {7: 60.0}},
    )
    given = (make_finding(), consequence()) if findings is None else findings
    return Case(make_diagnosis(given), signals, busy_run())


def input_bound_case() -> Case:
    """One rank, 40 steps, half of each in the loader."""
    finding = make_finding(
        rule="DD101",
        title="input pipeline stalls the device for 90.0 ms per step (45%)",
        culprits=Culprits(where="DataLoader"),
        victims=(),
    )
    signals = make_signals(job_facts={"ranks": (0,)}, steps=40, input_wait={"stall_ms": 90.0, "wait_ms": 95.0})
    return Case(make_diagnosis((finding,), ranks=1), signals, busy_run(ranks=1, steps=40))


def thousand_rank_case(steps: int = 50) -> Case:
    """Rank 613 of 1,024 computes longer."""
    ranks = tuple(range(1024))
    host_of = {rank: f"node-{rank // 8:03d}" for rank in ranks}
    waits = {**{rank: 58.0 - rank % 7 for rank in ranks}, 613: 1.0}
    signals = make_signals(
        steps=steps,
        job_facts={"ranks": ranks, "host_of": host_of, "hosts": tuple(sorted(set(host_of.values())))},
        late_ranks={"late": {"rank": 613, "cause": "compute", "compute_ms": 56.0}},
        step_budget={"comm_wait_ms": waits},
        collectives={"count_per_step": 2},
    )
    finding = make_finding(
        rule="DD501",
        title="rank 613 arrives last because it computes longer",
        culprits=Culprits(ranks=(613,), hosts=("node-076",)),
        victims=tuple(rank for rank in ranks if rank != 613),
    )
    return Case(make_diagnosis((finding,), ranks=1024), signals, Run({}, Coverage()))


def hostile_case() -> Case:
    """Every text that can come from evidence is :data:`HOSTILE`."""
    culprits = Culprits(
        ranks=(1,), hosts=(HOSTILE,), devices=(HOSTILE,), groups=(HOSTILE,), modules=(HOSTILE,), where=HOSTILE
    )
    finding = make_finding(
        title=HOSTILE,
        culprits=culprits,
        evidence=(Evidence(HOSTILE, HOSTILE, HOSTILE, HOSTILE, HOSTILE),),
        fix=(HOSTILE, f"`{HOSTILE}`"),
        verify=HOSTILE,
        why=HOSTILE,
        doubt=HOSTILE,
        references=(HOSTILE, "javascript:alert(1)"),
    )
    coverage = Coverage(
        inputs=(InputFile(HOSTILE, HOSTILE, 1, 0, 1, 0, HOSTILE),), unreadable=((HOSTILE, HOSTILE),), notes=(HOSTILE,)
    )
    plain = make_signals()
    tables: dict[str, Any] = {
        "collectives": {"table": _renamed(plain, "Collectives"), "summary": _renamed(plain, "Collectives", "summary")},
        "kernel_mix": {"top": _renamed(plain, "KernelMix", "top", "name")},
        "links": {"table": _renamed(plain, "Links")},
    }
    facts = {"hosts": (HOSTILE, "b"), "host_of": dict.fromkeys(range(8), HOSTILE), "device_names": (HOSTILE,)}
    signals = make_signals(job_facts=facts, input_wait={"iterator": HOSTILE}, **tables)
    diagnosis = make_diagnosis(
        (finding,), coverage=coverage, abstentions=(Abstention("DD603", (HOSTILE,), HOSTILE, HOSTILE),)
    )
    return Case(diagnosis, signals, busy_run(kernel=HOSTILE))


def _renamed(signals: Signals, family: str, table: str = "table", column: str = "group") -> Any:
    found = next(value for kind, value in signals.families.items() if kind.__name__ == family)
    return getattr(found, table).with_columns(pl.lit(HOSTILE).alias(column))
