"""The shape of one Chrome trace event, as far as ddiag reads it, and the decoders for arrays of them.

A tagged union on ``ph`` lets msgspec skip the body of flow events (a third of a GPU trace) and build small typed
objects for the rest: about a tenth of the time of ``json.loads``. Fields are liberal (number or text), because
profilers, languages and hand-made tools disagree; what still does not fit goes through :mod:`ddiag.ingest.tolerant`.
"""

from __future__ import annotations

from functools import reduce
from operator import or_
from types import GenericAlias
from typing import Any, ClassVar, Literal

import msgspec
from msgspec import Raw, Struct, field

Number = int | float | str | None
"""A number as profilers write it: JSON number, quoted number, or null."""

MISSING = Raw()


class Args(Struct, gc=False):
    """What spans may carry, in the order in which Kineto writes it (looked up fastest so).

    -1 where an id is missing, as the tables have it; None elsewhere.
    """

    external_id: Number = field(name="External id", default=-1)
    device: Number = None
    stream: Number = None
    correlation: Number = -1
    bytes: Number = None
    fwd_tid: Number = field(name="Fwd thread id", default=-1)
    sequence: Number = field(name="Sequence number", default=-1)
    dtypes: Raw = field(name="Input type", default=MISSING)
    dims: Raw = field(name="Input Dims", default=MISSING)
    old_external_id: Number = field(name="external id", default=-1)


class MemoryArgs(Struct, gc=False):
    """What an allocator event carries."""

    device_type: Number = field(name="Device Type", default=None)
    device_id: Number = field(name="Device Id", default=None)
    bytes: Number = field(name="Bytes", default=None)
    allocated: Number = field(name="Total Allocated", default=None)
    reserved: Number = field(name="Total Reserved", default=None)


class CollectiveArgs(Args, gc=False):
    """Arguments plus the description of a collective (torch >= 2.3 on the operator and the kernel)."""

    collective: Number = field(name="Collective name", default=None)
    dtype: Number = None
    in_elements: Number = field(name="In msg nelems", default=None)
    out_elements: Number = field(name="Out msg nelems", default=None)
    group_size: Number = field(name="Group size", default=None)
    group_name: Number = field(name="Process Group Name", default=None)
    group_id: Number = field(name="Process Group ID", default=None)
    group_desc: Number = field(name="Process Group Description", default=None)
    group_ranks: int | float | str | list[int | float | str | None] | None = field(
        name="Process Group Ranks", default=None
    )
    rank_start: Number = field(name="Global rank start", default=None)
    rank_stride: Number = field(name="Global rank stride", default=None)
    rank: Number = field(name="Rank", default=None)
    src_rank: Number = field(name="Src Rank", default=None)
    dst_rank: Number = field(name="Dst Rank", default=None)


class _Span(Struct, gc=False):
    cat: str | None = None
    name: str = ""
    tid: Number = None
    ts: Number = None
    dur: Number = None


class Complete(_Span, gc=False, tag_field="ph", tag="X"):
    args: Args | None = None


class CompleteCollective(_Span, gc=False, tag_field="ph", tag="X"):
    args: CollectiveArgs | None = None


KnownCategory = Literal[
    "cpu_op", "user_annotation", "gpu_user_annotation", "python_function", "kernel", "gpu_memcpy", "gpu_memset",
    "cuda_runtime", "cuda_driver", "hip_runtime", "xpu_runtime", "mtia_runtime", "mtia_ccp_events", "cuda_sync",
    "overhead", "Trace", "Operator", "Kernel", "Runtime", "Memcpy", "Memset",
]  # fmt: skip
"""Read as shared strings: no allocation, and grouping by them needs no hashing."""


class KnownComplete(Complete, gc=False, tag_field="ph", tag="X"):
    cat: KnownCategory | None = None


class KnownCompleteCollective(CompleteCollective, gc=False, tag_field="ph", tag="X"):
    cat: KnownCategory | None = None


class Marked(Struct, gc=False):
    """Events that are not spans: ``cat`` is the class's own mark, so one dictionary sorts all events."""

    category: str | None = field(name="cat", default=None)
    name: str = ""
    pid: Number = None
    tid: Number = None
    ts: Number = None


BEGIN, END, INSTANT, COUNTER, METADATA, IGNORED = "\0B", "\0E", "\0i", "\0C", "\0M", "\0ignored"


class Begin(Marked, gc=False, tag_field="ph", tag="B"):
    cat: ClassVar[str] = BEGIN
    args: CollectiveArgs | None = None


class End(Marked, gc=False, tag_field="ph", tag="E"):
    cat: ClassVar[str] = END


class Instant(Marked, gc=False, tag_field="ph", tag="i"):
    cat: ClassVar[str] = INSTANT
    args: MemoryArgs | None = None


class OldInstant(Marked, gc=False, tag_field="ph", tag="I"):
    cat: ClassVar[str] = INSTANT
    args: MemoryArgs | None = None


class Counter(Marked, gc=False, tag_field="ph", tag="C"):
    cat: ClassVar[str] = COUNTER
    args: Raw = MISSING


class Metadata(Marked, gc=False, tag_field="ph", tag="M"):
    cat: ClassVar[str] = METADATA
    args: Raw = MISSING


class Flow(Struct, gc=False, tag_field="ph", tag="f"):
    cat: ClassVar[str] = IGNORED


def _ignored(phase: str) -> type[Struct]:
    """A phase whose events carry nothing ddiag reads."""
    kind = msgspec.defstruct(
        f"Phase{ord(phase)}", [], bases=(Struct,), namespace={"cat": IGNORED}, tag_field="ph", tag=phase
    )
    assert issubclass(kind, Struct)
    return kind


IGNORED_PHASES = ("s", "t", "b", "n", "e", "S", "T", "p", "F", "P", "N", "O", "D", "V", "v", "R", "c", "(", ")")
_OTHERS = (Begin, End, Instant, OldInstant, Counter, Metadata, Flow, *map(_ignored, IGNORED_PHASES))

Event = Complete | CompleteCollective | Begin | End | Instant | OldInstant | Counter | Metadata


def _union(span: type[Struct]) -> Any:
    return reduce(or_, (span, *_OTHERS))


def _decoder(span: type[Struct]) -> msgspec.json.Decoder[list[Event]]:
    array: Any = GenericAlias(list, (_union(span),))
    return msgspec.json.Decoder(array)


raw_array: msgspec.json.Decoder[list[Raw]] = msgspec.json.Decoder(list[Raw])
one_event: msgspec.json.Decoder[Event] = msgspec.json.Decoder(_union(CompleteCollective))

_KNOWN = (_decoder(KnownComplete), _decoder(KnownCompleteCollective))
_ANY = (_decoder(Complete), _decoder(CompleteCollective))
_COLLECTIVE_MARK = b'"Collective name"'


class ArrayDecoder:
    """Decodes arrays of events of one trace with the cheapest decoder that fits."""

    def __init__(self) -> None:
        self._decoders = _KNOWN

    def __call__(self, array: bytes | memoryview) -> list[Event]:
        whole: Any = array.obj if isinstance(array, memoryview) else array
        # rfind: six times as fast as `in` where the mark is absent, which it is from most traces
        described = whole.rfind(_COLLECTIVE_MARK) >= 0
        try:
            return self._decoders[described].decode(array)
        except msgspec.ValidationError:
            if self._decoders is _ANY:
                raise
        events = _ANY[described].decode(array)
        self._decoders = _ANY
        return events
