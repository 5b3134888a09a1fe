"""Number formats by kernel name, by operator types where the name is silent, and what a device offers."""

from __future__ import annotations

import polars as pl
import pytest

from ddiag.analysis.device_facts import math_units
from ddiag.analysis.facts import job_facts
from ddiag.analysis.precision import is_matmul, matmul_precision, precision
from ddiag.analysis.steps import find_steps
from ddiag.model.run import Run
from ddiag.model.signals import Precision
from tests.builders import RunBuilder

SILENT = "void cutlass::device_kernel<at::cuda::detail::enable_3x_kernel_for_sm9x<GemmUniversal> >(x)"

FORMATS = {
    "volta_sgemm_128x32_nt": "fp32",
    "ampere_sgemm_128x64_nn": "fp32",
    "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x32_8x5_nn_align1>(x)": "fp32",
    "volta_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1": "fp32",
    "void wgrad_alg0_engine<float, 128, 5, 5, 3, 3, 3, false, 512>(int, int, int, float const*)": "fp32",
    "Cijk_Alik_Bljk_SB_Bias_AS_SAV_UserArgs_MT64x16x32": "fp32",
    "void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_128x128_16x4_nn_align4>(x)": "tf32",
    "sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize64x128x32": "tf32",
    "sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x32_warpgroupsize1x1x1_cublas": "tf32",
    "Cijk_Ailk_Bjlk_S_MX_B_Bias_HA_S_SAV_UserArgs_MT128x128x16": "tf32",
    "nvjet_sss_128x64_64x5_1x2_h_bz_coopA_TNT": "tf32",
    "turing_fp16_s1688gemm_fp16_128x128_ldg8_f2f_nn": "fp16",
    "volta_h884gemm_128x128_ldg8_nn": "fp16",
    "volta_fp16_s884gemm_fp16_64x128_ldg8_f2f_nn": "fp16",
    "void cutlass::Kernel<cutlass_70_wmma_tensorop_f16_s161616gemm_f16_32x32_64x2_tn_align8>(x)": "fp16",
    "nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_TNT": "fp16",
    "Cijk_Ailk_Bjlk_HHS_BH_MT128x128x32": "fp16",
    "ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_32x6_tn": "bf16",
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x64x64": "bf16",
    "nvjet_tst_64x64_64x16_2x1_2cta_v_bz_bias_TNT": "bf16",
    "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT128x256x32": "bf16",
    "Cijk_Alik_Bljk_B_BS_BH_Bias_HA_S_SAV_UserArgs_MT64x32x128": "bf16",
    "igemm_wrw_gtcx3_nhwc_bf16_bx0_ex1_bt128x128x32_wt32x32x8": "bf16",
    "_ZN2ck16tensor_operation6device37kernel_batched_gemm_xdlops_bwd_weightINS_47GridwiseGemm_bk0mk1_bk0nk1_mn_"
    "xdlops_bwd_weightILi64EttftLNS_25InMemoryDataOperationEnumE1E": "bf16",
    "void gemmk1_kernel<float, 256, 5, false>(cublasGemvTensorStridedBatched<__half const>)": "fp16",
    "nvjet_qqtst_128x128_128x6_2x1_v_bz_TNN": "fp8",
    "bmm_MxE4m3_MxE2m1MxE4m3_Fp32_t128x16x256u2_s3_et128x16": "fp8",
    "void gemv2T_kernel_val<int, int, double, double, double, double, 128>(x)": "fp64",
    "cutlass_80_tensorop_d884gemm_64x64_16x4_nn_align1": "fp64",
    "ampere_i16832gemm_s8_256x128_ldg16_relu_stages_64x3_tn": "int8",
    SILENT: None,
}


@pytest.mark.parametrize("name", FORMATS)
def test_the_name_tells(name: str) -> None:
    assert matmul_precision(name) == FORMATS[name]


@pytest.mark.parametrize(
    "name",
    [
        "void splitKreduce_kernel<32, 16, int, float, float>(cublasSplitKParams<float>)",
        "void cask_cudnn::computeOffsetsKernel<false, false>(cask_cudnn::ComputeOffsetsParams)",
        "void cudnn::winograd_nonfused::winogradForwardData4x4<float, float>(x)",
        "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float> >(int)",
    ],
)
def test_helpers_have_no_format_of_their_own(name: str) -> None:
    assert not is_matmul(name)


def named_device(run: Run, name: str) -> Run:
    ranks = run.table("ranks").with_columns(pl.lit(name).alias("device_name"))
    return Run({**run.tables, "ranks": ranks}, run.coverage)


def precision_of(run: RunBuilder, device: str = "NVIDIA A100-SXM4-80GB") -> Precision:
    built = named_device(run.build(), device)
    found = precision(built, find_steps(built), job_facts(built))
    assert found is not None
    return found


def test_shares_are_of_matmul_time() -> None:
    run = RunBuilder().step(0, 0, 100)
    run.launch_kernel("ampere_sgemm_128x64_nn", 0, 1, 30).launch_kernel("nvjet_tst_64x64_64x16_TNT", 0, 40, 10)
    run.launch_kernel("void at::native::reduce_kernel<512, 1>(x)", 0, 60, 30)
    found = precision_of(run)
    assert found.matmul_ms == pytest.approx(40)
    assert found.fp32_share == pytest.approx(0.75)
    assert found.unknown_share == 0.0
    assert found.table["precision"].to_list() == ["fp32", "bf16"]
    assert found.table["example"][0] == "ampere_sgemm_128x64_nn"


@pytest.mark.parametrize(
    ("dtypes", "device", "expected"),
    [
        ('["c10::BFloat16", "c10::BFloat16", ""]', "NVIDIA H100 80GB HBM3", "bf16"),
        ('["c10::Half", "c10::Half"]', "Tesla V100-SXM2-32GB", "fp16"),
        ('["float", "float"]', "Tesla V100-SXM2-32GB", "fp32"),
        ('["float", "float"]', "NVIDIA H100 80GB HBM3", "unknown"),
        (None, "NVIDIA H100 80GB HBM3", "unknown"),
    ],
)
def test_a_silent_name_is_judged_by_the_operator(dtypes: str | None, device: str, expected: str) -> None:
    """Float inputs on a device with TF32 could be either: no guess."""
    run = RunBuilder().step(0, 0, 100).op("aten::mm", 0, 5, external_id=7, dtypes=dtypes)
    run.launch_kernel(SILENT, 1, 2, 10, external_id=7)
    assert precision_of(run, device).table["precision"].to_list() == [expected]


def test_no_matmul_no_precision() -> None:
    run = RunBuilder().step(0, 0, 100).launch_kernel("void at::native::reduce_kernel<512, 1>(x)", 0, 1, 9).build()
    assert precision(run, find_steps(run), job_facts(run)) is None


@pytest.mark.parametrize(
    ("names", "units"),
    [
        (("NVIDIA A100-PG509-200",), (True, True, True)),
        (("NVIDIA H100 80GB HBM3",), (True, True, True)),
        (("NVIDIA GeForce RTX 4090",), (True, True, True)),
        (("NVIDIA B200",), (True, True, True)),
        (("Tesla V100-SXM2-32GB",), (True, False, False)),
        (("Tesla T4",), (True, False, False)),
        (("NVIDIA GeForce RTX 2080 Ti",), (True, False, False)),
        (("Quadro GP100",), (False, False, False)),
        (("Tesla P100-SXM2-16GB",), (False, False, False)),
        (("NVIDIA GeForce GTX 1080 Ti",), (False, False, False)),
        (("AMD Instinct MI210",), (True, False, True)),
        (("AMD Instinct MI300X VF",), (True, None, True)),
        (("AMD Instinct MI355X",), (True, False, True)),
        (("AMD Radeon Graphics",), (None, None, None)),
        (("NVIDIA A100-SXM4-80GB", "Tesla V100-SXM2-32GB"), (None, None, None)),
        ((), (None, None, None)),
    ],
)
def test_math_units_by_device(names: tuple[str, ...], units: tuple[bool | None, ...]) -> None:
    found = math_units(names)
    assert (found.tensor_cores, found.tf32, found.bf16) == units
