"""The contract of a rule file.

A rule file ``rules/<family>/ddNNN_<name>.py`` holds a docstring (first line = the cause in one sentence, then the
headings Meaning, Impact, Diagnosis, Mitigation, the runbook), ``RULE = Rule(...)``, a frozen dataclass ``Limits`` and
``check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from ddiag.errors import RuleError
from ddiag.model.signals import Signals
from ddiag.rulekit.finding import Abstain, Finding

F = TypeVar("F")
HEADINGS = ("Meaning", "Impact", "Diagnosis", "Mitigation")


@dataclass(frozen=True)
class Rule:
    """Identity and declared needs of a rule."""

    id: str
    """DDnnn; equals the file name's prefix, upper case."""
    root_cause: str
    """RC-nn of the root-cause table."""
    needs: tuple[type, ...]
    """Signal families without which the rule abstains."""
    capture: str
    """How to record the needed evidence, as an instruction."""
    symptom: str
    """What the user sees, in the user's words (for the root-cause table)."""
    evidence: str
    """What decides it (for the root-cause table)."""
    optional: tuple[type, ...] = ()
    """Families the rule uses when present."""
    applies: Callable[[Signals], bool] | None = None
    """False: the rule has no subject here (e.g. one rank), so silence rather than an abstention."""
    explained_by: tuple[str, ...] = ()
    """Rule ids whose finding, when present with cost, makes this one its consequence."""
    references: tuple[str, ...] = ()


class View:
    """The signals a rule declared, and no others."""

    def __init__(self, signals: Signals, rule: Rule) -> None:
        self._signals = signals
        self._rule = rule

    def __getitem__(self, family: type[F]) -> F:
        if family not in self._rule.needs:
            raise RuleError(f"{self._rule.id} reads {family.__name__} without declaring it in needs")
        found = self._signals.get(family)
        if found is None:
            raise RuleError(f"{self._rule.id} was run although {family.__name__} is absent")
        return found

    def get(self, family: type[F]) -> F | None:
        """An optional family, or None when the evidence does not have it."""
        if family not in self._rule.optional and family not in self._rule.needs:
            raise RuleError(f"{self._rule.id} reads {family.__name__} without declaring it in optional")
        return self._signals.get(family)


@dataclass(frozen=True)
class LoadedRule:
    """A rule file, checked."""

    rule: Rule
    title: str
    """First line of the docstring."""
    sections: dict[str, str]
    """Meaning, Impact, Diagnosis, Mitigation."""
    limits: Any
    """An instance of the file's frozen ``Limits`` with overrides applied."""
    check: Callable[[View, Any], Iterator[Finding | Abstain]]
    family: str
    """Folder name."""
    path: str
    built_in: bool = True
    """False: from a ``--rules`` folder; its failures are reported and the analysis goes on."""
