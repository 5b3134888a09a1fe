"""Every process group: its number in records, and one fact with its global ranks.

Groups are met at ``_register_process_group``, which all of them pass (init, new_group, DeviceMesh, split_group). Their
ranks are known only a little later, so the fact is written when the maker of the group has returned.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

from ddiag.capture import recorder
from ddiag.capture.clock import now_ns
from ddiag.capture.door import around, quietly
from ddiag.capture.hooks import following
from ddiag.capture.patches import Patches
from ddiag.capture.recorder import Recorder
from ddiag.schema.ring import NO_NAME

_LATE_NS = 10**9

_c10d: ModuleType | None = None
_ids: dict[str, int] = {}
"""Name of a group -> its id in the names of the current recorder."""
_untold: dict[str, Any] = {}
"""Name -> group, until its fact is written."""
watchers: list[Callable[[Recorder, Any, str, int], None]] = []
"""Called with every group as soon as it can be used: (recorder, group, name, id)."""


def install(module: ModuleType, patches: Patches) -> None:
    """*module* is ``torch.distributed.distributed_c10d``."""
    global _c10d
    _c10d = module
    patches.replace(
        module,
        "_register_process_group",
        lambda original: around(original, "groups", lambda args, _: args, _registered),
    )
    # Where torch was imported before us, its package has the functions by name already.
    package = (module.__name__.rpartition(".")[0],)
    for maker in ("_new_group_with_tag", "split_group"):
        patches.replace_function(
            module, maker, lambda original: around(original, "groups.made", _yes, _made), also=package
        )
    patches.replace_function(
        module,
        "destroy_process_group",
        lambda original: around(original, "groups.destroyed", _ending, _ended),
        also=package,
    )


def activated(active: Recorder) -> None:
    """A new recorder has names of its own: tell it of every group that lives."""
    _ids.clear()
    if _c10d is None:
        return
    for group, name in list(_c10d._world.pg_names.items()):
        _meet(active, group, name)
    tell(active)


def group_id(name: str) -> int:
    """The group's id in the current recorder; -1 for one nobody registered."""
    return _ids.get(name, NO_NAME)


def name_of(group: Any) -> str:
    """What torch registered *group* as; one of a Python class does not know it itself."""
    return "" if _c10d is None else str(_c10d._world.pg_names.get(group, ""))


def told_late(active: Recorder) -> int:
    """:func:`tell` what no maker of groups told of, now and then; when to come again."""
    tell(active)
    return now_ns() + _LATE_NS


def tell(active: Recorder) -> None:
    """Write the facts of groups whose ranks are known by now."""
    for name, group in list(_untold.items()):
        ranks = _ranks(group)
        if ranks is not None:
            del _untold[name]
            active.facts.write("group", **_describe(group, name, ranks))


def _yes(_args: tuple[Any, ...], _kwargs: dict[str, Any]) -> bool:
    return True


def _registered(args: tuple[Any, ...], _result: Any, failed: bool) -> None:
    active = recorder.current
    if failed or active is None or len(args) < 2:
        return
    name, group = args[0], args[1]
    _meet(active, group, name)


def _meet(active: Recorder, group: Any, name: str) -> None:
    number = _ids[name] = active.names.id(name)
    _untold[name] = group
    for watcher in watchers:
        with quietly("groups.watcher"):
            watcher(active, group, name, number)


def _made(_token: bool, _result: Any, _failed: bool) -> None:
    active = recorder.current
    if active is not None:
        tell(active)


def _ending(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[str] | None:
    active = recorder.current
    if active is None or _c10d is None:
        return None
    tell(active)
    group = args[0] if args else kwargs.get("group")
    names = _c10d._world.pg_names
    if group is None or group is _c10d.GroupMember.WORLD:
        ending = list(names.values())
    else:
        ending = [names[group]] if group in names else []
    following.drain_groups([group_id(name) for name in ending], sys.modules["torch.version"].__version__)
    return ending


def _ended(names: list[str], _result: Any, failed: bool) -> None:
    active = recorder.current
    for name in names:
        number = _ids.pop(name, NO_NAME)
        _untold.pop(name, None)
        if active is not None and not failed:
            active.facts.write("group_destroyed", id=number, name=name)


def _ranks(group: Any) -> list[int] | None:
    """Global ranks by rank in the group; None while torch does not know them."""
    known = None if _c10d is None else _c10d._world.pg_group_ranks.get(group)
    return None if not known else sorted(known, key=lambda rank: known[rank])


def _describe(group: Any, name: str, ranks: list[int]) -> dict[str, Any]:
    backend = "" if _c10d is None else str(_c10d._world.pg_map.get(group, ("",))[0])
    return {
        "id": _ids.get(name, NO_NAME),
        "name": name,
        "crc": zlib.crc32(name.encode()),
        "desc": str(getattr(group, "group_desc", "")),
        "backend": backend,
        "size": len(ranks),
        "ranks": ranks,
        # Calls of a subclass in Python pass neither torch's dispatcher nor its hooks.
        "python": _c10d is not None and type(group) is not _c10d.ProcessGroup,
    }
