"""What NCCL says when something fails: its WARN lines, and INFO lines that name a lost peer."""

from __future__ import annotations

import re
from collections.abc import Callable

from ddiag.ingest.logs.bus_ids import packed_bus_id
from ddiag.ingest.logs.nccl_line import Said
from ddiag.model.incident import Event, Value

_ADDRESS = r"((?:\[[^\]]*\]|[\w.:%-]+?)<\d+>)"
_COMPLETION = re.compile(
    r"NET/IB ?: ?(?:(?P<before>\S+?) )?Got completion(?: from peer (?P<peer>\S+<\d+>))?.*?"
    r"(?:status=(?:\w+\()?(?P<status>\d+)|with error (?P<error>\d+))"
)
_VENDOR = re.compile(r"vendor err (\d+)")
_DIRECTION = re.compile(r"\((Send|Recv|Send Flush|[A-Z]\w+)\)")
_LOCAL_GID = re.compile(r"localGid ([0-9a-fA-F:.]+)")
_REMOTE_GID = re.compile(r"remoteGids? ?([0-9a-fA-F:.]+)")
_HCA = re.compile(r"(?:hca|dev) (\w+?(?:_\w+)*?)(?::\d+)?(?: |$|,)")
_ASYNC = re.compile(r"NET/IB ?: ?(?:(?P<nic>[\w.-]+):\d+ )?Got (?:non-fatal )?async (?:error )?event ?: (?P<what>.+)")
_QP = re.compile(r"Call to ibv_modify_qp failed with(?: error)? (?:\d+ )?(?P<error>[A-Z][^,]*)(?P<rest>.*)")
_VERBS = re.compile(
    r"Call to (ibv_(?:create_cq|reg_mr\w*|create_qp|alloc_pd|reg_dmabuf_mr))(?: failed| returned)?(?:.*? failed)?"
    r"(?: with(?: error)?)?(?: \d+)? ?(.*)"
)
_SHM = (
    re.compile(r"failed to extend (?P<path>\S+) to (?P<bytes>\d+) bytes(?:, error: (?P<error>.*))?"),
    re.compile(
        r"Error while creating shared memory segment (?P<path>\S+)(?: \(size (?P<bytes>\d+)\))?"
        r"(?:, error: (?P<error>.*))?"
    ),
    re.compile(r"Call to (?P<path>posix_fallocate|shm_open|ftruncate|mmap) failed ?: (?P<error>.*)"),
)
_CONNECT = (
    re.compile(r"socket\w*Connect\w*: [Cc]onnect to (?P<to>\S+<\d+>) (?:failed ?: ?|returned )(?P<error>.*)"),
    re.compile(r"socket\w*: (?:exceeded (?:error )?(?:retries|retry count).*)"),
    re.compile(r"Net(?:work)? ?: ?(?:Call to )?[Cc]onnect\w*(?: to (?P<to>\S+<\d+>))? failed ?: (?P<error>.*)"),
)
_RETRY = re.compile(r"Call to connect(?: to (?P<to>\S+<\d+>))? (?:returned|failed:?) (?P<error>[^,]*), retrying")
_LOST = (
    re.compile(r"Connection closed by (?:remote peer (?P<address>.*?<\d+>)|localRank (?P<local>\d+))"),
    re.compile(r"Proxy Call to rank (?P<rank>\d+) failed"),
    re.compile(r"Socket recv failed while polling for opId"),
    re.compile(r"Net : Connection closed by remote peer(?: (?P<address>\S+))?"),
    re.compile(r"socketProgress\w*: (?:Call to (?:recv|send) (?:from|to) (?P<address>\S+) failed|Connection closed)"),
    re.compile(r"(?:Call to recv|Net : Call to recv) from (?P<address>\S+) failed ?: "),
    re.compile(r"Accept failed|Bootstrap : Connection closed"),
)
_CUDA = re.compile(r"Cuda failure(?: '([^']*)'| (\d+) '([^']*)'| ([\w.]+:\d+) '([^']*)')")
_DUPLICATE = re.compile(r"Duplicate GPU detected ?: rank (\d+) and rank (\d+) both on CUDA device ([0-9a-f]+)")
_MISMATCH = re.compile(r"Mismatched NCCL version detected ?: rank (\d+) version (\d+) rank (\d+) version (\d+)")
_PROTOCOL = (
    ("truncated", re.compile(r"Message truncated ?: received \d+ bytes instead of \d+")),
    ("size", re.compile(r"collective mismatch error local size \d+ remote.*")),
    ("rank_count", re.compile(r"Bootstrap Root ?: mismatch in rank count.*")),
    (
        "handshake",
        re.compile(r"connecting to address\s+with family \d+.*|wrong type|Invalid socket magic.*|unexpected magic.*"),
    ),
)
_LIMITS = (
    ("files", re.compile(r"Too many open files")),
    ("ports", re.compile(r"Cannot assign requested address")),
    ("accept", re.compile(r"Call to accept failed.*|accept failed.*")),
    ("threads", re.compile(r"(?:pthread_create|Failed to create thread).*(?:Resource temporarily unavailable)?")),
)
_IMEX = re.compile(r"MNNVL \(cliqueSize (\d+)\) is available but not working")


def completion(said: Said) -> Event | None:
    match = _COMPLETION.search(said.text)
    if match is None:
        return None
    status = int(match["status"] or match["error"])
    vendor, direction = _VENDOR.search(said.text), _DIRECTION.search(said.text.partition("vendor err")[2])
    nic = _HCA.search(said.text)
    fields: dict[str, Value] = {
        "status": status,
        "vendor_err": int(vendor[1]) if vendor else None,
        "peer": match["peer"],
        "nic": (match["before"] or "").split(":")[0] or (nic[1] if nic else None),
        "direction": direction[1].lower() if direction else None,
        "local_gid": _first(_LOCAL_GID, said.text),
        "remote_gid": _first(_REMOTE_GID, said.text),
    }
    return said.event("nccl.completion_error", fields)


def _first(pattern: re.Pattern[str], text: str) -> str | None:
    match = pattern.search(text)
    return None if match is None else match[1]


def async_event(said: Said) -> Event | None:
    match = _ASYNC.search(said.text)
    if match is None:
        return None
    return said.event("nccl.async_event", {"nic": match["nic"], "what": match["what"].strip().rstrip(".")})


def qp_error(said: Said) -> Event | None:
    match = _QP.search(said.text)
    if match is None:
        return None
    rest = match["rest"]
    index = _first(re.compile(r"local GID index (\d+)"), rest)
    fields: dict[str, Value] = {
        "error": match["error"].strip(),
        "nic": _first(re.compile(r"on dev ([\w.-]+)"), rest),
        "state": _first(re.compile(r"curr state (\w+, next state \w+)"), rest),
        "gid_index": int(index) if index else None,
        "local_gid": _first(re.compile(r"local GID ([0-9a-fA-F:.]+)(?:,|$| )"), rest.replace("local GID index", "")),
        "remote_gid": _first(re.compile(r"remote GID ([0-9a-fA-F:.]+)"), rest),
    }
    return said.event("nccl.qp_error", fields)


def memlock(said: Said) -> Event | None:
    match = _VERBS.search(said.text)
    if match is None or "failed" not in said.text:
        return None
    return said.event("nccl.memlock", {"call": match[1], "error": match[2].strip()})


def shm_error(said: Said) -> Event | None:
    for pattern in _SHM:
        match = pattern.search(said.text)
        if match is not None:
            found = match.groupdict()
            size = found.get("bytes")
            fields: dict[str, Value] = {
                "path": found["path"],
                "bytes": int(size) if size else None,
                "error": found.get("error") or "",
            }
            return said.event("nccl.shm_error", fields)
    return None


def connect_error(said: Said) -> Event | None:
    retry = _RETRY.search(said.text)
    if retry is not None and not said.warn:
        return said.event("nccl.retry", {"error": retry["error"].strip(), "address": retry["to"]})
    for pattern in _CONNECT:
        match = pattern.search(said.text)
        if match is not None:
            found = match.groupdict()
            kind = "nccl.connect_error" if said.warn else "nccl.retry"
            return said.event(kind, {"error": (found.get("error") or match[0]).strip(), "address": found.get("to")})
    return None


def peer_lost(said: Said) -> Event | None:
    for pattern in _LOST:
        match = pattern.search(said.text)
        if match is not None:
            found = match.groupdict()
            fields: dict[str, Value] = {
                "what": match[0],
                "local_rank": int(found["local"]) if found.get("local") else None,
                "peer_rank": int(found["rank"]) if found.get("rank") else None,
                "address": found.get("address"),
            }
            return said.event("nccl.peer_lost", fields)
    return None


def cuda_failure(said: Said) -> Event | None:
    match = _CUDA.search(said.text)
    if match is None:
        return None
    message = match[1] or match[3] or match[5] or ""
    fields: dict[str, Value] = {"code": int(match[2]) if match[2] else None, "message": message, "where": said.where}
    return said.event("nccl.cuda_failure", fields)


def duplicate_gpu(said: Said) -> Event | None:
    match = _DUPLICATE.search(said.text)
    if match is None:
        return None
    fields: dict[str, Value] = {"ranks": [int(match[1]), int(match[2])], "bus_id": packed_bus_id(match[3])}
    return said.event("nccl.duplicate_gpu", fields)


def version_mismatch(said: Said) -> Event | None:
    match = _MISMATCH.search(said.text)
    if match is None:
        return None
    numbers = [int(text) for text in match.groups()]
    names = ("rank_a", "version_a", "rank_b", "version_b")
    return said.event("nccl.version_mismatch", dict(zip(names, numbers, strict=True)))


def protocol(said: Said) -> Event | None:
    for what, pattern in _PROTOCOL:
        match = pattern.search(said.text)
        if match is not None:
            return said.event("nccl.protocol_mismatch", {"what": what, "said": match[0]})
    return None


def limit(said: Said) -> Event | None:
    for what, pattern in _LIMITS:
        if said.warn and pattern.search(said.text):
            return said.event("nccl.limit", {"what": what, "error": said.text})
    return None


def imex(said: Said) -> Event | None:
    match = _IMEX.search(said.text)
    return None if match is None else said.event("nccl.imex", {"clique_size": int(match[1])})


FAILURES: tuple[tuple[str, Callable[[Said], Event | None]], ...] = (
    ("Got completion", completion),
    ("async", async_event),
    ("ibv_modify_qp", qp_error),
    ("ibv_", memlock),
    ("failed to extend", shm_error),
    ("shared memory segment", shm_error),
    ("posix_fallocate", shm_error),
    ("Call to shm_open", shm_error),
    ("Duplicate GPU", duplicate_gpu),
    ("Mismatched NCCL version", version_mismatch),
    ("truncated", protocol),
    ("mismatch", protocol),
    ("with family", protocol),
    ("magic", protocol),
    ("Too many open files", limit),
    ("Cannot assign requested", limit),
    ("ccept failed", limit),
    ("pthread_create", limit),
    ("MNNVL", imex),
    ("Cuda failure", cuda_failure),
    ("losed by", peer_lost),
    ("Proxy Call", peer_lost),
    ("Socket recv failed", peer_lost),
    ("socketProgress", peer_lost),
    ("Call to recv", peer_lost),
    ("onnect", connect_error),
    ("exceeded", connect_error),
)
"""A literal that the message must hold, and who reads it; the first that knows it has it."""
