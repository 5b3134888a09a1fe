"""The look at this node: what it says is true of this machine, and GPUs are read through a library compiled here."""

from __future__ import annotations

import json
import os
import resource
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ddiag.schema.node import UNLIMITED, CouldNot, Fact, NodeReport, from_json, to_json
from ddiag.supervise.survey import survey
from ddiag.supervise.survey.collect import survey as survey_with
from tests.unit.supervise.conftest import StubbedDevices

GPUS = """
import json
from ddiag.supervise.survey import gpus
from dataclasses import asdict
print(json.dumps([asdict(one) for one in gpus.facts()]))
"""


@pytest.fixture(scope="module")
def here() -> NodeReport:
    return survey()


def test_limits_are_those_of_this_process(here: NodeReport) -> None:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert here.get("limit.nofile") == (UNLIMITED if soft == resource.RLIM_INFINITY else soft)
    assert here.get("cpu.allowed") == len(os.sched_getaffinity(0))
    assert here.host == socket.gethostname()


def test_shared_memory_is_what_the_file_system_says(here: NodeReport) -> None:
    shm = os.statvfs("/dev/shm")
    assert here.get("shm.size_bytes") == shm.f_blocks * shm.f_frsize


def test_the_working_folder_and_the_temporary_one_are_looked_at(here: NodeReport) -> None:
    assert {str(Path(tempfile.gettempdir()).resolve()), str(Path.cwd())} <= {
        path for path, _ in here.of("disk.free_bytes")
    }


def test_loopback_is_up_and_nobody_outside_reaches_it(here: NodeReport) -> None:
    assert here.get("net.up", "lo") is True
    assert here.get("net.addressed", "lo") is False


def test_a_listening_default_port_is_seen() -> None:
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            server.bind(("127.0.0.1", 29500))
        except OSError:
            pytest.skip("port 29500 is taken")
        server.listen()
        assert survey().get("net.default_port_in_use") is True


def test_secrets_of_the_environment_stay_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    monkeypatch.setenv("SLURM_JWT_TOKEN", "abc123secret")
    text = to_json(survey())
    assert '"NCCL_DEBUG"' in text
    assert "abc123secret" not in text


def test_a_part_that_fails_costs_only_itself() -> None:
    def broken() -> Iterator[Fact | CouldNot]:
        yield Fact("a", 1)
        raise OSError("device busy")

    report = survey_with((("broken part", broken), ("other", lambda: iter((Fact("b", 2),)))))
    assert (report.get("a"), report.get("b")) == (1, 2)
    assert report.could_not == (CouldNot("broken part", "device busy"),)


def test_a_report_survives_its_file(here: NodeReport) -> None:
    again = from_json(to_json(here), "node.json")
    assert (again.host, again.facts, again.could_not) == (here.host, here.facts, here.could_not)


def _gpus(stubbed: StubbedDevices, **values: object) -> dict[tuple[str, str | None], Any]:
    healthy = {"driver": "570.86.15", "count": 2, "_0__name": "H100", "_1__name": "H100", "_0__pcie_width": 8}
    stubbed.write(**{**healthy, "_0__max_pcie_width": 16, "_0__p2p": 0, "_1__p2p": 0, **values})
    found = json.loads(stubbed.python(GPUS))
    return {(one.get("key") or one["what"], one.get("device")): one.get("value", one.get("why")) for one in found}


def test_gpus_are_read_with_link_and_reach(stubbed: StubbedDevices) -> None:
    found = _gpus(stubbed, _0__nvlink0=1, _0__nvlink1=0)
    assert found["gpu.count", None] == 2
    assert (found["gpu.pcie.width.current", "gpu0"], found["gpu.pcie.width.max", "gpu0"]) == (8, 16)
    assert found["gpu.p2p.pairs_without", None] == 0
    assert (found["gpu.nvlink.up", "gpu0"], found["gpu.nvlink.down", "gpu0"]) == (1, 1)


def test_a_pair_that_does_not_reach_each_other_is_named(stubbed: StubbedDevices) -> None:
    assert _gpus(stubbed, _0__p2p=4)["gpu.p2p.without", None] == "gpu0-gpu1"


def test_a_driver_without_that_question_is_said(stubbed: StubbedDevices) -> None:
    found = _gpus(stubbed, _0__p2p="unsupported")
    assert ("which GPUs reach each other (P2P)", None) in found
    assert ("gpu.p2p.pairs_without", None) not in found
