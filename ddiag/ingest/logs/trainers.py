"""Trainers' step lines (Hugging Face, torchtitan, RL trainers, one's own key=value lines) and remarks worth knowing."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from ddiag.ingest.logs.line import Line
from ddiag.ingest.logs.named_rank import rank_of
from ddiag.model.incident import Event, Metric, Seen, Value

_FLOAT = r"([-+]?(?:\d[\d,]*\.?\d*(?:[eE][-+]?\d+)?|nan|inf))"
_HF = re.compile(r"\{'(?:loss|train_runtime|eval_loss)':.*\}")
_HF_PAIR = re.compile(rf"'(loss|grad_norm|learning_rate|epoch|train_samples_per_second)': '?{_FLOAT}")
_TITAN = re.compile(rf"\bstep:\s*(\d+)\s+loss:\s*{_FLOAT}(?P<rest>.*)")
_TITAN_FIGURES = (
    ("grad_norm", re.compile(rf"grad_norm:\s*{_FLOAT}")),
    ("memory.max_reserved_gb", re.compile(r"memory:\s*([\d.]+)GiB")),
    ("memory.used_pct", re.compile(r"memory:\s*[\d.]+GiB\(([\d.]+)%\)")),
    ("tokens_per_s_per_gpu", re.compile(rf"(?:tps|wps):\s*{_FLOAT}")),
    ("tflops", re.compile(rf"tflops:\s*{_FLOAT}")),
    ("mfu_pct", re.compile(r"mfu:\s*([\d.]+)%")),
)
_TIMING = re.compile(r"\btiming(?:_s)?/([\w/]+)\s*[:=]\s*([\d.]+)")
_SEQLEN = re.compile(r"\bglobal_seqlen/(min|max|mean|minmax_diff|balanced_min|balanced_max)\s*[:=]\s*([\d.]+)")
_STEP = re.compile(r"\b(?:global_step|step|iter(?:ation)?|it)\b\s*[:=#]?\s*\[?(\d+)")
_FIGURES = (
    ("step_ms", re.compile(r"\b(?:step_time|iter_time|time_per_step|step "
        r"time|batch_time)(_ms)?\s*[:=]\s*([\d.]+)\s*(ms|s)?\b")),
    ("data_ms", re.compile(r"\b(?:data_time|dataloader_time|load_time|input_time)(_ms)?\s*[:=]\s*([\d.]+)\s*(ms|"
        r"s)?\b")),
    ("compute_ms", re.compile(r"\b(?:fwd_bwd_time|compute_time|forward_backward_time|"
        r"fwd_bwd)(_ms)?\s*[:=]\s*([\d.]+)\s*(ms|s)?\b")),
    ("log_ms", re.compile(r"\b(?:log_time|logging_time|wandb_time|monitor_time)(_ms)?\s*[:=]\s*([\d.]+)\s*(ms|s)?\b")),
)  # fmt: skip
_TOKENS = re.compile(r"\b(?:num_tokens|n_tokens|tokens_in_batch|local_tokens|tokens)\s*[:=]\s*([\d,]+)\b(?!\s*/)")
_SQUARES = re.compile(r"\b(?:sum_sq|sum_s2|seqlen_sq|sum_seqlen_sq|attn_flops)\s*[:=]\s*([\d.,e+]+)")
_BY_RANK = re.compile(
    r"\b(?P<what>tokens|seqlens?|s2|squares)[_ ](?:per|by)[_ ](?:dp_?)?rank\b\W{0,4}\[(?P<list>[\d.,\s e+]+)\]"
)
_EXPERTS = re.compile(
    r"(?:tokens[_ ]per[_ ](?:local[_ ])?expert|expert[_ ](?:load|counts?))\b[^\[]{0,24}\[(?P<list>[\d.,\s e+]+)\]",
    re.IGNORECASE,
)
_LAYER = re.compile(r"\blayer\D{0,3}(\d+)")
_SKIP = re.compile(
    r"\b(?:nan|infs?|non-?finite)\b.{0,60}\bskip(?:ping|ped|s)?\b|\bskip(?:ping|ped|s)?\b.{0,60}\b(?:nan|infs?|"
    r"non-?finite)\b",
    re.IGNORECASE,
)
_NAN = re.compile(
    r"\b(?:loss|grad\w*(?: norm)?) (?:is|became|=|:) ?(nan|inf)\b|detected (nan|inf)\b|non-?finite (?:loss|grad)",
    re.IGNORECASE,
)
_OOM_SKIP = re.compile(r"(?:\bOOM\b|out of memory).{0,60}\bskip\w*", re.IGNORECASE)
_GC = re.compile(r"\[GC\]\s*(.*?)[,. ]*([\d.]+) ?s(?:econds)?\b|\bgc\b.{0,40}\btook ([\d.]+) ?(ms|s)\b", re.IGNORECASE)
_SYNC = re.compile(r"(?P<where>[\w./\-]+\.py:\d+): UserWarning: called a synchronizing CUDA operation")
_UNUSED = "find_unused_parameters=True was specified in DDP constructor, but did not find any unused parameters"
_PARAMETERS = (
    re.compile(r"trainable params: (?P<trained>[\d,]+) \|\| all params: (?P<all>[\d,]+)"),
    re.compile(r"Number of trainable parameters = (?P<trained>[\d,]+)(?P<all>)"),
    re.compile(r"(?P<trained>)\bsize: (?P<all>[\d,]+) total parameters"),
)
_NO_CLASS = re.compile(r"Could not find the transformer layer class (?:to wrap )?['\"]?([\w.]+)['\"]? in the model")
_SHARDS = re.compile(r"Loading checkpoint shards:\s+\d+%.*?(\d+)/(\d+) \[(?:(\d+):)?(\d+):(\d+)<")


class Trainers:
    """Step lines and remarks."""

    needles: tuple[str, ...] = (
        "'loss':", "'train_runtime':", "  loss:", "timing_s/", "timing/", "global_seqlen/", "step_time", "iter_time",
        "time_per_step", "step time", "batch_time", "data_time", "dataloader_time", "load_time", "input_time",
        "fwd_bwd", "compute_time", "forward_backward_time", "log_time", "logging_time", "tokens", "sum_sq", "sum_s2",
        "seqlen", "per_rank", "by_rank", "per rank", "per_expert", "expert_load", "expert load", "expert_count",
        "expert count", "skip", "Skip", "SKIP", "[GC]", " gc ", "synchronizing CUDA", "find_unused_parameters=True",
        "FullyShardedDataParallel(", "Loading checkpoint shards", "transformer layer class", "trainable params",
        "Number of trainable", "total parameters", "loss is nan", "loss is NaN", "loss is inf", "etected nan",
        "etected NaN", "on-finite",
    )  # fmt: skip

    def __init__(self) -> None:
        self._units = self._linear = 0
        self._readers: tuple[Callable[[Line], Iterator[Seen]], ...] = (
            _hugging_face, _titan, _rl, _own_figures, _lists, _not_finite, _remarks, self._model,
        )  # fmt: skip

    def line(self, line: Line) -> Iterator[Seen]:
        for reader in self._readers:
            yield from reader(line)

    def end(self) -> Iterator[Seen]:
        if self._units:
            yield Event("trainer.fsdp_units", {"units": self._units, "per_linear": self._linear})

    def _model(self, line: Line) -> Iterator[Seen]:
        """A printed model shows where FSDP wraps; a unit around a single Linear has it on the next line."""
        if "FullyShardedDataParallel(" in line.text and "Traceback" not in line.text:
            self._units += 1
            inner = next(iter(line.following(1)), None)
            self._linear += int(
                inner is not None
                and re.search(r"_fsdp_wrapped_module\): (?:Linear|Embedding)\(", inner.text) is not None
            )
        return iter(())


def _number(text: str) -> float:
    return float(text.replace(",", ""))


def _hugging_face(line: Line) -> Iterator[Seen]:
    if _HF.search(line.text):
        names = {"train_samples_per_second": "samples_per_s"}
        yield from (Metric(names.get(name, name), _number(value)) for name, value in _HF_PAIR.findall(line.text))


def _titan(line: Line) -> Iterator[Seen]:
    if found := _TITAN.search(line.text) or _TITAN.search(line.raw):
        step = int(found[1])
        yield Metric("loss", _number(found[2]), step)
        for name, pattern in _TITAN_FIGURES:
            if figure := pattern.search(found["rest"]):
                yield Metric(name, _number(figure[1]), step)


def _rl(line: Line) -> Iterator[Seen]:
    found = [*_TIMING.findall(line.text), *((f"seqlen/{name}", value) for name, value in _SEQLEN.findall(line.text))]
    if not found:
        return
    at = _STEP.search(line.text) or _STEP.search(line.raw)
    step = int(at[1]) if at else None
    for name, value in found:
        yield Metric(
            f"{name.replace('/', '.')}" if name.startswith("seqlen/") else f"timing.{name}_s", float(value), step
        )


def _own_figures(line: Line) -> Iterator[Seen]:
    at = _STEP.search(line.text) or _STEP.search(line.raw)
    if at is None:
        return
    step, rank = int(at[1]), rank_of(line, words=True)
    for name, pattern in _FIGURES:
        if found := pattern.search(line.text):
            unit = "ms" if found[1] else found[3] or ("s" if float(found[2]) < 1000 else "ms")
            yield Metric(name, float(found[2]) * (1.0 if unit == "ms" else 1000.0), step, rank)
    for name, pattern in (("tokens", _TOKENS), ("tokens_squared", _SQUARES)):
        if found := pattern.search(line.text):
            yield Metric(name, _number(found[1]), step, rank)


def _lists(line: Line) -> Iterator[Seen]:
    if found := _BY_RANK.search(line.text):
        yield Event(
            "trainer.tokens_by_rank", {"tokens": _listed(found["list"]), "squares": found["what"] in ("s2", "squares")}
        )
    if found := _EXPERTS.search(line.text):
        layer = _LAYER.search(line.text)
        fields: dict[str, Value] = {"tokens": _listed(found["list"])}
        yield Event("moe.tokens_per_expert", fields | ({"layer": int(layer[1])} if layer else {}))


def _listed(text: str) -> list[Value]:
    return [float(part) for part in re.findall(r"\d+(?:\.\d*)?(?:e[+]?\d+)?", text)]


def _not_finite(line: Line) -> Iterator[Seen]:
    if "number of skipped iterations" in line.text:
        return
    if found := _SKIP.search(line.text):
        what = "inf" if re.search(r"\binf\b", found[0], re.IGNORECASE) else "nan"
        yield Event("trainer.nan_skip", {"what": what}, rank_of(line, words=True))
    elif found := _NAN.search(line.text):
        yield Event("trainer.nan", {"what": (found[1] or found[2] or "nan").lower()})
    if _OOM_SKIP.search(line.text):
        yield Event("trainer.oom_skip")


def _remarks(line: Line) -> Iterator[Seen]:
    text = line.text
    if _UNUSED in text:
        yield Event("ddp.unused_flag")
    if found := _NO_CLASS.search(text):
        yield Event("trainer.wrap_class_missing", {"name": found[1]})
    if found := _SYNC.search(text):
        yield Event("trainer.host_sync", {"where": found["where"]})
    if found := _GC.search(text):
        seconds = float(found[2]) if found[2] else float(found[3]) * (0.001 if found[4] == "ms" else 1.0)
        yield Event("trainer.gc", {"seconds": seconds, "reason": (found[1] or "").strip()})
    for pattern in _PARAMETERS:
        if counted := pattern.search(text):
            total, trained = (int((counted[name] or "0").replace(",", "")) for name in ("all", "trained"))
            yield Event("trainer.parameters", {"parameters": total or trained, "trainable": trained or total})
    if found := _SHARDS.search(text):
        seconds = 3600.0 * int(found[3] or 0) + 60.0 * int(found[4]) + int(found[5])
        yield Event("trainer.slow_load", {"done": int(found[1]), "total": int(found[2]), "seconds": seconds})
