"""FSDP is told to wrap the whole model as one unit, or every small layer by itself.

## Meaning
FSDP gathers and frees parameters unit by unit. `NO_WRAP` makes the model one unit: all parameters are gathered before
the first layer runs and stay until the end. A size-based policy with a tiny limit makes every Linear a unit.

## Impact
One unit: peak memory is the whole model, no gather overlaps with compute. Units per Linear: thousands of small gathers.

## Diagnosis
`fsdp_auto_wrap_policy`, `fsdp_transformer_layer_cls_to_wrap`, `fsdp_min_num_params`; a printed model with one
FullyShardedDataParallel.

## Mitigation
One unit per transformer block.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddiag.model.incident import Event
from ddiag.model.signals_incident import Events, Settings
from ddiag.rulekit import Abstain, Confidence, Culprits, Evidence, Finding, Rule, Severity, State, View
from ddiag.rulekit.values import as_number, began, setting

RULE = Rule(
    id="DD451",
    root_cause="RC-53",
    needs=(),
    optional=(Settings, Events),
    capture="the accelerate or trainer configuration, or print(model) after wrapping",
    symptom="FSDP needs as much memory as DDP and nothing overlaps; or thousands of tiny all-gathers",
    evidence="auto_wrap_policy NO_WRAP; size-based wrapping with a tiny or huge limit; one FSDP module in print(model)",
    applies=lambda signals: (
        ((s := signals.get(Settings)) is not None and bool(s.of("fsdp") or s.of("trainer", "fsdp")))
        or ((e := signals.get(Events)) is not None and e.has("trainer.fsdp_units", "trainer.wrap_class_missing"))
    ),
    references=("https://huggingface.co/docs/accelerate/usage_guides/fsdp",),
)
FIXES = (
    "fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP with fsdp_transformer_layer_cls_to_wrap: the block's class "
    "(LlamaDecoderLayer, GPT2Block, …); Hugging Face: --fsdp 'full_shard auto_wrap'",
    "in code: FSDP1 auto_wrap_policy=functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Block}); "
    "FSDP2 fully_shard(block) for every block, then fully_shard(model)",
)
VERIFY = (
    "print(model) shows FullyShardedDataParallel (or FSDPModule) around each block; a trace shows as many all-gathers "
    "per forward pass as blocks + 1"
)


@dataclass(frozen=True)
class Limits:
    smallest_params: float = 1e6
    """Units below this are single small layers; a 7B model's block has 2e8 parameters."""
    largest_params: float = 5e9
    per_linear_share: float = 0.5
    many_units: int = 20


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    settings, events = signals.get(Settings), signals.get(Events)
    missing = events.first("trainer.wrap_class_missing") if events is not None else None
    if missing is not None:
        yield _no_such_class(missing)
        return
    found = _policy(settings, limits) or _printed(events, limits)
    if found is None:
        return
    title, what, evidence, confidence = found
    yield Finding(
        title=title,
        severity=Severity.WARNING,
        confidence=confidence,
        culprits=Culprits(where=what),
        evidence=evidence,
        fix=FIXES,
        verify=VERIFY,
        why="FSDP can only hide the gather of one unit behind the compute of another",
    )


def _no_such_class(missing: Event) -> Finding:
    return Finding(
        title=f"FSDP should wrap {missing.word('name')}, but the model has no such class",
        severity=Severity.CRITICAL,
        confidence=Confidence.HIGH,
        culprits=Culprits(where="fsdp_transformer_layer_cls_to_wrap"),
        evidence=(Evidence("fsdp_transformer_layer_cls_to_wrap", missing.word("name"), "", None, missing.source),),
        fix=("print(model) shows the name of the block's class; give exactly that", *FIXES),
        verify=VERIFY,
        state=State.CRASHED,
        began_ns=began((missing,)),
        why="the launcher says so itself",
    )


def _policy(settings: Settings | None, limits: Limits) -> tuple[str, str, tuple[Evidence, ...], Confidence] | None:
    policy = setting(settings, "fsdp", "auto_wrap_policy")
    wraps = setting(settings, "fsdp", "transformer_layer_cls_to_wrap")
    least = setting(settings, "fsdp", "min_num_params")
    least_number = as_number(least.value) if least is not None else None
    name = policy.value.upper() if policy is not None else ""
    if policy is not None and name in ("NO_WRAP", "NONE", "NULL"):
        return (
            f"auto_wrap_policy {policy.value}: the whole model is one FSDP unit, gathered before forward and kept",
            "fsdp_auto_wrap_policy",
            (Evidence("fsdp_auto_wrap_policy", policy.value, "", "TRANSFORMER_BASED_WRAP", policy.source),),
            Confidence.HIGH,
        )
    if name == "SIZE_BASED_WRAP" or (least_number and not name):
        return _by_size(least_number, least.source if least is not None else "", limits)
    trainer = setting(settings, "trainer", "fsdp")
    value = trainer.value.lower() if trainer is not None else ""
    if (
        trainer is not None
        and ("shard" in value)
        and "auto_wrap" not in value
        and wraps is None
        and not least_number
        and not name
    ):
        return (
            f"fsdp is '{trainer.value}' without auto_wrap: the whole model is one FSDP unit",
            "fsdp",
            (Evidence("fsdp", trainer.value, "", "full_shard auto_wrap", trainer.source),),
            Confidence.HIGH,
        )
    return None


def _by_size(
    least: float | None, source: str, limits: Limits
) -> tuple[str, str, tuple[Evidence, ...], Confidence] | None:
    if least is None or limits.smallest_params <= least <= limits.largest_params:
        return None
    small = least < limits.smallest_params
    limit = limits.smallest_params if small else limits.largest_params
    effect = "every small layer becomes a unit of its own" if small else "hardly any part is large enough to be a unit"
    return (
        f"size-based wrapping at {least:.3g} parameters: {effect}",
        "fsdp_min_num_params",
        (Evidence("fsdp_min_num_params", least, "parameters", limit, source),),
        Confidence.HIGH,
    )


def _printed(events: Events | None, limits: Limits) -> tuple[str, str, tuple[Evidence, ...], Confidence] | None:
    for event in events.of("trainer.fsdp_units") if events is not None else ():
        units, single = event.integer("units") or 0, event.integer("per_linear") or 0
        shown = Evidence("FSDP modules in the printed model", units, "", None, event.source)
        if units >= limits.many_units and single >= limits.per_linear_share * units:
            return f"{single} of {units} FSDP units hold a single Linear", "auto_wrap_policy", (shown,), Confidence.HIGH
        if units == 1:
            return "the printed model has one FSDP unit, the root", "auto_wrap_policy", (shown,), Confidence.MEDIUM
    return None
