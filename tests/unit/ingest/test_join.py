"""Files of one incident on one clock and with one name for each host; what was assumed is said."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime, timezone

import polars as pl

from ddiag.ingest.clues import Clues, to_tables
from ddiag.ingest.incident import with_clues
from ddiag.ingest.join_place import short_host
from ddiag.ingest.join_time import on_one_clock
from ddiag.ingest.sources import Source
from ddiag.model.incident import BOOT, EPOCH, LOCAL, YEARLESS, Event, NodeFact
from ddiag.model.run import Coverage, Run
from ddiag.model.tables import TABLES


def ns(text: str) -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=timezone.utc).timestamp()) * 10**9


def events(*found: Event) -> pl.DataFrame:
    return TABLES["log_events"].conform(to_tables(found)["log_events"])


def line(file: str, when: str, clock: str, kind: str = "log.progress", **fields: object) -> Event:
    host = str(fields.pop("host")) if "host" in fields else None
    return Event(kind, fields, None, host, ns(when), clock, source=f"{file}:1")  # type: ignore[arg-type]


def order(table: pl.DataFrame) -> Sequence[str]:
    return [source.partition(":")[0] for source in table["source"].to_list()]


def test_a_line_without_a_year_gets_the_year_of_the_others() -> None:
    found = on_one_clock(events(line("a", "2024-09-03T11:37:21", LOCAL), line("b", "1970-09-03T11:37:19", YEARLESS)))
    assert order(found.events) == ["b", "a"]
    assert found.events["ts_ns"].to_list() == [ns("2024-09-03T11:37:19"), ns("2024-09-03T11:37:21")]
    assert found.notes == ()


def test_a_night_over_new_year_stays_in_order() -> None:
    found = on_one_clock(events(line("a", "2025-01-01T00:10:00", EPOCH), line("b", "1970-12-31T23:59:00", YEARLESS)))
    assert found.events["ts_ns"].to_list() == [ns("2024-12-31T23:59:00"), ns("2025-01-01T00:10:00")]


def test_a_zone_that_is_not_printed_is_found_where_the_ends_meet_and_said() -> None:
    job = [line("job", f"2024-09-03T0{h}:00:00", EPOCH) for h in (1, 2, 3)]
    kernel = line("dmesg", "2024-09-03T04:51:00", LOCAL)
    found = on_one_clock(events(*job, kernel))
    assert found.events.filter(pl.col("source") == "dmesg:1")["ts_ns"].item() == ns("2024-09-03T02:51:00")
    assert found.notes == ("dmesg: times moved by -2:00 h (no zone is printed; its end then meets the others')",)


def test_times_that_fit_are_left_alone() -> None:
    found = on_one_clock(
        events(
            line("a", "2024-09-03T01:00:00", LOCAL),
            line("a", "2024-09-03T03:00:00", LOCAL),
            line("b", "2024-09-03T02:49:00", LOCAL),
        )
    )
    assert found.notes == ()
    assert order(found.events) == ["a", "b", "a"]


def test_a_log_of_another_day_is_not_forced() -> None:
    found = on_one_clock(events(line("a", "2024-09-03T01:00:00", EPOCH), line("b", "2024-08-20T01:00:00", LOCAL)))
    assert "b: its times lie far" in found.notes[0]
    assert order(found.events) == ["b", "a"]


def test_seconds_since_boot_cannot_be_placed_and_come_last() -> None:
    boot = Event("kernel.xid", {"code": 79}, None, "gn12", 123 * 10**9, BOOT, source="dmesg:1")
    found = on_one_clock(events(boot, line("a", "2024-09-03T01:00:00", EPOCH)))
    assert order(found.events) == ["a", "dmesg"]
    assert found.events["ts_ns"].to_list()[1] is None


def timeouts(host: str, ahead_s: int) -> list[Event]:
    return [
        Event("c10d.watchdog_timeout", {"group": "0", "seq": seq, "op": "all_reduce", "numel_in": 5}, rank, host,
              ns("2024-09-03T02:00:00") + (ahead_s + seq) * 10**9, LOCAL, source=f"{host}.log:{seq}")
        for rank, seq in enumerate((7, 8, 9))
    ]  # fmt: skip


def test_a_host_whose_clock_is_ahead_is_told_by_common_timeouts() -> None:
    found = on_one_clock(events(*timeouts("gn01", 0), *timeouts("gn02", 1), *timeouts("gn03", 95)))
    assert len(found.notes) == 1
    assert found.notes[0].startswith("clock of gn03: 94 s ahead of the other hosts', from 3 calls")
    late = found.events.filter(pl.col("host") == "gn03")["ts_ns"].max()
    assert late == found.events.filter(pl.col("host") == "gn02")["ts_ns"].max()


def test_timeouts_a_few_seconds_apart_are_no_skew() -> None:
    assert on_one_clock(events(*timeouts("gn01", 0), *timeouts("gn02", 9))).notes == ()


def test_a_full_name_and_a_short_one_are_one_host() -> None:
    assert short_host("gn12.cluster.local") == "gn12"
    assert short_host("10.33.124.128") == "10.33.124.128"
    assert short_host("fe80::1") == "fe80::1"


def clues(label: str, *records: Event | NodeFact, host: str | None = None) -> Clues:
    return Clues(Source(label), "log", to_tables(records), host=host)


def joined(*found: Clues) -> Run:
    return with_clues(Run({}, Coverage()), list(found))


def test_a_file_called_by_a_host_that_others_name_is_of_that_host() -> None:
    run = joined(
        clues("job.log", line("job.log", "2024-09-03T01:00:00", EPOCH, host="gn12.cluster")),
        clues("dmesg-gn12.txt", Event("kernel.xid", {"code": 79}, source="dmesg-gn12.txt:4")),
        clues("dmesg-gn1.txt", Event("kernel.xid", {"code": 31}, source="dmesg-gn1.txt:4")),
    )
    hosts = dict(run.table("log_events").select("source", "host").iter_rows())
    assert hosts == {"job.log:1": "gn12", "dmesg-gn12.txt:4": "gn12", "dmesg-gn1.txt:4": None}


def test_facts_of_a_node_and_events_share_its_short_name() -> None:
    run = joined(clues("smi.txt", NodeFact("gpu.name", "H100", host="gn12.cluster.local")))
    assert run.table("node_facts")["host"].to_list() == ["gn12"]
    assert json.dumps(run.coverage.notes) == "[]"
