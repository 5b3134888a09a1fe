"""Moving new weights to the inference engine takes a large part of each RL iteration.

## Meaning
After each update the trainer's weights go to the engines that generate. Gathered and broadcast layer by layer from one
rank, this takes tens of seconds.

## Impact
Trainer and generation devices idle meanwhile.

## Diagnosis
The trainer's own timers: the update of weights against the whole iteration.

## Mitigation
Bucketed transfers, CUDA IPC on the same node, several senders.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddiag.model.signals_incident import Metrics
from ddiag.rulekit import Abstain, Confidence, Cost, Culprits, Evidence, Finding, Rule, View, severity_for
from ddiag.rulekit.values import median_of

RULE = Rule(
    id="DD120",
    root_cause="RC-68",
    needs=(Metrics,),
    capture="the RL trainer's timing lines (timing_s/…) of ten iterations",
    symptom="generation GPUs idle between iterations; refit dominates",
    evidence="time of the weight update > 30 % of the iteration",
    applies=lambda signals: (
        (m := signals.get(Metrics)) is not None and bool(m.table["name"].str.starts_with("timing.").any())
    ),
)
UPDATES = ("update_weights", "weight_sync", "sync_weights", "refit", "transfer_and_update_weights", "broadcast_to_vllm",
           "update_rollout_weights", "param_sync", "weight_update")  # fmt: skip
WHOLES = ("step", "total_step_time", "iteration", "total")


@dataclass(frozen=True)
class Limits:
    share: float = 0.3
    critical_share: float = 0.5


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    metrics = signals[Metrics]
    names = set(metrics.table["name"].unique().to_list())
    update = next((n for n in sorted(names) if n.startswith("timing.") and any(part in n for part in UPDATES)), None)
    whole = next((f"timing.{n}_s" for n in WHOLES if f"timing.{n}_s" in names), None)
    if update is None or whole is None:
        return
    spent, total = median_of(metrics, update), median_of(metrics, whole)
    if not spent or not total or spent / total < limits.share:
        return
    share = min(spent / total, 1.0)
    yield Finding(
        title=f"the weight update takes {spent:.3g} s of each iteration's {total:.3g} s ({share:.0%})",
        severity=severity_for(share, warning=limits.share, critical=limits.critical_share),
        confidence=Confidence.HIGH,
        culprits=Culprits(where=update.removeprefix("timing.")),
        evidence=(
            Evidence("weight update", round(share, 3), "of iteration", limits.share, update),
            Evidence("weight update", spent, "s", None, "median"),
        ),
        fix=(
            "send in buckets of some hundred MB instead of tensor by tensor; CUDA IPC handles when trainer and engine "
            "share a node; several senders, one per shard",
            "keep the engine's layout equal to the trainer's (same TP) so that nothing is gathered first",
            "overlap: asynchronous rollouts one step behind",
        ),
        verify="weight update time × NIC bandwidth is near the size of the weights",
        cost=Cost(ms_per_step=1000.0 * spent, step_share=share),
        why="the trainer's own timers",
    )
