"""What ZeRO's offloading sends over the link between host and device: how many bytes, and when.

Which parts of which tensors travel is decided inside DeepSpeed's methods; the same is worked out here from their
arguments (``stage_1_and_2.py`` and ``stage3.py`` of DeepSpeed 0.19). Times are the host's: of a copy from pinned memory
they show how long it took to ask for it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ddiag.capture import recorder
from ddiag.capture.recorder import Recorder
from ddiag.schema.phases import Copy, Kind

Before = Callable[[tuple[Any, ...], dict[str, Any]], Any]

_COPY, _H2D, _D2H, _ON_CPU = int(Kind.COPY), int(Copy.H2D), int(Copy.D2H), int(Copy.CPU_OPTIMIZER)
_GRADIENT, _PARAMETERS = "zero/gradient", "zero/parameters"
_FP32 = 4


class Traffic(NamedTuple):
    """Bytes."""

    up: int
    """To the device."""
    down: int


class Spans(NamedTuple):
    active: Recorder
    tokens: tuple[int, ...]


def offloads(optimizer: Any) -> bool:
    return bool(getattr(optimizer, "cpu_offload", False) or getattr(optimizer, "offload_optimizer", False))


def copying(
    traffic: Callable[[Any, tuple[Any, ...]], Traffic], label: str, wanted: Callable[[Any], bool] = offloads
) -> tuple[Before, Callable[..., None]]:
    """Hooks round a method whose copies *traffic* tells from (the optimizer, the method's arguments)."""

    def before(args: tuple[Any, ...], _kwargs: dict[str, Any]) -> Spans | None:
        active = recorder.current
        if active is None or not wanted(args[0]):
            return None
        found = traffic(args[0], args[1:])
        name = active.names.id(label)
        ways = ((_H2D, found.up), (_D2H, found.down))
        return Spans(active, tuple(active.begin_span(_COPY, way, name, -1, size) for way, size in ways if size))

    return before, ended


def ended(spans: Spans, _result: Any, failed: bool) -> None:
    for token in spans.tokens:
        spans.active.complete(token, not failed)


# -- stages 1 and 2 ------------------------------------------------------------------------------------------------


def _to_master(optimizer: Any, args: tuple[Any, ...]) -> Traffic:
    """This rank's part of a gradient, in the type of the master weights."""
    group, _, _, count = optimizer.grad_position[optimizer.get_param_id(args[0])]
    return Traffic(0, count * optimizer.single_partition_of_fp32_groups[group].grad.element_size())


def _accumulated(optimizer: Any, args: tuple[Any, ...]) -> Traffic:
    """The sum so far comes from the host (unless this is the first pass) and returns with this pass's gradient."""
    parameter = args[0]
    if getattr(optimizer, "low_precision_master_weights_and_grads", False):
        size = _to_master(optimizer, args).down
    else:
        size = parameter.numel() * parameter.element_size()
    return Traffic(size if optimizer.micro_step_id > 0 else 0, size)


def _compact(optimizer: Any, args: tuple[Any, ...]) -> Traffic:
    """Gradients that are summed on the device leave it once, with the last pass; others have hooks of their own."""
    compact = getattr(optimizer, "_use_compact_grad_partition_buffer", None)
    group = args[1] if len(args) > 1 else None
    if compact is None or group is None or not compact(group) or not _last_pass(optimizer):
        return Traffic(0, 0)
    return _to_master(optimizer, args)


def _last_pass(optimizer: Any) -> bool:
    """Before the update; older versions keep it as a value."""
    said = optimizer.is_gradient_accumulation_boundary
    return bool(said() if callable(said) else said)


_returning: list[Spans] = []
"""The updated parameters on their way to the device: at most one."""


def returning(spans: Spans, optimizer: Any, group: int) -> None:
    """The update of *group* on the CPU is over: its parameters are cast, which is part of the time, and sent."""
    size = int(optimizer.param_buffer_of_bit16_for_cpu_offload_groups[group].nbytes)
    active = spans.active
    _returning.append(Spans(active, (active.begin_span(_COPY, _H2D, active.names.id(_PARAMETERS), -1, size),)))


def returned(_args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
    """They have been sent: whatever DeepSpeed does next begins."""
    while _returning:
        ended(_returning.pop(), None, False)


# -- stage 3 -------------------------------------------------------------------------------------------------------


def _partitioned(optimizer: Any, args: tuple[Any, ...]) -> Traffic:
    """``partition_grads(parameters, partitions)``: sums are kept on the host, added to on the device, and go to the
    master gradients with the last pass."""
    up = down = 0
    last, first = _last_pass(optimizer), optimizer.micro_step_id == 0
    sums = optimizer._DeepSpeedZeroOptimizer_Stage3__param_id_to_grad_partition
    master = getattr(getattr(optimizer, "master_weights_and_grads_dtype", None), "itemsize", _FP32)
    for parameter, partition in zip(args[0], args[1], strict=False):
        if parameter.partition_numel() * optimizer._get_param_partition_rank(parameter) >= parameter.ds_numel:
            continue  # padding alone
        kept, count = sums[parameter.ds_id], partition.numel()
        apart = kept.device != partition.device
        up += count * kept.element_size() * apart
        down += count * kept.element_size() * (first or apart) + count * master * last
    return Traffic(up, down)


def _offloads_either(optimizer: Any) -> bool:
    return offloads(optimizer) or _keeps_parameters(optimizer)


def _keeps_parameters(optimizer: Any) -> bool:
    """The model's parameters stay on the host."""
    return bool(getattr(optimizer, "offload_param", False))


def _reassigned(optimizer: Any, args: tuple[Any, ...]) -> Traffic:
    """The updated part of a sub-group, in the type of the model: only where it is updated elsewhere than it is kept."""
    flat = optimizer.fp16_partitioned_groups_flat[args[0]]
    stays = flat is None or offloads(optimizer) == _keeps_parameters(optimizer)
    size = 0 if stays else int(flat.nbytes)
    return Traffic(size, 0) if offloads(optimizer) else Traffic(0, size)


def fetching(active: Recorder, parameters: Sequence[Any]) -> Spans:
    """Parameters are about to be gathered: their parts go to the device first. :func:`ended` ends it."""
    device = str(sys.modules["deepspeed.accelerator"].get_accelerator().device_name())
    size = fetched_bytes(parameters, device)
    name = active.names.id(_PARAMETERS)
    return Spans(active, (active.begin_span(_COPY, _H2D, name, -1, size),) if size else ())


def fetched_bytes(parameters: Sequence[Any], device: str) -> int:
    """Of this rank's parts that do not lie on *device* (a kind, such as ``cuda``)."""
    return sum(int(one.ds_tensor.ds_numel) * int(one.element_size()) for one in parameters if _lies_on(one) != device)


def _lies_on(parameter: Any) -> str:
    """Where its part is, or will have been read to from NVMe."""
    part, swapper = parameter.ds_tensor, getattr(parameter, "nvme_swapper", None)
    kept = part if swapper is None or part.final_location != "nvme" else swapper.buffers
    return str(kept.device.type)


# -- hooks ---------------------------------------------------------------------------------------------------------


def updating(*, sent_next: bool) -> tuple[Before, Callable[..., None]]:
    """Hooks round ``_optimizer_step(group)``; *sent_next*: what it updated is sent before anything else is done."""

    def before(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Spans, Any, int] | None:
        returned(args, kwargs)
        active = recorder.current
        if active is None or not offloads(args[0]):
            return None
        token = active.begin_span(_COPY, _ON_CPU, active.names.id(f"zero/subgroup{args[1]}"))
        return Spans(active, (token,)), args[0], args[1]

    def after(token: tuple[Spans, Any, int], result: Any, failed: bool) -> None:
        spans, optimizer, group = token
        ended(spans, result, failed)
        if sent_next and not failed:
            returning(spans, optimizer, group)

    return before, after


STAGE_1_AND_2 = {
    "_optimizer_step": updating(sent_next=True),
    "_release_preflattened_grad_buffers": (returned, ended),
    "reset_cpu_buffers": (returned, ended),
    "async_inplace_copy_grad_to_fp32_buffer_from_gpu": copying(_to_master, _GRADIENT),
    "async_accumulate_grad_in_cpu_via_gpu": copying(_accumulated, _GRADIENT),
    "copy_grads_in_partition": copying(_compact, _GRADIENT),
}
"""Of ``DeepSpeedZeroOptimizer``."""
STAGE_3 = {
    "_optimizer_step": updating(sent_next=False),
    "partition_grads": copying(_partitioned, _GRADIENT),
    "_reassign_or_swap_out_partitioned_parameters": copying(_reassigned, _PARAMETERS, _offloads_either),
}
"""Of ``DeepSpeedZeroOptimizer_Stage3``."""
