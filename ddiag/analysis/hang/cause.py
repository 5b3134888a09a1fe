"""Which programming or operating fault a stall looks like, in one word; exactly one rule stands behind each word."""

from __future__ import annotations

from dataclasses import dataclass, field

from ddiag.analysis.hang import phases
from ddiag.analysis.hang.phases import Context, Doing
from ddiag.analysis.hang.verdict import Verdict
from ddiag.analysis.hang.vote import Mismatch
from ddiag.model.signals_incident import (
    BUCKETS,
    COMM_ORDER,
    COMPILE_SKEW,
    DATA_PLANE,
    DEAD,
    DIVERGENT,
    FROZEN_STORAGE,
    GENERATION,
    GPU_STUCK,
    HEARTBEAT,
    METRICS,
    NEVER_CAME,
    P2P_ORDER,
    SETUP_WORK,
    SHORT_TIMEOUT,
    SINGLE_RANK_SAVE,
    SKIPPED_STEP,
    SLOW_CHECKPOINT,
    SUBGROUP,
    SWALLOWED,
    UNEVEN,
    UNKNOWN,
    WEIGHT_SYNC,
)

SHORT_TIMEOUT_MS = 180_000
"""Below this a timeout was set by hand, and ordinary long phases run into it."""
TINY = 64
"""Elements up to which a call carries flags or metrics, not parameters or gradients."""
EARLY_SEQ = 5
"""Calls up to this number belong to the set-up of a job."""
_OF_PHASE = {
    phases.SETUP: SETUP_WORK,
    phases.CHECKPOINT: SINGLE_RANK_SAVE,
    phases.ENDED: UNEVEN,
    phases.WEIGHT_SYNC: WEIGHT_SYNC,
    phases.COMPILE: COMPILE_SKEW,
    phases.METRICS: METRICS,
    phases.GIL: HEARTBEAT,
    phases.CUDA_CALL: HEARTBEAT,
    phases.FROZEN: FROZEN_STORAGE,
}
_PLAIN = {
    "running": "",
    "dead": DEAD,
    "checkpoint": SLOW_CHECKPOINT,
    "setup": SETUP_WORK,
    "barrier": NEVER_CAME,
    "gpu_side": GPU_STUCK,
    "partly_done": GPU_STUCK,
    "in_flight": DATA_PLANE,
}
"""Verdicts that say the cause by themselves."""
_LONG_PHASES = (phases.EVALUATION, phases.GENERATE, phases.COMPILE, phases.SETUP, phases.CHECKPOINT)
_MAY_BE_SHORT = (UNKNOWN, SINGLE_RANK_SAVE, SETUP_WORK, GENERATION, COMPILE_SKEW)


@dataclass(frozen=True)
class Hints:
    """What else bears on the cause."""

    op: str = ""
    numel: int | None = None
    seq: int | None = None
    desc: str = ""
    group: str = ""
    timeout_ms: int | None = None
    zero_stage: int | None = None
    ddp: bool = False
    """The evidence speaks of DistributedDataParallel's reducer."""
    raised: frozenset[int] = frozenset()
    """Ranks that printed a traceback."""
    ahead: frozenset[int] = frozenset()
    """Ranks whose own progress is beyond that of the others."""
    frames: dict[int, str] = field(default_factory=dict)
    """rank -> line of code of its call at the place of the stall."""
    all_saving: bool = False
    """Every rank that we know something of is in a checkpoint."""
    first_call: bool = False
    """It is the first call of its group."""

    @property
    def default_group(self) -> bool:
        return self.group in ("", "0") or self.desc == "default_pg"


def cause_of(found: Verdict, context: Context, hints: Hints) -> str:
    """The word for *found*; ``unknown`` when nothing says more than who is late."""
    if hints.all_saving and found.verdict not in _PLAIN:
        return SLOW_CHECKPOINT
    if found.verdict in _PLAIN:
        return _PLAIN[found.verdict]
    if found.verdict == "deadlock":
        sends = any(node[0] == "p2p" for _, node in found.cycle) or hints.op in ("send", "recv")
        return P2P_ORDER if sends else COMM_ORDER
    if found.mismatch is not None:
        return _of_mismatch(found, found.mismatch, context, hints)
    doing = [context.doing[rank] for rank in found.culprits if rank in context.doing]
    cause = _of_late(found, doing, context, hints)
    long = any(one.phase in _LONG_PHASES for one in doing)
    if long and cause in _MAY_BE_SHORT and hints.timeout_ms is not None and hints.timeout_ms < SHORT_TIMEOUT_MS:
        return SHORT_TIMEOUT
    return cause


def _of_mismatch(found: Verdict, mismatch: Mismatch, context: Context, hints: Hints) -> str:
    ranks = found.culprits or found.candidates
    doing = {context.doing[rank].phase for rank in mismatch.signatures if rank in context.doing}
    said = {phases.of_line(hints.frames.get(rank, "")) for rank in mismatch.signatures} | doing
    ops = {signature[0] for signature in mismatch.signatures.values()}
    sizes = {signature[1] for signature in mismatch.signatures.values() if signature[1] is not None}
    if phases.WEIGHT_SYNC in said:
        return WEIGHT_SYNC
    if phases.GENERATE in said and "all_gather" in ops:
        return GENERATION
    if phases.CHECKPOINT in said:
        return SINGLE_RANK_SAVE
    if phases.METRICS in said or (ops <= {"broadcast", "all_gather"} and sizes and max(sizes) <= TINY):
        return METRICS
    if _ran_out(mismatch, ranks, context, hints):
        return UNEVEN
    if hints.ddp and ops == {"all_reduce"} and len(sizes) > 1 and min(sizes) > TINY and hints.zero_stage is None:
        return BUCKETS
    return DIVERGENT


def _ran_out(mismatch: Mismatch, ranks: tuple[int, ...], context: Context, hints: Hints) -> bool:
    """The odd ranks have left the loop: at a barrier or in evaluation while the others still step."""
    if any(rank in context.ended or rank in hints.ahead for rank in ranks):
        return True
    if any(context.doing[rank].phase in (phases.EVALUATION, phases.ENDED) for rank in ranks if rank in context.doing):
        return True
    theirs = [mismatch.signatures[rank] for rank in mismatch.odd]
    usual = mismatch.usual
    at_barrier = all(op == "barrier" or (op == "all_reduce" and size == 1) for op, size, _ in theirs) and bool(theirs)
    return at_barrier and usual[0] in ("all_reduce", "reduce_scatter", "all_gather") and (usual[1] or 0) > TINY


def _of_late(found: Verdict, doing: list[Doing], context: Context, hints: Hints) -> str:
    culprits = set(found.culprits)
    words = {one.phase for one in doing}
    if hints.raised & culprits or phases.CLEANUP in words:
        return SWALLOWED
    ahead = bool(culprits & context.ended or hints.ahead & culprits)
    said = {
        phases.SKIPPED: SKIPPED_STEP if hints.default_group else SUBGROUP,
        phases.GENERATE: WEIGHT_SYNC if hints.op in ("broadcast", "") else GENERATION,
        phases.EVALUATION: UNEVEN if ahead else SINGLE_RANK_SAVE,
        **_OF_PHASE,
    }
    known = next((cause for phase, cause in said.items() if phase in words), "")
    if known or ahead:
        return known or UNEVEN
    if _main_alone_at_start(found, hints):
        return SETUP_WORK
    seen = found.verdict != "suspect_by_absence" and not doing
    return SUBGROUP if seen and hints.first_call and not hints.default_group else UNKNOWN


def _main_alone_at_start(found: Verdict, hints: Hints) -> bool:
    """Everybody but rank 0 waits at a barrier before the first step."""
    barrier = hints.op == "barrier" or (hints.op == "all_reduce" and hints.numel == 1)
    return found.culprits == (0,) and barrier and hints.seq is not None and hints.seq <= EARLY_SEQ
