"""DDP searches for unused parameters in every iteration although there are none.

## Meaning
`find_unused_parameters=True` walks the autograd graph after each forward pass and reduces a bitmap, to find parameters
that got no gradient. DDP itself says when there was none.

## Impact
5 to 10 % of the step.

## Diagnosis
DDP's warning in the log.

## Mitigation
Set it to False; `static_graph=True` where the used set never changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddiag.model.signals_incident import Events
from ddiag.rulekit import Abstain, Confidence, Culprits, Evidence, Finding, Rule, Severity, View

RULE = Rule(
    id="DD834",
    root_cause="RC-71",
    needs=(Events,),
    capture="the log of one rank from its first step",
    symptom="DDP is 5 to 10 % slower than expected, and warns once",
    evidence="DDP's warning that it found no unused parameters",
    applies=lambda signals: (events := signals.get(Events)) is not None and events.has("ddp.unused_flag"),
    references=("https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html",),
)


@dataclass(frozen=True)
class Limits:
    cost_share: float = 0.05
    """Typical cost of the search, for the text only."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    found = signals[Events].first("ddp.unused_flag")
    if found is None:
        return
    yield Finding(
        title="find_unused_parameters=True, but DDP found no unused parameters",
        severity=Severity.WARNING,
        confidence=Confidence.MEDIUM,
        culprits=Culprits(where="find_unused_parameters"),
        evidence=(Evidence("typical cost", limits.cost_share, "of step", None, found.source),),
        fix=(
            "DistributedDataParallel(find_unused_parameters=False) (Lightning: strategy='ddp' instead of "
            "'ddp_find_unused_parameters_true'; Hugging Face: --ddp_find_unused_parameters False)",
            "static_graph=True if the same parameters are used in every step",
        ),
        verify="the warning is gone and backward is shorter; training still reduces every parameter",
        why="DDP looked for unused parameters in the first iteration and found none",
        doubt="later iterations may skip parts of the model (flow control), as DDP's warning says",
    )
