"""A DeepSpeed configuration says something else than was meant.

## Meaning
Values of the wrong type, in the wrong unit or at the wrong stage are accepted and change nothing, or stop the job at
its start: a misspelt key, "true" in quotes, offload_param below stage 3, batch sizes that do not multiply.

## Impact
The option has no effect, or the run ends with an assertion.

## Diagnosis
The configuration itself; each remark says what it costs.

## Mitigation
Correct the value; print the effective configuration (DeepSpeed prints it as json = {…} at the start).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass

from ddiag.model.incident import Event, Setting
from ddiag.model.signals import JobFacts
from ddiag.model.signals_incident import Events, Settings
from ddiag.rulekit import Abstain, Confidence, Culprits, Evidence, Finding, Rule, Severity, State, View
from ddiag.rulekit.values import as_flag, as_number, began, setting, zero_number

RULE = Rule(
    id="DD830",
    root_cause="RC-75",
    needs=(),
    optional=(Settings, Events, JobFacts),
    capture="the ds_config.json that was really used, or the json = {…} that DeepSpeed prints",
    symptom="an option has no effect, or an assertion at the start",
    evidence="types, units, stages and products of the values",
    applies=lambda signals: (
        ((s := signals.get(Settings)) is not None and bool(s.of("ds_config") or s.of("config_error")))
        or ((e := signals.get(Events)) is not None and e.has("ds.config_rejected"))
    ),
    references=("https://www.deepspeed.ai/docs/config-json/",),
)
ZERO_KEYS = (
    "stage", "contiguous_gradients", "reduce_scatter", "reduce_bucket_size", "use_multi_rank_bucket_allreduce",
    "allgather_partitions", "allgather_bucket_size", "overlap_comm", "load_from_fp32_weights", "elastic_checkpoint",
    "offload_param", "offload_optimizer", "sub_group_size", "cpu_offload_param", "cpu_offload_params", "zenflow",
    "cpu_offload_use_pin_memory", "cpu_offload", "stage3_prefetch_bucket_size", "stage3_param_persistence_threshold",
    "stage3_model_persistence_threshold", "stage3_max_live_parameters", "stage3_max_reuse_distance",
    "stage3_gather_16bit_weights_on_model_save", "stage3_gather_fp16_weights_on_model_save",
    "stage3_module_granularity_threshold", "stage3_use_all_reduce_for_fetch_params", "stage3_allgather_sequential",
    "ignore_unused_parameters", "legacy_stage1", "round_robin_gradients", "zero_hpz_partition_size",
    "mics_shard_size", "zero_quantized_weights", "zero_quantized_nontrainable_weights", "zero_quantized_gradients",
    "leaf_module", "mics_hierarchical_params_gather", "memory_efficient_linear", "pipeline_loading_checkpoint",
    "override_module_apply", "log_trace_cache_warnings", "parameter_alignment", "compute_grad_norm",
    "enable_sanity_checks", "save_muon_momentum_buffer_in_memory", "fast_sharding_for_leaf_module",
    "prefetch_bucket_size", "param_persistence_threshold", "model_persistence_threshold", "max_live_parameters",
    "max_reuse_distance", "gather_16bit_weights_on_model_save", "module_granularity_threshold",
)  # fmt: skip
TOP_KEYS = (
    "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "optimizer", "scheduler",
    "fp16", "bf16", "bfloat16", "amp", "zero_optimization", "gradient_clipping", "steps_per_print",
    "communication_data_type", "prescale_gradients", "gradient_predivide_factor", "sparse_gradients",
    "wall_clock_breakdown", "comms_logger", "flops_profiler", "activation_checkpointing", "aio",
    "zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer", "data_types", "tensorboard", "wandb",
    "checkpoint", "memory_breakdown",
)  # fmt: skip
TIMED = ("wall_clock_breakdown", "comms_logger.enabled", "flops_profiler.enabled", "memory_breakdown")
Remark = tuple[str, Severity, str, str, str, Setting | None]
"""(title, severity, option, what it costs, fix, the setting)"""


@dataclass(frozen=True)
class Limits:
    likeness: float = 0.8
    """Of an unknown key to a known one, from which it is a misspelling."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    settings, facts, events = signals.get(Settings), signals.get(JobFacts), signals.get(Events)
    refused = events.first("ds.config_rejected") if events is not None else None
    if refused is not None:
        yield _refused(refused)
    if settings is None:
        return
    world = facts.world_size if facts is not None else None
    wrong = (*_types(settings), *_misspelt(settings, limits), *_stages(settings), *_batch(settings, world))
    remarks = (*wrong, *_costs(settings))
    for title, severity, option, cost, fix, said in remarks:
        yield Finding(
            title=title,
            severity=severity,
            confidence=Confidence.HIGH,
            culprits=Culprits(where=option),
            evidence=(Evidence(option, said.value if said else "not set", "", None, said.source if said else ""),),
            fix=(fix,),
            verify="the json = {…} that DeepSpeed prints at the start shows the value that is meant",
            why=cost,
        )


def _refused(event: Event) -> Finding:
    return Finding(
        title=f"DeepSpeed refuses its configuration: {event.word('message')[:160]}",
        severity=Severity.CRITICAL,
        confidence=Confidence.HIGH,
        culprits=Culprits(where="ds_config"),
        evidence=(Evidence("message", event.word("message")[:160], "", None, event.source),),
        fix=(
            "correct what the message names; of train_batch_size, train_micro_batch_size_per_gpu and "
            'gradient_accumulation_steps give two (or all as "auto" with Hugging Face)',
        ),
        verify="deepspeed.initialize() returns",
        state=State.CRASHED,
        began_ns=began((event,)),
        why="DeepSpeed's own message at the start",
    )


def _types(settings: Settings) -> Iterator[Remark]:
    for one in settings.of("config_error"):
        yield (
            f"the configuration does not parse: {one.value}", Severity.WARNING, "json",
            "the launcher refuses it, or another file was used", "correct it: python -m json.tool ds_config.json", one,
        )  # fmt: skip
    for one in settings.of("ds_config"):
        if not one.value.startswith('"'):
            continue
        inner = one.value.strip('"')
        flag = as_flag(inner) is not None and as_number(inner) is None
        what = "a truth value" if flag else "a number"
        cost = 'any non-empty text counts as true, also "false"' if flag else "text is refused or compared as text"
        yield (
            f"{one.key} is the text {one.value}, not {what}", Severity.WARNING, one.key, cost,
            f"write {inner.lower() if flag else inner} without quotes", one,
        )  # fmt: skip


def _misspelt(settings: Settings, limits: Limits) -> Iterator[Remark]:
    seen: set[str] = set()
    for one in settings.of("ds_config"):
        top, _, rest = one.key.partition(".")
        key, known = (rest.split(".")[0], ZERO_KEYS) if top == "zero_optimization" and rest else (top, TOP_KEYS)
        if key in seen or key in known:
            continue
        seen.add(key)
        near = difflib.get_close_matches(key, known, n=1, cutoff=limits.likeness)
        if near:
            refused = "refuses unknown keys here" if known is ZERO_KEYS else "ignores unknown keys here in silence"
            title, cost = f"{key} is no option; {near[0]} is meant", f"DeepSpeed {refused}"
            yield title, Severity.WARNING, one.key, cost, f"rename it to {near[0]}", one


def _stages(settings: Settings) -> Iterator[Remark]:
    stage = zero_number(settings, "stage")
    parameters = setting(settings, "ds_config", "zero_optimization.offload_param.device")
    if parameters is not None and parameters.value not in ("none", "null") and stage is not None and stage < 3:
        yield (
            f"offload_param at stage {stage:.0f} has no effect", Severity.WARNING, parameters.key,
            "parameters are only partitioned, and so offloaded, at stage 3", 'stage 3, or remove "offload_param"',
            parameters,
        )  # fmt: skip
    optimizer = setting(settings, "ds_config", "zero_optimization.offload_optimizer.device")
    if optimizer is not None and optimizer.value not in ("none", "null") and stage == 0:
        yield (
            "offload_optimizer at stage 0 has no effect", Severity.WARNING, optimizer.key,
            "only a partitioned optimizer is offloaded", '"stage": 2', optimizer,
        )  # fmt: skip
    kinds = [setting(settings, "ds_config", f"{name}.enabled") for name in ("fp16", "bf16")]
    if all(one is not None and as_flag(one.value) for one in kinds):
        yield (
            "fp16 and bf16 are both enabled", Severity.WARNING, "bf16.enabled", "DeepSpeed refuses this at the start",
            'keep "bf16": {"enabled": true} where the device has it', kinds[1],
        )  # fmt: skip
    autos = [one for one in settings.of("ds_config") if one.value == "auto"]
    integrated = settings.of("accelerate") or settings.of("trainer")
    if autos and not integrated:
        yield (
            f'{len(autos)} values are "auto"', Severity.INFO, autos[0].key,
            "only Hugging Face's Trainer and accelerate fill them in; DeepSpeed alone refuses them",
            "write numbers when deepspeed.initialize() is called directly", autos[0],
        )  # fmt: skip


def _batch(settings: Settings, world: int | None) -> Iterator[Remark]:
    names = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    found = [setting(settings, "ds_config", name) for name in names]
    batch, micro, accumulated = (as_number(one.value) if one is not None else None for one in found)
    processes = setting(settings, "accelerate", "num_processes")
    ranks = as_number(processes.value) if processes is not None else world
    if batch is None or micro is None:
        return
    steps = accumulated or 1.0
    product = micro * steps * (ranks or 1)
    if (ranks and batch != product) or (not ranks and batch % (micro * steps)):
        told = f"{micro:.0f} × {steps:.0f}" + (f" × {ranks:.0f} = {product:.0f}" if ranks else "")
        yield (
            f"train_batch_size {batch:.0f} is not micro-batch × accumulation × ranks ({told})", Severity.WARNING,
            "train_batch_size", "DeepSpeed stops with an assertion at the start",
            "give two of the three and leave the third out", found[0],
        )  # fmt: skip


def _costs(settings: Settings) -> Iterator[Remark]:
    for key in TIMED:
        one = setting(settings, "ds_config", key)
        if one is not None and as_flag(one.value):
            yield (
                f"{key.removesuffix('.enabled')} is on", Severity.INFO, key,
                "it waits for the device around each timed part, so nothing overlaps: never compare with an "
                "untimed run",
                f'"{key}": false for production runs', one,
            )  # fmt: skip
    for part in ("offload_optimizer", "offload_param"):
        one = setting(settings, "ds_config", f"zero_optimization.{part}.pin_memory")
        device = setting(settings, "ds_config", f"zero_optimization.{part}.device")
        if device is not None and device.value == "cpu" and one is not None and as_flag(one.value) is False:
            yield (
                f"{part} copies through pageable memory", Severity.INFO, one.key,
                "pageable copies reach 3-6 GB/s, pinned ones 20 GB/s and more (PCIe 4.0 x16: 31.5 GB/s per direction)",
                '"pin_memory": true where the host has the memory (the default is false up to DeepSpeed 0.19.5)', one,
            )  # fmt: skip
    gather = setting(settings, "ds_config", "zero_optimization.stage3_gather_16bit_weights_on_model_save")
    if gather is not None and as_flag(gather.value):
        yield (
            "every save gathers the whole model on rank 0", Severity.INFO, gather.key,
            "the other ranks wait for it; at large models long enough for a timeout",
            "false, and convert with zero_to_fp32.py afterwards", gather,
        )  # fmt: skip
