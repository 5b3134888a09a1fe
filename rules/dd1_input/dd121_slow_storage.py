"""Processes sit in file operations: imports, checkpoint shards or many small files come from slow storage.

## Meaning
Thousands of ranks that import packages or open small files from a network file system wait for its metadata server;
checkpoint shards read by all ranks at once share one link.

## Impact
Start-up takes minutes; epochs begin with idle devices.

## Diagnosis
Stacks of most ranks in open, stat, listdir or import; checkpoint shards that load at a crawl.

## Mitigation
Container images or local caches instead of network folders; larger shards.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddiag.model.signals_incident import Events, Stacks
from ddiag.rulekit import Abstain, Confidence, Culprits, Evidence, Finding, Rule, Severity, View

RULE = Rule(
    id="DD121",
    root_cause="RC-66",
    needs=(),
    optional=(Stacks, Events),
    capture="py-spy dump of several ranks during the slow phase, nfsstat -c, the log with its progress bars",
    symptom="start-up takes minutes; every epoch begins with ten idle minutes",
    evidence="stacks in open/stat/import on most ranks; seconds per checkpoint shard",
    applies=lambda signals: (
        signals.has(Stacks) or ((e := signals.get(Events)) is not None and e.has("trainer.slow_load"))
    ),
    explained_by=("DD941",),
)
FILE_CALLS = (
    "open (", "_path_stat", "stat (", "listdir (", "scandir (", "isfile (", "exists (", "getsize (", "get_data (",
    "_fill_cache (", "find_spec (", "read (<frozen", "glob (", "walk (",
)  # fmt: skip


@dataclass(frozen=True)
class Limits:
    share: float = 0.5
    """Of the main threads' stacks in file operations."""
    stacks: int = 2
    shard_s: float = 60.0
    """Seconds per checkpoint shard of some GB."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    stacks, events = signals.get(Stacks), signals.get(Events)
    mains = [s for s in stacks.all if s.frames and s.thread in ("", "MainThread")] if stacks is not None else []
    waiting = [s for s in mains if any(call in frame for frame in s.frames[:3] for call in FILE_CALLS)]
    loads = [e for e in events.of("trainer.slow_load") if (e.integer("done") or 0) > 0] if events is not None else []
    slowest = max(((e.number("seconds") or 0.0) / (e.integer("done") or 1) for e in loads), default=0.0)
    many = len(mains) >= limits.stacks and len(waiting) >= limits.share * len(mains)
    if not many and slowest < limits.shard_s:
        return
    title = f"{len(waiting)} of {len(mains)} processes sit in file operations ({waiting[0].frames[0]})" if many else ""
    crawl = f"a checkpoint shard takes {slowest:.0f} s to load" if slowest >= limits.shard_s else ""
    yield Finding(
        title="; ".join(filter(None, (title, crawl))),
        severity=Severity.WARNING,
        confidence=Confidence.HIGH if many else Confidence.MEDIUM,
        culprits=Culprits(where="storage"),
        evidence=(
            *(
                (Evidence("stacks in file operations", len(waiting), f"of {len(mains)}", None, waiting[0].source),)
                if many
                else ()
            ),
            *(
                (Evidence("seconds per shard", round(slowest, 1), "s", limits.shard_s, loads[-1].source),)
                if crawl
                else ()
            ),
        ),
        fix=(
            "software from a container image, squashfs or a local copy instead of a network home; "
            "PYTHONDONTWRITEBYTECODE "
            "does not help, a packed environment does",
            "data in large shards (webdataset, Arrow, MDS) or on local NVMe; build the index once and broadcast it",
            "checkpoints: one reader per node and broadcast, or a striped file system (lfs setstripe -c -1)",
        ),
        verify="strace -c -f -p PID for 20 s: openat/stat no longer lead; nfsstat -c before and after",
        why="the stacks are in the kernel's file calls, not in compute or a collective"
        if many
        else "the log's own times",
        doubt="" if many else "a progress bar also counts what is done to the shard after reading",
    )
