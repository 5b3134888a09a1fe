"""What a recording says of environment, packages and configurations, as settings that rules read.

The job's processes count, not the supervisor: launchers and scripts set variables, and an engine knows what it took
from its configuration. Variables that nothing in this job reads (NCCL's in a gloo job, CUDA's on CPUs) have the kind
``env.unread``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from ddiag.ingest.recorded_choice import Job
from ddiag.ingest.recorded_configs import engine_settings, named_settings, unit_settings
from ddiag.ingest.recorded_facts import decode, flattened
from ddiag.ingest.recorded_files import whole
from ddiag.ingest.recorded_process import Placed
from ddiag.model.incident import NodeFact, Setting
from ddiag.schema.folder import ENV_JSON

_NUMBERS_OF_RANKS = re.compile(r"(?:\w+_)?(?:RANK|PROCID|LOCALID|NODEID|TASK_PID|GTIDS|NODENAME|ERROR_FILE)")
"""Variables that are different by design on every rank."""
_OF_NCCL = re.compile(r"(?:TORCH_)?(?:NCCL|RCCL)_.*")
_OF_DEVICES = re.compile(r"(?:CUDA|HIP|ROCR|HSA|AMD|NVIDIA)_.*|PYTORCH_(?:CUDA_|HIP_)?ALLOC_CONF|PYTORCH_NO_CUDA_.*")
_LIMITS = {"memlock": "limit.memlock_bytes", "nofile": "limit.open_files", "nproc": "limit.processes"}
_UNLIMITED = -1
_APART = ("environment", "configs", "format_version")
"""Of ``env.json``: what becomes settings of its own, or nothing."""


@dataclass(frozen=True)
class Node:
    """What one supervisor wrote of its node."""

    host: str | None
    found: Mapping[str, Any]
    label: str

    def part(self, *path: str) -> Any:
        """The value at *path*; an empty mapping when it is not there."""
        at: Any = self.found
        for name in path:
            at = at.get(name) if isinstance(at, Mapping) else None
        return {} if at is None else at


@dataclass(frozen=True)
class _Rank:
    """One rank, and where it ran."""

    placed: Placed
    host: str | None

    @property
    def told(self) -> Mapping[str, Any]:
        return self.placed.process.facts.process

    def part(self, name: str) -> Mapping[str, Any]:
        found = self.told.get(name)
        return found if isinstance(found, Mapping) else {}

    @property
    def on_device(self) -> bool:
        """It may have used one: torch can, and no step says that it did not."""
        process = self.placed.process
        if process.facts.torch and process.facts.cuda is None and "rocm" not in process.facts.torch:
            return False
        steps = process.steps
        return steps is None or not steps.records.size or bool((steps.records["device_reserved_bytes"] >= 0).any())

    @property
    def uses_nccl(self) -> bool:
        """Where its groups are known, one of them says so."""
        backends = self.placed.process.facts.backends.values()
        return self.on_device and (not backends or any("nccl" in backend for backend in backends))


def settings_and_facts(job: Job, placed: Sequence[Placed], hosts: Sequence[str | None]) -> Iterator[Setting | NodeFact]:
    """Records for the tables ``config`` and ``node_facts``; *hosts* are those of *placed*."""
    ranks = sorted((_Rank(*pair) for pair in zip(placed, hosts, strict=True)), key=lambda one: one.placed.process.rank)
    nodes = list(_nodes(job))
    on_device = any(rank.on_device for rank in ranks)
    yield from _of_processes(ranks)
    yield from _of_run(job)
    for process in (rank.placed.process for rank in ranks[:1]):
        yield from engine_settings(process, on_device=on_device)
        yield from unit_settings(process, on_device=on_device)
    argv = job.manifest.argv if job.manifest is not None else ()
    told = [one for node in nodes for one in node.part("configs") if isinstance(one, Mapping)]
    yield from named_settings(told, [rank.placed.process for rank in ranks], argv)
    yield from _variables(ranks, nodes, on_device=on_device)
    yield from _packages(ranks, nodes)
    yield from _of_nodes(nodes)
    yield from _affinities(ranks)


def _nodes(job: Job) -> Iterator[Node]:
    for run in job.folders:
        own = [run.own[ENV_JSON]] if ENV_JSON in run.own else []
        for source in (*own, *(one for one in run.nodes if one.name.endswith(f".{ENV_JSON}"))):
            found = decode(whole(source)) or {}
            host = found.get("host")
            yield Node(host if isinstance(host, str) else None, found, source.label)


def _of_processes(ranks: Sequence[_Rank]) -> Iterator[Setting]:
    """What the lowest rank that tells it says, as it says it; keys begin with the kind of the fact."""
    found: dict[str, Setting] = {}
    for rank in ranks:
        process = rank.placed.process
        for key, value in process.facts.settings.items():
            found.setdefault(key, Setting("recorded", key, value, source=process.sources.label))
    yield from found.values()


def _of_run(job: Job) -> Iterator[Setting]:
    manifest = job.manifest
    if manifest is None:
        return
    ended = {"exit_code": manifest.exit_code, "asked_to_end": manifest.asked_to_end}
    told = {
        "command": " ".join(manifest.argv),
        "launcher": manifest.launcher,
        **{f"job.{key}": value for key, value in {**ended, "started_again": job.started_again or None}.items()},
    }
    for key, value in told.items():
        if value is not None:
            yield Setting("job", key, str(value), source="run.json")


def _variables(ranks: Sequence[_Rank], nodes: Sequence[Node], *, on_device: bool) -> Iterator[Setting]:
    """Each value once per host. What the supervisors saw counts only when no process told its own."""
    nccl = any(rank.uses_nccl for rank in ranks)
    own = [(rank.part("environment"), rank.host, rank.placed.process.sources.label) for rank in ranks]
    if not any(variables for variables, _, _ in own):
        own = [(node.part("environment"), node.host, node.label) for node in nodes]
    seen: set[tuple[str, str, str | None]] = set()
    for variables, host, label in own:
        for name, value in variables.items():
            if (name, value, host) in seen or _NUMBERS_OF_RANKS.fullmatch(name):
                continue
            seen.add((name, value, host))
            unread = (_OF_NCCL.fullmatch(name) and not nccl) or (_OF_DEVICES.fullmatch(name) and not on_device)
            yield Setting("env.unread" if unread else "env", name, str(value), host=host, source=label)


def _packages(ranks: Sequence[_Rank], nodes: Sequence[Node]) -> Iterator[Setting]:
    """Versions that are loaded; of those beside ddiag only what the job's Python has too."""
    seen: dict[tuple[str | None, str], set[str]] = {}
    for rank in ranks:
        facts = rank.placed.process.facts
        told = {
            "torch": facts.torch,
            "nccl": rank.told.get("nccl"),
            "deepspeed": facts.settings.get("deepspeed.version"),
        }
        for name, version in {**rank.part("packages"), **told}.items():
            known = seen.setdefault((rank.host, name), set())
            if version and version not in known:
                known.add(version)
                yield Setting("package", name, str(version), host=rank.host, source=rank.placed.process.sources.label)
    for node in nodes:
        if _same_python(node, ranks):
            for name, version in node.part("software", "packages").items():
                if not seen.get((node.host, name)):
                    yield Setting("package", name, str(version), host=node.host, source=node.label)


def _same_python(node: Node, ranks: Iterable[_Rank]) -> bool:
    """The ranks there run in the environment that the supervisor looked at, as far as they tell."""
    told = {str(rank.told["executable"]) for rank in ranks if rank.host == node.host and "executable" in rank.told}
    ours = PurePath(str(node.part("software", "executable"))).parent
    return all(PurePath(path).parent == ours for path in told)


def _of_nodes(nodes: Sequence[Node]) -> Iterator[Setting | NodeFact]:
    for node in nodes:
        rest = {key: value for key, value in node.found.items() if key not in _APART}
        for key, value in flattened("node", rest):
            yield Setting("node", key, value, host=node.host, source=node.label)
        limits = node.part("limits")
        for name, key in _LIMITS.items():
            soft = next(iter(found), None) if isinstance(found := limits.get(name), list) else None
            if isinstance(soft, int):
                number = None if soft == _UNLIMITED else float(soft)
                yield NodeFact(key, "unlimited" if number is None else str(soft), number, node.host, source=node.label)
        size = limits.get("shm_bytes")
        if isinstance(size, int):
            yield NodeFact("shm.size_bytes", str(size), float(size), node.host, source=node.label)


def _affinities(ranks: Sequence[_Rank]) -> Iterator[NodeFact]:
    """The CPUs of ranks that may not run on all of their host."""
    for rank in ranks:
        cpus, whole_host = rank.told.get("cpus"), rank.told.get("cpus_of_host")
        if isinstance(cpus, str) and isinstance(whole_host, int) and _count(cpus) < whole_host:
            process = rank.placed.process
            yield NodeFact("process.affinity", cpus, float(process.pid), rank.host, source=process.sources.label)


def _count(cpus: str) -> int:
    """How many ``0-3,8`` are."""
    ends = (part.partition("-") for part in cpus.split(","))
    return sum(int(last or first) - int(first) + 1 for first, _, last in ends if first.isdigit())
