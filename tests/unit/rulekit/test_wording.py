"""Texts of a recording's diagnosis speak of recordings; those of traces stay as rules wrote them."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from ddiag._paths import rules_folder
from ddiag.api import diagnose, load, rules_for
from ddiag.model.run import Coverage, InputFile
from ddiag.rulekit import Abstention
from ddiag.rulekit.wording import ANALYZE_AGAIN, PROFILE_STEPS, USE_DATA_LOADER, abstentions_for, findings_for
from tests.factories import make_signals
from tests.recordings import healthy, write_run
from tests.unit.rulekit.making import finding

TRACED = Coverage(inputs=(InputFile("r0.json", "kineto", 1, rank=0),))
RECORDED = Coverage(inputs=(InputFile("r0.ring", "recording", 1, rank=0),))
BOTH = Coverage(inputs=TRACED.inputs + RECORDED.inputs)
OF_TRACES = re.compile(r"NEW_TRACES|torch\.profiler|\btraces?\b|\bprofile \d")
"""What nobody can do anything with who has a recording."""


def _verify(text: str, coverage: Coverage) -> str:
    return findings_for([finding(verify=text)], coverage)[0].verify


def _fixes(*fixes: str, coverage: Coverage = RECORDED) -> tuple[str, ...]:
    return findings_for([finding(fix=fixes)], coverage)[0].fix


def _capture(text: str, coverage: Coverage = RECORDED, *needs: str) -> str:
    (found,) = abstentions_for([Abstention("DD1", needs or ("memory",), text)], make_signals(), coverage)
    return found.capture


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("`ddiag analyze NEW_TRACES`: no barrier", "`ddiag run` again: no barrier"),
        ("do it; `ddiag analyze NEW_TRACES` must show less", "do it; a new `ddiag run` must show less"),
        ("`ddiag analyze NEW_TRACES` names the reason", "a new `ddiag run` names the reason"),
        ("`env` prints nothing", "`env` prints nothing"),
    ],
)
def test_who_recorded_is_told_to_record_again(text: str, words: str) -> None:
    assert _verify(text, RECORDED) == words
    assert _verify(text, TRACED) == text


def test_what_a_window_of_the_profiler_showed_is_looked_at_with_another() -> None:
    assert _verify("`ddiag analyze NEW_TRACES`: shorter", BOTH) == "`ddiag run --profile-steps A:B` again: shorter"


def test_profiling_is_done_by_the_recorder() -> None:
    assert _fixes("profile 5+ steps on all ranks", "look at its host") == (PROFILE_STEPS, "look at its host")
    assert _fixes("profile 5+ steps on all ranks", coverage=TRACED) == ("profile 5+ steps on all ranks",)


def test_nobody_is_told_to_do_next_time_what_was_done() -> None:
    assert _fixes("look at its log", "next time: ddiag run -- COMMAND takes stacks") == ("look at its log",)
    assert _fixes("next time: ddiag run -- COMMAND takes stacks"), "a finding always has a fix"


@pytest.mark.parametrize(
    ("capture", "words"),
    [
        ("profile 5+ steps with torch.profiler, activities CPU and CUDA", PROFILE_STEPS),
        ("torch 2.9+: torch.profiler.profile(with_stack=True)", PROFILE_STEPS),
        ("profile 5+ steps, or record with `ddiag run` (NCCL: with --device-timing)",
         "record with `ddiag run` (NCCL: with --device-timing)"),
        ("the log of every rank", "the log of every rank"),
    ],
)  # fmt: skip
def test_missing_evidence_comes_from_the_recorder(capture: str, words: str) -> None:
    assert _capture(capture) == words
    assert _capture(capture, TRACED) == capture
    assert _capture(capture, BOTH) == capture, "the recorder's own window did not show it"


def test_input_that_the_recorder_cannot_see_is_not_blamed_on_the_profiler() -> None:
    assert _capture("profile 5+ steps", RECORDED, "input wait") == USE_DATA_LOADER


def _told(coverage: Coverage, need: str, **signals: Any) -> int:
    return len(abstentions_for([Abstention("DD1", (need,), "profile")], make_signals(**signals), coverage))


def test_launches_are_not_missed_where_there_is_no_device() -> None:
    cpu = {"job_facts": {"device_kind": "cpu"}}
    assert _told(RECORDED, "host launch", **cpu) == 0
    assert _told(TRACED, "host launch", **cpu) == 1, "a trace of the host alone may lack the device"
    assert _told(RECORDED, "host launch") == 1


def test_gradient_buckets_are_not_missed_where_units_are_sharded() -> None:
    assert _told(RECORDED, "grad buckets", shard_units={}) == 0
    assert _told(RECORDED, "grad buckets", shard_units=None) == 1


def test_every_rule_asks_of_a_recording_what_its_owner_can_do() -> None:
    asked = {one.rule.id: one.rule.capture for one in rules_for()}
    told = {rule: _capture(text) for rule, text in asked.items()}
    assert not {rule: text for rule, text in told.items() if re.search(r"torch\.profiler|\bprofile \d", text)}


def test_rules_say_measure_again_in_one_way() -> None:
    """Else the words would stay as they are for a recording."""
    sources = {path.name: path.read_text(encoding="utf-8") for path in Path(rules_folder()).rglob("dd*.py")}
    told = {name: re.sub(r'"\s+f?"', "", text).replace(ANALYZE_AGAIN, "") for name, text in sources.items()}
    assert len(told) > 100
    assert not [name for name, text in told.items() if "NEW_TRACES" in text or "`ddiag analyze` of" in text]


@pytest.mark.parametrize(
    "changes",
    [{}, {"input_ms": 80.0}, {"buckets": 40, "bucket_bytes": 1000}, {"save_every": 1}, {"rss_growth_bytes": 9_000_000}],
)
def test_the_diagnosis_of_a_recording_speaks_of_no_traces(tmp_path: Path, changes: dict[str, Any]) -> None:
    found = diagnose(load([str(write_run(tmp_path, *healthy(steps=30, **changes)))]))
    assert found.coverage.recorded
    texts = [text for one in found.findings for text in _texts(dataclasses.asdict(one))]
    texts += [text for one in found.abstentions for text in (one.capture, *one.needs)]
    assert texts
    assert not [text for text in texts if OF_TRACES.search(text)]


def _texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return [text for one in inside for text in _texts(one)]
