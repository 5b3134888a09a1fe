"""Stalls before or beside the collectives of NCCL: set-up through the store, and gloo's own waits."""

from __future__ import annotations

import re
from collections import Counter

from ddiag.analysis.hang.verdict import Verdict
from ddiag.model.signals_incident import Events

_COORDINATED = re.compile(r"distributed/checkpoint/|state_dict_saver|gather_object|async_checkpoint")
_SAVES = re.compile(r"SHARDED_STATE_DICT|FULL_STATE_DICT|checkpoint|\bsav(e|ing)\b", re.IGNORECASE)


def at_setup(events: Events) -> Verdict | None:
    """A root that never wrote its NCCL id, or a coordinator that waits for everybody's part of a checkpoint.

    Both are told apart from other late ranks by their verdict: ``setup`` and ``checkpoint``.
    """
    late = Counter(e.integer("root_rank") for e in events.of("c10d.unique_id_timeout"))
    late.pop(None, 0)
    if late:
        root = late.most_common(1)[0][0]
        waiting = frozenset(w for e in events.of("c10d.unique_id_timeout") if (w := _waiter(e)) is not None)
        assert root is not None
        return Verdict("setup", (root,), (), "high" if len(late) == 1 else "medium", None, waiting - {root})
    return _coordinator(events)


def _waiter(event: object) -> int | None:
    integer = getattr(event, "integer", None)
    return integer("waiting_rank") if integer is not None else None


def _coordinator(events: Events) -> Verdict | None:
    """Rank 0 gathers every rank's part of the plan over gloo and runs out of time: the way of saving is the fault."""
    timeouts = events.of("gloo.timeout")
    if not timeouts or events.has("c10d.watchdog_timeout"):
        return None
    frames = [str(frame) for e in events.of("python.exception") for frame in _frames(e)]
    texts = [event.text for event in events.of("python.exception", "gloo.timeout")]
    saying = [event for event in events.of("log.said", "log.phase") if _SAVES.search(event.text)]
    if not any(_COORDINATED.search(text) for text in [*frames, *texts]) and not saying:
        return None
    return Verdict("checkpoint", (0,), (), "medium", None, frozenset())


def _frames(event: object) -> list[object]:
    found = getattr(event, "get", lambda _: None)("frames")
    return found if isinstance(found, list) else []
