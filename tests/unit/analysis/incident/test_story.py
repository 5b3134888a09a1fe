"""The story of an incident: in order, the same thing of many ranks in one line, causes before what they bring about."""

from __future__ import annotations

from ddiag.analysis.incident.story import MOST_LINES, story
from ddiag.analysis.incident.story_words import WORDS
from ddiag.model.event_kinds import EVENT_KINDS
from ddiag.model.incident import EPOCH, Event
from ddiag.model.signals_incident import Events, StoryLine
from ddiag.reporters.story import story_rows

NIGHT_NS = 1_790_000_000 * 10**9


def at(seconds: float, kind: str, rank: int | None = None, host: str | None = None, **fields: object) -> Event:
    return Event(kind, fields, rank, host, int(NIGHT_NS + seconds * 1e9), EPOCH, source="a.log:1")  # type: ignore[arg-type]


def told(*events: Event) -> tuple[StoryLine, ...]:
    found = story(Events(events))
    return () if found is None else found.lines


XID = at(0, "kernel.xid", None, "gn12", code=79, bus_id="0000:3b:00.0", detail="GPU has fallen off the bus.")
DEATH = at(2, "python.exception", 10, "gn12", type="RuntimeError", message="CUDA error: unspecified launch failure")


def timeouts(ranks: range) -> list[Event]:
    return [at(600 + k, "c10d.watchdog_timeout", k, None, op="all_reduce", seq=4190, ran_ms=600046) for k in ranks]


def test_the_fault_comes_first_and_all_victims_are_one_line() -> None:
    lines = told(*timeouts(range(8)), DEATH, XID)
    assert [line.what.split(" (")[0].split(":")[0] for line in lines] == [
        "Xid 79 on 0000",
        "RuntimeError",
        "gave up waiting in all_reduce #4190 after 600 s",
    ]
    assert lines[2].ranks == tuple(range(8))
    assert lines[2].count == 8


def test_what_the_driver_says_of_a_process_that_ends_is_no_part_of_it() -> None:
    assert told(at(0, "kernel.xid", None, "gn12", code=45, bus_id="0000:3b:00.0")) == ()


def test_undated_lines_come_last_and_say_no_time() -> None:
    lines = told(Event("launcher.child_failed", {"exitcode": -9, "signal": 9}, 3), XID)
    assert lines[-1].ts_ns is None
    found = story(Events((Event("launcher.child_failed", {"exitcode": 1}, 3), XID)))
    assert found is not None
    assert [row.when for row in story_rows(found)] == ["14:13:20", ""]


def test_a_long_night_is_cut_and_says_so() -> None:
    many = [at(k, "python.exception", k, type=f"Error{k}", message="x") for k in range(40)]
    found = story(Events((*many, XID)))
    assert found is not None
    assert len(found.lines) == MOST_LINES
    assert found.left_out == 41 - MOST_LINES
    assert any("Xid 79" in line.what for line in found.lines)


def test_a_story_over_days_shows_dates() -> None:
    found = story(Events((XID, at(3 * 86400, "slurm.time_limit"))))
    assert found is not None
    assert [row.when for row in story_rows(found)] == ["09-21 14:13:20", "09-24 14:13:20"]


def test_nothing_to_tell_is_no_story() -> None:
    assert story(None) is None
    assert story(Events((at(0, "log.progress", 0, step=3),))) is None


def test_every_kind_of_the_story_is_declared() -> None:
    assert set(WORDS) <= set(EVENT_KINDS)
