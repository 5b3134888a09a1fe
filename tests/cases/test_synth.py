"""The simulator itself: what it writes could have happened."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from itertools import pairwise

import msgspec
import pytest
from isal import igzip

from tools.synth import SCENARIOS, Job, generate, simulate
from tools.synth.engine import LAUNCH_LATENCY_NS, Event, Rank

SMALL = {"layers": 4, "steps": 3, "warmup_steps": 2}
TELLING = (
    "healthy",
    "late_compute",
    "healthy_fsdp",
    "healthy_tp_dp",
    "offloaded_optimizer",
    "healthy_barrier",
    "launch_blocking",
)


def _ranks(name: str) -> list[Rank]:
    return simulate(replace(SCENARIOS[name].job, **SMALL))


def _device_events(rank: Rank) -> list[Event]:
    return [event for event in rank.events if event.kind in ("kernel", "memcpy", "collective")]


@pytest.mark.parametrize("name", TELLING)
def test_members_of_a_collective_end_together_and_never_before_the_last_has_started(name: str) -> None:
    calls = defaultdict(list)
    for rank in _ranks(name):
        for group in {e.call.group.name for e in rank.events if e.kind == "collective" and e.call}:
            mine = [e for e in rank.events if e.kind == "collective" and e.call and e.call.group.name == group]
            for sequence, event in enumerate(sorted(mine, key=lambda e: e.start_ns)):
                calls[group, sequence].append(event)
    assert calls
    for events in calls.values():
        assert len({event.end_ns for event in events}) == 1
        assert max(event.start_ns for event in events) < events[0].end_ns
        assert len({event.call.op for event in events if event.call}) == 1


@pytest.mark.parametrize("name", TELLING)
def test_a_stream_runs_one_thing_at_a_time_and_never_before_its_launch(name: str) -> None:
    for rank in _ranks(name):
        launches = {event.correlation: event for event in rank.events if event.kind == "call"}
        streams = defaultdict(list)
        for event in _device_events(rank):
            streams[event.lane].append(event)
            assert event.start_ns >= launches[event.correlation].start_ns + LAUNCH_LATENCY_NS
        for events in streams.values():
            events.sort(key=lambda e: e.start_ns)
            assert all(a.end_ns <= b.start_ns for a, b in pairwise(events))


@pytest.mark.parametrize("name", TELLING)
def test_spans_of_a_thread_nest(name: str) -> None:
    for rank in _ranks(name):
        spans = [event for event in rank.events if event.kind in ("op", "annotation", "call")]
        threads = defaultdict(list)
        for span in spans:
            threads[span.lane].append(span)
        for events in threads.values():
            open_until: list[int] = []
            for event in sorted(events, key=lambda e: (e.start_ns, -e.end_ns)):
                while open_until and open_until[-1] <= event.start_ns:
                    open_until.pop()
                assert not open_until or event.end_ns <= open_until[-1]
                open_until.append(event.end_ns)


def test_the_same_seed_gives_the_same_traces(tmp_path) -> None:
    job = replace(Job(), ranks=2, **SMALL)
    first = [path.read_bytes() for path in generate(job, tmp_path / "a")]
    again = [path.read_bytes() for path in generate(job, tmp_path / "b")]
    other = [path.read_bytes() for path in generate(replace(job, seed=1), tmp_path / "c")]
    assert first == again
    assert first != other


@pytest.mark.parametrize("flavour", ["cuda", "cuda_old", "rocm", "cpu"])
def test_every_flavour_writes_what_that_profiler_writes(tmp_path, flavour: str) -> None:
    path, _ = generate(replace(Job(), ranks=2, flavour=flavour, **SMALL), tmp_path)
    trace = msgspec.json.decode(igzip.decompress(path.read_bytes()))
    categories = {event.get("cat") for event in trace["traceEvents"]}
    expected = {
        "cuda": {"cpu_op", "kernel", "cuda_runtime", "gpu_memcpy"},
        "cuda_old": {"Operator", "Kernel", "Runtime", "Memcpy"},
        "rocm": {"cpu_op", "kernel", "cuda_runtime", "gpu_memcpy"},
        "cpu": {"cpu_op", "user_annotation"},
    }[flavour]
    assert expected <= categories
    assert ("kernel" in categories or "Kernel" in categories) == (flavour != "cpu")
    assert ("distributedInfo" in trace) == (flavour != "cuda_old")
    names = {event["name"] for event in trace["traceEvents"]}
    assert any(name.startswith("hipLaunchKernel") for name in names) == (flavour == "rocm")


def test_a_missing_rank_leaves_no_file(tmp_path) -> None:
    job = replace(Job(), ranks=4, missing_ranks=(1, 3), **SMALL)
    assert [path.name for path in generate(job, tmp_path)] == ["rank0.pt.trace.json.gz", "rank2.pt.trace.json.gz"]


def test_every_scenario_says_what_it_plants() -> None:
    for name, scenario in SCENARIOS.items():
        assert scenario.doc
        assert bool(scenario.rules) + name.startswith("healthy") + scenario.undecidable == 1
        assert set(scenario.ranks) <= set(range(scenario.job.ranks))
