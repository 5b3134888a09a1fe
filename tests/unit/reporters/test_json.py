from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from ddiag.reporters.json import JsonReporter, schema
from tests.unit.reporters.diagnoses import COVERAGE, EXPOSED, LATE, RECORDED, SMALL, diagnosed

CASES = {
    "healthy": diagnosed(),
    "degraded": diagnosed(LATE, EXPOSED, SMALL, coverage=COVERAGE, abstain=2),
    "inconclusive": diagnosed(steps=1),
}


def strict(node: Any) -> Any:
    """The schema with every unknown key forbidden: what we write must be described, though readers tolerate more."""
    if isinstance(node, dict):
        closed = {key: strict(value) for key, value in node.items()}
        return {**closed, "additionalProperties": False} if isinstance(node.get("properties"), dict) else closed
    return [strict(item) for item in node] if isinstance(node, list) else node


def closed_schema() -> dict[str, Any]:
    document = copy.deepcopy(schema())
    branches = [document["$defs"]["finding"].pop(name) for name in ("if", "then", "else")]
    closed: dict[str, Any] = strict(document)
    closed["$defs"]["finding"].update(zip(("if", "then", "else"), branches, strict=True))
    return closed


def test_the_schema_is_a_schema() -> None:
    Draft202012Validator.check_schema(schema())


def test_what_only_recordings_have_is_in_the_schema() -> None:
    written = json.loads(JsonReporter().render(diagnosed(LATE, coverage=RECORDED)[0]))
    assert written["coverage"]["recording_cost"]["rank"] == 1
    Draft202012Validator(closed_schema()).validate(written)


@pytest.mark.parametrize("name", CASES)
def test_everything_written_is_in_the_schema(name: str) -> None:
    diagnosis, signals = CASES[name]
    document = json.loads(JsonReporter().render(diagnosis, signals))
    assert [error.message for error in Draft202012Validator(closed_schema()).iter_errors(document)] == []
    assert document["verdict"]["status"] == name


def changed(path: str, value: object) -> dict[str, Any]:
    """The degraded document with one value replaced."""
    document = json.loads(JsonReporter().render(*CASES["degraded"]))
    *parents, last = path.split("/")
    node = document
    for key in parents:
        node = node[int(key) if isinstance(node, list) else key]
    node[last] = value
    return dict(document)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("schema_version", 2),
        ("verdict/status", "fine"),
        ("findings/0/severity", "fatal"),
        ("findings/0/role", "consequence"),
        ("findings/1/explained_by", None),
        ("findings/0/fix", []),
        ("findings/0/evidence", []),
        ("findings/0/culprits/ranks", ["3"]),
        ("findings/0/cost/step_share", 1.5),
        ("coverage/dropped_records", -1),
        ("coverage/inputs/0/rank", "0"),
    ],
)
def test_the_schema_refuses_what_the_contract_excludes(path: str, value: object) -> None:
    assert not Draft202012Validator(schema()).is_valid(changed(path, value))


def test_the_same_diagnosis_is_the_same_text() -> None:
    first, second = (JsonReporter().render(*diagnosed(LATE, EXPOSED, SMALL, coverage=COVERAGE)) for _ in range(2))
    assert first == second


def test_the_contracts_example_fields_are_there() -> None:
    document = json.loads(JsonReporter().render(*CASES["degraded"]))
    first, second = document["findings"][:2]
    assert (first["rule"], first["role"], first["explained_by"]) == ("DD501", "cause", None)
    assert (second["rule"], second["role"], second["explained_by"]) == ("DD402", "consequence", "DD501")
    assert first["culprits"]["ranks"] == [3]
    assert first["victims"] == {"ranks": [0, 1, 2]}
    assert document["verdict"]["primary"] == "DD501"
    assert document["abstentions"][0]["capture"] == "profile_memory=True"
