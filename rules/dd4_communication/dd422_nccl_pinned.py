"""NCCL's algorithm, protocol or channels are pinned by environment variables.

## Meaning
NCCL chooses algorithm (ring, tree, NVLS), protocol (LL, LL128, Simple) and channels by message size and topology.
Pinned, often from an old recipe, one choice serves all sizes.

## Impact
Small messages take several times longer (Simple), or large ones do not fill the links (LL, few channels).

## Diagnosis
NCCL_ALGO, NCCL_PROTO, NCCL_MIN_NCHANNELS, NCCL_MAX_NCHANNELS, NCCL_BUFFSIZE and their like `set by environment`.

## Mitigation
Unset them and measure again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddiag.model.incident import Setting
from ddiag.model.signals_incident import Events, Settings
from ddiag.rulekit import Abstain, Confidence, Culprits, Finding, Rule, Severity, View
from ddiag.rulekit.proof import lines, shown

_PINS = (
    "NCCL_ALGO", "NCCL_PROTO", "NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS", "NCCL_MIN_NRINGS", "NCCL_MAX_NRINGS",
    "NCCL_MIN_CTAS", "NCCL_MAX_CTAS", "NCCL_NTHREADS", "NCCL_BUFFSIZE", "NCCL_RINGS", "NCCL_TREE_THRESHOLD",
    "NCCL_LL_THRESHOLD", "NCCL_THREAD_THRESHOLDS", "NCCL_GRAPH_FILE", "NCCL_P2P_NET_CHUNKSIZE",
)  # fmt: skip

RULE = Rule(
    id="DD422",
    root_cause="RC-69",
    needs=(Settings,),
    optional=(Events,),
    capture="NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=ENV, or `env | grep NCCL_` of a rank",
    symptom="collectives became slow after somebody tuned NCCL",
    evidence="NCCL_ALGO, NCCL_PROTO, channel or buffer variables in the environment",
    applies=lambda signals: (
        (settings := signals.get(Settings)) is not None and any(settings.of("env", name) for name in _PINS)
    ),
    explained_by=("DD937",),
    references=("https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-algo",),
)


@dataclass(frozen=True)
class Limits:
    few_channels: int = 4
    """A maximum of channels up to this starves fast links."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    settings, events = signals[Settings], signals.get(Events)
    found = {name: one for name in _PINS for one in settings.of("env", name)[:1] if _pins(one)}
    if not found:
        return
    words = ", ".join(f"{name}={one.value}" for name, one in list(found.items())[:3])
    measured = events.of("nccl_tests.average") if events is not None else ()
    starved = any(_few(one, limits) for one in found.values())
    yield Finding(
        title=f"NCCL's choices are pinned by the environment ({words})",
        severity=Severity.WARNING,
        confidence=Confidence.HIGH if starved or {"NCCL_ALGO", "NCCL_PROTO"} & set(found) else Confidence.MEDIUM,
        culprits=Culprits(where=", ".join(found)),
        evidence=(*(shown(name, one) for name, one in list(found.items())[:6]), *lines("nccl-tests", measured, 2)),
        fix=(
            f"unset {' '.join(found)} on all ranks (launcher, /etc/nccl.conf, ~/.nccl.conf) and measure again",
            "keep one only where nccl-tests shows a gain at the job's own message sizes, and note why",
        ),
        verify="env | grep NCCL_ on all ranks; all_reduce_perf -b 8 -e 1G -f 2 with and without them",
        why="what NCCL picks by size and topology is fixed to one value",
        doubt="a vendor's image may set them on purpose for its machines",
    )


def _pins(one: Setting) -> bool:
    """Whether the value narrows the choice; ^LL128 only leaves one out, and empty means nothing."""
    return bool(one.value.strip()) and not (one.key in ("NCCL_ALGO", "NCCL_PROTO") and one.value.startswith("^"))


def _few(one: Setting, limits: Limits) -> bool:
    return one.key == "NCCL_MAX_NCHANNELS" and one.value.isdigit() and int(one.value[:9]) <= limits.few_channels
