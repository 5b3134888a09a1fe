"""How far the members of the waiting groups came: what the view of a hang shows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from ddiag.analysis.hang.positions import SCHEDULED, Node, Positions
from ddiag.analysis.hang.told import Told
from ddiag.analysis.hang.verdict import Verdict
from ddiag.model.signals_incident import GroupStand

MOST_GROUPS = 64
"""Groups described in full, those that wait longest first."""


def group_stands(found: Verdict, place: Positions | None, log: Told) -> tuple[GroupStand, ...]:
    """The culprit's group first, then by how long they have waited."""
    if place is None:
        return _from_logs(found, log)
    since = _since(place)
    nodes = sorted(set(place.fronts.values()), key=lambda node: (node != found.node, since.get(node, 0), node))
    rows = {row["rank"]: row for row in place.front_rows.iter_rows(named=True)}
    there: dict[Node, list[int]] = defaultdict(list)
    for rank, node in place.fronts.items():
        there[node].append(rank)
    return tuple(_stand(place, node, there[node], rows, since.get(node)) for node in nodes[:MOST_GROUPS] if there[node])


def wait_began_ns(found: Verdict, place: Positions | None) -> int | None:
    """When the first rank began to wait, for what the verdict is about."""
    if place is None:
        return None
    since = _since(place)
    return (
        since.get(found.node) if found.node in since and found.node is not None else min(since.values(), default=None)
    )


def _since(place: Positions) -> dict[Node, int]:
    found: dict[Node, int] = {}
    for rank, when in place.front_rows.select("rank", "created_ns").iter_rows():
        node = place.fronts[rank]
        if when is not None:
            found[node] = min(when, found.get(node, when))
    return found


def _stand(
    place: Positions, node: Node, there: list[int], rows: Mapping[int, dict[str, object]], since: int | None
) -> GroupStand:
    kind, group, first, second = node
    members = place.members[group]
    if kind == "coll":
        states = {rank: place.state(rank, group, first) for rank in members}
    else:
        states = dict.fromkeys((first, second), "absent")
    states |= {rank: str(rows[rank]["state"] or SCHEDULED) for rank in there}
    sizes = {rank: (_number(rows[rank]["numel_in"]), _number(rows[rank]["numel_out"])) for rank in there}
    return GroupStand(
        group=group,
        desc=place.desc.get(group, ""),
        ranks=members,
        call=kind,
        head=first if kind == "coll" else _number(rows[there[0]]["seq"]),
        op=str(rows[there[0]]["op"] or ""),
        state_of=states,
        numel_of=sizes,
        op_of={rank: str(rows[rank]["op"] or "") for rank in there},
        frame_of={rank: place.last_frame[rank] for rank in members if rank in place.last_frame}
        | {rank: str(rows[rank]["frame"]) for rank in there if rows[rank]["frame"]},
        since_ns=since,
    )


def _number(value: object) -> int | None:
    return value if isinstance(value, int) else None


def _from_logs(found: Verdict, log: Told) -> tuple[GroupStand, ...]:
    groups: dict[tuple[str, int], list[int]] = defaultdict(list)
    for index, wait in enumerate(log.waits):
        groups[wait.group, wait.seq].append(index)
    place = (found.node[1], found.node[2]) if found.node is not None else None
    stands = []
    for key in sorted(groups, key=lambda key: (key != place, key)):
        waits = [log.waits[index] for index in groups[key]]
        absent = {rank: "absent" for rank in found.culprits if found.mismatch is None}
        states = {wait.rank: "started" for wait in waits} | (absent if key == place else {})
        stands.append(
            GroupStand(
                group=key[0],
                desc=waits[0].event.word("group_desc"),
                ranks=tuple(sorted(states)),
                call="coll",
                head=key[1],
                op=waits[0].op,
                state_of=states,
                numel_of={wait.rank: (wait.numel_in, wait.numel_out) for wait in waits},
                op_of={wait.rank: wait.op for wait in waits},
            )
        )
    return tuple(stands)
