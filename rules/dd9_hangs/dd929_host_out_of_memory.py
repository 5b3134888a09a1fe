"""The kernel or the cgroup killed a worker for want of host memory.

## Meaning
SIGKILL without any word of the process: the out-of-memory killer of the kernel, of the job's cgroup or of the kubelet.
Frequent while a checkpoint is loaded by every rank at once, with CPU offload, and with loader workers that grow.

## Impact
The rank is gone without a traceback; the others time out minutes later.

## Diagnosis
Exit code -9 (137), and dmesg "Killed process", a cgroup's oom-kill or OOMKilled for that pid or node. A scheduler's end
comes with SIGTERM first.

## Mitigation
Load less at once, offload less, fewer loader workers, or more memory for the job.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ddiag.model.incident import Event
from ddiag.model.signals import JobFacts
from ddiag.model.signals_incident import Death, Deaths, Events
from ddiag.rulekit import Abstain, Confidence, Evidence, Finding, Rule, Severity, State, View, human_bytes
from ddiag.rulekit.death_finding import began_ns, culprits, evidence, victims, who

RULE = Rule(
    id="DD929",
    root_cause="RC-29",
    needs=(Deaths,),
    optional=(Events, JobFacts),
    capture="dmesg -T of the node, memory.events of the job's cgroup, sacct -o State,ExitCode,MaxRSS",
    symptom="exitcode -9, Killed, return code = -9, OOMKilled; no traceback",
    evidence="SIGKILL that no launcher or scheduler sent; the kernel's oom-kill line for that pid",
    applies=lambda signals: (
        (deaths := signals.get(Deaths)) is not None and any(map(_ours, deaths.first)) and not deaths.preempted
    ),
)
_PROOF = ("kernel.oom_killer", "slurm.oom_kill", "k8s.pod_ended", "ray.oom_kill")
_LOADING = ("checkpoint_load",)


@dataclass(frozen=True)
class Limits:
    """A kill is one; there is nothing to set."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    deaths, events = signals[Deaths], signals.get(Events) or Events(())
    first = [death for death in deaths.first if _ours(death)]
    if deaths.ordered and not _ours(deaths.first[0]):
        return
    for one in _told_apart(first):
        yield _finding(one, deaths, events, signals.get(JobFacts))


def _ours(death: Death) -> bool:
    return death.cause == "host_oom" or (death.cause == "signal" and death.what == "killed by SIGKILL")


def _told_apart(first: Sequence[Death]) -> list[list[Death]]:
    """One finding per host; a host that is not known is one."""
    found: dict[str | None, list[Death]] = {}
    for death in first:
        found.setdefault(death.host, []).append(death)
    return list(found.values())


def _finding(first: Sequence[Death], deaths: Deaths, events: Events, facts: JobFacts | None) -> Finding:
    shown = [event for death in first for event in death.events if event.kind in _PROOF]
    proven = any(death.cause == "host_oom" for death in first)
    loading = [e for e in events.of("log.phase", "trainer.slow_load") if _loads(e)]
    guilty = culprits(first)
    sure = proven and deaths.ordered
    return Finding(
        title=f"{who(first[0])} was killed (SIGKILL) {_why_in_words(first[0], shown, loading)}"[:200],
        severity=Severity.CRITICAL,
        confidence=Confidence.HIGH if sure else Confidence.MEDIUM,
        culprits=guilty,
        victims=victims(deaths, facts, guilty.ranks),
        evidence=(
            *evidence(first, deaths),
            *(
                Evidence("resident memory at the kill", human_bytes(rss))
                for e in shown
                if (rss := e.integer("rss_bytes"))
            ),
            *(Evidence("meanwhile", e.text[:160], "", None, e.source) for e in loading[-1:]),
        ),
        fix=_fix(events, loading=bool(loading)),
        verify="dmesg -T | grep -iE 'oom-kill|Killed process' stays empty; memory.events of the cgroup: oom_kill 0",
        why="the kernel says so"
        if shown
        else "nobody else is seen to have sent the signal: no time limit, no preemption, no launcher",
        doubt="" if sure else _doubt(first),
        state=State.CRASHED,
        began_ns=began_ns(first),
    )


def _doubt(first: Sequence[Death]) -> str:
    """What a kill that nobody proves may be; DeepSpeed names the process that it started last."""
    last = any(event.integer("last_started") is not None for death in first for event in death.events)
    other = "; DeepSpeed prints the command of the last process it started, so the rank may be another" if last else ""
    return f"a person or a node agent may have sent SIGKILL; dmesg of the node decides{other}"


def _loads(event: Event) -> bool:
    return event.kind == "trainer.slow_load" or event.word("phase") in _LOADING


def _why_in_words(death: Death, shown: Sequence[Event], loading: Sequence[Event]) -> str:
    if shown and shown[0].kind == "ray.oom_kill":
        return "by Ray: its node was nearly out of memory"
    if shown:
        return "by the out-of-memory killer" if shown[0].kind.startswith("kernel") else "for exceeding its memory limit"
    if death.events and death.events[0].kind == "python.exception":
        return f"or lost a loader worker that way: {death.what}"
    if death.cause == "host_oom":
        return "while the host's memory was nearly full"
    return "while loading a checkpoint" if loading else "and left no word: out of host memory, most likely"


def _fix(events: Events, *, loading: bool) -> tuple[str, ...]:
    load = (
        "low_cpu_mem_usage=True, zero.Init or fsdp_cpu_ram_efficient_loading: true: not every rank loads the whole "
        "checkpoint",
    )
    offload = ("CPU offload needs 16-18 bytes per parameter and node: ratio below 1, NVMe, or fewer ranks per node",)
    first = load if loading else offload if events.has("ds.host_memory", "ds.optimizer") else load
    return (
        *first,
        "fewer DataLoader workers, smaller prefetch_factor, numpy or shared memory instead of lists of Python objects",
        "raise the job's memory limit (Slurm --mem, Kubernetes resources.limits.memory), or use nodes with more memory",
    )
