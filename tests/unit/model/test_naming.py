"""Names as they occur in real traces, and near-misses that look like communication or like a class they are not."""

from __future__ import annotations

import pytest

from ddiag.model import naming

COMMUNICATION = {
    "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)": "all_reduce",
    "ncclAllReduceRingLLKernel_sum_f32(ncclColl)": "all_reduce",
    "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)": "all_gather",
    "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)": "reduce_scatter",
    "ncclDevKernel_Reduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)": "reduce",
    "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)": "send_recv",
    "ncclKernel_Broadcast_RING_LL_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)": "broadcast",
    "ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)": "unknown",
    "ncclSymkDevKernel_AllReduce_AGxLL_R_sum_bf16(ncclSymkDevWorkArgs4K const*)": "all_reduce",
    "mscclKernel_Sum_half_LL_0": "unknown",
    "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*)": "all_reduce",
    "void (anonymous namespace)::two_shot_all_reduce_kernel<c10::BFloat16, 16, 8>(c10::BFloat16**)": "all_reduce",
    "c10d::symmetric_memory::(anonymous namespace)::barrier_kernel(unsigned int**, int, int)": "barrier",
    "void deep_ep::intranode::dispatch<8, 768, 8192>(int4*, float*)": "all_to_all",
    "_ZN7deep_ep12internode_ll8dispatchILb1ELb0ELi7168EEEvPvS1_": "all_to_all",
    "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*)": "all_reduce",
    "_ZN5aiter26cross_device_reduce_1stageI14__hip_bfloat16Li8EEEvPNS_8RankDataE": "all_reduce",
    "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<float>(x)": "all_reduce",
    "void tensorrt_llm::kernels::oneShotAllReduceKernel<__nv_bfloat16, 8, true>(x)": "all_reduce",
    "userbuffers_fp16_sum_inplace_gpu_rr_rw_ag_16": "unknown",
    "HcclAllReduce": "all_reduce",
}


@pytest.mark.parametrize("name", COMMUNICATION)
def test_communication_kernels_are_recognised(name: str) -> None:
    assert naming.is_communication(name)
    assert naming.kernel_class(name) == "communication"
    assert naming.collective_op(name) == COMMUNICATION[name]


CLASSES = {
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, NormTwoOps<float>>>(x)": "reduction",
    "void at::native::batch_norm_backward_elemt_channels_last_kernel<4, c10::Half, float, float>(x)": "norm",
    "void cub::DeviceReduceByKeyKernel<cub::DispatchReduceByKey<long*>>(x)": "reduction",
    "all_equal_kernel": "other",
    "triton_poi_fused_all_gather_into_tensor_wait_tensor_0": "elementwise",
    "triton_per_fused_all_reduce_3": "reduction",
    "void deep_ep::layout::get_dispatch_layout<256, 32, 8>(long const*)": "other",
    "void at::native::all_gather_copy_in_kernel<float>(float*)": "copy",
    "void oneflow::LayerNormBlockAllReduceKernel<float>(float*)": "norm",
    "void recat_copy_async_kernel<float>(long const*, long const*)": "copy",
    "ampere_sgemm_128x64_nn": "gemm",
    "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_128x64_64x6_tn_align8>(x)": "gemm",
    "nvjet_tst_144x128_64x6_2x1_v_bz_bias_TNN": "gemm",
    "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT16x16x256_MI16x16x1_SN": "gemm",
    "void splitKreduce_kernel<32, 16, int, float>(cublasSplitKParams<float>, float const*)": "gemm",
    "void epilogue::impl::globalKernel<float, float, float, true, true>(int, int, cublasLtEpilogue_t)": "gemm",
    "std::enable_if<!(false), void>::type internal::gemvx::kernel<int, int, float>(x)": "gemm",
    "void moe::dev::finalize::finalizeKernelVecLoad<moe::dev::KernelParams<cutlass::bfloat16_t>>(x)": "other",
    "void fbgemm_gpu::permute_2D_lengths_kernel<int>(int, int)": "embedding",
    "triton_tem_fused_mm_2": "gemm",
    "void cutlass_cudnn_infer::Kernel<cutlass_tensorop_s1688fprop_optimized_tf32_128x128_32x4_nhwc_align4>(x)": "conv",
    "sm80_xmma_dgrad_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize128x128x16": "conv",
    "volta_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1": "conv",
    "igemm_wrw_gtcx3_nhwc_bf16_bx0_ex1_bt128x128x32_wt32x32x8": "conv",
    "_ZN2ck16tensor_operation6device12_GLOBAL__N_139kernel_grouped_conv_fwd_xdl_cshuffle_v3INS_28Gridwise": "conv",
    "void cask_cudnn::computeOffsetsKernel<false, false>(cask_cudnn::ComputeOffsetsParams)": "conv",
    "void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true>(x)": "copy",
    "void cudnn::bn_fw_tr_1C11_singleread<float, 512, true, 1, 2, 0>(x)": "norm",
    "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64>, true>(x)": "attention",
    "void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90<int>>>(x)": "attention",
    "fmha_cutlassF_f16_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<x>::Params)": "attention",
    "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x64_4x1x1_kernel0_0": "attention",
    "attn_fwd": "attention",
    "triton_tem_fused_flex_attention_0": "attention",
    "void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16, unsigned char>(x)": "copy",
    "void rotary_embedding_kernel<c10::BFloat16, true>(long const*)": "elementwise",
    "void (anonymous namespace)::softmax_warp_forward<float, float, float, 10, true, false>(float*)": "softmax",
    "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>(int, float)": "norm",
    "_ZN5aiter24add_rmsnorm_quant_kernelIDF16bDF16bLi256ELi16ELb1EEEvPT0_": "norm",
    "void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float>, float>(x)": "optimizer",
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::"
    "FusedOptimizerTensorListMetadata<4>, (anonymous namespace)::FusedAdamMathFunctor<float, 4>>(x)": "optimizer",
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::TensorListMetadata<2>, "
    "at::native::(anonymous namespace)::BinaryOpListAlphaFunctor<float, 2, 2, 0>>(x)": "elementwise",
    "void multi_tensor_apply_kernel<TensorListMetadata<1>, L2NormFunctor<float>, float*>(x)": "reduction",
    "void split_embedding_backward_codegen_rowwise_adagrad_unweighted_kernel_cta_per_row_1<float>(x)": "embedding",
    "void at::native::index_elementwise_kernel<128, 4, at::native::gpu_index_kernel<x>>(x)": "embedding",
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>(int)": "elementwise",
    "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(x)>(x)": "copy",
    "void at::native::vectorized_elementwise_kernel<4, at::native::bfloat16_copy_kernel_cuda(x)>(x)": "copy",
    "void at::native::(anonymous namespace)::CatArrayBatchedCopy<float, unsigned int, 2, 128, 1>(float*)": "copy",
    "batched_transpose_32x32_half": "copy",
    "__amd_rocclr_copyBuffer": "copy",
    "SubTensorOpWithScalar1d": "elementwise",
    "void at::native::(anonymous namespace)::max_pool_forward_nchw<float, float>(int)": "reduction",
    "void cub::DeviceRadixSortOnesweepKernel<cub::DeviceRadixSortPolicy<long, int, int>::Policy800>(x)": "other",
    "at::cuda::(anonymous namespace)::spin_kernel(long)": "other",
    "triton_poi_fused_add_cos_sin_0": "elementwise",
    "triton_red_fused_add_mean_mul_pow_rsqrt_0": "reduction",
}


@pytest.mark.parametrize("name", CLASSES)
def test_compute_kernels_get_their_class_and_are_no_communication(name: str) -> None:
    assert naming.kernel_class(name) == CLASSES[name]
    assert not naming.is_communication(name)


@pytest.mark.parametrize(
    ("name", "op"),
    [
        ("allreduce", "all_reduce"),
        ("allreduce_coalesced", "all_reduce"),
        ("_allgather_base", "all_gather"),
        ("allgather_into_tensor_coalesced", "all_gather"),
        ("_reduce_scatter_base", "reduce_scatter"),
        ("all_to_allv", "all_to_all"),
        ("recv_any_source", "recv"),
        ("broadcast_oop", "broadcast"),
        ("monitored_barrier", "barrier"),
        ("nccl:_all_gather_base", "all_gather"),
        ("nccl:send 0->1", "send"),
        ("nccl:recv 0<-1", "recv"),
        ("nccl:coalesced", "coalesced"),
        ("gloo:all_reduce", "all_reduce"),
        ("mpi:reduce", "reduce"),
        ("c10d::allreduce_", "all_reduce"),
        ("_c10d_functional::reduce_scatter_tensor", "reduce_scatter"),
        ("record_param_comms", "unknown"),
        ("_c10d_functional::wait_tensor", None),
        ("wait", None),
        ("init", None),
        ("aten::scatter", None),
        ("aten::gather", None),
        ("void at::native::reduce_kernel<512, 1>(x)", None),
    ],
)
def test_collective_names_become_canonical(name: str, op: str | None) -> None:
    assert naming.collective_op(name) == op


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (
            "launch",
            "cudaLaunchKernel cudaLaunchKernelExC cuLaunchKernelEx hipExtModuleLaunchKernel urEnqueueKernelLaunch",
        ),
        ("launch", "cudaLaunchCooperativeKernel hipLaunchKernel hipModuleLaunchKernel"),
        ("graph", "cudaGraphLaunch hipGraphLaunch cuGraphLaunch"),
        ("copy", "cudaMemcpyAsync hipMemcpyWithStream cuMemcpyHtoDAsync_v2 cudaMemcpyPeerAsync"),
        ("memset", "cudaMemsetAsync cuMemsetD32Async hipMemsetAsync"),
        ("sync", "cudaStreamSynchronize cudaDeviceSynchronize hipEventSynchronize cuCtxSynchronize"),
        ("alloc", "cudaMalloc hipMalloc cudaMallocAsync cudaHostAlloc cuMemCreate cuMemSetAccess"),
        ("free", "cudaFree hipFree cudaFreeHost hipHostFree cuMemUnmap cuMemRelease"),
        ("event", "cudaEventRecord cudaStreamWaitEvent cudaEventQuery hipEventDestroy"),
        ("other", "cudaLaunchHostFunc cudaGraphInstantiate cudaGetDeviceCount cudaMemGetInfo cudaStreamIsCapturing"),
    ],
)
def test_runtime_calls_get_their_kind(kind: str, names: str) -> None:
    assert {name: naming.launch_kind(name) for name in names.split()} == dict.fromkeys(names.split(), kind)


@pytest.mark.parametrize(
    ("name", "direction", "pinned"),
    [
        ("Memcpy HtoD (Pageable -> Device)", "h2d", False),
        ("Memcpy HtoD (Pinned -> Device)", "h2d", True),
        ("Memcpy HtoD (Host -> Device)", "h2d", None),
        ("Memcpy DtoH (Device -> Pageable)", "d2h", False),
        ("Memcpy DtoH (Device -> Pinned)", "d2h", True),
        ("Memcpy DtoD (Device -> Device)", "d2d", None),
        ("Memcpy PtoP (Device -> Device)", "p2p", None),
        ("Memset (Device)", "memset", None),
        ("CopyHostToDevice", "h2d", None),
        ("CopyDeviceToDevice", "d2d", None),
        ("enqueueCommand memcpyDtoHAsync", "d2h", None),
        ("__amd_rocclr_copyBuffer", "unknown", None),
    ],
)
def test_copies_say_direction_and_pinning_only_where_the_name_does(
    name: str, direction: str, pinned: bool | None
) -> None:
    assert naming.copy_direction(name) == (direction, pinned)


@pytest.mark.parametrize(
    ("dtype", "size"),
    [
        ("BFloat16", 2),
        ("Float", 4),
        ("c10::Half", 2),
        ("Float8_e4m3fn", 1),
        ("Byte", 1),
        ("long int", 8),
        ("c10::complex<float>", 8),
        ("torch.bfloat16", 2),
        ("Bool", 1),
        ("Scalar", None),
        ("", None),
    ],
)
def test_element_sizes(dtype: str, size: int | None) -> None:
    assert naming.dtype_bytes(dtype) == size
