"""gloo's transport and the barriers that c10d builds on it or beside it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from ddiag.ingest.logs.c10 import rank_of, ranks_in, tag_in
from ddiag.ingest.logs.line import Line
from ddiag.model.incident import Event, Seen, Value

_WAIT = re.compile(r"Timed out waiting (?P<ms>\d+) ?ms for (?P<way>recv|send)\w* operation to complete")
_PEER = r"\[?(?P<peer>[0-9a-fA-F.:]+?|[\w.-]+)\]?:(?P<port>\d+)"
_CLOSED = re.compile(rf"Connection closed by peer(?: {_PEER})?")
_RESET = re.compile(rf"(?:Read|Write|read|write) error(?: {_PEER})?: (?P<error>Connection reset by peer|Broken pipe)")
_BARE_RESET = re.compile(r"(?P<error>Connection reset by peer|Application timeout caused pair closure|Broken pipe)")
_MESH = re.compile(r"Gloo connectFullMesh failed with (?P<error>.+)")
_CONNECT = re.compile(
    rf"connect(?: to)?(?: {_PEER})?: "
    r"(?P<error>Connection refused|No route to host|Connection timed out|Network is unreachable)"
)
_ADDRESS = re.compile(_PEER)
_MISSING = re.compile(r"Ranks? (?P<ranks>[\d, ]+?) failed to pass monitoredBarrier in (?P<ms>\d+) ?ms")
_TIMED_OUT = re.compile(r"timed out in monitoredBarrier after (?P<ms>\d+) ?ms")
_DEVICE = re.compile(r"using (?:best-guess )?GPU (?P<gpu>\d+) (?:to perform barrier|as device)")


class Gloo:
    """Waits and connections of gloo; every line but a mesh that never came up is a victim's."""

    needles: tuple[str, ...] = (
        "Timed out waiting", "Connection closed by peer", "Connection reset by peer", "gloo/transport/tcp",
        "Gloo connectFullMesh failed", "caused pair closure",
    )  # fmt: skip

    def line(self, line: Line) -> Iterator[Seen]:
        text = line.text
        if found := _MESH.search(text):
            error = found["error"].strip()
            address = _ADDRESS.search(error.rsplit("] ", 1)[-1])
            peer: dict[str, Value] = {"peer": address["peer"], "port": int(address["port"])} if address else {}
            yield Event("gloo.connect_failed", {"error": error, **peer})
        elif found := _WAIT.search(text):
            yield Event("gloo.timeout", {"timeout_ms": int(found["ms"]), "direction": found["way"]})
        elif found := _CLOSED.search(text) or _RESET.search(text):
            yield Event("gloo.peer_closed", {"peer": found["peer"] or "", "port": found["port"] or ""})
        elif "gloo/" not in text:
            return
        elif found := _CONNECT.search(text):
            yield Event("gloo.connect_failed", {"error": found["error"], "peer": found["peer"] or ""})
        elif found := _BARE_RESET.search(text):
            yield Event("gloo.peer_closed", {"peer": "", "error": found["error"]})

    def end(self) -> Iterable[Seen]:
        return ()


class Barrier:
    """monitored_barrier names who did not come; NCCL's barrier may guess the wrong device."""

    needles: tuple[str, ...] = ("monitoredBarrier", "to perform barrier", "as device used by this process")

    def __init__(self) -> None:
        self._known: set[tuple[object, ...]] = set()

    def line(self, line: Line) -> Iterator[Seen]:
        if found := line.searched(_MISSING, 2) if "onitoredBarrier" in line.text else None:
            missing = ranks_in(found["ranks"])
            if ("missing", *missing) not in self._known:
                self._known.add(("missing", *missing))
                yield Event("c10d.monitored_barrier", {"missing": [*missing], "timeout_ms": int(found["ms"])})
        elif found := _TIMED_OUT.search(line.text):
            yield Event("c10d.monitored_barrier", {"missing": [], "timeout_ms": int(found["ms"])})
        elif found := _DEVICE.search(line.text):
            tag = tag_in(line.text)
            rank = rank_of(line, tag)
            if ("device", rank, found["gpu"]) not in self._known:
                self._known.add(("device", rank, found["gpu"]))
                yield Event("c10d.barrier_device_warning", {**tag.fields, "device": int(found["gpu"])}, rank=rank)

    def end(self) -> Iterable[Seen]:
        return ()
