"""What operator names say about the computation (kernel names: :mod:`ddiag.model.naming`)."""

from __future__ import annotations

import re

_BACKWARD_SUFFIX = re.compile(r"(?:_backward\w*|Backward\d*)$")
_OP_CLASSES: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (op_class, re.compile(pattern, re.IGNORECASE))
    for op_class, pattern in (
        ("optimizer", r"_fused_(?:adam|adamw|sgd|adagrad)|cpu_?adam|ds_adam"),
        ("attention", r"scaled_dot_product|flash_attention|efficient_attention|flash_attn|_attention"),
        ("conv", r"conv(?:olution|\d|_)|mkldnn_convolution|thnn_conv"),
        (
            "gemm",
            r"(?:^|_)(?:add|b|badd|addb|sp|grouped_|scaled_)?(?:mm|mv|r)$|matmul|linear|baddbmm|addbmm|einsum|^dot$|_int_mm",
        ),
        ("softmax", r"softmax"),
        ("norm", r"(?:layer|batch|group|instance|rms)_norm"),
        ("embedding", r"embedding|index|gather|scatter|masked_(?:select|scatter)|^take"),
        ("copy", r"copy|^cat$|^stack$|contiguous|clone|^pad$|constant_pad|repeat|^_?to$|^roll$|transpose_copy"),
        ("elementwise", r"clamp"),
        (
            "reduction",
            r"(?:^|_)(?:sum|mean|norm|max|min|amax|amin|var|std|argmax|argmin|prod|all|any|cumsum|logsumexp|nll_loss\w*"
            r"|mse_loss|cross_entropy\w*|max_pool\w*|avg_pool\w*|adaptive_avg_pool\w*)$",
        ),
        (
            "elementwise",
            r"(?:^|_)(?:add|sub|mul|div|neg|exp|log|sqrt|rsqrt|pow|abs|relu|gelu|silu|sigmoid|tanh|threshold|clamp\w*|where"
            r"|fill|zero|lerp|addcmul|addcdiv|dropout|bernoulli|eq|ne|lt|le|gt|ge|cos|sin|erf|masked_fill|normal|uniform"
            r"|random|leaky_relu|hardtanh|softplus|logical_\w+|bitwise_\w+|native_dropout|sign|reciprocal)$|^_foreach_",
        ),
    )
)


def op_class(op_name: str) -> str:
    """Class of a CPU operator by its name, in the words of :func:`ddiag.model.naming.kernel_class`."""
    bare = _BACKWARD_SUFFIX.sub("", op_name.rsplit("::", 1)[-1]).rstrip("_")
    return next((found for found, pattern in _OP_CLASSES if pattern.search(bare)), "other")


_FUSED_ATTENTION = re.compile(
    r"_(?:flash|efficient|cudnn|fused|overrideable)_attention|_attention_(?:forward|backward)$"
    r"|scaled_dot_product_(?:flash|efficient|cudnn|fused)|flash_?attn|xformers\w*::\w*(?:attention|fmha)"
    r"|FusedAttn|fused_attn|flex_attention|memory_efficient_attention|_scaled_dot_product_attention_flash",
    re.IGNORECASE,
)
_MATH_ATTENTION = re.compile(r"^aten::_scaled_dot_product_attention_math")
_SOFTMAX = re.compile(r"softmax", re.IGNORECASE)
_NOT_ATTENTION_SOFTMAX = re.compile(r"log_?softmax|backward|gumbel|cross|Loss", re.IGNORECASE)
_BATCHED_MATMUL = re.compile(r"^aten::(?:bmm|baddbmm)_?$")
_BARRIER = re.compile(r"^aten::(?:mm|addmm|linear|_addmm_activation|conv\dd|convolution)_?$")


def is_fused_attention(op_name: str) -> bool:
    """The operator computes attention in one kernel: flash, memory-efficient, cuDNN, xFormers, flex."""
    return _FUSED_ATTENTION.search(op_name) is not None and not is_math_attention(op_name)


def is_math_attention(op_name: str) -> bool:
    """PyTorch's fallback, which spells attention out."""
    return _MATH_ATTENTION.match(op_name) is not None


def attention_part(op_name: str) -> str | None:
    """Role in attention spelled out by hand: bmm, softmax, or projection (a layer, which ends the pattern)."""
    if _BATCHED_MATMUL.match(op_name):
        return "bmm"
    if _BARRIER.match(op_name):
        return "projection"
    if _SOFTMAX.search(op_name) and not _NOT_ATTENTION_SOFTMAX.search(op_name):
        return "softmax"
    return None


_FORWARD_ONLY = re.compile(
    r"^aten::(?:linear|conv(?:\d|_t)\w*|layer_norm|batch_norm|group_norm|rms_norm|instance_norm|embedding|dropout"
    r"|scaled_dot_product_attention|multi_head_attention_forward|softmax|log_softmax|(?:leaky_)?relu_?|gelu|silu_?|elu_?"
    r"|hardswish_?|max_pool\dd|avg_pool\dd|adaptive_avg_pool\dd|matmul)$"
)


def is_forward_only(op_name: str) -> bool:
    """Derivative formulas never call the operator, so that inside backward it can only be forward done again."""
    return _FORWARD_ONLY.match(op_name) is not None


def is_autograd_node(op_name: str) -> bool:
    """The span of one node of the backward graph."""
    return op_name.startswith("autograd::engine::evaluate_function")


def is_checkpoint_node(op_name: str) -> bool:
    """The backward node of reentrant checkpointing (PyTorch, DeepSpeed, Megatron, Transformer Engine)."""
    return is_autograd_node(op_name) and re.search(r"Checkpoint\w*Backward", op_name) is not None
