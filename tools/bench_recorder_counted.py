"""The job whose instructions ``tools.bench_recorder`` has counted: one rank under Valgrind's callgrind.

Instructions do not depend on what else the machine does. The recorder's are counted in a narrow copy of the training,
which makes the same calls, since Valgrind takes minutes for the arithmetic of a real step.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

from tools.bench_recorder_job import OFF, Training, recording
from tools.bench_recorder_parts import Switch

WARM, COUNTED = 3, 3
CALLS = 100
NARROW = {"width": 16, "rows": 8, "bucket_mb": 0.0005}
"""Each layer is still a bucket of its own."""
FEW_ROWS, MORE_ROWS = 8, 24
"""What a step of the real width takes grows evenly with the rows of its batch."""


class Counter:
    """Has callgrind write what was executed, under a name."""

    def __init__(self, library: str) -> None:
        self._library = ctypes.CDLL(library)
        self._library.part.argtypes = [ctypes.c_char_p]
        self._library.begin()

    def count(self, name: str, call: Callable[[], object]) -> None:
        self._library.zero()
        call()
        self._library.part(name.encode())


def whole_steps(counter: Counter) -> None:
    """Steps of the real width, without the recorder."""
    training = Training("cpu", rows=FEW_ROWS)
    for _ in range(2):
        training.step()
    counter.count("few rows", training.step)
    training.batch = training.batch.repeat(MORE_ROWS // FEW_ROWS, 1)
    counter.count("more rows", training.step)


def narrow_steps(counter: Counter, mode: str, out: Path) -> None:
    with recording(mode, out) as active:
        training = Training("cpu", **NARROW)  # type: ignore[arg-type]
        for _ in range(WARM):
            training.step()
        if active is None:
            for _ in range(COUNTED):
                counter.count("step off", training.step)
            return
        switch = Switch(mode, active)
        with switch.held():
            for kind in [kind for kind in switch.kinds if kind in ("on", "looked")]:
                switch.to(kind)
                for _ in range(COUNTED):
                    counter.count(f"step {kind}", training.step)


def calls(counter: Counter, mode: str, out: Path) -> None:
    """Collectives with everything that follows from them, waits for them, and phase marks."""
    tensor = torch.ones(8)
    with recording(mode, out) as active:
        for name in ("warm", mode if active is None else "on"):
            works: list[dist.Work] = []

            def issue(works: list[dist.Work] = works) -> None:
                works += [dist.all_reduce(tensor, async_op=True) for _ in range(CALLS)]
                time.sleep(4)

            counter.count(f"collectives {name}", issue)
            counter.count(f"waits {name}", lambda works=works: [work.wait() for work in works])  # type: ignore[misc]
        if active is None:
            return
        from ddiag.schema.phases import Phase

        counter.count("marks on", lambda: [active.leave(active.enter(Phase.LOGGING)) for _ in range(CALLS)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--mode", required=True)
    parser.add_argument("--library", required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    gc.disable()  # when it comes by would be chance
    dist.init_process_group("gloo")
    counter = Counter(options.library)
    for mode in (OFF, options.mode):
        narrow_steps(counter, mode, options.out)
        calls(counter, mode, options.out)
    whole_steps(counter)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
