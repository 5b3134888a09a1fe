"""How each kind of event is told in the story of an incident."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from ddiag.model.incident import Event

Words = Callable[[Event], str]
SECONDARY_XIDS = frozenset({43, 45})
"""What the driver reports of a process that is ended for another reason."""


def _seconds(milliseconds: float | None) -> str:
    return "" if milliseconds is None else f" after {milliseconds / 1000:.0f} s"


def _xid(event: Event) -> str:
    code, bus_id, detail = event.integer("code"), event.word("bus_id"), event.word("detail")
    if code in SECONDARY_XIDS:
        return ""
    return f"Xid {code} on {bus_id}" + (f" ({detail[:60]})" if detail else "")


def _sxid(event: Event) -> str:
    return f"NVSwitch fault SXid {event.word('code')}" + (" (fatal)" if event.get("fatal") else "")


def _watchdog(event: Event) -> str:
    seq = event.integer("seq")
    place = f"{event.word('op') or 'a collective'}{'' if seq is None else f' #{seq}'}"
    return f"gave up waiting in {place}{_seconds(event.number('ran_ms'))}"


def _exception(event: Event) -> str:
    message = event.word("message").splitlines()
    return f"{event.word('type')}: {message[0][:90]}" if message else event.word("type")


def _child(event: Event) -> str:
    signal, code = event.integer("signal"), event.integer("exitcode")
    if signal:
        return f"the launcher reports: killed by signal {signal}"
    return f"the launcher reports: exit code {code}"


def _aer(event: Event) -> str:
    return (
        ""
        if event.word("severity") == "corrected"
        else f"{event.word('severity')} PCIe error on {event.word('bus_id')}"
    )


def _link(event: Event) -> str:
    return "" if event.get("up") else f"link {event.word('interface')} went down"


def _nccl_event(event: Event) -> str:
    return f"{event.word('nic')}: {event.word('what')}"


def _completion(event: Event) -> str:
    nic = event.word("nic")
    return f"an RDMA operation failed with status {event.word('status')}" + (f" ({nic})" if nic else "")


def _unique_id(event: Event) -> str:
    root = event.integer("root_rank")
    return "waited in vain for " + ("an NCCL id" if root is None else f"the NCCL id of rank {root}")


def _oom(event: Event) -> str:
    tried = event.number("tried_bytes")
    return "" if event.get("handled") else "CUDA out of memory" + (f", wanted {tried / 2**30:.2f} GiB" if tried else "")


def _hung(event: Event) -> str:
    return f"{event.word('process')} does not return from the kernel"


def _plain(words: str) -> Words:
    return lambda _: words


def _of(form: str, name: str) -> Words:
    """*form* with the field *name*."""
    return lambda event: form.format(event.word(name)[:90])


WORDS: Mapping[str, Words] = MappingProxyType(
    {
        "kernel.xid": _xid,
        "kernel.sxid": _sxid,
        "kernel.gpu_lost": _of("the driver lost GPU {}", "bus_id"),
        "kernel.oom_killer": _of("the kernel killed {} for want of memory", "process"),
        "kernel.aer": _aer,
        "kernel.link": _link,
        "kernel.hung_task": _hung,
        "kernel.nfs": lambda event: "" if event.get("ok") else f"NFS server {event.word('server')} does not answer",
        "kernel.segfault": _of("{} crashed (segmentation fault)", "process"),
        "slurm.cancelled": _of("Slurm ends the job: {}", "reason"),
        "slurm.oom_kill": _plain("Slurm's memory limit killed a task"),
        "ray.oom_kill": _of("Ray killed a worker: node {} was nearly out of memory", "address"),
        "slurm.node_fail": _of("Slurm reports node {} failed", "node"),
        "slurm.time_limit": _plain("the time limit was reached"),
        "k8s.pod_ended": _of("the pod ended: {}", "reason"),
        "cuda.oom": _oom,
        "cuda.oom_driver": _plain("CUDA out of memory outside PyTorch's allocator"),
        "python.exception": _exception,
        "python.fatal": _of("the interpreter died: {}", "reason"),
        "launcher.child_failed": _child,
        "launcher.signal": _of("received {}", "signal"),
        "launcher.restart": _of("the launcher starts the workers again (attempt {})", "attempt"),
        "c10d.watchdog_timeout": _watchdog,
        "c10d.watchdog_exception": _of("the watchdog met an error: {}", "error"),
        "c10d.heartbeat": _of("the watchdog itself was stuck for {} s", "seconds"),
        "c10d.monitored_barrier": _of("monitored_barrier: ranks {} did not come", "missing"),
        "c10d.unique_id_timeout": _unique_id,
        "gloo.timeout": lambda event: f"gave up waiting in gloo{_seconds(event.number('timeout_ms'))}",
        "gloo.peer_closed": _plain("lost a gloo peer"),
        "gloo.connect_failed": _plain("gloo could not connect all ranks"),
        "store.connect_timeout": _of("could not reach the store at {}", "address"),
        "store.wait_timeout": _plain("waited in vain for a key of the store"),
        "store.port_in_use": _of("port {} is taken", "port"),
        "nccl.async_event": _nccl_event,
        "nccl.completion_error": _completion,
        "nccl.shm_error": _plain("NCCL could not get shared memory"),
        "nccl.memlock": _plain("NCCL could not lock memory for RDMA"),
        "nccl.duplicate_gpu": _plain("two ranks use one GPU"),
        "nccl.cuda_failure": _of("a CUDA call of NCCL failed: {}", "message"),
        "nccl.peer_lost": _plain("lost an NCCL peer"),
        "process.stopped": _plain("is stopped (SIGSTOP, Ctrl-Z or a debugger)"),
        "process.gone": _plain("its process is gone"),
    }
)
"""kind -> words without who and when; empty words = not part of the story."""
