"""NVSwitch is not ready: the fabric manager does not run or does not match the driver, so NVLink multicast fails.

## Meaning
On machines with NVSwitch the fabric manager sets up the switches. While it is down, of another version than the driver,
or was restarted without a reset of the GPUs, CUDA says 802 (system not yet initialized) and NCCL's NVLS fails with 401.

## Impact
No job starts on that node.

## Diagnosis
`Cuda failure 401` or `802` at transport/nvls.cc, `nvidia-smi -q` Fabric state not Completed, the service failed.

## Mitigation
Start the fabric manager of the driver's version, then reset the GPUs; NCCL_NVLS_ENABLE=0 to get by.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ddiag.model.incident import Event, NodeFact
from ddiag.model.placement import Placement
from ddiag.model.signals_incident import Events, NodeFacts
from ddiag.rulekit import Abstain, Confidence, Culprits, Evidence, Finding, Rule, Severity, State, View
from ddiag.rulekit.proof import hosts_among, lines, name_hosts, shown
from ddiag.rulekit.values import began

RULE = Rule(
    id="DD915",
    root_cause="RC-15",
    needs=(),
    optional=(Events, NodeFacts, Placement),
    capture="nvidia-smi -q, systemctl status nvidia-fabricmanager, and the log with NCCL_DEBUG=WARN",
    symptom="CUDA error 802: system not yet initialized, or NCCL fails in nvls.cc after a driver update",
    evidence="Cuda failure 401 or 802 in nvls.cc; Fabric state not Completed; fabric manager failed",
    applies=lambda signals: (
        (
            (events := signals.get(Events)) is not None
            and events.has("nccl.cuda_failure", "gpu.cuda_hardware_error", "nccl.imex")
        )
        or (
            (facts := signals.get(NodeFacts)) is not None
            and bool(facts.of("gpu.fabric.state", "service.state", "service.version"))
        )
    ),
    explained_by=("DD934", "DD907"),
)
_READY = ("Completed", "N/A", "Not Supported")
_FIX = (
    "install and start the fabric manager of exactly the driver's version: systemctl restart nvidia-fabricmanager",
    "reset the GPUs after it (nvidia-smi -r with no process on them) or reboot the node",
    "NCCL_NVLS_ENABLE=0 to run without NVLink multicast until then",
)
_VERIFY = "nvidia-smi -q | grep -A2 Fabric shows Completed and Success on every GPU; all_reduce_perf runs on the node"


@dataclass(frozen=True)
class Limits:
    invalid_argument: int = 1
    """CUDA's code that has many reasons; with it alone, without the state of the fabric, confidence is low."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    events, facts, placement = signals.get(Events) or Events(()), signals.get(NodeFacts), signals.get(Placement)
    failed = [event for event in events.of("nccl.cuda_failure") if _of_fabric(event)]
    failed += [event for event in events.of("gpu.cuda_hardware_error") if event.get("what") == "not_initialized"]
    state = _unready(facts)
    imex = events.of("nccl.imex")
    if failed:
        vague = all(event.integer("code") == limits.invalid_argument for event in failed)
        if vague and not state:
            yield Abstain(
                "NVLS failed with 'invalid argument', which mixed CUDA versions and MIG cause as well",
                RULE.capture,
            )
            return
        yield _finding(failed, state, placement, stopped=True)
    elif imex:
        yield _finding(list(imex), state, placement, stopped=True)
    elif state:
        yield _finding([], state, placement, stopped=False)


def _of_fabric(event: Event) -> bool:
    code, where = event.integer("code"), event.word("where")
    return code == 802 or "not yet initialized" in event.word("message") or "nvls" in where


def _unready(facts: NodeFacts | None) -> list[NodeFact]:
    """Fabric states other than done, a service that is not running, a version other than the driver's."""
    if facts is None:
        return []
    found = [f for f in facts.of("gpu.fabric.state") if not f.text.startswith(_READY)]
    waits = bool(found)
    for fact in facts.of("service.state"):
        bad = fact.text.endswith(" failed") or (fact.text.endswith(" inactive") and waits)
        if "fabricmanager" in fact.text and bad:
            found.append(fact)
    drivers = {fact.text for fact in facts.of("gpu.driver_version")}
    for fact in facts.of("service.version"):
        version = fact.text.rsplit(" ", 1)[-1]
        if drivers and version not in drivers:
            found.append(fact)
    return found


def _finding(
    failed: Sequence[Event], state: Sequence[NodeFact], placement: Placement | None, *, stopped: bool
) -> Finding:
    hosts = hosts_among([*failed, *state], placement)
    rows: tuple[Evidence, ...] = tuple(shown(fact.key, fact) for fact in _distinct(state)[:4])
    says = failed[0].word("message") if failed and failed[0].get("message") else "the NVLink fabric is not ready"
    return Finding(
        title=f"NVSwitch of {name_hosts(hosts)} is not set up: {says}",
        severity=Severity.CRITICAL if stopped else Severity.WARNING,
        confidence=Confidence.HIGH if state else Confidence.MEDIUM,
        culprits=Culprits(hosts=hosts, where="nvidia-fabricmanager"),
        evidence=(*lines("error", failed), *rows),
        fix=_FIX,
        verify=_VERIFY,
        why="the error is of the fabric" + (", and its state or service says so too" if state else ""),
        doubt="" if state else "the state of fabric and service was not given: nvidia-smi -q, systemctl status",
        state=State.CRASHED if stopped else State.DEGRADED,
        began_ns=began(failed),
    )


def _distinct(facts: Sequence[NodeFact]) -> list[NodeFact]:
    return list({(fact.key, fact.text, fact.host): fact for fact in facts}.values())
