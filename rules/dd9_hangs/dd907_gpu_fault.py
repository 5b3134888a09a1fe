"""A GPU broke: it fell off the bus, its memory failed, or its firmware does not answer.

## Meaning
The driver reports a fault of the board itself (Xid 48, 62, 64, 79, 94, 95, 119, 120, …), nvidia-smi has lost it, or its
memory waits for a reset. What the training processes print afterwards is the echo.

## Impact
The rank on that GPU dies or hangs in the driver, and all others wait for it until their timeout.

## Diagnosis
Xid lines of the kernel log by board. Xid 13, 31, 43 and 45 are no proof: they come from the program, or after another
fault; only when they follow one board from process to process is the board suspected. `lspci` showing `(rev ff)` and
`nvidia-smi` that cannot determine the device say the same as Xid 79.

## Mitigation
Drain the node. Reset the GPU or reboot after 48, 63 and 94; replace it after 64, repeated 95 or growing remaps; check
power, riser and slot after 79; newer driver, or no GSP firmware, after 119 and 120.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ddiag.model.incident import Event, NodeFact
from ddiag.model.placement import Placement
from ddiag.model.signals_incident import Events, NodeFacts
from ddiag.model.xids import HARDWARE
from ddiag.rulekit import Abstain, Confidence, Culprits, Evidence, Finding, Rule, Severity, State, View
from ddiag.rulekit.faults import (
    Board,
    actions,
    assumed_words,
    before_the_job,
    boards,
    codes_in_words,
    culprits,
    hardware_boards,
    repeating_board,
    with_nature,
)
from ddiag.rulekit.proof import hosts_among, lines, name_hosts, shown
from ddiag.rulekit.values import began, ranks_of

_SEEN = ("gpu.diag", "kernel.xid", "kernel.gpu_lost", "gpu.smi_error", "gpu.cuda_hardware_error")
_FACTS = (
    *("gpu.ecc.remap_failed", "gpu.ecc.remap_pending", "gpu.ecc.retired_pending", "gpu.ecc.uncorrectable_new"),
    "pcie.gone",
)
_DRAIN = "drain the node: `scontrol update nodename=NODE state=drain reason=gpu`, `kubectl cordon NODE`"

RULE = Rule(
    id="DD907",
    root_cause="RC-07",
    needs=(),
    optional=(Events, NodeFacts, Placement),
    capture="dmesg -T of every node and nvidia-smi -q from the time of the failure",
    symptom="the job hangs, nvidia-smi hangs or shows ERR! or Unknown Error, CUDA error: uncorrectable ECC error",
    evidence="Xid 48, 62, 64, 79, 94, 95, 119, 120 … on one board, a lost GPU, a failed row remap",
    applies=lambda signals: (
        ((events := signals.get(Events)) is not None and events.has(*_SEEN))
        or ((facts := signals.get(NodeFacts)) is not None and bool(facts.of(*_FACTS)))
    ),
    references=("https://docs.nvidia.com/deploy/xid-errors/",),
)


@dataclass(frozen=True)
class Limits:
    most_boards_named: int = 8
    """More boards than this at once are a matter of the platform (power, firmware), and are counted, not named."""
    old_hours: float = 24.0
    """Faults so long before the job's first line were another job's, and a reset since then may have cured them."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    events = signals.get(Events) or Events(())
    placement, facts = signals.get(Placement), signals.get(NodeFacts)
    hard = hardware_boards(events)
    old = before_the_job(hard, events, limits.old_hours)
    repeating = repeating_board(events)
    if hard:
        recent = tuple(board for board in hard if board not in old)
        yield _boards(recent or hard, events, placement, limits, past=not recent)
    elif events.has("kernel.gpu_lost") or _lost(events):
        yield _gone(events, placement)
    elif any(event.get("what") in ("ecc", "contained", "lost") for event in events.of("gpu.cuda_hardware_error")):
        yield _by_cuda(events, placement)
    elif repeating is not None:
        yield _repeating(repeating, placement)
    yield from _memory(events, facts, placement)
    yield from _diagnosed(events, placement)


def _diagnosed(events: Events, placement: Placement | None) -> Iterator[Finding]:
    """Tests of `dcgmi diag` that failed."""
    failed = [event for event in events.of("gpu.diag") if event.get("result") == "fail"]
    if not failed:
        return
    indices = {part.strip() for event in failed for part in event.word("gpu").split(",") if part.strip().isdigit()}
    hosts = hosts_among(failed, placement)
    names = tuple(dict.fromkeys(event.word("test") for event in failed))
    yield Finding(
        title=f"dcgmi diag fails on {name_hosts(hosts)}: {', '.join(names[:4])}",
        severity=Severity.WARNING,
        confidence=Confidence.MEDIUM,
        culprits=Culprits(hosts=hosts, devices=tuple(f"gpu{index}" for index in sorted(indices))),
        evidence=lines("dcgmi", failed),
        fix=(_DRAIN, "read the detail below each failed test; reset or replace the GPU it names"),
        verify="dcgmi diag -r 3 passes on the node",
        why="the vendor's test of the hardware failed",
        doubt="tests of software and settings (persistence mode, environment) fail without a fault of the board",
    )


def _boards(
    hard: Sequence[Board], events: Events, placement: Placement | None, limits: Limits, *, past: bool
) -> Finding:
    codes = tuple(dict.fromkeys(code for board in hard for code in board.codes))
    named = culprits(hard, placement)
    seen = tuple(event for board in hard for event in board.events)
    where = ", ".join(named.devices[: limits.most_boards_named]) or "a GPU"
    many = len(hard) > limits.most_boards_named
    ports = tuple(event for event in events.of("kernel.aer"))
    on = f" on {name_hosts(named.hosts)}" if named.hosts and not named.ranks else ""
    return Finding(
        title=f"{f'{len(hard)} GPUs' if many else where}{on}: {codes_in_words(codes[:3])}",
        severity=Severity.WARNING if past else Severity.CRITICAL,
        confidence=Confidence.MEDIUM if past else Confidence.HIGH,
        culprits=named,
        evidence=(*lines("kernel", seen), *lines("PCIe errors before it", ports, 2)),
        fix=(_DRAIN, *actions(codes)),
        verify="dmesg -T | grep -E 'Xid|AER' stays empty under load; dcgmi diag -r 3 passes on the node",
        why="the driver names the board, and these codes are faults of the hardware or its firmware",
        doubt="it happened long before this job began; a reset may have cured it"
        if past
        else assumed_words(hard, placement),
        state=State.DEGRADED if past else State.CRASHED,
        began_ns=began(seen),
    )


def _lost(events: Events) -> bool:
    return any(event.get("what") in ("lost", "unknown_error", "err") for event in events.of("gpu.smi_error"))


def _gone(events: Events, placement: Placement | None) -> Finding:
    seen = (
        *events.of("kernel.gpu_lost"),
        *(e for e in events.of("gpu.smi_error") if e.get("what") != "driver_mismatch"),
    )
    found = {(event.host, event.word("bus_id")) for event in seen if event.word("bus_id")}
    named = culprits([Board(host, bus, ()) for host, bus in sorted(found, key=str)], placement)
    hosts = named.hosts or hosts_among(seen, placement)
    return Finding(
        title=f"{', '.join(named.devices) or 'a GPU'} on {name_hosts(hosts)} cannot be reached any more",
        severity=Severity.CRITICAL,
        confidence=Confidence.HIGH if named.devices else Confidence.MEDIUM,
        culprits=Culprits(named.ranks if named.devices else (), hosts, named.devices),
        evidence=lines("driver", seen),
        fix=(_DRAIN, "power-cycle the node; reseat the GPU when it comes back lost; replace it when it repeats"),
        verify="nvidia-smi lists all GPUs; dcgmi diag -r 3 passes on the node",
        why="the driver or nvidia-smi lost the device, which no program causes",
        doubt="" if named.devices else "no line names the device",
        state=State.CRASHED,
        began_ns=began(seen),
    )


def _by_cuda(events: Events, placement: Placement | None) -> Finding:
    seen = [e for e in events.of("gpu.cuda_hardware_error") if e.get("what") in ("ecc", "contained", "lost")]
    ranks = ranks_of(seen)
    return Finding(
        title=f"CUDA reports a fault of the GPU: {seen[0].word('message')}",
        severity=Severity.CRITICAL,
        confidence=Confidence.HIGH if seen[0].get("what") == "ecc" else Confidence.MEDIUM,
        culprits=Culprits(ranks=ranks, hosts=hosts_among(seen, placement)),
        evidence=lines("error", seen),
        fix=(_DRAIN, "read dmesg for Xid 48, 63, 64, 94, 95; reset the GPU, replace it when errors repeat"),
        verify="nvidia-smi -q -d ECC,ROW_REMAPPER: nothing pending, no failure; dcgmi diag -r 3 passes",
        why="CUDA raises this error for faults of the device only",
        doubt="without dmesg the board is known by its rank alone",
        state=State.CRASHED,
        began_ns=began(seen),
    )


def _repeating(board: Board, placement: Placement | None) -> Finding:
    named = culprits([board], placement)
    pids = {event.integer("pid") for event in board.events}
    return Finding(
        title=f"{', '.join(named.devices) or 'one GPU'} fails process after process ({len(pids)}), no other GPU does",
        severity=Severity.CRITICAL,
        confidence=Confidence.MEDIUM,
        culprits=named,
        evidence=lines("kernel", board.events),
        fix=("run the same job with this GPU's node excluded; dcgmi diag -r 3 on it", _DRAIN),
        verify="the error follows the board to another job (hardware) or the job to another board (program)",
        why=f"{codes_in_words(board.codes)} usually comes from the program, but then other boards have it as well",
        doubt="a rank that alone runs other code than its peers looks the same",
        state=State.CRASHED,
        began_ns=began(board.events),
    )


def _memory(events: Events, facts: NodeFacts | None, placement: Placement | None) -> Iterator[Finding]:
    """Memory rows that wait for a reset, could not be remapped, or a device that answers with ones."""
    bad = [fact for fact in (facts.of(*_FACTS) if facts is not None else ()) if (fact.number or 0) >= 1]
    stopping = {board.bus_id for board in hardware_boards(events)}
    bad = [fact for fact in bad if _bus(fact, placement) not in stopping]
    waiting = [b for b in with_nature(boards(events), HARDWARE) if b.bus_id not in stopping]
    if not bad and not waiting:
        return
    seen: list[Event | NodeFact] = [*bad, *(event for board in waiting for event in board.events)]
    known = [Board(fact.host, _bus(fact, placement), ()) for fact in bad if fact.device]
    named = culprits([*known, *waiting], placement)
    worst = any(fact.key in ("gpu.ecc.remap_failed", "pcie.gone") for fact in bad)
    only_watch = not bad and all(code == 92 for board in waiting for code in board.codes)
    hosts = named.hosts or hosts_among(seen, placement)
    what = "is gone or could not retire a memory row" if worst else "has memory errors to be retired at the next reset"
    yield Finding(
        title=f"{', '.join(named.devices) or 'a GPU'} on {name_hosts(hosts)} {what}",
        severity=Severity.CRITICAL if worst else Severity.INFO if only_watch else Severity.WARNING,
        confidence=Confidence.HIGH,
        culprits=Culprits(named.ranks, hosts, named.devices),
        evidence=tuple(_row(one) for one in seen[:6]),
        fix=(_DRAIN, "nvidia-smi --gpu-reset -i INDEX or reboot; replace the GPU when a remap failed or they grow"),
        verify="nvidia-smi --query-remapped-rows=gpu_bus_id,remapped_rows.pending,remapped_rows.failure --format=csv",
        why="the GPU's own counters say so",
        state=State.CRASHED if worst else State.DEGRADED,
        began_ns=began(one for one in seen if isinstance(one, Event)),
    )


def _bus(fact: NodeFact, placement: Placement | None) -> str | None:
    return placement.bus(fact.host, fact.device) if placement is not None else fact.device


def _row(one: Event | NodeFact) -> Evidence:
    return shown(f"{one.key} of {one.device}" if isinstance(one, NodeFact) else "kernel", one)
