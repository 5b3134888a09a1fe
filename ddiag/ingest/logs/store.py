"""The store and rendezvous of c10d, texts of torch 1.12 to 2.12."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from ddiag.ingest.logs.c10 import rank_number
from ddiag.ingest.logs.line import Line
from ddiag.model.incident import Event, Seen, Value

_PLACE = r"\(?\[?(?P<host>[\w.-]+|[0-9a-fA-F:.]*:[0-9a-fA-F:.]+?)\]?(?:, |:)(?P<port>\d+)(?![\d:])\)?"
_SOCKET = re.compile(
    rf"client socket has timed out after (?P<time>\d+) ?(?P<unit>ms|s) while trying to connect to {_PLACE}"
)
_CLIENT = re.compile(
    rf"TCP client failed to connect/validate to host {_PLACE} - (?P<what>timed out|retrying|giving up)"
)
_CLIENT_TIME = re.compile(r"timeout=(\d+)ms")
_RETRY = re.compile(
    rf"client socket (?:has failed to connect to|cannot be initialized to connect to) {_PLACE}"
    r"(?: \(errno: \d+ - (?P<error>[^)]+)\))?"
)
_ADDRESS_IN_USE = re.compile(r"EADDRINUSE|[Aa]ddress already in use")
_PORT_NUMBER = re.compile(r"port: (\d+)|\]:(\d+)|:(\d{2,5})\b(?= \(errno)")
_ID = re.compile(
    r"\[(?P<rank>\d+)\] is setting up NCCL communicators? and retr(?:ei|ie)ving ncclUniqueId(?:\(s\))? from "
    r"(?:\[(?P<root>\d+)\]|roots) via (?:c10d key-value store|TCPStore) by key '(?P<key>[^']*)'"
)
_ID_ERROR = re.compile(r"got error: (?P<error>.+)")
_WAIT = re.compile(
    r"wait timeout after (?P<ms>\d+) ?ms, keys: (?P<keys>[^\s,]+)|"
    r"Timeout waiting for key: (?P<key>\S+) after (?P<after>\d+) ?ms"
)
_LOST = re.compile(
    r"Did the remote server shutdown or crash|TCPStore server has shut down too early|Broken pipe.*TCPStore|"
    r"The connection to the C10d store has failed|sendBytes failed on SocketImpl"
)
_RENDEZVOUS = re.compile(
    r"Rendezvous(?P<kind>Connection|Timeout|Closed|State)Error\b:?(?P<what>.*)|"
    r"rendezvous (?:handler|barrier).*tim(?:ed )?out"
)


class Store:
    """Clients that cannot reach the store, keys that never came, ports that are taken."""

    needles: tuple[str, ...] = (
        "client socket has", "client socket cannot", "TCP client failed", "failed to bind to", "failed to listen on",
        "EADDRINUSE", "ddress already in use", "ncclUniqueId", "wait timeout after", "Timeout waiting for key",
        "remote server shutdown", "server has shut down", "C10d store has failed", "sendBytes failed",
        "RendezvousConnectionError", "RendezvousTimeoutError", "RendezvousClosedError",
    )  # fmt: skip

    def __init__(self) -> None:
        self._known: set[tuple[object, ...]] = set()

    def line(self, line: Line) -> Iterator[Seen]:
        text = line.text
        if "ncclUniqueId" in text:
            yield from self._unique_id(line)
        elif found := _CLIENT.search(text):
            timeout = _CLIENT_TIME.search(text)
            kind = "store.connect_retry" if found["what"] == "retrying" else "store.connect_timeout"
            yield from self._place(kind, found, int(timeout[1]) if timeout else None)
        elif found := line.searched(_SOCKET, 2) if "has timed out" in text else None:
            scale = 1 if found["unit"] == "ms" else 1000
            yield from self._place("store.connect_timeout", found, int(found["time"]) * scale)
        elif found := _RETRY.search(text):
            yield from self._place("store.connect_retry", found, None, {"error": found["error"] or ""})
        elif _ADDRESS_IN_USE.search(text):
            port = _PORT_NUMBER.search(text)
            number = int(next(group for group in port.groups() if group)) if port else None
            if self._is_new("port", number, line.host):
                yield Event("store.port_in_use", {"port": number})
        elif found := _WAIT.search(text):
            key = (found["keys"] or found["key"]).strip("'\"")
            yield Event("store.wait_timeout", {"key": key, "timeout_ms": int(found["ms"] or found["after"])})
        elif _LOST.search(text):
            yield Event("store.lost", {})
        elif found := _RENDEZVOUS.search(text):
            yield Event("launcher.rendezvous_failed", {"error": (found["what"] or found[0]).strip() or found["kind"]})

    def end(self) -> Iterable[Seen]:
        return ()

    def _place(
        self, kind: str, found: re.Match[str], timeout_ms: int | None, more: dict[str, Value] | None = None
    ) -> Iterator[Seen]:
        place: dict[str, Value] = {"address": found["host"], "port": int(found["port"])}
        if self._is_new(kind, *place.values(), timeout_ms):
            yield Event(kind, {**place, "timeout_ms": timeout_ms, **(more or {})})

    def _unique_id(self, line: Line) -> Iterator[Seen]:
        found = line.searched(_ID, 4)
        if found is None:
            return
        error = line.searched(_ID_ERROR, 4)
        root = rank_number(found["root"]) if found["root"] else None
        waiting = rank_number(found["rank"])
        if self._is_new("id", line.rank, waiting, root):
            said = error["error"].strip() if error else ""
            fields: dict[str, Value] = {"waiting_rank": waiting, "root_rank": root, "key": found["key"], "error": said}
            yield Event("c10d.unique_id_timeout", fields, rank=line.rank if line.rank is not None else waiting)

    def _is_new(self, *key: object) -> bool:
        if key in self._known:
            return False
        self._known.add(key)
        return True
