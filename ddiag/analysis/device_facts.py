"""What a device can compute with, by its name."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class MathUnits:
    """None where the name does not tell."""

    tensor_cores: bool | None
    """Matrix units for 16-bit floats."""
    tf32: bool | None
    """fp32 matrices can run on them with shortened mantissas (TF32)."""
    bf16: bool | None
    """They take bfloat16."""


_UNKNOWN = MathUnits(None, None, None)
_NONE = MathUnits(tensor_cores=False, tf32=False, bf16=False)
_HALF_ONLY = MathUnits(tensor_cores=True, tf32=False, bf16=False)
_AMPERE = MathUnits(tensor_cores=True, tf32=True, bf16=True)
_MATRIX_CORES = MathUnits(tensor_cores=True, tf32=False, bf16=True)
_MI300 = MathUnits(tensor_cores=True, tf32=None, bf16=True)
"""Has XF32, which hipBLASLt uses only when told to."""

_BY_NAME: tuple[tuple[MathUnits, re.Pattern[str]], ...] = tuple(
    (units, re.compile(pattern, re.IGNORECASE))
    for units, pattern in (
        (_MI300, r"\bMI3[0-2]\d[AX]?"),
        (_MATRIX_CORES, r"\bMI(?:1|2|35)\d{1,2}X?"),
        (_AMPERE, r"\b(?:A100|A800|A40|A30|A10G?|A16|A2|H100|H800|H200|H20|GH200|GB[23]00|B[123]00|L40S?|L4|L20)\b"),
        (_AMPERE, r"\bRTX (?:A\d{4}|[345]0\d0|PRO|\d{4} Ada)|Ada Generation|Blackwell|\bThor\b|\bOrin\b"),
        (_HALF_ONLY, r"\bV100|\bTITAN V\b|\bGV100\b|\bT4\b|\bRTX (?:20\d0|[45680]{1}000)\b|TITAN RTX|\bT10\b"),
        (_NONE, r"\bP100|\bGP100|\bP4\b|\bP40\b|\bK80|\bM40\b|\bM60\b|GTX |TITAN X"),
    )
)


def math_units(device_names: Iterable[str]) -> MathUnits:
    """Math units of a job's devices; unknown when it has none, or devices that differ."""
    found = {_units(name) for name in device_names}
    return found.pop() if len(found) == 1 else _UNKNOWN


def _units(device_name: str) -> MathUnits:
    return next((units for units, pattern in _BY_NAME if pattern.search(device_name)), _UNKNOWN)
