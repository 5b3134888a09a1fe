"""Out-of-memory texts of every torch version, wrapped or wrapped up."""

from __future__ import annotations

import pytest

from ddiag.ingest.logs.cuda import CudaMemory
from ddiag.model.signals_incident import Events
from ddiag.rulekit.oom import FOREIGN, FRAGMENTED, NEED, OUTSIDE, ooms
from tests.unit.ingest.logs.records_of import events

GIB = 1 << 30
HINT = (
    "If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid "
    "fragmentation.  See documentation for Memory Management  "
    "(https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
)
V13 = (
    "CUDA out of memory. Tried to allocate 1.50 GiB (GPU 4; 39.41 GiB total capacity; 35.00 GiB already allocated; "
    "512.00 MiB free; 37.00 GiB reserved in total by PyTorch) If reserved memory is >> allocated memory try setting "
    "max_split_size_mb to avoid fragmentation.  See documentation for Memory Management and PYTORCH_CUDA_ALLOC_CONF"
)
V03 = (
    "CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 11.17 GiB total capacity; 10.40 GiB already allocated; "
    "3.56 MiB free; 61.50 MiB cached)"
)
LIMITED = (
    "CUDA out of memory. Tried to allocate 1.00 GiB (GPU 0; 15.00 GiB total capacity; 6.00 GiB already allocated; "
    "8.00 GiB free; 7.50 GiB allowed; 6.50 GiB reserved in total by PyTorch)"
)
V21 = (
    "CUDA out of memory. Tried to allocate 336.00 MiB. GPU 2 has a total capacty of 79.15 GiB of which 141.25 MiB is "
    "free. Process 2109115 has 78.99 GiB memory in use. Of the allocated memory 77.21 GiB is allocated by PyTorch, and "
    "283.51 MiB is reserved by PyTorch but unallocated. " + HINT
)
V23 = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU  has a total capacity of 79.11 GiB of which 1.02 GiB is free. "
    "Including non-PyTorch memory, this process has 78.08 GiB memory in use. Of the allocated memory 70.30 GiB is "
    "allocated by PyTorch, with 1.25 GiB allocated in private pools (e.g., CUDA Graphs), and 5.00 GiB is reserved by "
    "PyTorch but unallocated. " + HINT
)
HIP = V23.replace("CUDA out of memory", "HIP out of memory")


@pytest.mark.parametrize(
    ("text", "device", "capacity", "allocated"),
    [
        (f"RuntimeError: {V03}", 0, 11.17, 10.40),
        (f"RuntimeError: {V13}", 4, 39.41, 35.0),
        (f"torch.cuda.OutOfMemoryError: {V13}", 4, 39.41, 35.0),
        (f"RuntimeError: {LIMITED}", 0, 15.0, 6.0),
        (f"torch.cuda.OutOfMemoryError: {V21}", 2, 79.15, 77.21),
        (f"torch.OutOfMemoryError: {V23}", None, 79.11, 70.30),
        (f"torch.OutOfMemoryError: {HIP}", None, 79.11, 70.30),
    ],
)
def test_every_version_tells_device_capacity_and_allocation(
    text: str, device: int | None, capacity: float, allocated: float
) -> None:
    (event,) = events(text, CudaMemory)
    assert event.get("device") == device
    assert (event.number("capacity_bytes") or 0) / GIB == pytest.approx(capacity, abs=0.001)
    assert (event.number("allocated_bytes") or 0) / GIB == pytest.approx(allocated, abs=0.001)
    assert event.get("handled") is False


ENVELOPES = ("[rank6]: ", "6: ", "[1,6]<stderr>:", "\x1b[36m(Worker pid=3)\x1b[0m ", "12%|##  | 3/9 ")


@pytest.mark.parametrize("envelope", ENVELOPES)
def test_an_envelope_does_not_hide_it(envelope: str) -> None:
    (event,) = events(f"{envelope}torch.OutOfMemoryError: {V23}", CudaMemory)
    assert event.integer("tried_bytes") == 2 * GIB


@pytest.mark.parametrize("width", [60, 80, 113, 200])
def test_a_terminal_may_have_wrapped_it(width: int) -> None:
    text = f"torch.OutOfMemoryError: {V23}"
    (event,) = events("\n".join(text[at : at + width] for at in range(0, len(text), width)), CudaMemory)
    assert event.integer("tried_bytes") == 2 * GIB
    assert event.integer("unallocated_bytes") == 5 * GIB


def test_in_a_container_the_own_process_is_listed_by_a_foreign_number() -> None:
    (event,) = events(V21, CudaMemory)
    assert event.get("others") == []
    assert (event.number("process_bytes") or 0) / GIB == pytest.approx(78.99, abs=0.001)


def test_others_are_listed_beside_this_process() -> None:
    text = V23.replace(
        "Including", "Process 77 has 3.00 GiB memory in use. Process 78 has 1.00 GiB memory in use. Including"
    )
    (event,) = events(text, CudaMemory)
    assert event.get("others") == [{"pid": 77, "bytes": 3 * GIB}, {"pid": 78, "bytes": GIB}]


def test_a_program_that_skips_the_batch_goes_on() -> None:
    (event,) = events(f"WARNING: ran out of memory, skipping batch: {V13}", CudaMemory)
    assert event.get("handled") is True


def test_an_absurd_request_is_no_need() -> None:
    (event,) = events("RuntimeError: CUDA out of memory. Tried to allocate more than 1EB memory.", CudaMemory)
    assert event.get("corrupt_size") is True


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("RuntimeError: CUDA error: out of memory", "cuda_error"),
        ("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", "cublas"),
        ("RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED", "cudnn"),
    ],
)
def test_what_fails_below_the_allocator(line: str, what: str) -> None:
    (event,) = events(line, CudaMemory)
    assert (event.kind, event.get("what")) == ("cuda.oom_driver", what)


def test_pinning_that_fails_is_told_by_the_traceback_above() -> None:
    text = '  File "x.py", line 3, in setup\n    buffer = tensor.pin_memory()\nRuntimeError: CUDA error: out of memory'
    (event,) = events(text, CudaMemory)
    assert event.get("what") == "pinned"


def test_a_memory_summary_gives_retries() -> None:
    text = """|===========================================================================|
|                  PyTorch CUDA memory summary, device ID 1                 |
|---------------------------------------------------------------------------|
|            CUDA OOMs: 0            |        cudaMalloc retries: 17        |
|===========================================================================|
|        Metric         | Cur Usage  | Peak Usage | Tot Alloc  | Tot Freed  |
|---------------------------------------------------------------------------|
| Allocated memory      |  12288 MiB |  70011 MiB |    910 TiB |    910 TiB |
|---------------------------------------------------------------------------|
| GPU reserved memory   |  74000 MiB |  74000 MiB |    102 GiB |     28 GiB |"""
    (event,) = events(text, CudaMemory)
    assert (event.integer("device"), event.integer("retries")) == (1, 17)
    assert event.integer("allocated_bytes") == 12288 << 20
    assert event.integer("reserved_bytes") == 74000 << 20


def _reason(text: str) -> str:
    (one,) = ooms(Events(tuple(events(text, CudaMemory))))
    return one.reason


def _text(tried: float, free: float, allocated: float, unallocated: float, own: float, other: float = 0.0) -> str:
    process = f"Process 9 has {other:.2f} GiB memory in use. " if other else ""
    return (
        f"CUDA out of memory. Tried to allocate {tried:.2f} GiB. GPU 0 has a total capacity of 80.00 GiB of which "
        f"{free:.2f} GiB is free. {process}Including non-PyTorch memory, this process has {own:.2f} GiB memory in "
        f"use. Of "
        f"the allocated memory {allocated:.2f} GiB is allocated by PyTorch, and {unallocated:.2f} GiB is reserved "
        f"by PyTorch "
        "but unallocated."
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (_text(2, 1, 70, 7, 79), NEED),
        (_text(2, 1, 68, 9, 79), FRAGMENTED),
        (_text(12, 1, 68, 9, 79), NEED),
        (_text(2, 1, 60, 1, 63, 16), FOREIGN),
        (_text(40, 1, 60, 1, 63, 16), NEED),
        (_text(2, 1, 60, 1, 63, 3), FOREIGN),
        (_text(2, 1, 70, 1, 79), OUTSIDE),
        (_text(2, 1, 74, 1, 79), NEED),
    ],
)
def test_the_reason_is_what_would_have_let_the_request_succeed(text: str, reason: str) -> None:
    assert _reason(text) == reason


def test_in_old_texts_memory_nobody_accounts_for_is_somebody_elses() -> None:
    text = (
        "CUDA out of memory. Tried to allocate 1.00 GiB (GPU 0; 80.00 GiB total capacity; 20.00 GiB already allocated; "
        "0 bytes free; 21.00 GiB reserved in total by PyTorch)"
    )
    assert _reason(text) == FOREIGN
