"""What a rank is doing, told from its stack, its last words in the log and the line of code it last called from."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from ddiag.model.incident import Event, Stack
from ddiag.model.signals_incident import Events, Stacks

INPUT, CHECKPOINT, EVALUATION, EXIT, CLEANUP = "input", "checkpoint", "evaluation", "exit", "cleanup"
USER_CODE, CUDA_CALL, GIL, STOPPED = "user_code", "cuda_call", "gil", "stopped"
SETUP, COMPILE, GENERATE, WEIGHT_SYNC, METRICS = "setup", "compile", "generate", "weight_sync", "metrics"
SKIPPED, ENDED, FROZEN = "skipped", "ended", "storage"

_STACK_WORDS: tuple[tuple[str, str], ...] = (
    (WEIGHT_SYNC, r"_broadcast_to_vllm|update_weights?\b|sync_weights|model_update_group|weight_sync|reload_weights"),
    (
        COMPILE,
        r"_inductor|torch/_dynamo|/triton/|cpp_extension|_get_build_directory|baton|load_inline|nvcc|ninja",
    ),
    (
        SETUP,
        r"main_process_first|tokeniz|arrow_dataset|map_function|snapshot_download|hf_hub_download|build_index|"
        r"load_dataset|prepare_data|build_dataset",
    ),
    (
        CHECKPOINT,
        r"save_checkpoint|save_state|_save_to_state_dict|save_pretrained|checkpoint(ing)?/|async_save|"
        r"\bsave\b.*serialization|\b_save\b|save_model|full_state_dict|state_dict_saver|\bfsync\b",
    ),
    (
        METRICS,
        r"log_dict|gather_for_metrics|sync_dist|_sync_ddp|reduce_metrics|all_gather_metrics|torchmetrics|"
        r"log_metrics",
    ),
    (GENERATE, r"\bgenerate\b|_sample\b|_beam_search|greedy_search|predict_with_generate|rollout"),
    (EVALUATION, r"\beval(uate|uation)?(_\w+)?\b|\bvalid(ate|ation)?(_\w+)?\b|prediction_step|test_epoch"),
    (CLEANUP, r"destroy_process_group|_shutdown\b|atexit|_exit_function|finish_run|wandb.*finish|__del__"),
    (
        INPUT,
        r"dataloader|_MultiProcessingDataLoaderIter|_next_data|_try_get_data|fetch\.py|collate|__getitem__|"
        r"load_batch|get_batch|next_batch|data_loader|read_shard",
    ),
)
"""Tried in this order on the whole stack: the special before the general."""
_NATIVE_CUDA = re.compile(r"cuda\w*(Synchronize|Query|Destroy|Malloc|Free|Launch)|cuEvent|cuStream|cuCtx|libcuda")
_SAID: tuple[tuple[str, str], ...] = (
    (SKIPPED, r"\bskip(ped|ping)?\b|no data for|\bnan\b|\binf\b.*loss|not participating|bypass"),
    (
        WEIGHT_SYNC,
        r"weight.?sync|update_weights?|broadcast_to_vllm|refit|sync(ing)? weights|waiting for engine|"
        r"vllm (server|engine)|inference engine",
    ),
    (
        SETUP,
        r"token[iy][sz]|preprocess|download|building (the )?(index|dataset|vocab)|extracting|converting|"
        r"generating (train|test|validation) split|map \(num_proc|loading dataset|caching",
    ),
    (COMPILE, r"compil(e|ing)|autotun|inductor|building extension|loading extension module|triton"),
    (CHECKPOINT, r"sav(e|ing)\b|checkpoint|writing (model|state)|state_dict|upload(ing)?"),
    (EVALUATION, r"valid(at|\b)|evaluat|\beval\b|testing"),
    (GENERATE, r"generat(e|ing|ion)|rollout|sampling"),
    (ENDED, r"finished|exhausted|end of (data|epoch|training)|out of (data|batches)|no more|done\b|complete[d]?\b"),
    (CLEANUP, r"exit|shut(ting)? ?down|cleanup|destroy_process_group"),
    (INPUT, r"load(ing)? (batch|data|shard)|dataloader|reading shard|fetch"),
)
_OF_PHASE: Mapping[str, str] = MappingProxyType(
    {
        "checkpoint_save": CHECKPOINT, "checkpoint_load": CHECKPOINT, "save": CHECKPOINT, "evaluate": EVALUATION,
        "eval": EVALUATION, "validate": EVALUATION, "tokenize": SETUP, "tokenizer": SETUP, "download": SETUP,
        "preprocess": SETUP, "dataset": SETUP, "compile": COMPILE, "generate": GENERATE, "weight_sync": WEIGHT_SYNC,
        "data": INPUT, "input": INPUT, "exit": CLEANUP,
    }
)  # fmt: skip
_OF_RECORDED = MappingProxyType(
    {"input": INPUT, "checkpoint": CHECKPOINT, "evaluation": EVALUATION, "compile": COMPILE}
)
_IN_COLLECTIVE = re.compile(
    r"distributed_c10d\.py|\b(barrier|all_reduce|all_gather\w*|reduce_scatter\w*|broadcast|wait|recv|send)\b"
    r" \([^)]*(distributed|torch)"
)
_RANK_IN_NAME = re.compile(r"rank[_.-]?(\d+)", re.IGNORECASE)
_TORCH_FRAME = re.compile(
    r"/(site|dist)-packages/|/lib/python|<frozen|<string>|importlib|\((torch|threading|queue|selectors|subprocess|"
    r"multiprocessing|concurrent|asyncio|socket|ssl|runpy)[./]"
)


@dataclass(frozen=True)
class Doing:
    """What one rank is at, and how we know."""

    phase: str
    where: str | None = None
    """Line of user code."""
    sure: bool = False
    """A stack, or words of the rank itself; not words without a writer."""
    said: str = ""
    source: str = ""
    ended: bool = False
    """It also said that it ran out of data or finished an epoch."""


@dataclass(frozen=True)
class Context:
    """What is known of ranks beside their calls."""

    doing: Mapping[int, Doing] = field(default_factory=dict)
    unsigned: tuple[Doing, ...] = ()
    """Words in logs that do not say which rank wrote them."""
    stack_of: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    ended: frozenset[int] = frozenset()
    """Ranks that said they finished an epoch or their data."""


def context(events: Events | None, stacks: Stacks | None) -> Context:
    """Everything that tells a rank's phase; stacks are better than words, late words better than early ones."""
    doing: dict[int, Doing] = {}
    ended: set[int] = set()
    unsigned: list[Doing] = []
    for event in events.all if events is not None else ():
        said = _spoken(event)
        if said is None:
            continue
        if event.rank is None:
            unsigned.append(said)
            continue
        if said.ended:
            ended.add(event.rank)
        doing[event.rank] = said
    recorded = _recorded(events)
    stack_of: dict[int, tuple[str, ...]] = {}
    ranked = _with_ranks(stacks.all if stacks is not None else (), events)
    for stack in _main_stacks(ranked):
        if stack.rank is None:
            continue
        stack_of[stack.rank] = stack.frames
        found = of_stack(stack)
        if found is not None:
            known = recorded.get(stack.rank) if found.phase == USER_CODE else None
            doing[stack.rank] = replace(found, phase=known) if known else found
    return Context(doing, tuple(unsigned), stack_of, frozenset(ended))


def _recorded(events: Events | None) -> dict[int, str]:
    """The phase in which the recorder saw a rank when its hang was captured, where that is no plain training."""
    seen = events.of("process.state") if events is not None else ()
    words = {event.rank: event.word("phase") for event in seen if event.rank is not None}
    return {rank: _OF_RECORDED[word] for rank, word in words.items() if word in _OF_RECORDED}


def _with_ranks(stacks: Iterable[Stack], events: Events | None) -> list[Stack]:
    """Stacks of tools know a process only: its rank is what a line of the job says of it, or the file's name."""
    rank_of: dict[int, int] = {}
    for event in events.all if events is not None else ():
        pid, rank = event.integer("pid"), event.integer("rank")
        rank = rank if rank is not None else event.rank
        if pid is not None and rank is not None:
            rank_of.setdefault(pid, rank)
    found = []
    for stack in stacks:
        rank = stack.rank if stack.rank is not None or stack.pid is None else rank_of.get(stack.pid)
        named = _RANK_IN_NAME.search(stack.source.rsplit("/", 1)[-1]) if rank is None else None
        found.append(replace(stack, rank=int(named[1]) if named else rank))
    return found


def _spoken(event: Event) -> Doing | None:
    if event.kind == "log.phase":
        if event.get("begin") is False:
            return None
        word = event.word("phase")
        phase = _OF_PHASE.get(word, word)
        return Doing(phase, None, event.rank is not None, event.text, event.source, _ended(event.text))
    if event.kind == "log.progress":
        return _progress(event)
    if event.kind == "log.said":
        phase = of_words(event.text)
        return Doing(phase, None, True, event.text, event.source, _ended(event.text)) if phase else None
    return None


def _progress(event: Event) -> Doing | None:
    """A progress bar says a phase unless it is the training's own."""
    word = event.word("what").lower()
    phase = _OF_PHASE.get(word) or (of_words(word) if word not in ("", "train", "training") else "")
    return Doing(phase, None, event.rank is not None, event.text, event.source) if phase else None


def _ended(text: str) -> bool:
    return bool(re.search(dict(_SAID)[ENDED], text, re.IGNORECASE))


def of_words(text: str) -> str:
    """The phase that a printed line speaks of; empty when it speaks of none."""
    return next((phase for phase, words in _SAID if re.search(words, text, re.IGNORECASE)), "")


def _main_stacks(stacks: Iterable[Stack]) -> list[Stack]:
    """The main thread's stack of each rank (or its only one), Python before native ones."""
    chosen: dict[int, Stack] = {}
    for stack in stacks:
        if stack.rank is None or (stack.thread and "main" not in stack.thread.lower() and stack.rank in chosen):
            continue
        known = chosen.get(stack.rank)
        if known is None or _preferred(stack, known):
            chosen[stack.rank] = stack
    return list(chosen.values())


def _preferred(stack: Stack, known: Stack) -> bool:
    main, was_main = "main" in stack.thread.lower(), "main" in known.thread.lower()
    if main != was_main:
        return main
    return stack.kind == "python" and known.kind != "python"


def of_stack(stack: Stack) -> Doing | None:
    """The phase that a stack shows; None when it only waits in a collective called from plain training code."""
    frames = stack.frames
    where = user_line(frames)
    text = "\n".join(frames)
    if stack.state in ("T", "t"):
        return Doing(STOPPED, where, True, "process state T", stack.source)
    if stack.state == "D" and stack.kind == "kernel":
        return Doing(FROZEN, where, True, "process state D", stack.source)
    for phase, words in _STACK_WORDS:
        if re.search(words, text):
            return Doing(phase, where, True, frames[0] if frames else "", stack.source)
    if stack.kind == "native" and _NATIVE_CUDA.search(text):
        return Doing(CUDA_CALL, where, True, frames[0], stack.source)
    if in_collective(frames):
        return None
    if stack.state == "gil":
        return Doing(GIL, where, True, frames[0] if frames else "", stack.source)
    return Doing(USER_CODE, where, True, frames[0] if frames else "", stack.source)


def of_line(frame: str) -> str:
    """The phase that one frame speaks of; empty when it speaks of none."""
    return next((phase for phase, words in _STACK_WORDS if re.search(words, frame)), "")


def in_collective(frames: Sequence[str]) -> bool:
    """The innermost frames wait for other ranks."""
    return any(_IN_COLLECTIVE.search(frame) for frame in frames[:6])


def user_line(frames: Sequence[str]) -> str | None:
    """The innermost frame outside libraries; the innermost of all when there is none."""
    own = [frame for frame in frames if not _TORCH_FRAME.search(frame)]
    return next(iter(own or frames), None)
