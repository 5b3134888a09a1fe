"""What ranks wait in whose calls were not recorded when they hung: told from their stacks.

Without the native kernel (and before torch 2.14) calls are recorded on a share of the steps. Of a rank that hangs in
another step its ring knows no call, but its main thread stands in one. The number given to such a call is the next
after the last known one: who waits and who does not come is right, how many calls went before is not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

WHOLE_TIERS = ("native", "hooks")
_C10D = "torch/distributed/distributed_c10d.py"
_OPERATIONS = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "all_gather_into_tensor": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "all_to_all": "all_to_all",
    "all_to_all_single": "all_to_all",
    "gather": "gather",
    "scatter": "scatter",
    "barrier": "barrier",
    "monitored_barrier": "barrier",
}
_POINT_TO_POINT = ("send", "recv")
_NEAR = 8
"""Innermost frames that may be torch's own waiting."""
_IDLE_SHARE = 0.3
"""Of a core: a rank that computes uses more."""
_ANY = ""
"""It waits in some call."""


def complete(ranks: Sequence[dict[str, Any]]) -> int:
    """Add to *ranks* (of all captures of one hang) the calls that some wait in unrecorded; how many were added."""
    unseen = [one for one in ranks if _unseen(one)]
    if not unseen:
        return 0
    waits = {one["rank"]: op for one in unseen if (op := waits_in(one)) is not None}
    named = Counter(op for op in waits.values() if op)
    usual = named.most_common(1)[0][0] if named else "all_reduce"
    last = _last_before(ranks, unseen)
    for one in unseen:
        for group in one["groups"]:
            if group["last_enqueued"] is not None:
                group["last_enqueued"] = group["last_completed"] = last[group["name"]]
        if one["rank"] in waits:
            _add(_largest(one), waits[one["rank"]] or usual, last, one)
    return len(waits)


def _unseen(one: dict[str, Any]) -> bool:
    """Its calls of this step were not recorded, as far as its ring tells."""
    calls = [call for group in one["groups"] for call in group["calls"]]
    return bool(one["groups"]) and one["tier"] not in WHOLE_TIERS and all(call["step"] != one["step"] for call in calls)


def _last_before(ranks: Sequence[dict[str, Any]], unseen: Sequence[dict[str, Any]]) -> dict[str, int]:
    """By group: the last call before the one that is waited in."""
    found: dict[str, int] = {}
    for one in unseen:
        for group in one["groups"]:
            found[group["name"]] = max(found.get(group["name"], 0), group["last_enqueued"] or 0)
    for one in ranks:
        for group in one["groups"] if one not in unseen else ():
            waiting = [call["seq"] for call in group["calls"] if call["state"] != "done" and not call["end_unknown"]]
            if waiting and group["name"] in found:
                found[group["name"]] = min(waiting) - 1
    return found


def _largest(one: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = max(one["groups"], key=lambda group: len(group["ranks"]))
    return found


def _add(group: dict[str, Any], op: str, last: dict[str, int], one: dict[str, Any]) -> None:
    newest = max((call["enqueue_ns"] for call in group["calls"]), default=0)
    number = last[group["name"]] + 1
    call = {"op": op, "seq": number, "state": "issued", "enqueue_ns": newest + 1, "end_ns": None, "bytes_in": 0}
    call |= {"bytes_out": 0, "dtype": None, "peer": None, "label": None, "step": one["step"], "phase": one["phase"]}
    group["calls"].append({**call, "end_unknown": False})
    group["last_enqueued"], group["known"] = number, True


def waits_in(one: dict[str, Any]) -> str | None:
    """The operation that its main thread waits in, '' for one without a name; None when it does not wait."""
    main = [stack for stack in one["stacks"] if stack["thread"] == "MainThread"]
    python = next((stack for stack in main if stack["kind"] == "python"), None)
    if python is None or python["state"] in ("active", "gil") or one["state"] in ("T", "t"):
        return None
    for frame in python["frames"][:_NEAR]:
        name, _, place = frame.partition(" (")
        if _C10D in place:
            last = name.rsplit(".", 1)[-1]
            if last in _POINT_TO_POINT:
                return None
            if last in _OPERATIONS:
                return _OPERATIONS[last]
    return _waits_below(one, python["frames"], [frame for stack in main for frame in stack["frames"]])


def _waits_below(one: dict[str, Any], python: Sequence[str], every: Sequence[str]) -> str | None:
    """Waits that C++ does for torch: at the end of a backward pass, or for a work that somebody else issued."""
    if any("c10d::Reducer" in frame for frame in every):
        return "all_reduce"
    below = any("c10d::" in frame or "gloo::" in frame for frame in every)
    if one["cpu_share"] > _IDLE_SHARE and not below:
        return None
    innermost = python[0] if python else ""
    if "_engine_run_backward" in innermost:
        return "all_reduce"
    return _ANY if below or "/torch/distributed/" in innermost else None
