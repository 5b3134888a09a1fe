"""The gradient buckets of DDP differ between ranks.

## Meaning
DDP fills buckets in the order in which gradients come. Parameters unused on one rank, shared modules or re-entrant
checkpointing change the order or the size of a bucket there; DDP then raises an error, or reduces what does not match.

## Impact
The reduction mixes or misses gradients, hangs, or ends with an error on the next forward pass.

## Diagnosis
DDP says which parameter indices got no gradient, and on which rank; or at one sequence number all ranks call all_reduce
in the reducer of DDP, with different sizes.

## Mitigation
Tell DDP about unused parameters, and wrap alike on all ranks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ddiag.model.incident import Event
from ddiag.model.signals import Signals
from ddiag.model.signals_incident import BUCKETS, Events, Stall
from ddiag.rulekit import Abstain, Confidence, Culprits, Evidence, Finding, Rule, Severity, State, View, name_ranks
from ddiag.rulekit.stall_finding import CAPTURE, place, stall_finding, who
from ddiag.rulekit.values import began, ranks_of

_ERROR = re.compile(
    r"Expected to have finished reduction in the prior iteration|Expected to mark a variable ready only"
)
_RANK = re.compile(r"did not receive grad for rank (\d+)")


def _applies(signals: Signals) -> bool:
    stall, events = signals.get(Stall), signals.get(Events)
    return (stall is not None and stall.cause == BUCKETS) or (events is not None and bool(_errors(events)))


RULE = Rule(
    id="DD924",
    root_cause="RC-24",
    needs=(),
    optional=(Stall, Events),
    capture=CAPTURE,
    symptom="Expected to have finished reduction; hang with checkpointing and find_unused_parameters",
    evidence="DDP's own error, or all_reduce of different numbers of elements in its reducer",
    applies=_applies,
)
FIX = (
    "find_unused_parameters=True when the set of unused parameters varies, static_graph=True when it does not",
    "torch.utils.checkpoint(..., use_reentrant=False); no module shared between checkpointed parts",
    "the same requires_grad and wrapping on all ranks; names: list(model.named_parameters())",
)
VERIFY = "TORCH_DISTRIBUTED_DEBUG=DETAIL names no parameter; INFO prints equal bucket sizes on all ranks"


@dataclass(frozen=True)
class Limits:
    most_ranks: int = 1
    """More ranks with the same error: the model does it on all of them, and no rank is to blame."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    stall, events = signals.get(Stall), signals.get(Events)
    errors = _errors(events) if events is not None else ()
    if errors:
        yield _from_error(errors, stall, limits)
    elif stall is not None and stall.cause == BUCKETS:
        title = f"{who(stall)} reduces another bucket of DDP: {stall.mismatch or place(stall)}"
        yield stall_finding(stall, title, FIX, VERIFY)


def _errors(events: Events) -> tuple[Event, ...]:
    return tuple(event for event in events.of("python.exception") if _ERROR.search(_message(event)))


def _message(event: Event) -> str:
    return f"{event.word('message')}\n{event.text}"


def _from_error(errors: Sequence[Event], stall: Stall | None, limits: Limits) -> Finding:
    named = {int(found[1]) for event in errors if (found := _RANK.search(_message(event)))}
    ranks = sorted(named or ranks_of(errors))
    guilty = tuple(ranks) if len(ranks) <= limits.most_ranks else ()
    if not guilty and stall is not None and stall.cause == BUCKETS:
        guilty = stall.culprits
    rows = tuple(Evidence("DDP's error", event.word("message")[:160], "", None, event.source) for event in errors[:4])
    return Finding(
        title=f"DDP did not get all gradients on {name_ranks(ranks)}" if ranks else "DDP did not get all gradients",
        severity=Severity.CRITICAL,
        confidence=Confidence.HIGH,
        culprits=Culprits(ranks=guilty),
        victims=stall.victims if stall is not None else (),
        evidence=rows,
        fix=FIX,
        verify=VERIFY,
        state=State.CRASHED,
        began_ns=began(errors),
        why="DDP counts the gradients of each iteration and says which it did not get",
    )
