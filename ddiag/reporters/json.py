"""The diagnosis as JSON: the contract that scripts, CI gates and dashboards read."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddiag.model.run import Run
from ddiag.model.signals import Signals
from ddiag.rulekit.diagnosis import Diagnosis

SCHEMA_FILE = Path(__file__).with_name("diagnosis.schema.json")


@dataclass(frozen=True)
class JsonReporter:
    """JSON that :data:`SCHEMA_FILE` describes."""

    indent: int | None = 2

    def render(self, diagnosis: Diagnosis, signals: Signals | None = None, run: Run | None = None) -> str:
        """The same diagnosis always gives the same text; NaN and infinity are not JSON and never written."""
        return json.dumps(diagnosis.to_dict(), indent=self.indent, ensure_ascii=False, allow_nan=False) + "\n"


def schema() -> dict[str, Any]:
    """The published JSON Schema (draft 2020-12)."""
    document: dict[str, Any] = json.loads(SCHEMA_FILE.read_text(encoding="utf-8"))
    return document
