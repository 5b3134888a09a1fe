"""Signals for tests: one healthy job, of which a test changes what it is about.

The healthy job: 4 + 4 H100 on two hosts, bf16, 200 ms per step, 5 steady steps, 2 % input wait, 6 % exposed
communication, nobody late. It holds *every* family, also those that seldom occur together (buckets and shard units:
hybrid sharding does it), so that every rule really runs on it::

    make_signals()  # nothing wrong
    make_signals(input_wait=None)  # the evidence has no loader spans
    make_signals(input_wait={"stall_ms": 60.0, "wait_ms": 70.0})  # tables, shares and the step budget follow
    make_signals(input_wait={"stall_by_rank": {3: 60.0}})  # rank 3 only
    make_signals(late_ranks={"late": {"rank": 3, "cause": "input", "input_ms": 56.0}})
    make_signals(job_facts={"ranks": (0,)})  # one rank: no communication families
    make_signals(job_facts={"device_kind": "cpu"})  # host-only trace: no device families
    make_signals(steps=1, step_ms=800.0)  # shape of the measurement

The families of an incident (events, settings, stall …) are there only when a test gives an instance.

An override is ``None`` (family absent), an instance, or a mapping of dataclass fields and of the shorthands documented
at each builder. Whatever is not overridden is derived from what is: shares from milliseconds, tables from scalars. An
unknown family or field is an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

from ddiag.model.signals import FAMILIES, Copies, InputWait, Signals, SyncPoints
from ddiag.model.signals_incident import INCIDENT_FAMILIES
from ddiag.rulekit.rule import Rule, View
from tests import factory_device as device
from tests import factory_recorded as recorded
from tests import factory_sampled as sampled
from tests import factory_time as time
from tests.factory_device import GIB, MIB
from tests.factory_time import EPOCH_NS, Given, Shape, budget_table

__all__ = ["EPOCH_NS", "GIB", "MIB", "budget_table", "make_signals", "make_view"]

SNAKE = {"".join("_" + c.lower() if c.isupper() else c for c in f.__name__).lstrip("_"): f for f in FAMILIES}
DISTRIBUTED = {"unused_search", "collectives", "late_ranks", "grad_buckets", "shard_units", "links"}
"""Families a job of one rank does not have."""
HOST_ONLY = {"job_facts", "step_budget", "input_wait", "collectives", "late_ranks", "grad_buckets", "optimizer_step"}
HOST_ONLY |= {
    "python_overhead",
    "attention",
    "host_load",
    "exits",
    "unused_search",
    "unmarked_time",
    "host_memory",
    "loader_workers",
}
"""Families a trace without device activity may have."""


def make_signals(*, steps: int = 5, step_ms: float = 200.0, **overrides: Any) -> Signals:
    """Signals of the healthy job with *overrides* by family name in snake case (see the module)."""
    unknown = set(overrides) - set(SNAKE)
    if unknown:
        raise TypeError(f"no such signal family: {', '.join(sorted(unknown))}")
    facts = _made(overrides.pop("job_facts", {}), time.job_facts)
    shape = Shape(facts.ranks, steps, step_ms, on_device=facts.device_kind != "cpu")
    made: dict[str, object] = {"job_facts": facts}
    for name, family in SNAKE.items():
        if family in INCIDENT_FAMILIES:
            if overrides.get(name) is not None:
                made[name] = overrides[name]
            continue
        if name in ("job_facts", "step_budget") or (name not in overrides and not _usual(name, shape)):
            continue
        made[name] = _made(overrides.get(name, {}), _builder(name, shape))
    derived = _budget_parts(made)
    made["step_budget"] = _made(overrides.get("step_budget", {}), partial(_budget, shape, derived))
    ordered = {SNAKE[name]: made[name] for name in SNAKE if made.get(name) is not None}
    return Signals(MappingProxyType(ordered))


def make_view(rule: Rule, **overrides: Any) -> View:
    """What *rule* sees of :func:`make_signals`."""
    return View(make_signals(**overrides), rule)


def _usual(name: str, shape: Shape) -> bool:
    return (shape.distributed or name not in DISTRIBUTED) and (shape.on_device or name in HOST_ONLY)


def _made(override: Any, build: Any) -> Any:
    if override is None or not isinstance(override, Mapping):
        return override
    return build(dict(override))


def _builder(name: str, shape: Shape) -> Any:
    build = next(found for module in (time, recorded, sampled, device) if (found := getattr(module, name, None)))
    return build if name == "python_overhead" else partial(build, shape)


def _budget(shape: Shape, derived: Given, given: Given) -> object:
    return time.step_budget(shape, given, derived)


def _budget_parts(made: Mapping[str, object]) -> Given:
    """Parts of the step budget that the other families state."""
    parts: Given = {}
    match made.get("input_wait"):
        case InputWait(per_rank=table):
            parts["input_ms"] = dict(zip(table["rank"].to_list(), table["stall_ms"].to_list(), strict=True))
    match made.get("sync_points"):
        case SyncPoints(stall_ms=stall):
            parts["sync_ms"] = stall
    match made.get("copies"):
        case Copies(exposed_ms=exposed):
            parts["copy_ms"] = exposed
    return parts
