"""Which traces belong together: one job, one trace per rank and profiler cycle. Nothing is overwritten in silence."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from ddiag.ingest.trace import Trace

CLUSTER_GAP_NS = 6 * 3600 * 10**9
"""Recordings this far apart are of one job only if the same processes made them."""
_HOW_TO_NAME = {
    "pytorch": 'name the files by rank ("rank3.json"), or initialise torch.distributed before the profiler stops',
    "tensorflow": 'write each worker\'s profile to a folder named by its task index ("logs/worker-3")',
}


@dataclass(frozen=True)
class Member:
    """A trace with the rank and the number of the profiler cycle it stands for."""

    rank: int
    capture: int
    trace: Trace
    rank_known: bool


@dataclass
class Picked:
    """Traces that make one run."""

    members: list[Member] = field(default_factory=list)
    left_out: list[tuple[Trace, str]] = field(default_factory=list)
    copies: list[Trace] = field(default_factory=list)
    """Copies of recordings that are there themselves: nothing is lost without them."""
    notes: list[str] = field(default_factory=list)


def pick(traces: Sequence[Trace]) -> Picked:
    """Choose the traces of the largest job and settle the rank and cycle of each."""
    picked = Picked()
    kept = _one_framework_and_size(_without_copies(list(traces), picked), picked)
    ranks = _known_ranks(kept)
    kept = _one_period(kept, ranks, picked)
    by_rank: dict[int | tuple[object, ...], list[Trace]] = defaultdict(list)
    for trace in kept:
        by_rank[_owner(trace, ranks)].append(trace)
    chosen = {owner: _one_process(owner, mine, by_rank, picked) for owner, mine in by_rank.items()}
    _number(chosen, picked)
    _say_what_was_left_out(len(picked.members), picked)
    return picked


def _without_copies(traces: list[Trace], picked: Picked) -> list[Trace]:
    """A recording and its copy for a viewer hold the same time: only the recording counts."""
    originals = {trace.recording for trace in traces if trace.recording is not None and not trace.is_copy}
    copies = [trace for trace in traces if trace.is_copy and trace.recording in originals]
    picked.copies += copies
    return [trace for trace in traces if not any(trace is copy for copy in copies)]


def _one_framework_and_size(traces: list[Trace], picked: Picked) -> list[Trace]:
    frameworks = Counter(trace.framework for trace in traces)
    first = max(frameworks, key=lambda name: (frameworks[name], name))
    traces = _split(traces, picked, lambda trace: trace.framework == first, f"not a {first} trace like the others")
    worlds = Counter(trace.world_size for trace in traces if trace.world_size is not None)
    if len(worlds) < 2:
        return traces
    size = max(worlds, key=lambda world: (worlds[world], world))
    return _split(
        traces, picked, lambda trace: trace.world_size in (None, size), f"of another job: its world size is not {size}"
    )


def _split(traces: list[Trace], picked: Picked, keep: Callable[[Trace], bool], why: str) -> list[Trace]:
    picked.left_out += [(trace, why) for trace in traces if not keep(trace)]
    return [trace for trace in traces if keep(trace)]


def _known_ranks(traces: Sequence[Trace]) -> dict[int, int]:
    """Rank by id() of the trace, where it is known and possible."""
    sizes = [trace.world_size for trace in traces if trace.world_size is not None]
    limit = max(sizes, default=None)
    return {
        id(trace): trace.rank for trace in traces if trace.rank is not None and (limit is None or trace.rank < limit)
    }


def _owner(trace: Trace, ranks: dict[int, int]) -> int | tuple[object, ...]:
    """The rank, or for unknown ranks the process; cycles of one process share an owner."""
    rank = ranks.get(id(trace))
    if rank is not None:
        return rank
    return ("process", trace.host, trace.main_tid) if trace.main_tid is not None else ("file", trace.source.label)


def _one_period(traces: list[Trace], ranks: dict[int, int], picked: Picked) -> list[Trace]:
    """Leave out what was recorded far from the rest by other processes: another run of the same script."""
    dated = sorted((trace for trace in traces if trace.on_epoch), key=lambda trace: trace.span)
    clusters: list[list[Trace]] = []
    latest = 0
    for trace in dated:
        if not clusters or trace.span[0] - latest > CLUSTER_GAP_NS:
            clusters.append([])
        clusters[-1].append(trace)
        latest = max(latest, trace.span[1])
    if len(clusters) < 2:
        return traces
    if _complete_each_other(clusters, ranks):
        hours = max(b[0].span[0] - a[0].span[0] for a, b in pairwise(clusters)) / 3.6e12
        picked.notes.append(
            f"clocks of the ranks differ by {hours:,.0f} hours, yet each of the job's ranks is there just once: "
            "taken as one job; if these are several, analyze them one by one"
        )
        return traces
    main = max(
        clusters, key=lambda cluster: (len({_owner(trace, ranks) for trace in cluster}), sum(t.events for t in cluster))
    )
    processes = {(_owner(trace, ranks), trace.main_tid) for trace in main}
    accepted = {id(trace) for trace in main}
    for cluster in clusters:
        if all((_owner(trace, ranks), trace.main_tid) in processes and trace.main_tid is not None for trace in cluster):
            accepted |= {id(trace) for trace in cluster}
    return _split(
        traces,
        picked,
        lambda trace: not trace.on_epoch or id(trace) in accepted,
        "recorded hours apart from the others, by another process: another job",
    )


def _complete_each_other(clusters: list[list[Trace]], ranks: dict[int, int]) -> bool:
    """Together they are all ranks of one job, each once: a clock is wrong somewhere, not another job mixed in."""
    traces = [trace for cluster in clusters for trace in cluster]
    sizes = {trace.world_size for trace in traces}
    found = sorted(ranks.get(id(trace), -1) for trace in traces)
    return len(sizes) == 1 and found == list(range(sizes.pop() or 0))


def _one_process(
    owner: int | tuple[object, ...],
    mine: list[Trace],
    by_rank: dict[int | tuple[object, ...], list[Trace]],
    picked: Picked,
) -> list[Trace]:
    """The cycles of one process in time order; rivals for the same rank are left out."""
    ordered = sorted(mine, key=lambda trace: trace.span)
    if _are_cycles(ordered):
        return ordered
    others = [trace for key, traces in by_rank.items() if key != owner for trace in traces]
    best = max(ordered, key=lambda trace: (_companions(trace, others), trace.events, trace.span[0]))
    kept = [best]
    for trace in ordered:
        if trace is not best and _are_cycles(sorted([*kept, trace], key=lambda one: one.span)):
            kept.append(trace)
    for trace in ordered:
        if not any(trace is one for one in kept):
            picked.left_out.append((trace, f"a second trace of rank {owner}; {best.source.name} is used instead"))
    return sorted(kept, key=lambda trace: trace.span)


def _are_cycles(ordered: list[Trace]) -> bool:
    """One after the other, by one process."""
    if len({trace.main_tid for trace in ordered if trace.main_tid is not None}) > 1:
        return False
    return all(first.span[1] <= second.span[0] for first, second in pairwise(ordered))


def _companions(trace: Trace, others: list[Trace]) -> int:
    """How many traces of other ranks cover the same time."""
    start, end = trace.span
    return sum(other.span[0] < end and start < other.span[1] for other in others)


def _number(chosen: dict[int | tuple[object, ...], list[Trace]], picked: Picked) -> None:
    unknown = [owner for owner in chosen if not isinstance(owner, int)]
    made_up = {owner: -1 - k for k, owner in enumerate(unknown)}
    framework = next((trace.framework for traces in chosen.values() for trace in traces), "pytorch")
    how_to_name = _HOW_TO_NAME.get(framework, _HOW_TO_NAME["pytorch"])
    if len(chosen) == 1 and unknown:
        made_up = {unknown[0]: 0}
        picked.notes.append(f"the trace does not say its rank: taken as rank 0; for several ranks {how_to_name}")
    elif unknown:
        picked.notes.append(f"{len(unknown)} traces do not say their rank and are numbered from -1 down: {how_to_name}")
    for owner in sorted(chosen, key=lambda owner: (not isinstance(owner, int), owner if isinstance(owner, int) else 0)):
        rank = owner if isinstance(owner, int) else made_up[owner]
        for capture, trace in enumerate(chosen[owner]):
            picked.members.append(Member(rank, capture, trace, isinstance(owner, int)))


def _say_what_was_left_out(used: int, picked: Picked) -> None:
    if not picked.left_out:
        return
    names = ", ".join(trace.source.name for trace, _ in picked.left_out[:4])
    more = f" and {len(picked.left_out) - 4} more" if len(picked.left_out) > 4 else ""
    picked.notes.append(f"the files are not all of one job: {used} used; left out: {names}{more}")
