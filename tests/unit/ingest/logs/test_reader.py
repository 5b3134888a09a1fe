"""The reader of text: whatever the envelope, the parsers see the program's line, its writer and its time."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from io import BytesIO

import pytest

from ddiag.ingest.logs import lines as lines_module
from ddiag.ingest.logs import reader as reader_module
from ddiag.ingest.logs.envelope import Labels, labels_in, opened, without_colours
from ddiag.ingest.logs.line import Line
from ddiag.ingest.logs.lines import chunks
from ddiag.ingest.logs.needles import Needles
from ddiag.ingest.logs.reader import parse
from ddiag.ingest.logs.stamps import stamp_of, with_year
from ddiag.model.incident import BOOT, EPOCH, LOCAL, YEARLESS, Event, Seen

WATCHDOG = "[E ProcessGroupNCCL.cpp:523] [Rank 2] Watchdog caught"


class Watch:
    """Takes every line with the word, and the two that follow it."""

    needles = ("Watchdog",)

    def line(self, line: Line) -> Iterator[Seen]:
        after = [later.text for later in line.following(2)]
        yield Event("c10d.heartbeat", {"text": line.text, "after": list(after)}, host=line.host)

    def end(self) -> Iterable[Seen]:
        return ()


def _events(text: str) -> list[Event]:
    return [one for one in parse(text.split("\n"), (Watch,), "train.log") if isinstance(one, Event)]


@pytest.mark.parametrize(
    ("envelope", "rank", "local_rank", "host"),
    [
        ("[rank3]:", 3, None, None),
        ("[default1]:", None, 1, None),
        ("[default1]:[rank9]:", 9, 1, None),
        ("[worker0]:", None, 0, None),
        ("118: ", 118, None, None),
        ("[1,14]<stdout>:", 14, None, None),
        ("[1,14]<stderr>: [rank14]:", 14, None, None),
        ("(RayWorkerWrapper pid=4009, ip=10.3.32.122) ", None, None, "10.3.32.122"),
        ("\x1b[36m(WorkerDict pid=77,ip=10.0.0.4)\x1b[0m [rank2]:", 2, None, "10.0.0.4"),
        ("[36m(WorkerDict pid=77, ip=10.0.0.4)[0m ", None, None, "10.0.0.4"),
        ("\ufffd[36m(WorkerDict pid=77, ip=10.0.0.4)\ufffd[0m ", None, None, "10.0.0.4"),
        ("worker-1: ", None, None, "worker-1"),
        ("node-b: [rank5]:", 5, None, "node-b"),
        ("10.0.3.7: ", None, None, "10.0.3.7"),
        ("2026-09-18 19:29:24 [rank1]:", 1, None, None),
        (" 2025-02-18 12:54 ", None, None, None),
        ("2025-06-01T04:00:03.123456789Z stderr F [rank1]:", 1, None, None),
        ("[80746] ", None, None, None),
        ("[pod/trainer-3/pytorch] ", None, None, "trainer-3"),
        ("trainer-3  | ", None, None, "trainer-3"),
        ("Sep  3 11:37:19 gn12 python[771]: ", None, None, "gn12"),
    ],
)
def test_an_envelope_is_taken_off_and_kept_as_hints(
    envelope: str, rank: int | None, local_rank: int | None, host: str | None
) -> None:
    raw = without_colours((envelope + WATCHDOG).encode()).decode()
    seen = opened(raw, Labels())
    assert (seen.rank, seen.local_rank, seen.host) == (rank, local_rank, host)
    assert seen.text.endswith(WATCHDOG)
    assert len(seen.text) <= len(WATCHDOG) + len("python[771]: ")


@pytest.mark.parametrize(
    "line",
    [
        "RuntimeError: shape mismatch",
        "slurmstepd: error: *** STEP 1.0 ON n1 CANCELLED ***",
        "python: can't open file 'train.py'",
        "2: eth0: <BROADCAST,MULTICAST,UP> mtu 9000",
        "   - [2] joined but didn't finish collective #180 (count from 1)",
        "[3] is setting up NCCL communicator and retreiving ncclUniqueId from [0]",
        "[2024-01-22 16:50:41,962] [INFO] [logging.py:96:log_dist] [Rank 0] msg",
        "w0:40948:41646 [0] NCCL INFO Bootstrap : Using eth0",
    ],
)
def test_what_a_program_prints_is_no_envelope(line: str) -> None:
    seen = opened(line, Labels())
    assert (seen.text, seen.rank, seen.host) == (line, None, None)


def test_a_label_on_every_line_is_a_task_unless_torchrun_runs_below_it() -> None:
    head = ["0: loading", "1: loading", "0: done", "1: done"]
    assert labels_in(head).tasks
    assert opened("1: step 5", labels_in(head)).rank == 1
    below = [*head, "1: E0820 11:37:36.512000 1 torch/distributed/elastic/multiprocessing/api.py:833] failed"]
    assert opened("1: step 5", labels_in(below)).rank is None
    assert not labels_in(["0: rank 0", "nothing", "to see", "here"]).tasks


def test_a_task_label_that_contradicts_the_rank_is_none() -> None:
    head = ["0: [rank0]: x", "0: [rank1]: x", "1: [rank2]: x"]
    assert not labels_in(head).tasks_are_ranks
    assert opened("1: [rank2]:[E x.cpp:1] y", labels_in(head)).rank == 2


@pytest.mark.parametrize(
    ("text", "date", "clock"),
    [
        ("[rank2]:[E321 02:07:08.408271257 ProcessGroupNCCL.cpp:607]", "1972-03-21T02:07:08.408271257", YEARLESS),
        ("[E1206 02:07:08.4 a.cpp:1]", "1972-12-06T02:07:08.400000000", YEARLESS),
        ("[W108 20:34:31.120001 socket.cpp:697]", "1972-01-08T20:34:31.120001000", YEARLESS),
        ("E0820 11:37:36.512000 140231 torch/x.py:833] failed", "1972-08-20T11:37:36.512000000", YEARLESS),
        ("[2024-01-22 16:50:41,962] [INFO]", "2024-01-22T16:50:41.962000000", LOCAL),
        ("  time      : 2024-08-20_11:37:37", "2024-08-20T11:37:37.000000000", LOCAL),
        ("2025-06-01T04:00:03Z x", "2025-06-01T04:00:03.000000000", EPOCH),
        ("2025-06-01T04:00:03+02:00 x", "2025-06-01T02:00:03.000000000", EPOCH),
        ("[Tue Sep  3 11:37:19 2024] python3", "2024-09-03T11:37:19.000000000", LOCAL),
        ("Sep  3 11:37:19 gn12 kernel: x", "1972-09-03T11:37:19.000000000", YEARLESS),
        ("12/25/2024 10:11:12 - INFO - x", "2024-12-25T10:11:12.000000000", LOCAL),
        ("[09/03 11:47:24 d2.engine]: x", "1972-09-03T11:47:24.000000000", YEARLESS),
        ("1724153856.5 x", "2024-08-20T11:37:36.500000000", EPOCH),
        ("[12345.678901] NVRM: Xid", "1970-01-01T03:25:45.678901000", BOOT),
        ("[E000 99:07:08.4 a.cpp:1]", None, ""),
        ("step 100: loss 3.25", None, ""),
        ("lr 2024 at 12:30", None, ""),
    ],
)
def test_time_stamps_of_all_kinds(text: str, date: str | None, clock: str) -> None:
    ts_ns, found = stamp_of(text)
    assert found == clock
    assert (None if ts_ns is None else _iso(ts_ns)) == date


def _iso(ts_ns: int) -> str:
    from datetime import datetime, timezone

    whole, fraction = divmod(ts_ns, 1_000_000_000)
    moment = datetime.fromtimestamp(whole, timezone.utc)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{fraction:09d}"


def test_a_year_is_put_in_where_it_was_missing() -> None:
    ts_ns, _ = stamp_of("[E903 11:47:24.017933677 a.cpp:1]")
    assert ts_ns is not None
    assert _iso(with_year(ts_ns, 2025)) == "2025-09-03T11:47:24.017933677"


def test_the_shipper_tells_the_year_and_the_program_the_nanosecond() -> None:
    (event,) = _events("2026-09-18 20:31:24 [rank3]:[E918 20:31:24.436955737 ProcessGroupNCCL.cpp:689] Watchdog")
    assert (_iso(event.ts_ns or 0), event.clock) == ("2026-09-18T20:31:24.436955737", LOCAL)


def test_a_record_says_where_it_was_read_and_who_wrote_it() -> None:
    (event,) = _events(f"a\nb\nnode-7: [rank5]:{WATCHDOG}\n")
    assert (event.source, event.rank, event.host) == ("train.log:3", 5, "node-7")


def test_dockers_json_lines_are_unpacked() -> None:
    line = '{"log":"[rank1]: Watchdog \\"x\\"\\n","stream":"stderr","time":"2025-06-01T04:00:03.1Z"}'
    (event,) = _events(line)
    assert (event.rank, event.get("text"), event.clock) == (1, 'Watchdog "x"', EPOCH)


def test_a_progress_bar_ends_a_line_but_does_not_count_as_one() -> None:
    events = _events("one\r\nbar 1%\rbar 2%\r[rank1]: Watchdog\nx\nWatchdog")
    assert [(event.source, event.rank) for event in events] == [("train.log:2", 1), ("train.log:4", None)]


def test_following_lines_are_seen_across_the_ends_of_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines_module, "READ_BYTES", 300)
    monkeypatch.setattr(lines_module, "AHEAD_BYTES", 60)
    text = [f"line {n} {'Watchdog' if n % 7 == 0 else ''}" for n in range(200)]
    events = _events("\n".join(text))
    assert [event.source for event in events] == [f"train.log:{n + 1}" for n in range(0, 200, 7)]
    for event, n in zip(events, range(0, 200, 7), strict=True):
        assert event.get("after") == text[n + 1 : n + 3]


def test_a_common_word_is_not_followed_through_a_whole_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines_module, "READ_BYTES", 20_000)
    monkeypatch.setattr(lines_module, "AHEAD_BYTES", 1_000)
    monkeypatch.setattr(reader_module, "SAMPLE_BYTES", 1_000)
    monkeypatch.setattr(reader_module, "UNPROVEN", 200)
    offered: list[int] = []

    class Chatty(Watch):
        needles = ("common", "Watchdog")

        def line(self, line: Line) -> Iterator[Seen]:
            offered.append(line.number)
            return super().line(line) if "Watchdog" in line.text else iter(())

    text = [f"a common line {n}" for n in range(30_000)]
    text[17_123] = "a common Watchdog"
    found = list(parse(text, (Chatty,), "log"))
    assert [record.source for record in found] == ["log:17124"]
    assert len(offered) < 10_000
    assert offered[-1] == 30_000


def test_a_line_without_end_is_cut_and_does_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines_module, "LONGEST_BYTES", 4096)
    monkeypatch.setattr(lines_module, "READ_BYTES", 1024)
    monkeypatch.setattr(lines_module, "AHEAD_BYTES", 256)
    held = [len(chunk.data) for chunk in chunks(BytesIO(b"x" * 50_000 + b"\nend").read)]
    assert max(held) <= 4096 + 1024


@pytest.mark.parametrize(
    "bad", [b"\xff\xfe\x00Watchdog\xe9\n", b"\0\0Watchdog\0\n", b"Watchdog \xf0\x9f", b"\n\n\rWatchdog\r"]
)
def test_other_encodings_never_stop_the_reader(bad: bytes) -> None:
    found = [chunk.line(index) for chunk in chunks(BytesIO(bad).read) for index in range(chunk.offered)]
    assert any("Watchdog" in line.text for line in found)


def test_needles_are_found_wherever_they_lie() -> None:
    chance = random.Random(3)
    needles = ["Xid", "it/s", "Watchdog caught", "Traceback (most recent call last)", "ncclX", "[F", "aaaaaaa", "aaaaa"]
    letters = "aaXid cltg[F\n"
    text = "".join(chance.choice(letters) for _ in range(3000))
    for _ in range(200):
        at = chance.randrange(len(text))
        text = text[:at] + chance.choice(needles) + text[at:]
    data = text.encode()
    for sample in (b"", data):
        places, which = Needles(needles, sample).find(data)
        expected = [
            (at, i) for at in range(len(data)) for i, one in enumerate(needles) if data.startswith(one.encode(), at)
        ]
        assert list(zip(places.tolist(), which.tolist(), strict=True)) == expected
