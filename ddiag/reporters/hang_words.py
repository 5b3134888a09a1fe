"""How a hang is worded: the sentence that names who is waited for, places, calls and stacks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

from ddiag.model.signals_incident import Stall
from ddiag.reporters.words import clean
from ddiag.rulekit.cost import name_ranks

PHASES: Mapping[str, str] = MappingProxyType(
    {
        "input": "waits for its data",
        "checkpoint": "is writing a checkpoint",
        "evaluation": "is evaluating",
        "exit": "is on its way out",
        "cleanup": "is cleaning up",
        "ended": "has left the training loop",
        "user_code": "is elsewhere in the script",
        "cuda_call": "is stuck in a CUDA call",
        "gil": "sleeps in C code and holds Python's GIL",
        "stopped": "is stopped (SIGSTOP)",
        "storage": "waits in the kernel for a file system or device",
        "setup": "is still preparing",
        "compile": "is compiling",
        "generate": "is generating",
        "weight_sync": "is synchronising weights",
        "metrics": "is computing metrics",
        "skipped": "skipped a step",
    }
)
_DEFAULT = ("default_pg", "0", "")
_FRAME = re.compile(r"(?P<name>.+) \((?P<file>[^()]*)\)$")
_LIBRARY = re.compile(r"/(?:site|dist)-packages/|/lib/python[\d.]+/|<frozen|^<")
_PACKAGE = re.compile(r"(?:.*/)?(?:(?:site|dist)-packages|lib/python[\d.]+)/(?P<inside>.+)")
_NESTED = re.compile(r"<[^<>]*>|\([^()]*\)")
_PLUMBING = re.compile(
    r"^(0x[0-9a-f]+|pybind11::|std::|_call_function_pointer|_ctypes_callproc|PyCFuncPtr|ffi_call|clone |start_thread"
    r"|pthread_cond_|__|syscall )|c10d_logger\.py|/torch/utils/_contextlib\.py|libstdc\+\+"
)
_DEEPEST, _MOST_CHARACTERS = 12, 80
MOST_PLACED = 3


def culprits_are(stall: Stall, places: Mapping[int, str]) -> str:
    """``Rank 5 (node-b, local 1)``, ``Ranks 3 and 4``."""
    return _capital(name_with_places(stall.culprits, places))


def name_with_places(ranks: tuple[int, ...], places: Mapping[int, str]) -> str:
    if not 0 < len(ranks) <= MOST_PLACED or not all(places.get(rank) for rank in ranks):
        return name_ranks(ranks)
    told = [f"{rank} ({places[rank]})" for rank in sorted(ranks)]
    return f"rank {told[0]}" if len(told) == 1 else f"ranks {', '.join(told[:-1])} and {told[-1]}"


def headline(stall: Stall, places: Mapping[int, str]) -> str:
    """One sentence: who does what instead, and who waits in which call for it."""
    waiting = f"{len(stall.victims):,} rank{' waits' if len(stall.victims) == 1 else 's wait'}"
    who = culprits_are(stall, places)
    several = len(stall.culprits) > 1
    if stall.verdict == "mismatch":
        return clean(f"{_who(stall, who)} not call what the others call{_at(stall)}: {stall.mismatch}{_number(stall)}")
    if stall.verdict in ("deadlock", "p2p_unmatched"):
        return clean(f"{who} wait for each other{_cycle(stall)}; {waiting} behind them")
    if not stall.culprits:
        return clean(_capital(stall.why))
    if stall.verdict == "dead":
        return clean(
            f"{who} {'are' if several else 'is'} dead; {waiting} for {'them' if several else 'it'} in {call(stall)}"
        )
    if stall.verdict == "late":
        doing = PHASES.get(stall.phase, "did not come") if not several else "did not come"
        return clean(f"{who} {doing}{_at(stall)}; {waiting} for {'them' if several else 'it'} in {call(stall)}")
    return clean(_capital(stall.why))


def _number(stall: Stall) -> str:
    return "" if stall.seq is None else f"; it is call #{stall.seq} of {group_words(stall.group or '')}"


def _who(stall: Stall, who: str) -> str:
    if not stall.culprits:
        return "The members do"
    return f"{who} {'do' if len(stall.culprits) > 1 else 'does'}"


def _cycle(stall: Stall) -> str:
    if not stall.cycle:
        return ""
    return ": " + ", ".join(f"rank {rank} in {what}" for rank, what in stall.cycle[:4])


def _at(stall: Stall) -> str:
    return f", at {frame_words(stall.where)}" if stall.where else ""


def call(stall: Stall) -> str:
    """``all_reduce #4190 of the default group``."""
    number = f" #{stall.seq}" if stall.seq is not None and stall.seq >= 0 else ""
    return f"{stall.op or 'a collective'}{number} of {group_words(stall.group or '')}"


def group_words(name: str, desc: str = "") -> str:
    shown = desc or name
    return "the default group" if shown in _DEFAULT else f"group {clean(shown)}"


def frame_words(frame: str | None) -> str:
    """``train.py:88 in evaluate``: the file's own name."""
    if not frame:
        return ""
    match = _FRAME.match(frame)
    if match is None:
        return clean(frame)
    return clean(f"{_short_file(match['file'])} in {match['name']}")


def is_library(frame: str) -> bool:
    match = _FRAME.match(frame)
    at = match["file"] if match is not None else frame
    return bool(_LIBRARY.search(at)) or ".py" not in at


def short_frame(frame: str) -> str:
    """``function  torch/autograd/graph.py:979``: the path from its package on, C++ names without their arguments."""
    match = _FRAME.match(frame)
    if match is None:
        return clean(frame)
    name = match["name"] if ".py:" in match["file"] else _plain_name(match["name"])
    return clean(f"{name}  {_short_file(match['file'], keep_package=True)}")


def _plain_name(name: str) -> str:
    """``c10d::Reducer::finalize_backward`` of a C++ name with templates and arguments."""
    shorter = name
    for _ in range(_DEEPEST):
        without = _NESTED.sub("", shorter)
        if without == shorter:
            break
        shorter = without
    return shorter.strip() or name[:_MOST_CHARACTERS]


def tells_nothing(frame: str) -> bool:
    """A frame between two others: wrappers of torch, pybind11's and the standard library's plumbing."""
    return bool(_PLUMBING.search(frame))


def _short_file(file: str, *, keep_package: bool = False) -> str:
    last = file.rpartition("/")[2]
    found = _PACKAGE.search(file)
    return found["inside"] if found is not None and keep_package else last


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
