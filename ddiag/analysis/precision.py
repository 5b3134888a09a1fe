"""Number formats in which matrix multiplications and convolutions run."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial

import polars as pl

from ddiag.analysis.device_facts import MathUnits, math_units
from ddiag.analysis.names import of_kind
from ddiag.analysis.steady_work import NS_PER_MS, in_steady, labelled, step_count
from ddiag.analysis.steps import StepWindows
from ddiag.model.naming import kernel_class
from ddiag.model.run import Run
from ddiag.model.signals import JobFacts, Precision

_HELPER = re.compile(
    r"compute\w*Offsets|split_?k_?reduce|ReduceSplitK|^epilogue::|epilogue::impl|reduce_wgrad|scal_kernel|scalePacked"
    r"|winogradForward(?:Data|Filter|Output)|winogradWgrad(?:Data|Delta|Output)|generateWinograd|im2col|col2im"
    r"|SplitKPost|reduceSplitK|finalize",
    re.IGNORECASE,
)
"""Kernels that prepare or finish a multiplication and have no format of their own."""
_CIJK = re.compile(r"^Cijk_[A-Za-z]+_[A-Za-z]+_(\w{1,8})")
_CIJK_TYPES: tuple[tuple[str, str], ...] = (
    ("F8", "fp8"),
    ("B8", "fp8"),
    ("I8", "int8"),
    ("4xi8", "int8"),
    ("S_MX", "tf32"),
    ("H", "fp16"),
    ("B", "bf16"),
    ("S", "fp32"),
    ("D", "fp64"),
    ("C", "fp32"),
    ("Z", "fp64"),
)
_NVJET = re.compile(r"^nvjet_(?:sm\d+_)?([a-z]+)_")
_NVJET_TYPES = {"q": "fp8", "r": "fp8", "o": "fp8", "e": "fp8", "h": "fp16", "t": "bf16", "s": "tf32", "d": "fp64"}
_CK_ELEMENT = re.compile(
    r"(?:xdl_?c?shuffle\w*?|xdlops\w*?|GridwiseGemm\w*?)I(?:Li\d+EE?)?(?:NS\w*?E)?(t|f|DF16_|Dh|DF16b)"
)
_CK_TYPES = {"t": "bf16", "DF16b": "bf16", "f": "fp32", "DF16_": "fp16", "Dh": "fp16"}
_BY_TEXT: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (found, re.compile(pattern))
    for found, pattern in (
        ("tf32", r"(?i)tf32|xf32|tfloat32"),
        ("fp8", r"(?i)e4m3|e5m2|fp8|float8|_f8|mxfp4xmxfp4|nvfp4"),
        ("int8", r"(?i)imma|i8816|i16832|i16864|int8|_s8_|s8s8|_i8_"),
        ("bf16", r"(?i)bf16|bfloat16"),
        ("fp16", r"(?i)fp16|(?:^|[^a-z])f16|half|hgemm|h884|h1688|h16816|(?<!d)884(?:gemm|cudnn)|s161616gemm"),
        ("fp64", r"(?i)dgemm|d884|zgemm|<double|double,|[^a-z]f64"),
        ("tf32", r"s1688"),
        ("fp32", r"(?i)sgemm|scudnn|simt_s|cgemm|convolve_sgemm|f32f32_f32f32|fp32"),
        ("fp32", r"<(?:int, )*float|float const|_float\b|explicit_convolve"),
    )
)
_OP_TYPES = {
    "c10::BFloat16": "bf16",
    "c10::Half": "fp16",
    "double": "fp64",
    "c10::Float8_e4m3fn": "fp8",
    "c10::Float8_e5m2": "fp8",
    "c10::Float8_e4m3fnuz": "fp8",
    "c10::Float8_e5m2fnuz": "fp8",
    "signed char": "int8",
    "unsigned char": "int8",
}


def matmul_precision(kernel_name: str) -> str | None:
    """Format of a GEMM or convolution kernel's inputs by its name; None when the name does not say.

    fp8 stands for everything narrower than 16 bit floating point. TF32 is fp32 data on tensor cores.
    """
    cijk = _CIJK.match(kernel_name)
    if cijk is not None:
        return next((found for prefix, found in _CIJK_TYPES if cijk.group(1).startswith(prefix)), None)
    nvjet = _NVJET.match(kernel_name)
    if nvjet is not None:
        return _NVJET_TYPES.get(nvjet.group(1)[0])
    if "ck16tensor_operation" in kernel_name:
        element = _CK_ELEMENT.search(kernel_name)
        return _CK_TYPES.get(element.group(1)) if element is not None else None
    return next((found for found, pattern in _BY_TEXT if pattern.search(kernel_name)), None)


def is_matmul(kernel_name: str) -> bool:
    """The kernel itself multiplies (helpers that transform or reduce around it do not)."""
    return kernel_class(kernel_name) in ("gemm", "conv") and _HELPER.search(kernel_name) is None


def precision(run: Run, windows: StepWindows, facts: JobFacts) -> Precision | None:
    """Formats by time; None without matrix multiplications on a device.

    A kernel whose name does not tell is judged by the input types of its operator, where shapes were recorded. Inputs
    of type float do not tell fp32 from TF32 on devices that have both: those stay unknown.
    """
    kernels = in_steady(of_kind(run.table("kernels"), "compute"), windows)
    kernels = labelled(kernels, lambda name: "matmul" if is_matmul(name) else None, "_role")
    kernels = kernels.filter(pl.col("_role").is_not_null())
    if kernels.is_empty():
        return None
    units = math_units(facts.device_names)
    judged = _judged(kernels, run, units)
    total_ns = int((judged["end_ns"] - judged["start_ns"]).sum())
    table = _table(judged, total_ns, step_count(windows))
    share = dict(table.select("precision", "share").iter_rows())
    return Precision(
        table=table,
        matmul_ms=total_ns / step_count(windows) / NS_PER_MS,
        fp32_share=share.get("fp32", 0.0),
        unknown_share=share.get("unknown", 0.0),
        tensor_cores=units.tensor_cores,
        tf32=units.tf32,
        bf16=units.bf16,
    )


def _judged(kernels: pl.DataFrame, run: Run, units: MathUnits) -> pl.DataFrame:
    named = labelled(kernels, matmul_precision, "precision")
    if named["precision"].null_count():
        typed = run.table("ops").filter((pl.col("external_id") >= 0) & pl.col("dtypes").is_not_null())
        typed = typed.select("rank", "external_id", "dtypes").unique(["rank", "external_id"], keep="first")
        named = named.join(typed, on=["rank", "external_id"], how="left", maintain_order="left")
        named = labelled(named, _by_inputs(units), "_by_op", column="dtypes")
        named = named.with_columns(pl.coalesce("precision", "_by_op").alias("precision"))
    return named.with_columns(pl.col("precision").fill_null("unknown"))


def _by_inputs(units: MathUnits) -> Callable[[str], str | None]:
    return partial(_input_format, has_tf32=units.tf32)


def _input_format(dtypes: str, *, has_tf32: bool | None) -> str | None:
    """Format by the first input tensors of an operator, written as JSON: ``["c10::Half", "c10::Half", …]``."""
    for name in re.findall(r'"([^"]+)"', dtypes):
        if name in _OP_TYPES:
            return _OP_TYPES[name]
        if name == "float":
            return "fp32" if has_tf32 is False else None
    return None


def _table(judged: pl.DataFrame, total_ns: int, steps: int) -> pl.DataFrame:
    length = (pl.col("end_ns") - pl.col("start_ns")).alias("_ns")
    by_name = judged.with_columns(length).group_by("precision", pl.col("name").cast(pl.String)).agg(pl.col("_ns").sum())
    return (
        by_name.sort("_ns", "name", descending=[True, False])
        .group_by("precision", maintain_order=True)
        .agg(pl.col("_ns").sum(), pl.col("name").first().alias("example"))
        .sort("_ns", descending=True)
        .select(
            "precision",
            (pl.col("_ns") / steps / NS_PER_MS).alias("ms_per_step"),
            (pl.col("_ns") / max(total_ns, 1)).alias("share"),
            "example",
        )
    )
