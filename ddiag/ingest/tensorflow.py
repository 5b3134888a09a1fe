"""Reads one TensorFlow profile (``plugins/profile/<run>/<host>.xplane.pb`` or ``.trace.json.gz``) into tables.

One profile is one process: a worker of the cluster, which may drive several GPUs. Its rank is the worker's task index.
"""

from __future__ import annotations

import re

import polars as pl

from ddiag.ingest import tf_collectives
from ddiag.ingest.facts import Group
from ddiag.ingest.file_rank import rank_from_name
from ddiag.ingest.sources import PlainText, Source
from ddiag.ingest.tf_device import device_work, launches, memory
from ddiag.ingest.tf_events import Profile
from ddiag.ingest.tf_host import host_spans, step_marks
from ddiag.ingest.tf_json import read_json
from ddiag.ingest.tf_xplane import read_xplane
from ddiag.ingest.trace import Trace, UnusableError
from ddiag.ingest.wire import WireError
from ddiag.model.tables import TABLES

_READ_BYTES = 8 << 20
_TASK = r"^/job:(\w+)/replica:\d+/task:(\d+)/"
_FILE = re.compile(r"^(.*?)\.(?:xplane\.pb|trace\.json)(?:\.\w+)?$")
_FOLDERS_ABOVE = 5
"""plugins/profile/<run>/ and what stands above it: worker_3/train/plugins/profile/2026_01_01_00_00_00."""
_TIMES = ("start_ns", "end_ns", "ts_ns", "enqueue_ns")
Tables = dict[str, pl.DataFrame]


def read(source: Source, text: PlainText) -> Trace:
    """The facts of one ``trace.json``; raises :class:`UnusableError` when it holds none."""
    return _trace(source, read_json(text), is_copy=True)


def read_xplane_file(source: Source, text: PlainText) -> Trace:
    """The facts of one ``xplane.pb``; raises :class:`UnusableError` when it holds none."""
    parts = []
    while part := text.read(_READ_BYTES):
        parts.append(part)
    if text.damage:
        raise UnusableError(f"{text.damage}; names stand at the end of an xplane.pb, so nothing of it can be used")
    try:
        profile = read_xplane(b"".join(parts))
    except WireError as error:
        raise UnusableError(
            f"damaged xplane.pb ({error}): names stand at its end, so nothing of it can be used"
        ) from None
    return _trace(source, profile, is_copy=False)


def file_stem(name: str) -> str | None:
    """The host in the file name, as the profiler writes it."""
    found = _FILE.match(name)
    return found.group(1) or None if found else None


def _trace(source: Source, profile: Profile, *, is_copy: bool) -> Trace:
    _refuse_other_devices(profile)
    spans = host_spans(profile.events, profile.lines)
    marks, step_note = step_marks(spans)
    groups = tf_collectives.groups_of(profile.events)
    tables = _tables(profile, spans, marks, groups)
    if not tables:
        raise UnusableError(_why_empty(profile))
    devices = sorted({line.device for line in profile.lines if line.device is not None})
    rank, rank_from = _rank(source, profile)
    backend = _backend(tables)
    with_stack = bool((spans["kind"] == "python").any())
    return Trace(
        source=source,
        kind="tensorflow",
        framework="tensorflow",
        tables=_shifted(tables, profile.base_ns),
        rank=rank,
        rank_from=rank_from,
        world_size=_world_size(groups, len(devices)),
        backend=backend,
        host=file_stem(source.name),
        groups=groups,
        main_tid=_main_thread(tables, marks),
        device_kind=_device_kind(profile, tables),
        device_memory_bytes=profile.device_memory_bytes,
        with_stack=with_stack,
        profile_memory="memory" in tables,
        truncated=profile.truncated,
        events=profile.count,
        dropped=profile.dropped,
        recording=_recording(source),
        is_copy=is_copy,
        notes=(*profile.notes, *_notes(tables, step_note, len(devices))),
    )


def _recording(source: Source) -> str | None:
    """Folder and host: the same for a recording and the viewer's copy of it."""
    stem = file_stem(source.name)
    return source.label.removesuffix(source.name) + stem if stem is not None else None


def _tables(profile: Profile, spans: pl.DataFrame, marks: pl.DataFrame, groups: tuple[Group, ...]) -> Tables:
    kernels, copies = device_work(profile.events, profile.lines)
    calls = launches(profile.events, profile.lines, kernels, copies)
    if (kernels["kind"] == "communication").any():
        collectives = tf_collectives.kernel_calls(kernels, calls, groups)
    else:
        threads = pl.Series([tf_collectives.is_executor(line.name) for line in profile.lines], dtype=pl.Boolean)
        collectives = tf_collectives.host_calls(spans, threads.gather(spans["line"]), groups)
    found = {
        "steps": marks.select("step", "start_ns", "end_ns"),
        "ops": spans.select("tid", "kind", "name", "start_ns", "end_ns").with_columns(
            pl.lit(-1, dtype=pl.Int64).alias(name) for name in ("external_id", "sequence", "fwd_tid")
        ),
        "launches": calls,
        "kernels": kernels,
        "copies": copies,
        "memory": memory(profile.events),
        "collectives": collectives,
    }
    return {name: _typed(name, table) for name, table in found.items() if not table.is_empty()}


def _typed(name: str, table: pl.DataFrame) -> pl.DataFrame:
    """The declared columns of table *name*, but those that are settled when traces are joined."""
    return TABLES[name].conform(table).drop("rank", "seq", strict=False)


def _shifted(tables: Tables, base_ns: int | None) -> Tables:
    if base_ns is None:
        return tables
    return {
        name: table.with_columns(pl.col(column) + base_ns for column in _TIMES if column in table.columns)
        for name, table in tables.items()
    }


def _rank(source: Source, profile: Profile) -> tuple[int | None, str]:
    """The worker's index: from the names of its devices where they agree, else from the names of file and folders."""
    found = profile.events["device"].drop_nulls().str.extract_groups(_TASK).struct.unnest().drop_nulls().unique()
    if found.height == 1 and found["1"][0] in ("worker", "chief"):
        return int(found["2"][0]), "content"
    parts = [part for part in re.split(r"[/\\]", source.label) if part not in ("plugins", "profile")]
    for part in (file_stem(source.name) or source.name, *reversed(parts[:-1][-_FOLDERS_ABOVE:])):
        rank = rank_from_name(part)
        if rank is not None:
            return rank, "name"
    return None, "name"


def _world_size(groups: tuple[Group, ...], devices: int) -> int | None:
    """Workers of the job: a group counts replicas, of which a worker has one per GPU."""
    replicas = max((group.size or 0 for group in groups), default=0)
    per_worker = max(devices, 1)
    return replicas // per_worker if replicas and replicas % per_worker == 0 else None


def _backend(tables: Tables) -> str | None:
    """NCCL is seen by its kernels; collectives of the host go through TensorFlow's own gRPC ring."""
    if "collectives" not in tables:
        return None
    return "nccl" if (tables["collectives"]["source"] == "kernel").any() else "grpc"


def _main_thread(tables: Tables, marks: pl.DataFrame) -> int | None:
    """The thread that takes the steps; else the one with most launches, else with most operators."""
    for threads in (marks, tables.get("launches"), tables.get("ops")):
        if threads is not None and not threads.is_empty():
            return int(threads["tid"].value_counts(sort=True)["tid"][0])
    return None


def _device_kind(profile: Profile, tables: Tables) -> str:
    if "kernels" not in tables and "copies" not in tables:
        return "cpu"
    calls = tables["launches"]["name"].cast(pl.String) if "launches" in tables else pl.Series([""])
    amd = "AMD" in (profile.device_vendor or "").upper() or calls.str.starts_with("hip").any()
    return "rocm" if amd else "cuda"


def _refuse_other_devices(profile: Profile) -> None:
    """Without its device a run would be judged by its host alone, and wrongly."""
    other = next((line.plane for line in profile.lines if line.is_other_device), None)
    if other is not None:
        raise UnusableError(f"a profile of {other}: of TensorFlow's devices only GPUs and CPUs can be analysed")


def _why_empty(profile: Profile) -> str:
    if not profile.count:
        return "the profile holds no events (nothing ran while it was recorded?)"
    return f"none of its {profile.count:,} events is a span of a host thread or a GPU stream"


def _notes(tables: Tables, step_note: str, devices: int) -> list[str]:
    notes = [step_note] if step_note else []
    if devices and "kernels" not in tables:
        notes.append("GPUs are named but no kernel was recorded (CUPTI could not be used?): judged by the host alone")
    if devices > 1:
        notes.append(f"one process drives {devices} GPUs: their times are taken together")
    return notes
