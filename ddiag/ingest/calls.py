"""How a trace describes one collective call: the arguments of ``record_param_comms`` and of communication kernels."""

from __future__ import annotations

import re
from typing import NamedTuple

from ddiag.ingest.events import CollectiveArgs
from ddiag.ingest.values import to_int
from ddiag.model.naming import dtype_bytes

_NUMBERS = re.compile(r"-?\d+")
_MAX_GROUP = 1_000_000


class CallMeta(NamedTuple):
    """What one call says about itself; -1 and "" where it does not."""

    collective: str
    dtype: str
    in_elements: int
    out_elements: int
    group: str
    desc: str
    group_size: int
    ranks: str
    rank_start: int
    rank_stride: int
    rank: int
    src_rank: int
    dst_rank: int

    @property
    def bytes_in(self) -> int | None:
        return self._bytes(self.in_elements)

    @property
    def bytes_out(self) -> int | None:
        return self._bytes(self.out_elements)

    def _bytes(self, elements: int) -> int | None:
        size = dtype_bytes(self.dtype)
        return elements * size if size is not None and 0 <= elements < 1 << 50 else None

    @property
    def members(self) -> tuple[int, ...] | None:
        """Ranks of the group; rebuilt from start and stride where the text is cut short with '...'."""
        if "..." not in self.ranks:
            listed = tuple(map(int, _NUMBERS.findall(self.ranks)[:_MAX_GROUP]))
            return listed or None
        if self.rank_start < 0 or self.rank_stride < 1 or not 1 <= self.group_size <= _MAX_GROUP:
            return None
        return tuple(self.rank_start + k * self.rank_stride for k in range(self.group_size))


def describe(args: CollectiveArgs) -> CallMeta:
    """The call's description from its arguments."""
    group = args.group_name if args.group_name is not None else args.group_id
    return CallMeta(
        collective=_text(args.collective),
        dtype=_text(args.dtype),
        in_elements=to_int(args.in_elements, -1),
        out_elements=to_int(args.out_elements, -1),
        group=_text(group),
        desc=_text(args.group_desc),
        group_size=to_int(args.group_size, -1),
        ranks=_text(args.group_ranks),
        rank_start=to_int(args.rank_start, -1),
        rank_stride=to_int(args.rank_stride, -1),
        rank=to_int(args.rank, -1),
        src_rank=to_int(args.src_rank, -1),
        dst_rank=to_int(args.dst_rank, -1),
    )


def _text(value: object) -> str:
    return "" if value is None else str(value)
