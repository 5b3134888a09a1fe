"""All parts of the look, one after the other; a part that fails costs only itself."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator

from ddiag.schema.node import CouldNot, Fact, NodeReport
from ddiag.supervise.survey import gpus, links, machine, network, software, storage

Part = Callable[[], Iterator[Fact | CouldNot]]
PARTS: tuple[tuple[str, Part], ...] = (
    ("limits and CPUs", machine.facts),
    ("storage", storage.facts),
    ("network interfaces", network.facts),
    ("PCI and RDMA", links.facts),
    ("software", software.facts),
    ("GPUs", gpus.facts),
)


def survey(parts: tuple[tuple[str, Part], ...] = PARTS) -> NodeReport:
    """What this node is like now."""
    facts: list[Fact] = []
    could_not: list[CouldNot] = []
    for what, part in parts:
        try:
            for one in part():
                (facts if isinstance(one, Fact) else could_not).append(one)  # type: ignore[arg-type]
        except (OSError, ValueError) as error:
            could_not.append(CouldNot(what, str(error)))
    return NodeReport(socket.gethostname(), time.time_ns(), tuple(facts), tuple(could_not))
