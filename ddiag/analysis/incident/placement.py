"""Who runs where, from NCCL's init lines, launchers, nvidia-smi and the lines of the ranks themselves."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

import polars as pl

from ddiag.model.incident import Event
from ddiag.model.placement import Placement, Seat, distinct_hosts, same_host
from ddiag.model.run import Run
from ddiag.model.signals_incident import Events, NodeFacts, Settings


def placement(run: Run, events: Events | None, facts: NodeFacts | None, settings: Settings | None) -> Placement | None:
    """None when the evidence names neither a host nor a device nor a rank."""
    everything = events.all if events is not None else ()
    hosts = distinct_hosts(
        [
            *(event.host for event in everything),
            *(
                str(event.get("host"))
                for event in everything
                if event.kind == "launcher.child_failed" and event.get("host")
            ),
            *(fact.host for fact in (facts.all if facts is not None else ())),
            *(setting.host for setting in (settings.all if settings is not None else ())),
        ]
    )
    bus_of = _bus_of(facts)
    ranks = {event.rank for event in everything if event.rank is not None} | set(run.coverage.ranks_seen)
    world = _world(run, everything, ranks)
    seats = _merged(
        [*_from_driver(run), *_from_nccl(everything, ranks), *_from_launcher(everything), *_from_lines(everything)]
    )
    if not any(seat.bus_id for seat in seats):
        seats = [*seats, *_assumed(seats, hosts, bus_of, ranks, world, _visible(settings))]
        seats = _merged(seats)
    if not (hosts or seats or bus_of):
        return None
    return Placement(tuple(sorted(seats, key=lambda seat: seat.rank)), hosts, bus_of, world)


def _bus_of(facts: NodeFacts | None) -> Mapping[tuple[str | None, int], str]:
    found: dict[tuple[str | None, int], str] = {}
    for fact in facts.of("gpu.bus_id") if facts is not None else ():
        index = (fact.device or "")[3:]
        if index.isdigit():
            found.setdefault((fact.host, int(index)), fact.text)
    return found


def _world(run: Run, events: Iterable[Event], ranks: set[int]) -> int | None:
    """Ranks of the job: as dumps say, or the largest communicator, where no rank lies beyond it."""
    if run.coverage.ranks_expected:
        return len(run.coverage.ranks_expected)
    sizes = [event.integer("nranks") or 0 for event in events if event.kind == "nccl.init"]
    largest = max(sizes, default=0)
    return largest if largest > max(ranks, default=-1) else None


def _from_nccl(events: Iterable[Event], ranks: set[int]) -> Iterator[Seat]:
    """Init lines of the communicator of all ranks: the largest. One of a subgroup would give ranks within it."""
    inits = [event for event in events if event.kind == "nccl.init" and not event.get("parent")]
    largest = max((event.integer("nranks") or 0 for event in inits), default=0)
    if largest <= max(ranks, default=-1):
        return
    places = defaultdict(set)
    chosen = [event for event in inits if event.integer("nranks") == largest]
    for event in chosen:
        places[event.integer("rank")].add((event.host, event.word("bus_id")))
    for event in chosen:
        rank = event.integer("rank")
        if rank is not None and len(places[rank]) == 1:
            yield Seat(rank, event.host, event.word("bus_id") or None, event.integer("pid"), event.source)


def _from_driver(run: Run) -> Iterator[Seat]:
    """Devices on which the driver saw one rank only, of ranks that it saw on no other."""
    devices = run.table("devices").filter(pl.col("ranks").list.len() == 1).explode("ranks")
    for device in devices.unique("ranks", keep="none", maintain_order=True).iter_rows(named=True):
        yield Seat(device["ranks"], device["host"], device["bus_id"], source="processes of the device")


def _from_launcher(events: Iterable[Event]) -> Iterator[Seat]:
    for event in events:
        if event.kind == "launcher.child_failed" and event.rank is not None:
            yield Seat(event.rank, event.host or event.word("host") or None, None, event.integer("pid"), event.source)


def _from_lines(events: Iterable[Event]) -> Iterator[Seat]:
    """Ranks that wrote a line on a known host."""
    for event in events:
        if event.rank is not None and event.host is not None and not event.kind.startswith(("nccl.init", "launcher.")):
            yield Seat(event.rank, event.host, None, None, event.source)


def _merged(seats: Iterable[Seat]) -> list[Seat]:
    """One seat per rank: what the first source leaves open is taken from the others, when they agree on the host."""
    found: dict[int, Seat] = {}
    for seat in seats:
        known = found.get(seat.rank)
        if known is None:
            found[seat.rank] = seat
        elif same_host(known.host, seat.host):
            found[seat.rank] = Seat(
                seat.rank,
                known.host or seat.host,
                known.bus_id or seat.bus_id,
                known.pid if known.pid is not None else seat.pid,
                known.source or seat.source,
                known.assumed or (known.bus_id is None and seat.assumed),
            )
    return list(found.values())


def _visible(settings: Settings | None) -> list[int] | None:
    """Indices that CUDA_VISIBLE_DEVICES leaves, when every process sees the same; [] when they differ."""
    values = {one.value for one in settings.of("env", "CUDA_VISIBLE_DEVICES")} if settings is not None else set()
    if not values:
        return None
    parts = [part.strip() for part in next(iter(values)).split(",")]
    return [int(part) for part in parts] if len(values) == 1 and all(map(str.isdigit, parts)) else []


def _assumed(
    seats: Iterable[Seat],
    hosts: tuple[str, ...],
    bus_of: Mapping[tuple[str | None, int], str],
    ranks: set[int],
    world: int | None,
    visible: list[int] | None,
) -> Iterator[Seat]:
    """On a job of one node rank N uses device N, as launchers place it, unless something contradicts.

    Without the size of the job, the first rank that nothing is heard of counts as one: it may be the dead one.
    """
    if len(hosts) > 1 or not bus_of or not ranks or len({host for host, _ in bus_of}) > 1:
        return
    indices = visible if visible is not None else sorted(index for _, index in bus_of)
    size = world if world is not None else min(max(ranks) + 2, len(indices))
    if max(ranks) >= len(indices) or size > len(indices):
        return
    host = hosts[0] if hosts else None
    owner = next(iter({named for named, _ in bus_of}))
    for rank in range(size):
        bus = bus_of.get((owner, indices[rank]))
        if bus is not None:
            yield Seat(rank, host, bus, source="rank N on GPU N of the only node", assumed=True)
