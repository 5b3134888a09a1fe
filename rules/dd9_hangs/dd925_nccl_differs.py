"""Ranks do not run the same NCCL, or not with the same settings.

## Meaning
An image was changed on one node, a system libnccl shadows the wheel's, nvidia-nccl-cu11 lies beside -cu12, or NCCL_
variables differ between nodes.

## Impact
Init fails, or peers misread each other's messages.

## Diagnosis
`NCCL version` lines and NCCL_ variables by node; `Mismatched NCCL version detected`, `Message truncated`, `connecting
to address with family`. It is there before step 0.

## Mitigation
One image; remove the second library; the same environment everywhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ddiag.model.incident import Event
from ddiag.model.placement import Placement
from ddiag.model.signals_incident import Events, Settings
from ddiag.rulekit import Abstain, Confidence, Culprits, Evidence, Finding, Rule, Severity, State, View
from ddiag.rulekit.proof import lines, name_hosts, shown
from ddiag.rulekit.values import began

RULE = Rule(
    id="DD925",
    root_cause="RC-25",
    needs=(),
    optional=(Events, Settings, Placement),
    capture="NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,ENV logs and pip freeze of all nodes",
    symptom="init error on one node after an image change; Message truncated",
    evidence="NCCL versions or NCCL_ variables that differ between nodes, mismatch texts",
    applies=lambda signals: (
        (
            (events := signals.get(Events)) is not None
            and events.has("nccl.version", "nccl.version_mismatch", "nccl.protocol_mismatch")
        )
        or ((settings := signals.get(Settings)) is not None and bool(settings.of("env") or settings.of("package")))
    ),
)
_MATTERS = (
    "NCCL_ALGO", "NCCL_PROTO", "NCCL_NVLS_ENABLE", "NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "NCCL_IB_DISABLE",
    "NCCL_NET", "NCCL_NET_PLUGIN", "NCCL_CROSS_NIC", "NCCL_MAX_NCHANNELS", "NCCL_MIN_NCHANNELS", "NCCL_BUFFSIZE",
    "NCCL_CUMEM_ENABLE", "NCCL_COLLNET_ENABLE", "NCCL_IB_GID_INDEX", "NCCL_TOPO_FILE",
)  # fmt: skip
"""Variables that all ranks must set alike."""
_FIX = (
    "one image for all nodes; `pip uninstall nvidia-nccl-cu11` where -cu12 is used; no libnccl in LD_LIBRARY_PATH",
    "the same NCCL_ variables on every node: set them in the launcher, not in the nodes' profiles or /etc/nccl.conf",
)
_VERIFY = "python -c 'import torch; print(torch.cuda.nccl.version())' and env | grep NCCL_ are the same on all nodes"


@dataclass(frozen=True)
class Limits:
    nodes_to_judge: int = 3
    """Nodes from which the one that differs is called the odd one."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    events, settings = signals.get(Events) or Events(()), signals.get(Settings)
    mismatch = events.of("nccl.version_mismatch")
    broken = [*mismatch, *events.of("nccl.protocol_mismatch")]
    versions = _versions(events, settings)
    if len(set(versions.values())) > 1 or mismatch:
        yield _version(versions, broken, events, limits)
        return
    differing = _differing(settings)
    if differing:
        yield _variables(differing, broken, settings)
    elif broken:
        yield _unexplained(broken)
    elif (pair := _two_wheels(settings)) is not None:
        yield pair


def _versions(events: Events, settings: Settings | None) -> Mapping[str, str]:
    """Host -> version, for hosts that name one version only: in a log, or of a recorded process."""
    found: dict[str, set[str]] = {}
    loaded = settings.of("package", "nccl") if settings is not None else ()
    told = [(event.host, event.word("version")) for event in events.of("nccl.version")]
    for host, version in (*told, *((one.host, one.value) for one in loaded)):
        if host is not None:
            found.setdefault(host, set()).add(version)
    return {host: next(iter(names)) for host, names in found.items() if len(names) == 1}


def _odd(values: Mapping[str, str], limits: Limits) -> tuple[str, ...]:
    counts = Counter(values.values())
    usual, most = counts.most_common(1)[0] if counts else ("", 0)
    if len(values) < limits.nodes_to_judge or 2 * most <= len(values):
        return ()
    return tuple(host for host, value in values.items() if value != usual)


def _version(versions: Mapping[str, str], broken: Sequence[Event], events: Events, limits: Limits) -> Finding:
    odd = _odd(versions, limits)
    rows = [Evidence(f"NCCL on {host}", version) for host, version in list(versions.items())[:6]]
    names = sorted(set(versions.values())) or ["different versions"]
    who = name_hosts(odd) if odd else "nodes"
    return Finding(
        title=f"{who} load{'s' if len(odd) == 1 else ''} another NCCL than the others ({', '.join(names)})",
        severity=Severity.CRITICAL if broken else Severity.WARNING,
        confidence=Confidence.HIGH,
        culprits=Culprits(hosts=odd),
        evidence=(*rows, *lines("NCCL", broken)),
        fix=_FIX,
        verify=_VERIFY,
        why="NCCL compared the versions" if not versions else "every process prints the version it loaded",
        state=State.CRASHED if broken else State.DEGRADED,
        began_ns=began(broken),
    )


def _differing(settings: Settings | None) -> Mapping[str, Mapping[str, str]]:
    """Variable -> (host -> value), of those that hosts set differently; unset counts where the host sets others."""
    if settings is None:
        return {}
    hosts = {one.host for one in settings.of("env") if one.host is not None and one.key.startswith("NCCL_")}
    found = {}
    for name in _MATTERS:
        values = {one.host: one.value for one in settings.of("env", name) if one.host is not None}
        if values and len(hosts) > 1:
            full = {host: values.get(host, "not set") for host in sorted(hosts)}
            if len(set(full.values())) > 1:
                found[name] = full
    return found


def _variables(
    differing: Mapping[str, Mapping[str, str]], broken: Sequence[Event], settings: Settings | None
) -> Finding:
    name, values = next(iter(differing.items()))
    said = {(one.host, one.key): one for one in (settings.of("env") if settings is not None else ())}
    rows = [
        shown(f"{name} on {host}", said[host, name], value)
        if (host, name) in said
        else Evidence(f"{name} on {host}", value)
        for host, value in list(values.items())[:4]
    ]
    return Finding(
        title=f"nodes set {', '.join(sorted(differing)[:3])} differently",
        severity=Severity.CRITICAL if broken else Severity.INFO if "not set" in values.values() else Severity.WARNING,
        confidence=Confidence.HIGH if broken else Confidence.MEDIUM,
        culprits=Culprits(where=name),
        evidence=(*rows, *lines("NCCL", broken, 2)),
        fix=_FIX[1:],
        verify=_VERIFY,
        why="ranks that choose algorithm, protocol or network differently do not fit together",
        doubt="" if broken else "nothing failed so far",
        state=State.CRASHED if broken else State.DEGRADED,
        began_ns=began(broken),
    )


def _unexplained(broken: Sequence[Event]) -> Finding:
    return Finding(
        title=f"peers do not speak the same protocol: {broken[0].word('said')}",
        severity=Severity.CRITICAL,
        confidence=Confidence.MEDIUM,
        culprits=Culprits(),
        evidence=lines("NCCL", broken),
        fix=_FIX,
        verify=_VERIFY,
        why="messages of another size or kind arrived than were expected",
        doubt="ranks that call different collectives cause `Message truncated` too: compare their calls",
        state=State.CRASHED,
        began_ns=began(broken),
    )


def _two_wheels(settings: Settings | None) -> Finding | None:
    found = [
        one for one in (settings.of("package") if settings is not None else ()) if one.key.startswith("nvidia-nccl-")
    ]
    if len({one.key for one in found}) < 2:
        return None
    return Finding(
        title=f"two NCCL wheels are installed ({', '.join(sorted({one.key for one in found}))})",
        severity=Severity.INFO,
        confidence=Confidence.MEDIUM,
        culprits=Culprits(),
        evidence=tuple(shown(one.key, one) for one in found[:4]),
        fix=_FIX[:1],
        verify=_VERIFY,
        why="both put libnccl.so.2 into the same folder, and the one installed last is loaded",
    )
