"""Who died first, and whom that death, a launcher or a scheduler took along."""

from __future__ import annotations

import signal
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ddiag.analysis.incident.dying import CAUSES, STRONG, Sign, signal_of, signs
from ddiag.analysis.incident.when import Clock, When, compare, file_line, sort_key
from ddiag.model.incident import Event
from ddiag.model.placement import Placement, same_host
from ddiag.model.signals_incident import Death, Deaths, Events

TOGETHER_NS = 2_000_000_000
"""Deaths this near to the first are not its consequence: launchers print whole seconds, and peers need longer."""
_OUTSIDE = ("preemption", "time_limit", "user", "other")
_EVICTED = ("Evicted", "Preempted", "Preempting", "DeadlineExceeded")
_STOPPED = ("launcher.child_failed", "launcher.killing", "c10d.watchdog_timeout", "gloo.timeout", "gloo.peer_closed")
_ABORTED = ("c10d.watchdog_timeout", "c10d.heartbeat")


@dataclass(frozen=True)
class _Process:
    """All signs of one death."""

    signs: tuple[Sign, ...]
    rank: int | None
    host: str | None
    when: When
    victim: bool
    named: bool

    @property
    def best(self) -> Sign:
        own = [sign for sign in self.signs if not sign.victim] or list(self.signs)
        return min(own, key=lambda sign: (CAUSES.index(sign.cause), sign.where is None))


def deaths(events: Events | None, placement: Placement | None) -> Deaths | None:
    """None when nothing says that a process died or was told to stop."""
    if events is None:
        return None
    clock = Clock(events)
    told = _told_to_stop(events, clock)
    processes = _processes(events, placement, clock)
    own = _telling([one for one in processes if not one.victim])
    others = [one for one in processes if one.victim]
    if told is not None and not any(_earlier(one, told) for one in own):
        event, _ = told
        first = Death("preempted", None, None, event.ts_ns, _words(event), None, (event,))
        return Deaths((first,), tuple(_death(one) for one in processes), preempted=True)
    if not own:
        return Deaths((), tuple(_death(one) for one in others)) if others else None
    chosen, later, ordered = _first(own)
    cascade = [*later, *others]
    return Deaths(tuple(map(_death, chosen)), tuple(map(_death, cascade)), ordered)


def _telling(own: list[_Process]) -> list[_Process]:
    """Without those that only their peers speak of, where another death has a reason."""
    known = [one for one in own if one.best.cause != "unknown"]
    return known if any(one.best.cause in STRONG for one in known) else own


def _told_to_stop(events: Events, clock: Clock) -> tuple[Event, When] | None:
    """The first word of a scheduler, or of agents that somebody ended."""
    found = [
        event
        for event in events.of("slurm.cancelled", "k8s.pod_ended", "launcher.signal", "slurm.time_limit")
        if (event.kind == "launcher.signal" and event.integer("signal") in (signal.SIGTERM, signal.SIGHUP))
        or event.word("reason") in (*_OUTSIDE, *_EVICTED)
        or event.kind == "slurm.time_limit"
    ]
    if not found:
        return None
    event = min(found, key=lambda one: sort_key(clock.when(one)))
    return event, clock.when(event)


def _earlier(process: _Process, told: tuple[Event, When]) -> bool:
    """Whether the process died by itself before the job was told to stop; strong causes win where times do not tell."""
    order = compare(process.when, told[1])
    if order is None:
        return process.best.cause in STRONG and process.best.cause != "signal"
    return order < 0


def _words(event: Event) -> str:
    reason = event.word("reason").replace("_", " ")
    if event.kind == "launcher.signal":
        return "the launcher was ended from outside (SIGTERM)"
    return f"the scheduler ended the job ({reason})" if reason else "the job's time limit was reached"


def _processes(events: Events, placement: Placement | None, clock: Clock) -> list[_Process]:
    """Signs of one process together, victims told from the others."""
    killed = {event.integer("pid") for event in events.of("launcher.killing")} - {None}
    survived, stopped = _survivors(events), events.has(*_STOPPED)
    found = [sign for sign in signs(events) if not _lived_on(sign, survived, stopped=stopped)]
    found = _with_ranks(_with_deepspeeds(found, events), placement, events)
    found = _with_owner(_with_killed(found))
    groups: dict[tuple[object, ...], list[Sign]] = defaultdict(list)
    for place, sign in enumerate(found):
        groups[_key(sign, place)].append(sign)
    aborted = events.has(*_ABORTED)
    return [_process(group, killed, clock, aborted=aborted) for group in groups.values()]


def _survivors(events: Events) -> Mapping[tuple[str, int | None], int]:
    """(file, rank) -> the last line that shows it at work."""
    found: dict[tuple[str, int | None], int] = {}
    ended = [e for e in events.of("log.phase") if e.word("phase") == "exit"]
    for event in (*events.of("log.progress"), *ended):
        file, line = file_line(event)
        found[file, event.rank] = max(line, found.get((file, event.rank), 0))
    return found


def _lived_on(sign: Sign, survivors: Mapping[tuple[str, int | None], int], *, stopped: bool) -> bool:
    """An exception after which the same rank went on was handled; so was one after which the job did, by its own
    words, where nothing says that it stopped."""
    if sign.event.kind not in ("python.exception", "cuda.oom"):
        return False
    file, line = file_line(sign.event)
    last = survivors.get((file, sign.event.rank), 0)
    return line < last or (not stopped and line < survivors.get((file, None), 0))


def _key(sign: Sign, place: int) -> tuple[object, ...]:
    if sign.rank is not None:
        return ("rank", sign.rank)
    if sign.pid is not None:
        return ("pid", sign.host, sign.pid)
    if sign.local_rank is not None:
        return ("local", sign.host, sign.local_rank)
    if sign.event.kind == "python.exception" or sign.cause == "cuda_oom":
        return ("said", sign.event.host, sign.what)
    return ("sign", place)


def _process(group: Sequence[Sign], killed: set[int | None], clock: Clock, *, aborted: bool) -> _Process:
    ended = [sign for sign in group if not sign.victim and not (sign.cause == "signal" and sign.pid in killed)]
    told = [sign for sign in ended if sign.cause in STRONG]
    forced = all(sign.pid in killed for sign in group if sign.pid is not None) and any(s.pid in killed for s in group)
    lost = any(sign.victim and sign.event.kind in ("python.exception", "c10d.watchdog_exception") for sign in group)
    explained = [sign for sign in told if sign.cause != "signal" or signal_of(sign.event) != signal.SIGABRT]
    victim = not ended or (lost and not explained) or (forced and not explained)
    only_abort = aborted and bool(told) and not explained and all(sign.cause == "signal" for sign in told)
    relevant = [sign for sign in group if sign.victim == (victim or only_abort)] or list(group)
    when = min((clock.when(sign.event) for sign in relevant), key=sort_key)
    rank = next((sign.rank for sign in group if sign.rank is not None), None)
    host = next((sign.host for sign in group if sign.host), None)
    return _Process(tuple(group), rank, host, when, victim or only_abort, any(sign.named for sign in group))


def _with_deepspeeds(found: Sequence[Sign], events: Events) -> list[Sign]:
    """Local ranks as DeepSpeed gave them to its processes; the one it names last only where nothing else speaks."""
    seats = {event.integer("pid"): event.integer("local_rank") for event in events.of("launcher.killing")}
    placed = [replace(s, local_rank=seats[s.pid]) if s.local_rank is None and s.pid in seats else s for s in found]
    own = [sign for sign in placed if not sign.victim]
    vague = [sign for sign in own if sign.event.integer("last_started") is not None]
    proven = list({sign.pid: sign for sign in own if sign.cause == "host_oom"}.values())
    if len(vague) == len(own) == 1:
        (one,) = vague
        told = replace(one, rank=one.event.integer("last_rank"), local_rank=one.event.integer("last_started"))
    elif len(vague) == len(proven) == 1:
        (one,), (kill,) = vague, proven
        told = replace(one, rank=kill.rank, local_rank=kill.local_rank, pid=kill.pid, host=one.host or kill.host)
    else:
        return placed
    return [told if sign is one else sign for sign in placed]


def _with_ranks(found: Sequence[Sign], placement: Placement | None, events: Events) -> list[Sign]:
    """Ranks of processes that are known by number, or by their place on a host."""
    of_pid = {(s.pid, s.host): s.rank for s in found if s.pid is not None and s.rank is not None}
    offsets = {(s.host, s.rank - s.local_rank) for s in found if s.rank is not None and s.local_rank is not None}
    hosts = placement.hosts if placement is not None else ()
    one_node = len(hosts) <= 1 and {offset for _, offset in offsets} <= {0}
    one_node &= not any(event.get("one_node") is False for event in events.of("launcher.child_failed"))
    named = []
    for sign in found:
        rank = sign.rank
        if rank is None and sign.pid is not None:
            rank = next(
                (r for (pid, host), r in of_pid.items() if pid == sign.pid and same_host(host, sign.host)), None
            )
            seats = placement.of_process(sign.host, sign.pid) if placement is not None and rank is None else ()
            rank = seats[0].rank if seats else rank
        if rank is None and sign.local_rank is not None:
            known = {offset for host, offset in offsets if host and host == sign.host}
            offset = known.pop() if len(known) == 1 else 0 if one_node else None
            rank = None if offset is None else offset + sign.local_rank
        named.append(replace(sign, rank=rank))
    return named


def _with_killed(found: Sequence[Sign]) -> list[Sign]:
    """A kill for want of memory that names no rank is that of the only worker of the host that was killed."""
    named = [s for s in found if s.rank is not None]
    killed = [s for s in named if s.cause == "host_oom" or signal_of(s.event) == signal.SIGKILL]
    placed = []
    for sign in found:
        ranks = {one.rank for one in killed if same_host(one.host, sign.host)}
        alone = sign.cause == "host_oom" and sign.rank is None and len(ranks) == 1
        placed.append(replace(sign, rank=ranks.pop()) if alone else sign)
    return placed


def _with_owner(found: Sequence[Sign]) -> list[Sign]:
    """An exception that does not say whose it is belongs to the only worker that failed without one."""
    explained = {sign.rank for sign in found if sign.event.kind == "python.exception" and sign.rank is not None}
    failed = [s for s in found if s.event.kind == "launcher.child_failed" and s.cause == "exit" and s.rank is not None]
    open_ = {sign.rank: sign for sign in failed if sign.rank not in explained}
    first = {rank: sign for rank, sign in open_.items() if sign.named}
    owner = next(iter((first or open_).values())) if len(first or open_) == 1 else None
    if owner is None:
        return list(found)
    nameless = [s for s in found if s.event.kind == "python.exception" and s.rank is None and not s.victim]
    whose = nameless[:1]
    return [replace(s, rank=owner.rank, host=s.host or owner.host) if s in whose else s for s in found]


def _first(own: Sequence[_Process]) -> tuple[list[_Process], list[_Process], bool]:
    """The root deaths, those after them, and whether times or a launcher tell which came first."""
    chosen = sorted(own, key=lambda one: sort_key(one.when))
    earliest = chosen[0]
    orders = [compare(earliest.when, one.when) for one in chosen[1:]]
    if any(order is None for order in orders):
        named = [one for one in chosen if one.named]
        strong = [one for one in chosen if one.best.cause in STRONG]
        picked = named if len(named) == 1 else strong or chosen
        return picked, [one for one in chosen if one not in picked], len(picked) == 1
    near = [one for one in chosen[1:] if _near(earliest, one)]
    return [earliest, *near], [one for one in chosen[1:] if one not in near], True


def _near(earliest: _Process, one: _Process) -> bool:
    """Independent: as early, or the same error on another rank; a bare exit code follows what has a reason."""
    if one.best.cause not in STRONG and earliest.best.cause in STRONG:
        return False
    if _is_kill(one) and _is_kill(earliest):
        return False
    if one.best.cause == earliest.best.cause and one.best.what == earliest.best.what:
        return one.best.cause in STRONG
    known = one.when.ts_ns is not None and earliest.when.ts_ns is not None
    if known and one.when.ts_ns != earliest.when.ts_ns:
        return abs((one.when.ts_ns or 0) - (earliest.when.ts_ns or 0)) <= TOGETHER_NS and one.best.cause in STRONG
    return False


def _is_kill(process: _Process) -> bool:
    """Ended by SIGKILL, and nothing says why: the second may be the launcher's or the scheduler's."""
    return process.best.cause == "signal" and signal_of(process.best.event) == signal.SIGKILL


def _death(process: _Process) -> Death:
    best = process.best
    events = tuple(dict.fromkeys(map(_Same, (best.event, *(sign.event for sign in process.signs)))))
    return Death(
        best.cause,
        process.rank,
        process.host,
        process.when.ts_ns,
        best.what,
        best.where,
        tuple(e.event for e in events),
    )


@dataclass(frozen=True)
class _Same:
    """An event by identity: its fields cannot be hashed."""

    event: Event

    def __hash__(self) -> int:
        return id(self.event)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.event is self.event
