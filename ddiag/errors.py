"""The few exceptions ddiag raises on purpose; everything else is a defect."""

from __future__ import annotations


class DdiagError(Exception):
    """Base of every error a user can act on; the message says what was wrong, where, and what to do."""


class InputError(DdiagError):
    """Evidence that cannot be used at all (missing, empty, of an unknown kind)."""


class UsageError(DdiagError):
    """The command line or a configuration file asks for something impossible."""


class RuleError(DdiagError):
    """A rule file breaks the contract of :mod:`ddiag.rulekit` (duplicate id, missing heading, undeclared signal)."""


class RuleDefect(RuleError):
    """A built-in rule failed while it ran: a defect of ddiag itself, not of the evidence."""
