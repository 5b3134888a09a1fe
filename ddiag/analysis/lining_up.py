"""Line up the sequences of calls that the ranks of one communicator recorded.

Profilers do not start on the same call everywhere. Two equal-looking sequences may be a whole step apart, and matching
them as they stand would blame the wrong rank. The shift between two ranks is therefore chosen among all that agree in
operation and size, by wall clock, by how steady the difference of the ends is (true pairs end together to within
microseconds, false ones jitter with the step time), and by step numbers; when these do not decide, there is no match.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]

EPOCH_LIKE_NS = 10**17
"""Times above this are on the Unix epoch, so clocks of different ranks may be compared."""
MAX_CLOCK_NS = 60 * 10**9
"""Captures further apart than this were not recorded at the same time."""
_WINDOW = 16
"""Calls compared when candidates for the shift are looked up."""
UNMATCHED = int(np.iinfo(np.int64).min)
"""Slot of a call that has no counterpart (other negative slots are real: a capture that began earlier)."""
_NEAREST = 32
"""Candidates kept."""
_DECISIVE = 5.0
"""How much steadier the ends of the best shift must be than those of any other."""
_ENOUGH = 8
"""Calls from which the steadiness of the ends means anything."""
_STEADY_NS = 100_000.0
"""Spread up to which a shift without rivals convinces."""
_TICK_NS = 1_000.0
"""Resolution of older traces."""


@dataclass(frozen=True)
class Sequence:
    """The calls of one rank on one communicator in issue order."""

    codes: Int64s
    ends_ns: Int64s
    steps: Int64s
    """Step number of each call; -1 unknown."""

    def __len__(self) -> int:
        return len(self.codes)


@dataclass(frozen=True)
class _Candidate:
    shift: int
    calls: int
    offset_ns: float
    spread_ns: float


def line_up(sequences: dict[int, Sequence]) -> dict[int, Int64s]:
    """Slot of each call of each rank: equal slots are one collective; UNMATCHED: no counterpart.

    Ranks that cannot be lined up with the reference are absent. The reference is the longest sequence that most others
    can be lined up with.
    """
    order = sorted(sequences, key=lambda rank: (-len(sequences[rank]), rank))
    best: dict[int, Int64s] = {}
    for reference in order[:3]:
        found = _against(sequences[reference], sequences)
        if len(found) > len(best):
            best = found
        if 2 * len(best) > len(sequences):
            break
    return best


def _against(reference: Sequence, sequences: dict[int, Sequence]) -> dict[int, Int64s]:
    period_ns = _shortest_period_ns(reference)
    found = {}
    for rank, sequence in sequences.items():
        slots = _slots(reference, sequence, period_ns)
        if slots is not None:
            found[rank] = slots
    return found


def _slots(reference: Sequence, other: Sequence, period_ns: float) -> Int64s | None:
    if other is reference or _plainly_the_same(reference, other, period_ns):
        return np.arange(len(other), dtype=np.int64)
    shift = _choose_shift(reference, other)
    if shift is not None:
        return np.arange(len(other), dtype=np.int64) + shift
    return _slots_by_step(reference, other)


def _plainly_the_same(reference: Sequence, other: Sequence, period_ns: float) -> bool:
    """The same calls at the same time: every other shift is several times further off on the clock."""
    if not _same_clock(reference, other) or not np.array_equal(reference.codes, other.codes):
        return False
    apart = other.ends_ns - reference.ends_ns
    offset = float(np.median(apart))
    return abs(offset) <= period_ns / 8 and _spread_ns(apart, offset) <= period_ns / 20


def _same_clock(reference: Sequence, other: Sequence) -> bool:
    return bool(reference.ends_ns[0] > EPOCH_LIKE_NS) and bool(other.ends_ns[0] > EPOCH_LIKE_NS)


def _shortest_period_ns(sequence: Sequence) -> float:
    """Time between a call and the nearest one it could be mistaken for; the whole span if there is none."""
    for shift in _lookups(sequence.codes, sequence.codes):
        if shift > 0 and np.array_equal(sequence.codes[shift:], sequence.codes[:-shift]):
            return float(np.median(sequence.ends_ns[shift:] - sequence.ends_ns[:-shift]))
    return max(float(sequence.ends_ns[-1] - sequence.ends_ns[0]), 1e6)


def _lookups(codes: Int64s, start: Int64s) -> list[int]:
    """Positions in *codes* at which the first calls of *start* occur, ascending."""
    width = min(_WINDOW, len(start), len(codes))
    if width == 0:
        return []
    hits = codes == start[0]
    for ahead in range(1, width):
        hits[: len(codes) - ahead] &= codes[ahead:] == start[ahead]
    return [int(at) for at in np.flatnonzero(hits)]


def _choose_shift(reference: Sequence, other: Sequence) -> int | None:
    by_step = _shift_by_step(reference, other)
    judged = [_judge(reference, other, shift) for shift in _shifts(reference, other, by_step)]
    candidates = [candidate for candidate in judged if candidate is not None]
    steady = _steady(candidates)
    clock = _same_clock(reference, other)
    if len(steady) == 1 and _convincing(steady[0], candidates) and _plausible(steady[0], known_clock=clock):
        return steady[0].shift
    nearest = min(steady, key=lambda c: abs(c.offset_ns), default=None)
    if clock and nearest is not None and _clock_decides(nearest, steady, reference):
        return nearest.shift
    numbered = next((c for c in steady if c.shift == by_step), None)
    if numbered is not None and (_plausible(numbered, known_clock=clock) or _by_itself(numbered)):
        return numbered.shift
    return None


def _steady(candidates: list[_Candidate]) -> list[_Candidate]:
    """The candidates whose ends differ about as constantly as those of the best; all where too few calls tell."""
    best_ns = min((c.spread_ns for c in candidates if c.calls >= _ENOUGH), default=None)
    if best_ns is None:
        return candidates
    return [c for c in candidates if c.spread_ns <= _DECISIVE * (best_ns + _TICK_NS)]


def _convincing(candidate: _Candidate, candidates: list[_Candidate]) -> bool:
    """Its ends differ far more constantly than those of any rival; without rivals, by less than a true pair could."""
    if candidate.calls < _ENOUGH:
        return False
    return len(candidates) > 1 or candidate.spread_ns <= _STEADY_NS


def _by_itself(numbered: _Candidate) -> bool:
    """Same steps, and ends in step to a tenth of a millisecond: two runs drift apart by more; a clock is wrong."""
    return numbered.calls >= _ENOUGH and numbered.spread_ns <= _STEADY_NS


def _shifts(reference: Sequence, other: Sequence, by_step: int | None) -> list[int]:
    """Shifts worth judging: none, by step number, by clock, and where the beginning of one occurs in the other."""
    around = 0
    if _same_clock(reference, other):
        middle = len(other) // 2
        around = int(np.searchsorted(reference.ends_ns, other.ends_ns[middle])) - middle
    found = set(_lookups(reference.codes, other.codes)) | {-at for at in _lookups(other.codes, reference.codes)}
    found = set(sorted(found, key=lambda shift: abs(shift - around))[:_NEAREST])
    found |= {0, *range(around - 2, around + 3)}
    return sorted(found | ({by_step} if by_step is not None else set()))


def _judge(reference: Sequence, other: Sequence, shift: int) -> _Candidate | None:
    """The candidate, or None when the overlapping calls disagree in operation or size or are too few."""
    first, last = max(shift, 0), min(len(reference), len(other) + shift)
    calls = last - first
    shorter = min(len(reference), len(other))
    if calls < max(min(4, shorter), -(-shorter // 5)):
        return None
    mine = slice(first - shift, last - shift)
    if not np.array_equal(reference.codes[first:last], other.codes[mine]):
        return None
    apart = other.ends_ns[mine] - reference.ends_ns[first:last]
    offset = float(np.median(apart))
    return _Candidate(shift, calls, offset, _spread_ns(apart, offset))


def _spread_ns(apart: Int64s, offset_ns: float) -> float:
    """Mean deviation of the differences of ends: a false pairing may be off in only one call per step."""
    return float(np.abs(apart - offset_ns).mean())


def _clock_decides(nearest: _Candidate, candidates: list[_Candidate], reference: Sequence) -> bool:
    """The clocks agree far better under this shift than under the next possible one."""
    others = [abs(c.offset_ns - nearest.offset_ns) for c in candidates if c is not nearest]
    span = max(float(reference.ends_ns[-1] - reference.ends_ns[0]), 1e8)
    return abs(nearest.offset_ns) <= min(others, default=span) / 4


def _plausible(candidate: _Candidate, *, known_clock: bool) -> bool:
    return not known_clock or abs(candidate.offset_ns) <= MAX_CLOCK_NS


def _shift_by_step(reference: Sequence, other: Sequence) -> int | None:
    """The shift under which most steps with the same number begin at the same call."""
    starts, theirs = _step_starts(reference), _step_starts(other)
    shifts = [starts[step] - theirs[step] for step in starts.keys() & theirs.keys()]
    if not shifts:
        return None
    values, counts = np.unique(shifts, return_counts=True)
    return int(values[counts.argmax()]) if counts.max() * 2 > len(shifts) else None


def _step_starts(sequence: Sequence) -> dict[int, int]:
    steps, first = np.unique(sequence.steps, return_index=True)
    return {int(step): int(at) for step, at in zip(steps, first, strict=True) if step >= 0}


def _slots_by_step(reference: Sequence, other: Sequence) -> Int64s | None:
    """Where the sequences disagree somewhere (a lost record, an extra call): match the steps that agree whole."""
    slots = np.full(len(other), UNMATCHED, dtype=np.int64)
    starts, theirs = _step_starts(reference), _step_starts(other)
    for step in starts.keys() & theirs.keys():
        ours, mine = np.flatnonzero(reference.steps == step), np.flatnonzero(other.steps == step)
        if np.array_equal(reference.codes[ours], other.codes[mine]):
            slots[mine] = ours
    found = slots != UNMATCHED
    if 2 * found.sum() < len(other):
        return None
    apart = other.ends_ns[found] - reference.ends_ns[slots[found]]
    steady = _spread_ns(apart, float(np.median(apart))) <= _shortest_period_ns(reference) / 20
    near = not _same_clock(reference, other) or abs(float(np.median(apart))) <= MAX_CLOCK_NS
    return slots if steady and near else None
