"""An FSDP or accelerate configuration costs more than it needs, or contradicts itself.

## Meaning
Options that are legal, but expensive at scale or without effect: a full state dict at each save, every rank loading the
whole checkpoint, offload where the model fits, two ways of activation checkpointing at once.

## Impact
Long saves, host memory times the number of ranks, PCIe traffic in each step, errors at the start.

## Diagnosis
The configuration itself; each remark says what it costs.

## Mitigation
As each remark says.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddiag.model.incident import Setting
from ddiag.model.signals_incident import Settings
from ddiag.rulekit import Abstain, Confidence, Culprits, Evidence, Finding, Rule, Severity, View
from ddiag.rulekit.values import as_flag, as_number, setting

RULE = Rule(
    id="DD831",
    root_cause="RC-75",
    needs=(Settings,),
    capture="the accelerate YAML, the trainer's fsdp_config or the printed TrainingArguments",
    symptom="saves take minutes, the host runs out of memory at load, an option has no effect",
    evidence="values of the configuration",
    applies=lambda signals: (s := signals.get(Settings)) is not None and bool(s.of("fsdp") or s.of("accelerate")),
    references=("https://huggingface.co/docs/accelerate/usage_guides/fsdp",),
)
Remark = tuple[str, Severity, Setting, str, str]
"""(title, severity, the setting, what it costs, fix)"""


@dataclass(frozen=True)
class Limits:
    ranks_of_full_state: int = 8
    """From so many ranks on a full state dict is worth a remark."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    settings = signals[Settings]
    for title, severity, said, cost, fix in (
        *_saves(settings, limits),
        *_contradictions(settings),
        *_remarks(settings),
    ):
        yield Finding(
            title=title,
            severity=severity,
            confidence=Confidence.HIGH if severity is Severity.WARNING else Confidence.MEDIUM,
            culprits=Culprits(where=said.key),
            evidence=(Evidence(said.key, said.value, "", None, said.source),),
            fix=(fix,),
            verify="print(accelerator.state) shows the effective configuration",
            why=cost,
        )


def _ranks(settings: Settings) -> float | None:
    processes = setting(settings, "accelerate", "num_processes")
    return as_number(processes.value) if processes is not None else None


def _saves(settings: Settings, limits: Limits) -> Iterator[Remark]:
    ranks = _ranks(settings)
    kind = setting(settings, "fsdp", "state_dict_type")
    if (
        kind is not None
        and kind.value.upper() == "FULL_STATE_DICT"
        and (ranks is None or ranks >= limits.ranks_of_full_state)
    ):
        yield (
            "every checkpoint gathers the whole model and optimizer on rank 0 (FULL_STATE_DICT)", Severity.INFO, kind,
            "the others wait meanwhile, at scale long enough for a timeout (RC-31); host memory of rank 0 holds all",
            "fsdp_state_dict_type: SHARDED_STATE_DICT; merge once at the end (accelerate merge-weights)",
        )  # fmt: skip
    load = setting(settings, "fsdp", "cpu_ram_efficient_loading")
    if load is not None and as_flag(load.value) is False:
        yield (
            "every rank loads the whole checkpoint (cpu_ram_efficient_loading false)", Severity.INFO, load,
            "host memory per node = ranks per node × model: a host OOM with large models (RC-29)",
            "fsdp_cpu_ram_efficient_loading: true with fsdp_sync_module_states: true",
        )  # fmt: skip


def _contradictions(settings: Settings) -> Iterator[Remark]:
    load = setting(settings, "fsdp", "cpu_ram_efficient_loading")
    sync = setting(settings, "fsdp", "sync_module_states")
    if load is not None and as_flag(load.value) and sync is not None and as_flag(sync.value) is False:
        yield (
            "cpu_ram_efficient_loading needs sync_module_states", Severity.WARNING, sync,
            "only rank 0 has weights; without the broadcast the others train random ones, or the launcher refuses",
            "fsdp_sync_module_states: true",
        )  # fmt: skip
    inside = setting(settings, "fsdp", "activation_checkpointing")
    trainer = setting(settings, "trainer", "gradient_checkpointing")
    if inside is not None and as_flag(inside.value) and trainer is not None and as_flag(trainer.value):
        yield (
            "activations are checkpointed twice: by FSDP and by the trainer", Severity.WARNING, trainer,
            "a redundant all-gather in backward; the Trainer refuses the combination",
            "fsdp_config.activation_checkpointing: true and gradient_checkpointing: false",
        )  # fmt: skip
    ranks, machines = _ranks(settings), setting(settings, "accelerate", "num_machines")
    nodes = as_number(machines.value) if machines is not None else None
    if ranks and nodes and machines is not None and (ranks < nodes or ranks % nodes):
        yield (
            f"{ranks:.0f} processes do not spread evenly over {nodes:.0f} machines", Severity.WARNING, machines,
            "num_processes counts all machines' processes together, not those of one",
            "num_processes = machines × GPUs of each",
        )  # fmt: skip
    for key in ("gradient_accumulation_steps", "mixed_precision"):
        yield from _two_configs(settings, key)


def _two_configs(settings: Settings, key: str) -> Iterator[Remark]:
    """accelerate's own value beside DeepSpeed's."""
    ours = setting(settings, "accelerate", key, f"deepspeed_config.{key}")
    if key == "mixed_precision":
        enabled = [
            name for name in ("fp16", "bf16")
            if (one := setting(settings, "ds_config", f"{name}.enabled")) is not None and as_flag(one.value)
        ]  # fmt: skip
        theirs = enabled[0] if len(enabled) == 1 else None
    else:
        found = [one.value for one in settings.of("ds_config", key) if ours is None or one.source != ours.source]
        theirs = found[0] if found else None
    if ours is None or theirs is None or "auto" in (ours.value, theirs) or ours.value == theirs:
        return
    yield (
        f"accelerate says {key} {ours.value}, the DeepSpeed configuration says {theirs}", Severity.WARNING, ours,
        "one of them is ignored or the start fails, depending on the version", "keep the value in one place",
    )  # fmt: skip


def _remarks(settings: Settings) -> Iterator[Remark]:
    offload = setting(settings, "fsdp", "offload_params")
    if offload is not None and as_flag(offload.value):
        yield (
            "parameters are offloaded to the host in every step", Severity.INFO, offload,
            "each unit crosses PCIe twice per step (x16: 31.5 GB/s at Gen4, 63 at Gen5), and the optimizer runs on "
            "the CPU",
            "only when the sharded model does not fit: `ddiag plan`",
        )  # fmt: skip
    original = setting(settings, "fsdp", "use_orig_params")
    if original is not None and as_flag(original.value) is False:
        yield (
            "use_orig_params is false", Severity.INFO, original,
            "torch.compile and modules that mix frozen and trained parameters (LoRA) need it true",
            "fsdp_use_orig_params: true",
        )  # fmt: skip
    strategy, machines = setting(settings, "fsdp", "sharding_strategy"), setting(settings, "accelerate", "num_machines")
    if (
        strategy is not None
        and strategy.value.upper().startswith("HYBRID_SHARD")
        and machines is not None
        and machines.value == "1"
    ):
        yield (
            "HYBRID_SHARD on one machine is FULL_SHARD", Severity.INFO, strategy,
            "it shards inside the node (all-gather, reduce-scatter) and all-reduces across nodes; there is only one",
            "fsdp_sharding_strategy: FULL_SHARD",
        )  # fmt: skip
