"""How far a training came and what it said that it was doing: the last signs of life of each rank."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable

from ddiag.ingest.logs.line import Line
from ddiag.model.incident import Event, Seen, Value

_BAR = re.compile(r"(?<![\d.])(?P<n>\d[\d.]*[kMG]?)/(?P<total>\d[\d.]*[kMG]?|\?) \[[\d:]+<[\d:?]+")
_ENDLESS = re.compile(r"(?<!\d)(?P<n>\d+) ?(?:it|batch|batches|step|steps|examples|ex)\b ?\[[\d:]+,")
_STEP = re.compile(
    r"\b(?:global[_ ]?step|step|iter(?:ation)?|batch)s?\b[ =:#\[]{1,6}(?P<step>\d+)(?: ?/ ?(?P<total>\d+))?",
    re.IGNORECASE,
)
_EPOCH = re.compile(r"\bepoch\b'?[ =:#\[]{1,4}(?P<epoch>\d+(?:\.\d+)?)", re.IGNORECASE)
_RANK = re.compile(r"\b[Rr]ank[ =:#]?\s?(\d+)\b")
_KINDS = tuple(
    (kind, re.compile(pattern, re.IGNORECASE))
    for kind, pattern in (
        ("tokenizer", r"token[iy]z|\bmap\b|num_proc|preprocess"),
        ("load", r"loading (?:checkpoint|model|weights|data|pipeline)"),
        ("download", r"download|fetching|shards?:"),
        ("save", r"sav(?:e|ing)|writing"),
        ("eval", r"\bval|eval|test"),
        ("compile", r"compil|capturing|autotun"),
        ("generate", r"generat|rollout|sampling"),
    )
)
_KIND = re.compile("|".join(pattern.pattern for _, pattern in _KINDS), re.IGNORECASE)
"""Any of them: most lines are of none."""
_MACHINES = re.compile(
    r'^File "|ProcessGroup|NCCL (INFO|WARN)|Watchdog|Error\b.*:|Traceback|\.cpp:\d+\]|warn|slurmstepd|srun: |'
    r"torch/distributed/|torch\.distributed\.elastic|death signal|[Kk]illing subprocess|return code"
)
_SAID_BY_LAUNCHER = re.compile(r"slurmstepd|srun: |torch/distributed/elastic|NCCL (?:INFO|WARN)")
KEPT_PHASES = 6
_PHASES: tuple[tuple[str, str], ...] = (
    (
        "checkpoint_save",
        r"\bsav(?:ing|e)\b.{0,60}(?:checkpoint|state|model|weights|shard|optimizer)|"
        r"checkpoint.{0,30}(?:is ready|being saved|saving)",
    ),
    ("checkpoint_load", r"load(?:ing|ed)?\b.{0,40}(?:checkpoint|state.?dict|weights)|resum(?:e|ing) from"),
    (
        "evaluate",
        r"\*{3,} Running (?:Evaluation|Prediction)|"
        r"\b(?:running|start(?:ing)?|entering|begin) (?:evaluation|validation|eval\b)",
    ),
    ("tokenize", r"token[iy]z(?:ing|ation|er on)|Running tokenizer"),
    ("download", r"\bdownload(?:ing)?\b"),
    (
        "compile",
        r"torch\.compile|\bcompiling\b|Loading extension module|Building extension|ninja: |recompile_limit|autotun",
    ),
    ("generate", r"\bgenerat(?:e|ing|ion)\b|\brollout\b"),
    ("weight_sync", r"update_weights?|broadcast_to_vllm|weight.?sync|refit|sync(?:ing)? weights|waiting for engine"),
    ("exit", r"training (?:finished|complete|done)|destroy_process_group|exiting (?:train|loop|main)"),
    ("input", r"StopIteration|end of (?:epoch|data)|dataloader (?:exhausted|ended)"),
)
_COMPILED = tuple((phase, re.compile(pattern, re.IGNORECASE)) for phase, pattern in _PHASES)
_ENDED = re.compile(r"\b(?:finished|done|complete[d]?|saved|loaded|took)\b", re.IGNORECASE)


class Progress:
    """The last step of each rank and loop; printed at the end of the file."""

    needles: tuple[str, ...] = (
        "%|",
        "it/s",
        "s/it",
        "batch/s",
        "examples/s",
        "step",
        "Step",
        "iteration",
        "poch",
        "ownloading",
        "batch [",
    )
    sparse = True

    def __init__(self) -> None:
        self._last: dict[tuple[object, ...], Event] = {}

    def line(self, line: Line) -> Iterable[Seen]:
        found = None if _SAID_BY_LAUNCHER.search(line.text) else _progress(line.text)
        if found is None:
            return ()
        rank = line.rank
        if rank is None and (named := _RANK.search(line.text)):
            rank = int(named[1])
        key = (*line.writer, rank, found.get("what"))
        said, source = line.text.strip(), f":{line.number}"
        event = Event("log.progress", found, rank, line.host, line.ts_ns, line.clock, said, source)
        self._last.pop(key, None)
        self._last[key] = event
        return ()

    def end(self) -> Iterable[Seen]:
        yield from self._last.values()


def _progress(text: str) -> dict[str, Value] | None:
    if "<" in text and (found := _BAR.search(text)):
        n, total = _count(found["n"]), _count(found["total"])
        return {"step": n, "total": total, "epoch": _epoch(text), "what": _kind(text[: found.start()])}
    if "[" in text and (found := _ENDLESS.search(text)):
        return {"step": int(found["n"]), "total": None, "epoch": _epoch(text), "what": _kind(text[: found.start()])}
    if found := _STEP.search(text):
        total = int(found["total"]) if found["total"] else None
        return {"step": int(found["step"]), "total": total, "epoch": _epoch(text), "what": _kind(text)}
    if (epoch := _epoch(text)) is not None and re.search(r"loss", text, re.IGNORECASE):
        return {"step": None, "total": None, "epoch": epoch, "what": "train"}
    return None


def _count(said: str) -> int | None:
    if said == "?":
        return None
    scale = {"k": 1_000, "M": 1_000_000, "G": 1_000_000_000}.get(said[-1], 1)
    digits = said.rstrip("kMG")
    return round(float(digits) * scale) if re.fullmatch(r"\d+(?:\.\d+)?", digits) else None


def _epoch(text: str) -> float | None:
    found = _EPOCH.search(text)
    return float(found["epoch"]) if found else None


def _kind(words: str) -> str:
    found = _KIND.search(words)
    if found is None:
        return "train"
    return next(kind for kind, pattern in _KINDS if pattern.search(words))


class Phases:
    """What each rank said that it began or ended, the last few of them."""

    needles: tuple[str, ...] = (
        "aving", " save", "heckpoint", "oading ", "esuming", "valuation", "validation", "Running ", "okeniz", "okenis",
        "ownload", "ompil", "extension", "ninja: ", "autotun", "enerat", "ollout", "update_weight", "broadcast_to_vllm",
        "eight sync", "weights", "refit", "waiting for engine", "raining ", "destroy_process_group", "xiting",
        "StopIteration", "end of ", "exhausted",
    )  # fmt: skip
    sparse = True

    def __init__(self) -> None:
        self._last: dict[tuple[object, ...], deque[Event]] = {}

    def line(self, line: Line) -> Iterable[Seen]:
        text = line.text.strip()
        phase = None if _not_spoken(text) else next((name for name, said in _COMPILED if said.search(text)), None)
        if phase is None:
            return ()
        rank = line.rank
        if rank is None and (named := _RANK.search(text)):
            rank = int(named[1])
        fields: dict[str, Value] = {"phase": phase, "begin": _ENDED.search(text) is None}
        event = Event("log.phase", fields, rank, line.host, line.ts_ns, line.clock, text, f":{line.number}")
        self._last.setdefault((*line.writer, rank), deque(maxlen=KEPT_PHASES)).append(event)
        return ()

    def end(self) -> Iterable[Seen]:
        for events in self._last.values():
            yield from events


def _not_spoken(text: str) -> bool:
    """Tracebacks, watchdogs, launchers and NCCL's own lines are no words of the training."""
    return _MACHINES.search(text) is not None
