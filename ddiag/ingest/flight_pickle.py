"""Pickles of plain data: containers and scalars and nothing else, so that reading one can never run code.

A pickle is a program. Whatever would make it call, import or look something up (GLOBAL, REDUCE, BUILD, persistent ids,
extension codes) refuses the file; a pickle that is cut off is replayed opcode by opcode as far as it goes.
"""

from __future__ import annotations

import copyreg
import io
import pickle
import pickletools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from ddiag.ingest.trace import OtherFileError

NOT_PLAIN = (
    "a pickle of Python objects ({what}), which could run code: a checkpoint or other saved objects, not a Flight "
    "Recorder dump; nothing of it was run"
)
_BLOCK_BYTES = 1 << 20
_DAMAGE: tuple[type[Exception], ...] = (
    pickle.UnpicklingError, EOFError, ValueError, IndexError, KeyError, TypeError, AttributeError, OverflowError,
    MemoryError,
)  # fmt: skip
"""What the unpickler raises for bytes that are no whole pickle; ValueError covers bad UTF-8,
MemoryError a length that was damaged."""


@dataclass(frozen=True)
class Plain:
    """What a pickle holds; ``damage`` says in words where it ended early."""

    value: Any
    damage: str = ""


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> NoReturn:
        raise OtherFileError(NOT_PLAIN.format(what=f"{module}.{name}"[:80]))

    def persistent_load(self, pid: object) -> NoReturn:
        raise OtherFileError(NOT_PLAIN.format(what="persistent ids"))


def plain_objects(data: bytes) -> Plain:
    """The plain value that *data* pickles. Raises OtherFileError for one that is not plain."""
    copyreg.clear_extension_cache()  # extensions that are cached never pass find_class
    try:
        return Plain(_PlainUnpickler(_peekable(data)).load())
    except _DAMAGE:
        return _Replay().run(data)


def _peekable(data: bytes) -> io.BufferedReader:
    """Where it can look ahead, the unpickler reads blocks instead of single opcodes: four times as fast."""
    return io.BufferedReader(io.BytesIO(data), _BLOCK_BYTES)


class _Replay:
    """The stack machine of the pickle format, for its plain opcodes only. Slow, and never surprised."""

    def __init__(self) -> None:
        self._stack: list[Any] = []
        self._below: list[list[Any]] = []
        self._memo: dict[int, Any] = {}

    def run(self, data: bytes) -> Plain:
        try:
            for opcode, argument, _position in pickletools.genops(data):
                if opcode.name == "STOP":
                    return Plain(self._stack[-1])
                self._step(opcode.name, argument)
        except _DAMAGE:
            pass
        return Plain(self._salvaged(), "the pickle is cut off or damaged")

    def _step(self, name: str, argument: Any) -> None:
        if name in _PUSHED:
            self._stack.append(argument)
        elif name in _CONSTANTS:
            self._stack.append(_CONSTANTS[name]())
        elif name in _BUILDERS:
            _BUILDERS[name](self._stack)
        elif name in _ENDS:
            items, self._stack = self._stack, self._below.pop()
            _ENDS[name](self._stack, items)
        elif name == "MARK":
            self._below.append(self._stack)
            self._stack = []
        elif name in ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"):
            self._memo[len(self._memo) if name == "MEMOIZE" else argument] = self._stack[-1]
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            self._stack.append(self._memo[argument])
        elif name not in ("PROTO", "FRAME"):
            raise OtherFileError(NOT_PLAIN.format(what=f"opcode {name}"))

    def _salvaged(self) -> Any:
        """The outermost container with what had been read for it, and the unfinished lists inside it."""
        levels = [*self._below, self._stack]
        while len(levels) > 1:
            items = levels.pop()
            _attach(levels[-1], items)
        return levels[0][0] if levels and levels[0] else None


def _attach(stack: list[Any], items: list[Any]) -> None:
    """Put *items*, read after the last mark, into the container below it; half an item is left out."""
    if not stack:
        return
    if isinstance(stack[-1], list):
        stack[-1].extend(items)
    elif isinstance(stack[-1], dict):
        _set_items(stack, items[: len(items) // 2 * 2])


def _set_items(stack: list[Any], items: list[Any]) -> None:
    stack[-1].update(zip(items[0::2], items[1::2], strict=True))


def _set_item(stack: list[Any]) -> None:
    value, key = stack.pop(), stack.pop()
    stack[-1][key] = value


def _append(stack: list[Any]) -> None:
    item = stack.pop()
    stack[-1].append(item)


def _last(count: int) -> Callable[[list[Any]], None]:
    def build(stack: list[Any]) -> None:
        items = tuple(stack[len(stack) - count :])
        del stack[len(stack) - count :]
        stack.append(items)

    return build


_PUSHED = frozenset(
    {"INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"}
    | {"STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"}
    | {"BINBYTES", "SHORT_BINBYTES", "BINBYTES8"}
)
_CONSTANTS: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_LIST": list,
    "EMPTY_DICT": dict,
    "EMPTY_TUPLE": tuple,
    "EMPTY_SET": set,
}
_BUILDERS: dict[str, Callable[[list[Any]], None]] = {
    "APPEND": _append,
    "SETITEM": _set_item,
    "TUPLE1": _last(1),
    "TUPLE2": _last(2),
    "TUPLE3": _last(3),
    "POP": lambda stack: stack.pop() and None,
    "DUP": lambda stack: stack.append(stack[-1]),
}
_ENDS: dict[str, Callable[[list[Any], list[Any]], None]] = {
    "APPENDS": lambda stack, items: stack[-1].extend(items),
    "SETITEMS": _set_items,
    "ADDITEMS": lambda stack, items: stack[-1].update(items),
    "LIST": lambda stack, items: stack.append(items),
    "DICT": lambda stack, items: stack.append(dict(zip(items[0::2], items[1::2], strict=True))),
    "TUPLE": lambda stack, items: stack.append(tuple(items)),
    "FROZENSET": lambda stack, items: stack.append(frozenset(items)),
    "POP_MARK": lambda stack, items: None,
}
