"""The run as a trace for Perfetto (ui.perfetto.dev): all ranks on one clock, with steps, waits and findings."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import polars as pl

from ddiag.model.run import Run
from ddiag.model.signals import JobFacts, Signals
from ddiag.reporters.perfetto_spans import FINDINGS_LANE, LANE_ORDER, SPAN_COLUMNS, counters, derived, recorded
from ddiag.reporters.words import clean, cost_words
from ddiag.rulekit.diagnosis import Diagnosis
from ddiag.rulekit.finding import Finding

MOST_SPANS = 1_500_000
"""Perfetto's UI gets slow beyond a few million slices."""
FINDINGS_PID = 1
_FIRST_RANK_PID = 2


@dataclass(frozen=True)
class PerfettoReporter:
    """Chrome JSON trace. *offset_ns* per rank is subtracted from its times (see ``ddiag.analysis.clock``)."""

    offset_ns: Mapping[int, int] = field(default_factory=dict)
    most_spans: int = MOST_SPANS

    def render(self, diagnosis: Diagnosis, signals: Signals, run: Run) -> str:
        """The trace as JSON text; what was left out is told in ``otherData``."""
        spans = self._spans(signals, run)
        if spans.is_empty():
            return _document([], 0, {"ddiag": diagnosis.ddiag_version})
        start = min(int(value) for value in spans.select(pl.col("start_ns").min()).row(0))
        pids = {rank: _FIRST_RANK_PID + index for index, rank in enumerate(_ranks(spans, signals))}
        lanes = _lanes(spans)
        events = [
            *_names(signals, pids, lanes),
            *_rendered(spans, lanes, pids, start),
            *_arrows(spans, lanes, pids, start),
            *self._counters(signals, pids, start),
            *_findings(diagnosis.findings, spans, pids, start),
        ]
        about = {"ddiag": diagnosis.ddiag_version, "verdict": clean(diagnosis.verdict.headline)}
        left_out = self.left_out(run)
        return _document(events, start, {**about, "left_out": left_out} if left_out else about)

    def left_out(self, run: Run) -> str:
        """What the trace does not show of *run*, in words; empty when it shows all."""
        parts = []
        python = run.table("ops").filter(pl.col("kind").cast(pl.String) == "python").height
        if python:
            parts.append(f"{python:,} Python frames")
        total = recorded(run).height
        if total > self.most_spans:
            parts.append(f"the {total - self.most_spans:,} shortest of {total:,} spans")
        return " and ".join(parts)

    def _spans(self, signals: Signals, run: Run) -> pl.DataFrame:
        """Recorded and derived spans on the common clock."""
        spans = recorded(run)
        if spans.height > self.most_spans:
            spans = spans.top_k(self.most_spans, by=pl.col("end_ns") - pl.col("start_ns"))
        spans = pl.concat([spans, derived(signals)]).select(list(SPAN_COLUMNS))
        shift = pl.col("rank").replace_strict(dict(self.offset_ns), default=0, return_dtype=pl.Int64)
        return spans.with_columns(start_ns=pl.col("start_ns") - shift, end_ns=pl.col("end_ns") - shift).sort(
            "rank", "start_ns", pl.col("start_ns") - pl.col("end_ns"), "lane", "name", maintain_order=True
        )

    def _counters(self, signals: Signals, pids: Mapping[int, int], start: int) -> Iterator[str]:
        for rank, name, ts_ns, value in counters(signals).iter_rows():
            at = max(ts_ns - self.offset_ns.get(rank, 0) - start, 0) / 1000
            event = {"ph": "C", "name": name, "pid": pids.get(rank, FINDINGS_PID), "ts": at}
            yield json.dumps({**event, "args": {"MiB": round(value, 3)}}, ensure_ascii=False)


def _ranks(spans: pl.DataFrame, signals: Signals) -> list[int]:
    facts = signals.get(JobFacts)
    return sorted({*spans["rank"].unique().to_list(), *(facts.ranks if facts is not None else ())})


def _lanes(spans: pl.DataFrame) -> pl.DataFrame:
    """rank, lane_kind, lane, tid: threads numbered within their rank, in the order they are shown."""
    kinds = {kind: index for index, kind in enumerate(LANE_ORDER)}
    return (
        spans.select("rank", "lane_kind", "lane")
        .unique()
        .with_columns(order=pl.col("lane_kind").replace_strict(kinds, return_dtype=pl.Int32))
        .sort("rank", "order", "lane")
        .with_columns(tid=pl.int_range(2, pl.len() + 2).over("rank"))  # tid 1 holds the findings
    )


def _names(signals: Signals, pids: Mapping[int, int], lanes: pl.DataFrame) -> Iterator[str]:
    """Process and thread names, and the order in which they are shown."""
    facts = signals.get(JobFacts)
    host_of = facts.host_of if facts is not None else {}
    yield from _named(FINDINGS_PID, "process", "ddiag findings", order=-1)
    for rank, pid in pids.items():
        host = f" ({clean(host_of[rank])})" if rank in host_of else ""
        yield from _named(pid, "process", f"rank {rank}{host}", order=rank)
        yield from _named(pid, "thread", FINDINGS_LANE, order=0, tid=1)
    for rank, lane, tid in lanes.select("rank", "lane", "tid").iter_rows():
        yield from _named(pids[rank], "thread", lane, order=tid, tid=tid)


def _named(pid: int, what: str, name: str, *, order: int, tid: int = 0) -> Iterator[str]:
    base: dict[str, object] = {"ph": "M", "pid": pid, "tid": tid, "ts": 0}
    yield json.dumps({**base, "name": f"{what}_name", "args": {"name": name}})
    yield json.dumps({**base, "name": f"{what}_sort_index", "args": {"sort_index": order}})


def _rendered(spans: pl.DataFrame, lanes: pl.DataFrame, pids: Mapping[int, int], start: int) -> Sequence[str]:
    """Each span as a complete event; columns are joined as text, because there may be a million."""
    names = spans["name"].unique().to_list()
    quoted = pl.col("name").replace_strict(names, [json.dumps(name, ensure_ascii=False) for name in names])
    begin, length = pl.col("start_ns") - start, (pl.col("end_ns") - pl.col("start_ns")).clip(lower_bound=0)
    event = pl.concat_str(
        pl.lit('{"ph":"X","name":'),
        quoted,
        pl.lit(',"cat":"'),
        pl.col("cat"),
        pl.lit('","pid":'),
        pl.col("rank").replace_strict(dict(pids), return_dtype=pl.Int64),
        pl.lit(',"tid":'),
        pl.col("tid"),
        pl.lit(',"ts":'),
        _microseconds(begin),
        pl.lit(',"dur":'),
        _microseconds(length),
        pl.lit(',"args":'),
        pl.col("args"),
        pl.lit("}"),
    )
    numbered = spans.join(lanes, on=["rank", "lane_kind", "lane"], how="left", maintain_order="left")
    return numbered.select(event).to_series().to_list()


def _arrows(spans: pl.DataFrame, lanes: pl.DataFrame, pids: Mapping[int, int], start: int) -> Sequence[str]:
    """From each call to the first device work it launched, as Kineto draws them."""
    linked = spans.filter(pl.col("correlation") >= 0).join(lanes, on=["rank", "lane_kind", "lane"], how="left")
    linked = linked.sort("rank", "start_ns", "lane", maintain_order=True)
    is_call, key = pl.col("cat") == "cuda_runtime", ["rank", "correlation"]
    calls, work = (linked.filter(part).unique(key, keep="first", maintain_order=True) for part in (is_call, ~is_call))
    both = calls.join(work, on=key, suffix="_work", maintain_order="left").with_row_index("id", 1)
    pid = pl.col("rank").replace_strict(dict(pids), return_dtype=pl.Int64)
    ends = []
    for phase, side in (('"ph":"s"', ""), ('"ph":"f","bp":"e"', "_work")):
        parts = (
            pl.lit(f'{{{phase},"name":"ac2g","cat":"ac2g","id":'), pl.col("id"), pl.lit(',"pid":'), pid,
            pl.lit(',"tid":'), pl.col(f"tid{side}"), pl.lit(',"ts":'), _microseconds(pl.col(f"start_ns{side}") - start),
            pl.lit("}"),
        )  # fmt: skip
        ends += both.select(pl.concat_str(*parts)).to_series().to_list()
    return ends


def _microseconds(ns: pl.Expr) -> pl.Expr:
    """Nanoseconds as decimal microseconds without loss."""
    return pl.format("{}.{}", ns // 1000, (ns % 1000).cast(pl.String).str.zfill(3))


def _findings(findings: Sequence[Finding], spans: pl.DataFrame, pids: Mapping[int, int], start: int) -> Iterator[str]:
    """A slice per finding over the steady steps: on the findings track, and on each culprit's own."""
    steady = spans.filter((pl.col("lane_kind") == "steps") & ~pl.col("name").str.ends_with("(left out)"))
    shown = steady if steady.height else spans
    begin, end = int(shown.select(pl.col("start_ns").min()).item()), int(shown.select(pl.col("end_ns").max()).item())
    for tid, finding in enumerate(findings, start=1):
        name = clean(f"{finding.rule} {finding.severity.value}: {finding.title}")
        yield from _named(FINDINGS_PID, "thread", f"{finding.rule} {finding.severity.value}", order=tid, tid=tid)
        event = {
            "ph": "X", "name": name, "cat": "ddiag", "ts": (begin - start) / 1000, "dur": (end - begin) / 1000,
            "args": {
                "severity": finding.severity.value, "confidence": finding.confidence.value,
                "cost": cost_words(finding.cost), "fix": [clean(step) for step in finding.fix],
                "verify": clean(finding.verify),
            },
        }  # fmt: skip
        yield json.dumps({**event, "pid": FINDINGS_PID, "tid": tid}, ensure_ascii=False)
        for rank in finding.culprits.ranks:
            if rank in pids:
                mark = {"ph": "i", "s": "t", "name": name, "cat": "ddiag", "ts": (begin - start) / 1000}
                yield json.dumps({**mark, "pid": pids[rank], "tid": 1}, ensure_ascii=False)


def _document(events: Sequence[str], start: int, about: Mapping[str, str]) -> str:
    head = json.dumps(
        {"displayTimeUnit": "ms", "baseTimeNanoseconds": start, "otherData": dict(about)}, ensure_ascii=False
    )
    return f'{head[:-1]}, "traceEvents": [\n' + ",\n".join(events) + "\n]}\n"
