"""``nodes/<host>.samples``: what the supervisor saw of devices and host, as JSON lines.

The first line is the header; every other has ``t`` (Unix ns) and ``kind``:

``sample``
    ``mono`` (monotonic ns of the host) and, each absent where the machine does not tell:

    * ``cpu``: ``busy_ns``, ``idle_ns``, ``iowait_ns``, ``steal_ns``, ``switches`` (cumulative, all CPUs together),
      ``running``, ``blocked`` (processes right now), ``load1``
    * ``pressure``: ``cpu_some_us``, ``memory_some_us``, ``memory_full_us``, ``io_some_us``, ``io_full_us`` (cumulative
      stall times of /proc/pressure)
    * ``memory``: ``total_bytes``, ``available_bytes``, ``swap_used_bytes``, ``shm_used_bytes``, ``oom_kills``,
      ``major_faults`` (the last two cumulative)
    * ``cgroup``: ``throttled``, ``throttled_us`` (cumulative), ``memory_bytes``, ``oom_kills``; where memory is
      limited, ``memory_limit_bytes`` and ``memory_cached_bytes`` (of memory_bytes: file cache that is given back when
      needed)
    * ``disks``: {device: [read_bytes, written_bytes, busy_ms]} (cumulative)
    * ``net``: {interface: [rx_bytes, tx_bytes, errors, dropped]} (cumulative)
    * ``ib``: {"device/port": [rx_bytes, tx_bytes, errors, xmit_wait, xmit_discards, out_of_sequence, packet_seq_err,
      ack_timeouts, rnr_retries, cnp_sent]} (cumulative; errors: symbol, receive, link down; older files lack the last
      six, which RoCE counts)
    * ``ranks``: [[pid, rank, cpu_ns, rss_bytes, threads, state, cpu, major_faults, workers, workers_cpu_ns,
      workers_rss_bytes, workers_running, loaders, loaders_cpu_ns, loaders_runnable, loaders_blocked]]; the workers of a
      rank are its child processes, its loaders those that torch names as a data loader's (2.6 and later); blocked:
      in uninterruptible sleep, as for a disk; ``…cpu_ns`` are cumulative; older files lack the last four
    * ``others``: [processes, cpu_ns, rss_bytes] of the job that are neither
    * ``devices``: [{…}] in the order of the header's ``devices`` line, keys as in :data:`DEVICE_FIELDS`

``devices``, ``affinity``, ``topology``, ``xid``, ``nvlinks``, ``exit``, ``profile_request``, ``end``
    Facts, told once or when they change. ``xid``: {"device": index, "xid": code}. ``nvlinks``: {"device": index,
    "links": [{"link": number, "active": 0 or 1, "version": …, "…_errors": cumulative}]}. ``exit``, when a
    training process has ended: {"at": Unix ns, "pid": …, "rank": …} with its exit ``code`` or the number of the
    ``signal`` that killed it, with neither where they could not be seen.

Cumulative values begin anywhere; only differences mean something. The last line of a killed sampler may be cut short.
When the file grows too long, older samples are thinned and the file replaced whole.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ddiag.errors import InputError
from ddiag.schema.folder import check_version
from ddiag.schema.phases import FORMAT_VERSION

HEADER_KIND = "ddiag samples"

DEVICE_FIELDS: dict[str, str] = {
    "util": "% of the time in which a kernel ran (NVML's own window)",
    "mem_util": "% of the time in which device memory was read or written",
    "sm_mhz": "clock of the multiprocessors",
    "mem_mhz": "clock of the memory",
    "reasons": "bits of nvmlClocksEventReason*: why the clock is lower than it could be",
    "power_w": "power drawn",
    "temp_c": "temperature of the chip",
    "used_bytes": "device memory in use by anybody",
    "pcie_gen": "generation of the link to the host right now (drops when idle)",
    "pcie_width": "lanes right now",
    "pcie_tx_bytes": "sent by the device to the host, cumulative",
    "pcie_rx_bytes": "received by the device from the host, cumulative",
    "pcie_tx_kbps": "the same as a rate over 20 ms, where the cumulative counter is missing",
    "pcie_rx_kbps": "the same as a rate over 20 ms, where the cumulative counter is missing",
    "pcie_replays": "transfers repeated because of errors, cumulative",
    "nvlink_tx_bytes": "sent over all NVLinks, cumulative",
    "nvlink_rx_bytes": "received over all NVLinks, cumulative",
    "ecc_corrected": "memory errors since the driver was loaded",
    "ecc_uncorrected": "memory errors since the driver was loaded",
    "remapped_rows": "[corrected, uncorrected, pending, failed]",
    "energy_mj": "energy used, cumulative",
    "throttled_us": "[power, thermal, sync boost, board limit]: time lost to each, cumulative",
}
"""What a device's entry of a sample may hold; what the device or its driver does not tell is absent."""

RANK_FIELDS = (
    *("pid", "rank", "cpu_ns", "rss_bytes", "threads", "state", "cpu", "major_faults"),
    *("workers", "workers_cpu_ns", "workers_rss_bytes", "workers_running"),
    *("loaders", "loaders_cpu_ns", "loaders_runnable", "loaders_blocked"),
)


def header(*, host: str, wall_ns: int, interval_s: float, cpus: int) -> dict[str, Any]:
    """The first line."""
    return {
        "kind": HEADER_KIND,
        "format_version": FORMAT_VERSION,
        "host": host,
        "t": wall_ns,
        "interval_s": interval_s,
        "cpus": cpus,
    }


def encode(line: dict[str, Any]) -> bytes:
    return json.dumps(line, separators=(",", ":")).encode("ascii") + b"\n"


def read_samples(path: Path) -> tuple[dict[str, Any], Iterator[dict[str, Any]]]:
    """(header, the other lines); lines that cannot be read (cut short) are left out."""
    try:
        *lines, _unfinished = path.read_bytes().split(b"\n")
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from error
    first = _decode(lines[0]) if lines else None
    if first is None or first.get("kind") != HEADER_KIND or not isinstance(first.get("format_version"), int):
        raise InputError(f"{path}: not a file of samples of ddiag")
    check_version(first["format_version"], path)
    return first, (line for line in map(_decode, lines[1:]) if line is not None)


def _decode(line: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
