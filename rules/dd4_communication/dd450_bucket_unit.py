"""DeepSpeed's buckets have the wrong size, usually because they count elements and not bytes.

## Meaning
`reduce_bucket_size`, `allgather_bucket_size` and `stage3_prefetch_bucket_size` are numbers of *elements* (default 5e8).
50 means messages of 50 elements (100 bytes in bf16), not 50 MB; 5e7 means 100 MB in bf16 and 200 MB in fp32. With
`overlap_comm` there are two buckets of each kind.

## Impact
Too small: hundreds of thousands of tiny collectives, each paying its latency. Too large: gigabytes that are missing for
activations, and nothing to overlap.

## Diagnosis
The values in the configuration; in the comms logger's summary, many calls with messages of bytes to kilobytes.

## Mitigation
2e8 to 5e8 elements, as an integer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddiag.model.incident import Event
from ddiag.model.signals_incident import Events, Settings
from ddiag.rulekit import Abstain, Confidence, Culprits, Evidence, Finding, Rule, Severity, View, human_bytes
from ddiag.rulekit.values import as_flag, setting, zero_number

RULE = Rule(
    id="DD450",
    root_cause="RC-52",
    needs=(),
    optional=(Settings, Events),
    capture='the ds_config.json, and "comms_logger": {"enabled": true, "prof_all": true} with '
    "deepspeed.comm.log_summary()",
    symptom="DeepSpeed is slow with thousands of tiny reductions, or out of memory at initialisation",
    evidence="ds_config bucket sizes (elements); comms logger rows with tiny messages and high counts",
    applies=lambda signals: (
        ((s := signals.get(Settings)) is not None and bool(s.of("ds_config")))
        or ((e := signals.get(Events)) is not None and e.has("ds.comm_summary"))
    ),
    references=("https://www.deepspeed.ai/docs/config-json/#zero-optimizations-for-fp16-training",),
)
BUCKETS = ("reduce_bucket_size", "allgather_bucket_size")
TYPICAL = 500_000_000


@dataclass(frozen=True)
class Limits:
    smallest_elements: float = 1e6
    """Below this a message is at most a few MB; nobody wants that, somebody counted in MB."""
    largest_elements: float = 2e9
    """4 GB in bf16, 8 GB with overlap_comm."""
    tiny_bytes: int = 64 * 1024
    """Messages up to here cost their latency, not their bytes."""
    tiny_calls: int = 1000
    tiny_share: float = 0.25
    """Part of all logged communication time spent in tiny messages."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    settings, events = signals.get(Settings), signals.get(Events)
    tiny, share = _tiny_rows(events, limits)
    small = {key: value for key, value in _sizes(settings).items() if 0 < value < limits.smallest_elements}
    large = {key: value for key, value in _sizes(settings).items() if value > limits.largest_elements}
    if small or (tiny and share >= limits.tiny_share):
        yield _too_small(small, tiny, share, settings, limits)
    if large:
        yield _too_large(large, settings, limits)


def _sizes(settings: Settings | None) -> dict[str, float]:
    found = {key: zero_number(settings, key) for key in BUCKETS}
    return {key: value for key, value in found.items() if value is not None}


def _tiny_rows(events: Events | None, limits: Limits) -> tuple[list[Event], float]:
    """Rows of reductions with tiny messages and many calls, and their part of the logged time."""
    rows = events.of("ds.comm_summary") if events is not None else ()
    total = sum(row.number("total_ms") or 0.0 for row in rows)
    tiny = [
        row
        for row in rows
        if (row.integer("message_bytes") or 0) <= limits.tiny_bytes
        and (row.integer("count") or 0) >= limits.tiny_calls
        and "gather" not in row.word("op")
    ]
    return tiny, sum(row.number("total_ms") or 0.0 for row in tiny) / total if total else 0.0


def _element_bytes(settings: Settings | None) -> int:
    for name in ("bf16", "fp16"):
        found = setting(settings, "ds_config", f"{name}.enabled")
        if found is not None and as_flag(found.value):
            return 2
    return 4


def _overlaps(settings: Settings | None) -> bool:
    found = setting(settings, "ds_config", "zero_optimization.overlap_comm")
    if found is None:
        return zero_number(settings, "stage") == 3
    return bool(as_flag(found.value))


def _too_small(
    small: dict[str, float], tiny: list[Event], share: float, settings: Settings | None, limits: Limits
) -> Finding:
    size = _element_bytes(settings)
    key, value = next(iter(small.items()), ("reduce_bucket_size", 0.0))
    title = f"{key} is {value:.0f}: that is elements, so messages of {human_bytes(value * size)}, not {value:.0f} MB"
    calls = max(tiny, key=lambda row: row.integer("count") or 0, default=None)
    if not small and calls is not None:
        title = (
            f"{calls.integer('count') or 0:,} {calls.word('op')} calls of "
            f"{human_bytes(calls.integer('message_bytes') or 0)}: "
            "the buckets are far too small"
        )
    return Finding(
        title=title,
        severity=Severity.WARNING,
        confidence=Confidence.HIGH if small else Confidence.MEDIUM,
        culprits=Culprits(where=f"zero_optimization.{key}"),
        evidence=(
            *(
                Evidence(name, number, "elements", limits.smallest_elements, "ds_config")
                for name, number in small.items()
            ),
            *(
                Evidence(
                    f"{row.word('op')} of {human_bytes(row.integer('message_bytes') or 0)}",
                    row.integer("count") or 0,
                    "calls",
                    limits.tiny_calls,
                    row.source,
                )
                for row in tiny
            ),
            *(
                (Evidence("logged time in tiny messages", round(share, 3), "of all", limits.tiny_share, ""),)
                if tiny
                else ()
            ),
        ),
        fix=(
            f'"reduce_bucket_size": {TYPICAL}, "allgather_bucket_size": {TYPICAL} in "zero_optimization": elements, as '
            f"integers ({human_bytes(TYPICAL * size)} each, twice that with overlap_comm); 2e8 where memory is short",
            '"overlap_comm": true and "contiguous_gradients": true, so that reductions run during backward',
            "DDP's bucket_cap_mb (25) is in MiB; Megatron's --ddp-bucket-size is in elements too",
        ),
        verify="deepspeed.comm.log_summary(): few calls with messages of tens to hundreds of MB; then switch the comms "
        "logger off, it makes every call synchronous",
        why="each message pays its latency of some 20-100 µs whatever its size",
        doubt="" if small else "without the ds_config it is not known what the buckets are set to",
    )


def _too_large(large: dict[str, float], settings: Settings | None, limits: Limits) -> Finding:
    key, value = max(large.items(), key=lambda item: item[1])
    held = value * _element_bytes(settings) * (2 if _overlaps(settings) else 1)
    return Finding(
        title=f"{key} is {value:.3g} elements: {human_bytes(held)} of device memory for buckets",
        severity=Severity.WARNING,
        confidence=Confidence.HIGH,
        culprits=Culprits(where=f"zero_optimization.{key}"),
        evidence=tuple(
            Evidence(name, number, "elements", limits.largest_elements, "ds_config") for name, number in large.items()
        ),
        fix=(
            f'"{key}": 200000000 to {TYPICAL} (elements): larger messages are no faster, and with overlap_comm two of '
            "them are held",
        ),
        verify="see_memory_usage lines after initialisation show the memory back; step time unchanged",
        why="bandwidth is reached at some tens of MB; all beyond is memory and lost overlap",
    )
