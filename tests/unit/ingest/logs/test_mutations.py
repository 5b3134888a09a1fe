"""Evidence that was cut, wrapped, mixed, thinned or relabelled by another launcher never ends in a traceback."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest

from ddiag.api import examine, load, rules_for
from ddiag.errors import DdiagError
from ddiag.rulekit.rule import LoadedRule

CASES = Path(__file__).resolve().parents[4] / "fixtures" / "cases"
MUTATIONS = 300
"""In all, spread over the cases that hold text."""
_TEXT = re.compile(r"\.(log|txt|dmesg|syslog|out|err)$")
ENVELOPES = (
    "[default{rank}]:", "{rank}: ", "[1,{rank}]<stdout>:", "node-{rank}: ", "2026-01-02 03:04:{rank:02d} ",
    "\x1b[36m(Worker pid=4{rank}, ip=10.0.0.{rank})\x1b[0m ", "[pod/train-{rank}/main] ",
)  # fmt: skip
Mutation = Callable[[random.Random, list[str]], list[str]]


def _cut_off(chance: random.Random, lines: list[str]) -> list[str]:
    text = "\n".join(lines)
    return text[: chance.randrange(1, len(text) + 1)].split("\n")


def _headless(chance: random.Random, lines: list[str]) -> list[str]:
    text = "\n".join(lines)
    return text[chance.randrange(len(text)) :].split("\n")


def _wrapped(chance: random.Random, lines: list[str]) -> list[str]:
    width = chance.choice((60, 80, 132))
    return [line[at : at + width] for line in lines for at in range(0, max(len(line), 1), width)]


def _thinned(chance: random.Random, lines: list[str]) -> list[str]:
    return [line for line in lines if chance.random() < 0.7] or lines


def _shuffled(chance: random.Random, lines: list[str]) -> list[str]:
    """Two writers in turn: each half in its own order."""
    half = len(lines) // 2
    ours, theirs, mixed = lines[:half], lines[half:], []
    while ours or theirs:
        source = ours if ours and (not theirs or chance.random() < 0.5) else theirs
        mixed.append(source.pop(0))
    return mixed


def _interleaved(chance: random.Random, lines: list[str]) -> list[str]:
    """One writer's line inside another's."""
    found = []
    for line in lines:
        at = chance.randrange(len(line) + 1)
        other = chance.choice(lines)[:40]
        found.append(line[:at] + other + line[at:] if chance.random() < 0.3 else line)
    return found


def _in_envelope(chance: random.Random, lines: list[str]) -> list[str]:
    label = chance.choice(ENVELOPES)
    return [label.format(rank=chance.randrange(8)) + line for line in lines]


def _broken_bytes(chance: random.Random, lines: list[str]) -> list[str]:
    return [line.replace(chance.choice("aeiou0123"), "\ufffd\0", 1) for line in lines]


def _digits(chance: random.Random, lines: list[str]) -> list[str]:
    """Numbers that no machine prints."""
    return [re.sub(r"\d+", lambda found: found[0] * chance.choice((1, 1, 1, 9)), line) for line in lines]


CHANGES: tuple[Mutation, ...] = (
    _cut_off, _headless, _wrapped, _thinned, _shuffled, _interleaved, _in_envelope, _broken_bytes, _digits,
)  # fmt: skip


def _with_text() -> list[Path]:
    return sorted({path.parent for path in CASES.glob("*/input*") if _TEXT.search(path.name)})


@cache
def _rules() -> tuple[LoadedRule, ...]:
    return rules_for()


@pytest.mark.parametrize("case", _with_text(), ids=lambda path: path.name)
def test_damaged_text_is_read_as_far_as_it_goes(case: Path, tmp_path: Path) -> None:
    chance = random.Random(case.name)
    for number in range(MUTATIONS // len(_with_text()) + 1):
        change = chance.choice(CHANGES)
        folder = tmp_path / str(number)
        folder.mkdir()
        for path in sorted(case.glob("input*")):
            changed = path.read_bytes()
            if _TEXT.search(path.name):
                lines = changed.decode("utf-8", errors="replace").split("\n")
                changed = "\n".join(change(chance, lines)).encode("utf-8", errors="replace")
            (folder / path.name).write_bytes(changed)
        with suppress(DdiagError):
            examine(load([str(path) for path in sorted(folder.iterdir())], jobs=1), _rules())
