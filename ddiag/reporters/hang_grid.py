"""The picture of a job's groups: every rank once, in its place among tensor, pipeline and data parallel groups."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ddiag.model.run import Run
from ddiag.model.signals_incident import Stall
from ddiag.rulekit.cost import name_ranks

MOST_CELLS = 2048
_WIDEST = 32
_REPLICAS = 8
_MOST_LINES, _LINES = 24, 16
_DIMENSIONS: tuple[tuple[str, str], ...] = (
    ("tp", r"(^|[^a-z])tp([^a-z]|$)|tensor"),
    ("pp", r"(^|[^a-z])pp([^a-z]|$)|pipeline"),
    ("dp", r"(^|[^a-z])(dp|hsdp|fsdp)([^a-z]|$)|data_?parallel|shard|replicate|mesh_rep"),
)
_WORDS = {"tp": "tensor parallel", "pp": "pipeline stage", "dp": "data parallel"}


@dataclass(frozen=True)
class Cell:
    rank: int
    kind: str
    """culprit, suspect, waiting or elsewhere"""
    title: str


@dataclass(frozen=True)
class Line:
    label: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Block:
    label: str
    lines: tuple[Line, ...]


@dataclass(frozen=True)
class Grid:
    blocks: tuple[Block, ...]
    how: str
    """How to read it."""
    shown: int
    total: int


def groups_grid(stall: Stall, run: Run, places: Mapping[int, str]) -> Grid | None:
    """None when only a rank or two are known: there is no picture to draw."""
    ranks = _ranks(stall, run)
    if len(ranks) < 3:
        return None
    dims = _dimensions(run, ranks)
    waiting = {
        rank for one in stall.groups for rank, state in one.state_of.items() if state in ("started", "scheduled")
    }
    cells = {rank: _cell(rank, stall, waiting, places) for rank in ranks}
    shown = _shown(ranks, stall, dims.get("pp", {}))
    if "tp" in dims or "pp" in dims:
        blocks, how = _by_dimensions(shown, dims, cells)
    else:
        blocks, how = _by_host(shown, cells, places)
    return Grid(tuple(_side_by_side(blocks)), how, len(shown), len(ranks))


def _side_by_side(blocks: Sequence[Block]) -> list[Block]:
    """Long blocks cut into several, which a wide page shows beside each other."""
    cut: list[Block] = []
    for block in blocks:
        step = len(block.lines) if len(block.lines) <= _MOST_LINES else _LINES
        cut += [Block(block.label, block.lines[at : at + step]) for at in range(0, len(block.lines), max(step, 1))]
    return cut


def _ranks(stall: Stall, run: Run) -> list[int]:
    known = {rank for one in stall.groups for rank in one.ranks} | set(stall.culprits) | set(stall.victims)
    return sorted(known | set(run.coverage.ranks_expected))


def _dimensions(run: Run, ranks: Sequence[int]) -> dict[str, dict[int, tuple[int, int]]]:
    """By dimension: rank -> (number of its group, place in it); only those whose groups hold every rank once."""
    rows = run.table("flight_status").select("desc", "group", "ranks").drop_nulls("ranks").unique(maintain_order=True)
    groups: dict[str, set[tuple[int, ...]]] = defaultdict(set)
    for desc, name, members in rows.iter_rows():
        word = next((key for key, words in _DIMENSIONS if re.search(words, f"{desc or name}".lower())), None)
        if word is not None and len(members) < len(ranks):
            groups[word].add(tuple(members))
    found = {}
    for key, sets in groups.items():
        ordered = sorted(sets)
        if sorted(rank for one in ordered for rank in one) == list(ranks):
            found[key] = {rank: (number, place) for number, one in enumerate(ordered) for place, rank in enumerate(one)}
    return found


def _cell(rank: int, stall: Stall, waiting: set[int], places: Mapping[int, str]) -> Cell:
    kind, words = "elsewhere", "not seen waiting"
    if rank in stall.culprits:
        kind, words = "culprit", "waited for"
    elif rank in stall.candidates:
        kind, words = "suspect", "perhaps waited for"
    elif rank in waiting:
        kind, words = "waiting", "waits"
    at = f" ({places[rank]})" if places.get(rank) else ""
    return Cell(rank, kind, f"rank {rank}{at}: {words}")


def _shown(ranks: Sequence[int], stall: Stall, stages: Mapping[int, tuple[int, int]]) -> list[int]:
    """All of them, or of a very big job those near the culprits."""
    if len(ranks) <= MOST_CELLS:
        return list(ranks)
    guilty = (*stall.culprits, *stall.candidates)
    if stages:
        wanted = {stages[rank][1] for rank in guilty if rank in stages} or {0}
        near = [rank for rank in ranks if stages[rank][1] in wanted]
    else:
        near = [rank for rank in ranks if any(abs(rank - one) < MOST_CELLS // 8 for one in guilty)]
    return (near or list(ranks))[:MOST_CELLS]


def _by_dimensions(
    ranks: Sequence[int], dims: Mapping[str, Mapping[int, tuple[int, int]]], cells: Mapping[int, Cell]
) -> tuple[list[Block], str]:
    """A block for each pipeline stage, a line for each tensor parallel group in it (else for eight replicas)."""
    tensor, stages = dims.get("tp", {}), dims.get("pp", {})
    blocks: dict[int, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for rank in ranks:
        stage = stages[rank][1] if stages else 0
        line = tensor[rank][0] if tensor else stages[rank][0] // _REPLICAS
        blocks[stage][line].append(rank)
    made = [
        Block(
            f"{_WORDS['pp']} {stage}" if stages else "",
            tuple(_line(lines[key], cells) for key in sorted(lines)),
        )
        for stage, lines in sorted(blocks.items())
    ]
    one = "one tensor parallel group" if tensor else "neighbouring replicas"
    how = f"One square is one rank, one line {one}" + (", one block one pipeline stage." if stages else ".")
    return made, how


def _line(ranks: Sequence[int], cells: Mapping[int, Cell]) -> Line:
    return Line(name_ranks(ranks), tuple(cells[rank] for rank in ranks))


def _by_host(ranks: Sequence[int], cells: Mapping[int, Cell], places: Mapping[int, str]) -> tuple[list[Block], str]:
    """A line for each host, where all are known; else lines of equal length."""
    hosts: dict[str, list[int]] = defaultdict(list)
    for rank in ranks:
        hosts[places.get(rank, "").partition(",")[0]].append(rank)
    if "" not in hosts and len(hosts) > 1 and max(map(len, hosts.values())) <= _WIDEST:
        lines = tuple(Line(host, _line(own, cells).cells) for host, own in hosts.items())
        return [Block("", lines)], "One square is one rank, one line one host."
    cut = [ranks[at : at + _WIDEST] for at in range(0, len(ranks), _WIDEST)]
    return [Block("", tuple(_line(part, cells) for part in cut))], "One square is one rank, in the order of ranks."
