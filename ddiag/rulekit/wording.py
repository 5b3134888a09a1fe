"""Texts of rules as they read for the evidence at hand: most speak of traces, since any profiler makes those.

A rule says "`ddiag analyze NEW_TRACES`" where it means "measure again and look", and names in ``capture`` how to
profile what it lacks. Whoever ran the job under ``ddiag run`` does both with ``ddiag run``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from ddiag.model.run import Coverage
from ddiag.model.signals import FAMILIES, GradBuckets, HostLaunch, InputWait, JobFacts, ShardUnits, Signals, StepBudget
from ddiag.model.signals_incident import INCIDENT_FAMILIES
from ddiag.rulekit.finding import Abstention, Finding
from ddiag.rulekit.runner import family_words

ANALYZE_AGAIN = "`ddiag analyze NEW_TRACES`"
"""How a rule's texts say: measure again."""
RUN_AGAIN, PROFILED_AGAIN = "`ddiag run`", "`ddiag run --profile-steps A:B`"
PROFILE_STEPS = "`ddiag run --profile-steps 20:24 -- COMMAND` profiles these steps on all ranks"
USE_DATA_LOADER = (
    "take batches from a torch DataLoader: the recorder knows no other loader, and counts its time as the host's"
)
_PROFILE = re.compile(r"\b(profile|torch\.profiler)\b")
_OR = re.compile(r"[,;] or ")
_SUBJECT = re.compile(re.escape(ANALYZE_AGAIN) + r"(?= (?:must|names|shows)\b)")
"""… where it is who shows something, rather than what to do."""
_NEXT_TIME = "next time: ddiag run "


def findings_for(findings: Sequence[Finding], coverage: Coverage) -> tuple[Finding, ...]:
    """*findings* as they read for the evidence in *coverage*."""
    if not coverage.recorded:
        return tuple(findings)
    again = PROFILED_AGAIN if coverage.profiled else RUN_AGAIN
    return tuple(replace(one, verify=_verify(one.verify, again), fix=_fixes(one.fix)) for one in findings)


def _verify(text: str, again: str) -> str:
    return _SUBJECT.sub(f"a new {again}", text).replace(ANALYZE_AGAIN, f"{again} again")


def _fixes(told: tuple[str, ...]) -> tuple[str, ...]:
    """Without the advice to do what was done."""
    new = (fix for fix in told if not fix.startswith(_NEXT_TIME))
    return tuple(PROFILE_STEPS if fix.startswith("profile ") else fix for fix in new) or told


def abstentions_for(abstentions: Sequence[Abstention], signals: Signals, coverage: Coverage) -> tuple[Abstention, ...]:
    """*abstentions* that are to the point, with what would complete the evidence in *coverage*."""
    pointless = _pointless(signals, coverage)
    kept = [one for one in abstentions if not pointless.intersection(one.needs)]
    if not coverage.recorded or coverage.profiled:
        return tuple(kept)  # what a profiler did not show needs what the rule says
    return tuple(replace(one, capture=_recorded_capture(one)) for one in kept)


def _recorded_capture(abstention: Abstention) -> str:
    """What to do for a job under ``ddiag run`` where the rule says how to profile it; else what the rule says."""
    if family_words(InputWait) in abstention.needs:
        return USE_DATA_LOADER
    told = abstention.capture
    if not _PROFILE.search(told):
        return told
    return next((way for way in _OR.split(told) if "ddiag run" in way), PROFILE_STEPS)


def _pointless(signals: Signals, coverage: Coverage) -> set[str]:
    """What nobody misses here, in the words of abstentions."""
    if not signals.has(StepBudget) and any(signals.has(family) for family in INCIDENT_FAMILIES):
        # Where a job is known from logs and dumps only, nobody asks why no rule judged its step time.
        return {family_words(family) for family in FAMILIES if family not in INCIDENT_FAMILIES}
    found: set[str] = set()
    facts = signals.get(JobFacts)
    if coverage.recorded and facts is not None and facts.device_kind == "cpu":
        found.add(family_words(HostLaunch))  # a recording knows that there is no device to launch on
    if signals.has(ShardUnits):
        found.add(family_words(GradBuckets))  # sharded gradients are scattered by unit
    return found
