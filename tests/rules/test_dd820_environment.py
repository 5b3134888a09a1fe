"""Environment variables: what is said of which name and value, by version."""

from __future__ import annotations

import pytest

from ddiag.model.incident import Event, Setting
from ddiag.model.signals import Signals
from ddiag.model.signals_incident import Events, Settings
from ddiag.rulekit import Finding, Severity
from ddiag.rulekit.rule import View
from tests.rules.checking import _rules


def said(env: dict[str, str], nccl: str = "", torch: str = "") -> list[Finding]:
    settings = [Setting("env", name, value) for name, value in env.items()]
    if torch:
        settings.append(Setting("package", "torch", torch))
    families: dict[type, object] = {Settings: Settings(tuple(settings))}
    if nccl:
        families[Events] = Events((Event("nccl.version", {"version": nccl}),))
    loaded = _rules()["DD820"]
    return [
        one for one in loaded.check(View(Signals(families), loaded.rule), loaded.limits) if isinstance(one, Finding)
    ]


@pytest.mark.parametrize(
    ("name", "value", "nccl", "torch", "words"),
    [
        ("NCCL_TIMEOUT", "1800", "", "", "read by nothing"),
        ("NCCL_SOKCET_IFNAME", "eth0", "", "", "NCCL_SOCKET_IFNAME is probably meant"),
        ("NCCL_LAUNCH_ORDER_IMPLICIT", "1", "2.21.5", "", "needs version 2.26"),
        ("NCCL_IB_CUDA_SUPPORT", "1", "2.10.3", "", "no longer read"),
        ("NCCL_MAX_NCHANNELS", "8", "2.21.5", "", "old name"),
        ("NCCL_ASYNC_ERROR_HANDLING", "1", "", "2.4.0", "old name"),
        ("PYTORCH_CUDA_ALLOC_CONF", "x", "", "2.10.0+cu128", "old name"),
        ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0", "", "", "hangs for ever"),
        ("NCCL_IB_TIMEOUT", "0", "", "", "waits for ever"),
        ("NCCL_IB_TIMEOUT", "32", "", "", "waits for ever"),
        ("GLOO_SOCKET_IFNAME", "=eth0", "", "", "literally"),
        ("NCCL_FROBNICATE", "1", "", "", "not a variable"),
    ],
)
def test_what_is_wrong_is_said(name: str, value: str, nccl: str, torch: str, words: str) -> None:
    (finding,) = said({name: value}, nccl, torch)
    assert words in finding.title


@pytest.mark.parametrize(
    ("name", "value", "nccl", "torch"),
    [
        ("NCCL_DEBUG", "INFO", "2.21.5", "2.5.1"),
        ("NCCL_SOCKET_IFNAME", "=eth0", "", ""),
        ("NCCL_IB_TIMEOUT", "22", "2.21.5", ""),
        ("NCCL_MAX_NCHANNELS", "8", "2.10.3", ""),
        ("NCCL_MAX_NCHANNELS", "8", "", ""),
        ("NCCL_ASYNC_ERROR_HANDLING", "1", "", "2.0.1"),
        ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True", "", "2.9.1"),
        ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True", "", ""),
        ("NCCL_LAUNCH_ORDER_IMPLICIT", "1", "2.27.3", ""),
        ("NCCL_FASTRAK_CTRL_DEV", "eth0", "", ""),
        ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1", "", ""),
        ("TORCH_LOGS", "recompiles", "", ""),
        ("CUDA_HOME", "/usr/local/cuda", "", ""),
    ],
)
def test_what_is_right_is_left_alone(name: str, value: str, nccl: str, torch: str) -> None:
    assert [finding.title for finding in said({name: value}, nccl, torch)] == []


def test_only_what_does_harm_is_a_warning() -> None:
    found = said({"NCCL_TIMEOUT": "1", "NCCL_SOKCET_IFNAME": "eth0", "NCCL_IB_TIMEOUT": "0"})
    assert {finding.culprits.modules[0]: finding.severity for finding in found} == {
        "NCCL_TIMEOUT": Severity.INFO,
        "NCCL_SOKCET_IFNAME": Severity.WARNING,
        "NCCL_IB_TIMEOUT": Severity.WARNING,
    }
