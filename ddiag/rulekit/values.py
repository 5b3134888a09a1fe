"""Values of configurations as numbers and truth values, and what rules over settings and metrics share."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from ddiag.model.incident import Event, Setting
from ddiag.model.signals_incident import Metrics, Settings

_TRUE, _FALSE = {"true", "yes", "on", "1"}, {"false", "no", "off", "0", "none", "null"}


def as_number(text: str | None) -> float | None:
    """``5e8``, ``50``, ``"2e8"`` (quoted) as a number; ``auto`` and other words are None."""
    try:
        return None if text is None else float(text.strip().strip("\"'").replace("_", ""))
    except ValueError:
        return None


def as_flag(text: str | None) -> bool | None:
    word = (text or "").strip().strip("\"'").lower()
    return True if word in _TRUE else False if word in _FALSE else None


def setting(settings: Settings | None, kind: str, *keys: str) -> Setting | None:
    """The first of *keys* that is set anywhere."""
    if settings is None:
        return None
    return next((found[0] for key in keys if (found := settings.of(kind, key))), None)


def zero_number(settings: Settings | None, key: str) -> float | None:
    """A number of DeepSpeed's ``zero_optimization``."""
    found = setting(settings, "ds_config", f"zero_optimization.{key}")
    return None if found is None else as_number(found.value)


def offload_pinned(settings: Settings | None) -> dict[str, bool]:
    """By what DeepSpeed offloads to the host: whether it was told to pin it; empty where nothing says so."""
    found = {}
    for name in ("offload_optimizer", "offload_param"):
        device = setting(settings, "ds_config", f"zero_optimization.{name}.device")
        pin = setting(settings, "ds_config", f"zero_optimization.{name}.pin_memory")
        if device is not None and device.value.lower() == "cpu" and pin is not None:
            found[name] = as_flag(pin.value) is not False
    return found


def median_of(metrics: Metrics | None, name: str, *, skip: int = 0) -> float | None:
    """Median of a metric without its first *skip* values (while there are others)."""
    if metrics is None:
        return None
    values = [value for value in metrics.series(name)["value"].to_list() if value is not None and value == value]
    return statistics.median(values[skip:] or values) if values else None


def ranks_of(events: Iterable[Event]) -> tuple[int, ...]:
    """The known ranks among *events*."""
    return tuple(sorted({event.rank for event in events if event.rank is not None}))


def hosts_of(events: Iterable[Event]) -> tuple[str, ...]:
    return tuple(sorted({event.host for event in events if event.host is not None}))


def began(events: Iterable[Event]) -> int | None:
    """When the first of *events* happened, where their times are known."""
    return min((event.ts_ns for event in events if event.ts_ns is not None), default=None)
