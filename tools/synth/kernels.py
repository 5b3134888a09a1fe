"""What a transformer layer launches: operators, autograd nodes, and kernel names as profiles show them."""

from __future__ import annotations

from dataclasses import dataclass

_EW = "void at::native::vectorized_elementwise_kernel<4, {functor}, std::array<char*, 3ul> >(int, {functor}, std::array<char*, 3ul>)"
_GEMM_TILE = "tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas"
_FOREACH = "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::"

GEMM_NAMES = {
    "bf16": f"sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_{_GEMM_TILE}",
    "fp32": "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x128x8_stage3_warpsize2x2x1_ffma_aligna4_alignc4_execute_kernel__5x_cublas",
}
ROCM_GEMM_NAMES = {
    "bf16": "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x256x64_MI16x16x1_SN_LDSB0_AFC1_AFEM1_AFEM1_ASEM1",
    "fp32": "Cijk_Alik_Bljk_SB_MT128x128x16_MI16x16x4x1_SN_1LDSB0_APM1_ABV0_ACED0_AF0EM1_AF1EM1_AMAS3_ASE_ASGT",
}
KERNEL_NAMES = {
    "norm": "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16, float>(int, float, c10::BFloat16 const*, c10::BFloat16 const*, c10::BFloat16 const*, float*, float*, c10::BFloat16*)",
    "norm_bwd": "void at::native::(anonymous namespace)::layer_norm_grad_input_kernel_vectorized<c10::BFloat16, float>(c10::BFloat16 const*, c10::BFloat16 const*, float const*, float const*, c10::BFloat16 const*, c10::BFloat16*, int)",
    "flash": "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64, 128, 128, 4, false, false, cutlass::bfloat16_t, pytorch_flash::Flash_kernel_traits<64, 128, 128, 4, cutlass::bfloat16_t> >, false, true, false, false, true, true, false, false>(pytorch_flash::Flash_fwd_params)",
    "flash_bwd": "void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<pytorch_flash::Flash_bwd_kernel_traits<64, 128, 128, 8, 4, 4, 4, false, false, cutlass::bfloat16_t>, false, true, false, false, true, true, false>(pytorch_flash::Flash_bwd_params)",
    "softmax": "void (anonymous namespace)::softmax_warp_forward<c10::BFloat16, c10::BFloat16, float, 11, false, false>(c10::BFloat16*, c10::BFloat16 const*, int, int, int, bool const*, int, bool)",
    "softmax_bwd": "void (anonymous namespace)::softmax_warp_backward<c10::BFloat16, c10::BFloat16, float, 11, false, false>(c10::BFloat16*, c10::BFloat16 const*, c10::BFloat16 const*, int, int, int, bool const*)",
    "add": _EW.format(functor="at::native::CUDAFunctor_add<c10::BFloat16>"),
    "mul": _EW.format(
        functor="at::native::BinaryFunctor<c10::BFloat16, c10::BFloat16, c10::BFloat16, at::native::binary_internal::MulFunctor<float> >"
    ),
    "gelu": _EW.format(functor="at::native::GeluCUDAKernelImpl(at::TensorIteratorBase&)::{lambda(c10::BFloat16)#1}"),
    "sum": "void at::native::reduce_kernel<128, 4, at::native::ReduceOp<c10::BFloat16, at::native::func_wrapper_t<c10::BFloat16, at::native::sum_functor<c10::BFloat16, float, c10::BFloat16>::operator()(at::TensorIterator&)::{lambda(float, float)#1}>, unsigned int, c10::BFloat16, 4> >(at::native::ReduceOp<c10::BFloat16>)",
    "embedding": "void at::native::(anonymous namespace)::indexSelectLargeIndex<c10::BFloat16, long, unsigned int, 2, 2, -2, true>(at::cuda::detail::TensorInfo<c10::BFloat16, unsigned int>, long)",
    "loss": "void at::native::(anonymous namespace)::nll_loss_forward_reduce_cuda_kernel_2d<float, float, long>(float*, float*, float*, long*, float*, bool, long, long, long, long)",
    "adam_fused": f"{_FOREACH}FusedOptimizerTensorListMetadata<4>, at::native::(anonymous namespace)::FusedAdamMathFunctor<float, 4, (at::native::ADAM_MODE)1, false>, float const*, double, double, double, double, double, bool>(at::native::(anonymous namespace)::FusedOptimizerTensorListMetadata<4>)",
    "adam_loop": _EW.format(
        functor="at::native::addcmul_cuda_kernel(at::TensorIteratorBase&, c10::Scalar const&)::{lambda(float, float, float)#1}"
    ),
    "norm_scalar": "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::NormTwoOps<float, float, float, float>, unsigned int, float, 4> >(at::native::ReduceOp<float, at::native::NormTwoOps<float, float, float, float>, unsigned int, float, 4>)",
    "zero": "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, std::array<char*, 1ul> >(int, at::native::FillFunctor<float>, std::array<char*, 1ul>)",
}


@dataclass(frozen=True)
class Op:
    """An operator of the forward pass and what its backward launches."""

    aten: str
    kernel: str
    micros: float
    """Device time."""
    node: str
    """Autograd node."""
    backward: tuple[tuple[str, str, float], ...]
    """(operator, kernel, factor of the forward time) launched by the node."""
    grad_share: float = 0.0
    """Share of the layer's gradient bytes that this node completes."""
    outer: str = ""
    """The operator the model calls, where that is another one."""


def _gemm(micros: float, grad_share: float) -> Op:
    backward = (("aten::mm", "gemm", 1.0), ("aten::mm", "gemm", 1.0), ("aten::sum", "sum", 0.05))
    return Op("aten::addmm", "gemm", micros, "AddmmBackward0", backward, grad_share, outer="aten::linear")


_NORM = Op(
    "aten::native_layer_norm",
    "norm",
    40,
    "NativeLayerNormBackward0",
    (("aten::native_layer_norm_backward", "norm_bwd", 2.0),),
)
_ADD = Op("aten::add", "add", 45, "AddBackward0", ())
_GELU = Op("aten::gelu", "gelu", 90, "GeluBackward0", (("aten::gelu_backward", "gelu", 1.3),))
_FLASH = Op(
    "aten::_scaled_dot_product_flash_attention",
    "flash",
    260,
    "ScaledDotProductFlashAttentionBackward0",
    (("aten::_scaled_dot_product_flash_attention_backward", "flash_bwd", 2.4),),
    outer="aten::scaled_dot_product_attention",
)
_TWICE = (("aten::bmm", "gemm", 1.0), ("aten::bmm", "gemm", 1.0))
_UNFUSED = (
    Op("aten::bmm", "gemm", 330, "BmmBackward0", _TWICE),
    Op("aten::mul", "mul", 310, "MulBackward0", (("aten::mul", "mul", 1.0),)),
    Op("aten::add", "add", 310, "AddBackward0", ()),
    Op("aten::_softmax", "softmax", 420, "SoftmaxBackward0", (("aten::_softmax_backward_data", "softmax_bwd", 1.2),)),
    Op("aten::bmm", "gemm", 330, "BmmBackward0", _TWICE),
)
FP32_GEMM_FACTOR = 6.5
"""How much longer a matrix product takes without tensor cores."""


def layer(*, attention_fused: bool) -> tuple[Op, ...]:
    """Return the operators of one transformer block in forward order."""
    attention = (_FLASH,) if attention_fused else _UNFUSED
    return (
        _NORM,
        _gemm(330, 0.25),
        *attention,
        _gemm(120, 0.08),
        _ADD,
        _NORM,
        _gemm(420, 0.33),
        _GELU,
        _gemm(420, 0.34),
        _ADD,
    )


def kernel_name(kernel: str, *, precision: str, rocm: bool) -> str:
    """Return the name under which a profile shows *kernel*."""
    if kernel == "gemm":
        return (ROCM_GEMM_NAMES if rocm else GEMM_NAMES)[precision]
    return KERNEL_NAMES[kernel]


@dataclass(frozen=True)
class CollectiveNames:
    """What one collective is called in the places where a trace names it."""

    kernel: str
    argument: str
    """'Collective name'."""
    span: str
    """After 'nccl:'."""
    operator: str


NCCL_OPS = {
    "all_reduce": CollectiveNames("AllReduce_Sum_{dtype}_RING_LL", "allreduce", "all_reduce", "c10d::allreduce_"),
    "all_gather": CollectiveNames("AllGather_RING_LL", "_allgather_base", "_all_gather_base", "c10d::_allgather_base_"),
    "reduce_scatter": CollectiveNames(
        "ReduceScatter_Sum_{dtype}_RING_LL",
        "_reduce_scatter_base",
        "_reduce_scatter_base",
        "c10d::_reduce_scatter_base_",
    ),
    "barrier": CollectiveNames("AllReduce_Sum_u8_RING_LL", "barrier", "all_reduce_barrier", "c10d::barrier"),
}
_NCCL_DTYPES = {"BFloat16": "bf16", "Float": "f32", "Byte": "u8"}


def nccl_kernel(op: str, dtype: str, *, flavour: str) -> str:
    """Return the device kernel's name for a collective."""
    if flavour == "rocm":
        return "ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)"
    stem = NCCL_OPS[op].kernel.format(dtype=_NCCL_DTYPES[dtype])
    if flavour == "cuda_old":
        old = "AllReduce_RING_LL_Sum_float" if op == "all_reduce" else stem
        return f"ncclKernel_{old}(ncclWorkElem)"
    return f"ncclDevKernel_{stem}(ncclDevKernelArgsStorage<4096ul>)"
