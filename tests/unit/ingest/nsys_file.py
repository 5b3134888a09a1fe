"""Tiny exports of Nsight Systems, in the schema that ``nsys export --type sqlite`` writes (2023.1 and 2021.3)."""

from __future__ import annotations

import sqlite3
from pathlib import Path

EPOCH_NS = 1_750_000_000_000_000_000
MS = 1_000_000
_SCHEMA = """
CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE TARGET_INFO_SYSTEM_ENV (globalVid INTEGER, devStateName TEXT NOT NULL, name TEXT NOT NULL,
  nameEnum INTEGER NOT NULL, value TEXT NOT NULL);
CREATE TABLE TARGET_INFO_GPU (vmId INTEGER NOT NULL, id INTEGER NOT NULL, name TEXT, busLocation TEXT,
  totalMemory INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
  contextId INTEGER NOT NULL, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER,
  demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
  contextId INTEGER NOT NULL, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER,
  bytes INTEGER NOT NULL, copyKind INTEGER NOT NULL, srcKind INTEGER, dstKind INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER NOT NULL,
  globalTid INTEGER, correlationId INTEGER, nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL);
CREATE TABLE NVTX_EVENTS (start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, text TEXT, globalTid INTEGER,
  endGlobalTid INTEGER, textId INTEGER, domainId INTEGER);
"""
_START = "CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER, utcTime TEXT, localTime TEXT)"
NAMES = {
    1: "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>(int)",
    2: "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    3: "cudaLaunchKernel_v7000",
    4: "cudaStreamSynchronize_v3020",
    5: "aten::mm, seq = 17",
    6: "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn",
    7: "cuLaunchKernelEx",
}


def process(pid: int) -> int:
    """A ``globalPid``: the pid in bits 24-47 (with hardware and virtual machine ids above)."""
    return (3 << 56) | (pid << 24)


def write(
    path: Path, pids: tuple[int, ...] = (4100,), *, steps: int = 6, dated: bool = True, synced: bool = False
) -> Path:
    """An export with *steps* of 100 ms of each process: a range, two kernels, an all-reduce, a copy, and if *synced* a
    call that waits for the device in the middle of each step."""
    with sqlite3.connect(path) as base:
        base.executescript(_SCHEMA)
        if dated:
            base.execute(_START)
            base.execute("INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES (?, '', '')", (EPOCH_NS,))
        base.executemany("INSERT INTO StringIds VALUES (?, ?)", NAMES.items())
        base.execute("INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES (0, 'x', 'Hostname', 1, 'node-k')")
        for device, pid in enumerate(pids):
            base.execute(
                "INSERT INTO TARGET_INFO_GPU VALUES (0, ?, 'NVIDIA H100', '0000:1b:00.0', 85520809984)", (device,)
            )
            for step in range(steps):
                _step(base, pid, device, step, synced=synced)
    base.close()
    return path


def _step(base: sqlite3.Connection, pid: int, device: int, step: int, *, synced: bool) -> None:
    begin, number, thread = 100 * MS * step, 100 * (step + 1), process(pid) | (pid & 0xFFFFFF)
    base.execute(
        "INSERT INTO NVTX_EVENTS VALUES (?, ?, 59, ?, ?, NULL, NULL, 0)",
        (begin, begin + 99 * MS, f"step {step}", thread),
    )
    base.execute("INSERT INTO NVTX_EVENTS VALUES (?, ?, 59, NULL, ?, NULL, 5, 0)", (begin + MS, begin + 2 * MS, thread))
    kernels = ((1, 3, 40, 7, 6), (2, 45, 90, 7, 1), (3, 60, 95, 13, 2))
    for offset, start, end, stream, name in kernels:
        launch = begin + offset * MS if not synced or offset == 1 else begin + (42 + offset) * MS
        base.execute(
            "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, 1, ?, ?, ?, 0)",
            (launch, launch + 10_000, thread, number + offset, 7 if offset == 3 else 3),
        )
        base.execute(
            "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, ?, 1, ?, ?, ?, ?, ?)",
            (begin + start * MS, begin + end * MS, device, stream, number + offset, process(pid), name, name),
        )
    base.execute(
        "INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (?, ?, ?, 1, 7, ?, ?, 1048576, 1, 0, 2)",
        (begin + 40 * MS, begin + 41 * MS, device, number + 9, process(pid)),
    )
    if synced:
        base.execute(
            "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, 1, ?, ?, 4, 0)",
            (begin + 2 * MS, begin + 41 * MS, thread, number + 20),
        )
