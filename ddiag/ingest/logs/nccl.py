"""NCCL's own log (NCCL_DEBUG=INFO or WARN), versions 2.10 to 2.30, and the error torch raises for it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from ddiag.ingest.logs.line import Line
from ddiag.ingest.logs.nccl_facts import FACTS
from ddiag.ingest.logs.nccl_line import Said, said
from ddiag.ingest.logs.nccl_warnings import FAILURES, duplicate_gpu
from ddiag.model.incident import Event, Seen, Setting

_VERSION = re.compile(r"NCCL version (\d+\.\d+\.\d+)(?:\+cuda([\d.]+))?")
_ENV = re.compile(
    r"(?P<name>(?:NCCL|RCCL|UCX|FI|OFI_NCCL)_\w+) set by (?P<by>environment|plugin|config\w*) to (?P<value>.*)"
)
_PLUGIN_ENV = re.compile(r"(?:Setting|Using) (NCCL_\w+)=(\S+)")
_TORCH = re.compile(
    r"NCCL error in: (?P<where>[^,]+), (?P<error>[^,(]+?)(?: \(run with[^)]*\))?, NCCL version (?P<version>[\d.]+)"
)
_RESULT = re.compile(r"\b(nccl[A-Z]\w+): ")
_BY_PLUGIN = re.compile(r"NET/OFI .*[Ss]etting (NCCL_\w+)")


class NcclLog:
    """Every NCCL message of one file; a pair's connections are told once for each transport, not for each channel."""

    needles: tuple[str, ...] = (
        "NCCL WARN", "NCCL version", "NCCL error in", "Duplicate GPU detected", " set by environment", " set by plugin",
        "Setting NCCL_", "Init START", "Init COMPLETE", "Abort COMPLETE", "Destroy COMPLETE", "via NET/Socket",
        "via NET/", "via SHM", "via P2P", "shared memory", "Init timings", "Bootstrap timings", "Bootstrap : Using",
        "Bootstrap: Using", "NET/Socket : Using", "NET/Socket: Using", "NET/IB", "Using network", "libibverbs",
        "NET/OFI", "NET/Plugin: Failed", "Connected all rings", "Connected all trees", "GPU Direct RDMA",
        "P2P is disabled", "NVLS multicast", "coll channels", "Connection closed by", "Call to connect",
        "Got completion", "async event", "Cuda failure",
    )  # fmt: skip

    def __init__(self) -> None:
        self._pairs: set[tuple[object, ...]] = set()
        self._versions: set[tuple[object, ...]] = set()
        self._by_plugin: set[str] = set()
        """Variables that the network plugin says it sets itself: nobody's choice, though NCCL reports them as set."""

    def line(self, line: Line) -> Iterator[Seen]:
        message = said(line)
        if "NCCL error in" in line.text:
            yield from _torch_error(line)
        elif message is None:
            yield from self._without_prefix(line)
        else:
            yield from self._message(message)

    def end(self) -> Iterable[Seen]:
        return ()

    def _without_prefix(self, line: Line) -> Iterator[Seen]:
        bare = Said(line.text, warn=False)
        duplicate = duplicate_gpu(bare)
        if duplicate is not None:
            yield duplicate
        yield from self._version(bare)

    def _version(self, message: Said) -> Iterator[Event]:
        match = _VERSION.search(message.text)
        if match is None or (message.host, match[1]) in self._versions:
            return
        self._versions.add((message.host, match[1]))
        yield message.event("nccl.version", {"version": match[1], "cuda": match[2]})

    def _message(self, message: Said) -> Iterator[Seen]:
        plugin = _BY_PLUGIN.search(message.text)
        if plugin is not None:
            self._by_plugin.add(plugin[1])
        setting = _setting(message)
        if setting is not None:
            if setting.key not in self._by_plugin:
                yield setting
            return
        if message.text.startswith("NCCL version"):
            yield from self._version(message)
            return
        event = _read(message)
        if event is None:
            if message.warn and message.text.strip():
                yield message.event("nccl.warning", {"message": message.text, "where": message.where})
        elif event.kind != "nccl.channel" or self._new_pair(event):
            yield event

    def _new_pair(self, event: Event) -> bool:
        names = ("src", "dst", "transport", "net", "gdr", "via", "direction")
        key = (event.host, *(event.get(name) for name in names))
        if key in self._pairs:
            return False
        self._pairs.add(key)
        return True


def _read(message: Said) -> Event | None:
    """What a message says, by the first reader that knows it; failures first, they hold words of the others."""
    for needle, read in (*FAILURES, *FACTS) if message.warn else (*FACTS, *FAILURES):
        if needle in message.text:
            event = read(message)
            if event is not None:
                return event
    return None


def _setting(message: Said) -> Setting | None:
    if " set by " not in message.text and "ing NCCL_" not in message.text:
        return None
    match = _ENV.search(message.text)
    if match is not None:
        return Setting("env", match["name"], match["value"].strip().rstrip("."), host=message.host)
    match = _PLUGIN_ENV.search(message.text)
    return Setting("env", match[1], match[2].rstrip("."), host=message.host) if match and not message.warn else None


def _torch_error(line: Line) -> Iterator[Event]:
    match = _TORCH.search(line.text)
    if match is None:
        return
    result, detail = None, []
    for after in line.following(6):
        found = _RESULT.search(after.text)
        if found is not None and result is None:
            result = found[1]
        elif result is not None and (text := after.text.strip()) and "Last error" not in text:
            detail.append(text)
            break
    fields = {
        "error": match["error"].strip(),
        "version": match["version"],
        "result": result,
        "detail": " ".join(detail),
        "where": match["where"],
    }
    yield Event("nccl.error", fields)
    cause = _read(Said(fields["detail"], warn=True)) if fields["detail"] else None
    if cause is not None and cause.kind != "nccl.duplicate_gpu":
        yield cause
