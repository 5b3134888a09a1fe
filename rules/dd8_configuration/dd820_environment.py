"""An environment variable does not do what it was set for: misspelt, renamed, not read by this version, or harmful.

## Meaning
Variables are copied from guide to guide. Some exist under another name, some only in later or earlier versions, some
are debugging aids that cost speed or turn time-outs into eternal hangs.

## Impact
What the variable was meant for does not happen, or the job is slower and harder to diagnose.

## Diagnosis
Names and values in the environment against what NCCL and PyTorch read, by version.

## Mitigation
The right name or option, as the finding says. `a=0 && command` does not export: put it before the command or export it.
For Nsight Systems, `nvlink` is no value of `-t`: that needs `nsys profile -t cuda,nvtx --gpu-metrics-devices=all`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from ddiag.model.env_variables import NO_SUCH, PLUGIN_PREFIXES, VARIABLES, Variable, Version
from ddiag.model.incident import Setting
from ddiag.model.signals_incident import Events, Settings
from ddiag.rulekit import Abstain, Confidence, Culprits, Finding, Rule, Severity, View
from ddiag.rulekit.proof import shown
from ddiag.rulekit.transports import TRUE

RULE = Rule(
    id="DD820",
    root_cause="RC-75",
    needs=(Settings,),
    optional=(Events,),
    capture="env | grep -E 'NCCL|TORCH|PYTORCH|CUDA|GLOO' of every rank",
    symptom="a variable was set and nothing changed, or a time-out never comes",
    evidence="names nothing reads, close to a known name, of another version, or values known to harm",
    applies=lambda signals: (settings := signals.get(Settings)) is not None and bool(settings.of("env")),
    explained_by=("DD421", "DD422", "DD927"),
    references=(
        "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html",
        "https://docs.pytorch.org/docs/stable/torch_nccl_environment_variables.html",
    ),
)
_JUDGED = re.compile(r"^(?:NCCL|TORCH_NCCL|TORCH_DISTRIBUTED|TORCH_FR|PYTORCH)_")
_OFF = ("0", "false", "off", "no")
_HARM: tuple[tuple[re.Pattern[str], Callable[[str], bool], str, str, Severity], ...] = (
    (
        re.compile(r"(?:TORCH_)?NCCL_ASYNC_ERROR_HANDLING"),
        lambda value: value in _OFF,
        "a collective that times out hangs for ever",
        "unset it (the default, 3, ends the process)",
        Severity.WARNING,
    ),
    (
        re.compile(r"TORCH_NCCL_ENABLE_MONITORING"),
        lambda value: value in _OFF,
        "a watchdog that is stuck is never noticed",
        "unset it",
        Severity.INFO,
    ),
    (
        re.compile(r"(?:TORCH_)?NCCL_BLOCKING_WAIT"),
        lambda value: value in TRUE,
        "the host waits for every collective, and no watchdog runs",
        "unset it",
        Severity.WARNING,
    ),
    (
        re.compile(r"TORCH_DISTRIBUTED_DEBUG"),
        lambda value: value == "detail",
        "every collective is compared with all ranks first, which is slow and hides races",
        "unset it, or INFO",
        Severity.WARNING,
    ),
    (
        re.compile(r"PYTORCH_NO_CUDA_MEMORY_CACHING"),
        lambda value: value in TRUE,
        "every tensor is a cudaMalloc",
        "unset it",
        Severity.WARNING,
    ),
    (
        re.compile(r"NCCL_SHM_DISABLE"),
        lambda value: value in TRUE,
        "traffic inside the node may go through the network",
        "unset it; enlarge /dev/shm instead",
        Severity.WARNING,
    ),
    (
        re.compile(r"NCCL_P2P_DISABLE"),
        lambda value: value in TRUE,
        "GPUs of a node talk through host memory",
        "unset it, unless peer access is known to be broken on these machines",
        Severity.INFO,
    ),
    (
        re.compile(r"NCCL_IB_DISABLE"),
        lambda value: value in TRUE,
        "nodes talk TCP even where there is RDMA",
        "unset it, unless there is no RDMA network",
        Severity.INFO,
    ),
    (
        re.compile(r"GLOO_SOCKET_IFNAME"),
        lambda value: value[:1] in ("=", "^"),
        "gloo takes the name literally",
        "GLOO_SOCKET_IFNAME=eth0, without = or ^",
        Severity.WARNING,
    ),
    (
        re.compile(r"NCCL_DEBUG"),
        lambda value: value == "trace",
        "a line for every call slows the job",
        "NCCL_DEBUG=WARN",
        Severity.INFO,
    ),
)
"""Which variable, which values, what they do, what to do, how bad."""
_VERIFY = "tr '\\0' '\\n' < /proc/PID/environ | grep NCCL: what the process really got"


@dataclass(frozen=True)
class Limits:
    alike: float = 0.9
    """How much of a name must agree with a known one to be called a slip of the pen."""
    infinite_ib_timeout: int = 32
    """NCCL_IB_TIMEOUT from which (and 0) InfiniBand waits for ever."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    found = {one.key: one for one in reversed(signals[Settings].of("env"))}
    versions = _versions(signals.get(Events), signals[Settings])
    for name in sorted(found):
        one = found[name]
        if name in NO_SUCH:
            yield _no_such(one)
        elif name in VARIABLES:
            yield from _known(one, versions)
        elif (near := _near(name, limits)) is not None:
            yield _misspelt(one, near)
        elif _JUDGED.match(name) and name.startswith(("NCCL_", "TORCH_NCCL_")) and not name.startswith(PLUGIN_PREFIXES):
            yield _unknown(one)
        yield from _harmful(one, limits)


def _versions(events: Events | None, settings: Settings) -> Mapping[str, Version]:
    """Versions in use, where one only is known."""
    nccl = {event.word("version") for event in (events.of("nccl.version") if events is not None else ())}
    nccl |= {one.value for one in settings.of("package", "nccl")}
    torch = {one.value for one in settings.of("package", "torch")}
    named = (("NCCL", nccl), ("TORCH", torch))
    return {name: _numbers(next(iter(known))) for name, known in named if len(known) == 1}


def _numbers(text: str) -> Version:
    return tuple(int(part) for part in re.findall(r"\d{1,6}", text.split("+", 1)[0])[:3])


def _near(name: str, limits: Limits) -> str | None:
    """A known name that *name* is probably meant to be."""
    if not re.match(r"^(?:NCCL|TORCH|PYTORCH|CUDA|GLOO)_", name) or name.startswith(PLUGIN_PREFIXES):
        return None
    close = difflib.get_close_matches(name, VARIABLES, n=1, cutoff=limits.alike)
    return close[0] if close else None


def _finding(title: str, one: Setting, fix: str, why: str, severity: Severity, confidence: Confidence) -> Finding:
    return Finding(
        title=title,
        severity=severity,
        confidence=confidence,
        culprits=Culprits(modules=(one.key,), where=f"{one.key}={one.value}"),
        evidence=(shown(one.key, one),),
        fix=(fix,),
        verify=_VERIFY,
        why=why,
    )


def _no_such(one: Setting) -> Finding:
    title = f"{one.key} is read by nothing"
    why = "neither NCCL's nor PyTorch's sources read this name"
    return _finding(title, one, NO_SUCH[one.key], why, Severity.INFO, Confidence.HIGH)


def _misspelt(one: Setting, near: str) -> Finding:
    title = f"{one.key} is read by nothing: {near} is probably meant"
    return _finding(
        title, one, f"export {near}={one.value}", "it is a letter or two from it", Severity.WARNING, Confidence.MEDIUM
    )


def _unknown(one: Setting) -> Finding:
    return _finding(
        f"{one.key} is not a variable of NCCL or PyTorch that ddiag knows",
        one,
        "look it up in the documentation of the version in use, or remove it",
        "it is in neither documentation; a plugin or a newer version may read it",
        Severity.INFO,
        Confidence.LOW,
    )


def _known(one: Setting, versions: Mapping[str, Version]) -> Iterator[Finding]:
    """Renamed, or not read by the version in use."""
    variable = VARIABLES[one.key]
    version = versions.get("NCCL" if one.key.startswith("NCCL_") else "TORCH", ())
    words = ".".join(map(str, version))
    if version and variable.until and version >= variable.until:
        fix = f"use {variable.instead}" if variable.instead else f"remove {one.key}"
        title = f"{one.key} is no longer read by version {words}"
        yield _finding(title, one, fix, "it was removed earlier", Severity.INFO, Confidence.HIGH)
    elif version and variable.since and version < variable.since:
        needs = ".".join(map(str, variable.since))
        title = f"{one.key} needs version {needs}, {words} does not read it"
        yield _finding(
            title, one, f"upgrade to {needs}, or do without", "it came later", Severity.INFO, Confidence.HIGH
        )
    elif variable.instead and not variable.until and _renamed(variable, versions):
        title = f"{one.key} is an old name"
        yield _finding(title, one, f"use {variable.instead}", "it was renamed", Severity.INFO, Confidence.HIGH)


def _renamed(variable: Variable, versions: Mapping[str, Version]) -> bool:
    """``… (from torch 2.2 on)``: whether that version is in use. Unknown, only what moved to torch long ago is told."""
    match = re.search(r"from (\w+) ([\d.]+) on", variable.instead)
    if match is None:
        return True
    version = versions.get(match[1].upper())
    if version is None:
        return variable.name.startswith("NCCL_") and match[1] == "torch"
    return version >= _numbers(match[2])


def _harmful(one: Setting, limits: Limits) -> Iterator[Finding]:
    value = one.value.strip().lower()
    for name, bad, does, fix, severity in _HARM:
        if name.fullmatch(one.key) and bad(value):
            yield _finding(f"{one.key}={one.value}: {does}", one, fix, "this value does so", severity, Confidence.HIGH)
    if one.key == "NCCL_IB_TIMEOUT" and value.isdigit() and not 0 < int(value[:9]) < limits.infinite_ib_timeout:
        does = "InfiniBand waits for ever for a lost peer"
        fix = "NCCL_IB_TIMEOUT=22 at most"
        yield _finding(f"{one.key}={one.value}: {does}", one, fix, does, Severity.WARNING, Confidence.HIGH)
