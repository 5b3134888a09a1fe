"""What shows that a process died, and whether its words are those of a victim."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ddiag.model.incident import Event
from ddiag.model.signals_incident import Events

CAUSES = (
    "cuda_oom", "gpu_fault", "cuda_error", "host_oom", "nccl_error", "exception", "signal", "exit", "unknown",
)  # fmt: skip
"""Of several signs of one death the first of these says most."""
HOST_FULL_PERCENT = 85.0
STRONG = frozenset(CAUSES) - {"exit", "unknown"}
"""Causes that say by themselves why the process ended."""
_VICTIM = re.compile(
    r"ncclRemoteError|remote process (?:has )?exited|Connection (?:was )?(?:closed|reset|refused|aborted)|broken pipe|"
    r"closed by (?:the )?(?:remote )?peer|watchdog|collective operation timeout|Timed out waiting|ncclUniqueId|"
    r"successfully reached monitoredBarrier|failed to pass monitoredBarrier|remote server shutdown|got 0 bytes|"
    r"Socket Timeout|wait timeout after|Timeout waiting for key|client socket has timed out|caused pair closure|"
    r"communicator (?:was|is) aborted|DistStoreError|DistNetworkError|aborted by the user|death signal|"
    r"got signal: 15|more than 1EB|Rendezvous\w*Error|mismatch between collectives|inconsistent collective",
    re.IGNORECASE,
)
"""What a process says that waited for another or lost it, whoever is to blame."""
_NO_DEATH = ("StopIteration", "SystemExit", "GeneratorExit", "KeyboardInterrupt", "CancelledError", "TimeoutExpired")
_LOST = ("BrokenPipeError", "ConnectionResetError", "EOFError", "ConnectionRefusedError", "ConnectionAbortedError")
_OOM = re.compile(r"OutOfMemoryError|CUDA out of memory|HIP out of memory")
_ECC = re.compile(
    r"uncorrectable (?:ECC|NVLink)|ECC error|GPU is lost|fallen off the bus|Unable to determine the device"
)
_WORKER_KILLED = re.compile(r"DataLoader worker .*killed by signal: Killed|worker .*terminated with signal SIGKILL")
_CUDA = re.compile(
    r"CUDA error|CUDA driver error|Triton Error \[|cudaError\w+|device-side assert|illegal memory access|HIP error|"
    r"CUBLAS_STATUS|CUDNN_STATUS"
)
_NCCL = re.compile(r"NCCL error|ncclInternalError|ncclSystemError|ncclInvalidUsage|ncclUnhandledCudaError")
_ABORTING = ("c10d.watchdog_timeout", "c10d.heartbeat", "c10d.watchdog_exception")
_PACKAGES = re.compile(r"/(?:site|dist)-packages/|/lib/python|<frozen|<string>|importlib|/torchrun:|/bin/")
_QUIET = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})


@dataclass(frozen=True)
class Sign:
    """One event that shows a death."""

    cause: str
    what: str
    event: Event
    rank: int | None = None
    host: str | None = None
    pid: int | None = None
    local_rank: int | None = None
    where: str | None = None
    victim: bool = False
    """Brought down by another's death, as far as this sign tells."""
    named: bool = False
    """A launcher calls it the first failure."""


def signs(events: Events) -> Iterator[Sign]:
    """Every sign of a death among *events*."""
    watched = {event.rank for event in events.of(*_ABORTING)}
    full = any((event.number("percent") or 0) >= HOST_FULL_PERCENT for event in events.of("ds.host_memory"))
    for event in events.all:
        if event.kind == "launcher.child_failed":
            yield from (_starved(sign) if full else sign for sign in _child(event, watched))
        elif event.kind == "python.fatal":
            yield _fatal(event, watched)
        elif event.kind in _READERS:
            yield from _READERS[event.kind](event)
    yield from _closed_by(events.of("gloo.peer_closed"))


def _starved(sign: Sign) -> Sign:
    """A kill on a host whose memory was nearly full."""
    if signal_of(sign.event) != signal.SIGKILL:
        return sign
    return replace(sign, cause="host_oom", what=f"{sign.what} while the host's memory was nearly full")


def cause_of(text: str) -> str:
    """The kind of cause that an error's text shows."""
    if _OOM.search(text):
        return "cuda_oom"
    if _ECC.search(text):
        return "gpu_fault"
    if _WORKER_KILLED.search(text):
        return "host_oom"
    if _NCCL.search(text):
        return "nccl_error"
    return "cuda_error" if _CUDA.search(text) else "exception"


def user_frame(event: Event) -> str | None:
    """The innermost frame that is no library's; the innermost of all where there is none."""
    found = event.get("frames")
    frames = [str(frame) for frame in found] if isinstance(found, list) else []
    own = [frame for frame in frames if not _PACKAGES.search(frame)]
    return next(iter(own or frames), None)


def signal_of(event: Event) -> int | None:
    number, code = event.integer("signal"), event.integer("exitcode")
    if number is not None:
        return abs(number)
    return -code if code is not None and code < 0 else None


def _child(event: Event, watched: set[int | None]) -> Iterator[Sign]:
    """A launcher's word about a worker; -15 is the launcher's own doing, -6 mostly the watchdog's."""
    if event.get("of_launcher") is True or event.integer("exitcode") == 0:
        return
    number, named = signal_of(event), event.get("first") is True
    what = f"exit code {event.integer('exitcode')}" if number is None else f"killed by {_name(number)}"
    victim = number in _QUIET
    if number == signal.SIGABRT:
        victim = event.rank in watched or (bool(watched) and (event.rank is None or not named)) or not named
    if number == signal.SIGKILL or number is None:
        victim = not named
    cause = "exit" if number is None else "signal"
    place = (event.rank, event.host or (event.word("host") or None), event.integer("pid"), event.integer("local_rank"))
    yield Sign(cause, what, event, *place, victim=victim, named=named)


def _exception(event: Event) -> Iterator[Sign]:
    kind, message = event.word("type"), event.word("message")
    short = kind.rsplit(".", 1)[-1]
    if (
        event.get("of_launcher") is True
        or event.get("thread") is not None
        or short in _NO_DEATH
        or short.endswith("Warning")
    ):
        return
    text = f"{kind}: {message}"
    lost = short in _LOST or _is_victim(text)
    shown = f"{kind}: {message.splitlines()[0] if message else ''}".rstrip(": ")
    local = event.integer("local_rank")
    yield Sign(cause_of(text), shown[:240], event, event.rank, event.host, None, local, user_frame(event), victim=lost)


def _is_victim(text: str) -> bool:
    return _VICTIM.search(text) is not None


def _fatal(event: Event, watched: set[int | None]) -> Sign:
    reason = event.word("reason")
    aborted = "Abort" in reason or reason.startswith("uncaught c10")
    victim = aborted and (event.rank in watched or bool(watched))
    return Sign("signal", f"the interpreter died: {reason}", event, event.rank, event.host, victim=victim)


def _watchdog(event: Event) -> Iterator[Sign]:
    error = event.word("error")
    yield Sign(cause_of(error), error[:200], event, event.rank, event.host, victim=_is_victim(error))


def _cuda_oom(event: Event) -> Iterator[Sign]:
    if event.get("handled") is not True and event.get("corrupt_size") is not True:
        yield Sign("cuda_oom", "CUDA out of memory", event, event.rank, event.host)


def _host_oom(event: Event) -> Iterator[Sign]:
    yield Sign("host_oom", "killed for want of memory", event, event.rank, event.host, event.integer("pid"))


def _pod(event: Event) -> Iterator[Sign]:
    if event.word("reason") == "OOMKilled":
        yield Sign("host_oom", "OOMKilled by the kubelet", event, event.rank, event.host)


def _closed_by(closed: Sequence[Event]) -> Iterator[Sign]:
    """The one address that all of gloo's closed connections led to. Later ones lead to victims, so two are none."""
    peers = {event.word("peer") for event in closed} - {""}
    ranks = {event.rank for event in closed}
    if len(peers) == 1 and len(ranks) > 1:
        (peer,) = peers
        yield Sign("unknown", f"{len(ranks)} ranks lost the connection to it", closed[0], None, peer)


def _node(event: Event) -> Iterator[Sign]:
    if event.word("node"):
        yield Sign("unknown", "the node failed, says Slurm", event, None, event.word("node"))


def _lost_by_peers(event: Event) -> Iterator[Sign]:
    """NCCL's neighbours name the local rank that went away."""
    local = event.integer("local_rank")
    if local is not None:
        yield Sign("unknown", "its neighbours lost the connection to it", event, None, event.host, None, local)


def _task(event: Event) -> Iterator[Sign]:
    """srun's report of a task: a task is a rank only where one runs per GPU."""
    number = signal_of(event)
    what = f"exit code {event.integer('exitcode')}" if number is None else f"killed by {_name(number)}"
    victim = number in _QUIET or number is None or number == signal.SIGABRT
    yield Sign("exit" if number is None else "signal", what, event, event.rank, event.host, victim=victim)


def _gone(event: Event) -> Iterator[Sign]:
    number = signal_of(event)
    what = f"exit code {event.integer('exitcode')}" if number is None else f"killed by {_name(number)}"
    cause = "exit" if number is None else "signal"
    place = (event.rank, event.host, event.integer("pid"), event.integer("local_rank"))
    yield Sign(cause, what, event, *place, victim=number in _QUIET)


def _name(number: int) -> str:
    return signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"


_READERS: Mapping[str, Callable[[Event], Iterator[Sign]]] = {
    "python.exception": _exception,
    "c10d.watchdog_exception": _watchdog,
    "cuda.oom": _cuda_oom,
    "kernel.oom_killer": _host_oom,
    "slurm.oom_kill": _host_oom,
    "ray.oom_kill": _host_oom,
    "k8s.pod_ended": _pod,
    "slurm.task_exit": _task,
    "slurm.node_fail": _node,
    "process.gone": _gone,
    "nccl.peer_lost": _lost_by_peers,
}
