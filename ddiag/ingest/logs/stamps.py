"""Time stamps as programs print them, each with the clock it is on."""

from __future__ import annotations

import re
from calendar import timegm
from time import gmtime

from ddiag.model.incident import BOOT, EPOCH, LOCAL, UNDATED, YEARLESS, YEARLESS_YEAR

_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_MON = f"(?:{'|'.join(_MONTHS)})"
_HMS = r"(\d{2}):(\d{2}):(\d{2})(?:[.,](\d{1,12}))?"
SECOND = 1_000_000_000
LOOKED_AT = 400
"""Characters of a line in which a stamp is looked for: bars and envelopes may stand before it."""

_GLOG = re.compile(rf"\[[VIWEF](\d{{1,2}})(\d{{2}}) {_HMS} ")
"""c10 (torch >= 2.4): month without padding, local time, no year."""
_PYGLOG = re.compile(rf"(?<![\w.])[VIWEF](\d{{2}})(\d{{2}}) {_HMS}\s+\d+ ")
"""torch's Python loggers (torch >= 2.3)."""
_ISO = re.compile(
    r"(?<!\d)((?:19|20)\d{2})([-/.])(\d{1,2})\2(\d{1,2})[T _](\d{2}):(\d{2})"
    r"(?::(\d{2})(?:[.,](\d{1,9}))?)?(?!\d)(?:\s?(Z|UTC|GMT|[+-]\d{2}:?\d{2})(?![\d\w]))?"
)
_CTIME = re.compile(
    rf"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) ({_MON})\s+(\d{{1,2}}) {_HMS}(?: ([A-Z]{{3,4}}))? ((?:19|20)\d{{2}})"
)
_SYSLOG = re.compile(rf"(?<!\w)({_MON})\s+(\d{{1,2}}) {_HMS}(?!\d)")
_US = re.compile(rf"(?<!\d)(\d{{2}})/(\d{{2}})/(\d{{4}}|\d{{2}})[ ,]+{_HMS}")
_DETECTRON = re.compile(rf"\[(\d{{2}})/(\d{{2}}) {_HMS}[ \]]")
_BOOT = re.compile(r"^(?:<\d+>)?\[\s*(\d+)\.(\d{6})\] ")
_EPOCH = re.compile(r"^\s*\[?(1[4-9]\d{8})(?:\.(\d{1,9})|(\d{3}|\d{6}|\d{9}))?(?![\d.])")

Stamp = tuple[int | None, str]
NONE: Stamp = (None, UNDATED)


def stamp_of(text: str) -> Stamp:
    """The first time stamp near the start of *text*: (ns on its clock, clock), or (None, '')."""
    text = text[:LOOKED_AT]
    if ":" not in text and "." not in text and not text[:1].isdigit():
        return NONE
    for pattern, read in _READERS:
        if (found := pattern.search(text)) and (stamp := read(found)) is not None:
            return stamp
    return NONE


def finer(inner: Stamp, outer: Stamp) -> Stamp:
    """One stamp of a line that its program and a log shipper stamped: the shipper knows the year, the program the
    nanosecond. Where they disagree by more than two seconds (another zone, a delay) the shipper's orders the file."""
    if outer[0] is None or inner[0] is None:
        return inner if outer[0] is None else outer
    if inner[1] == YEARLESS and outer[1] in (LOCAL, EPOCH):
        inner = with_year(inner[0], year_of(outer[0])), outer[1]
    close = inner[1] == outer[1] and abs((inner[0] or 0) - outer[0]) <= 60 * SECOND
    return inner if close else outer


def year_of(ts_ns: int) -> int:
    return gmtime(ts_ns // SECOND).tm_year


def with_year(ts_ns: int, year: int) -> int:
    """A stamp without a year (kept as one of ``YEARLESS_YEAR``) in *year*."""
    whole, fraction = divmod(ts_ns, SECOND)
    return timegm((year, *gmtime(whole)[1:6])) * SECOND + fraction


def _ns(date: tuple[int, int, int], hour: str, minute: str, second: str, fraction: str | None) -> int | None:
    year, month, day = date
    if not (1 <= month <= 12 and 1 <= day <= 31 and int(hour) < 24 and int(minute) < 60):
        return None
    whole = timegm((year, month, day, int(hour), int(minute), int(second)))
    return whole * SECOND + _fraction(fraction)


def _fraction(digits: str | None) -> int:
    return int((digits or "0").ljust(9, "0")[:9])


def _yearless(found: re.Match[str]) -> Stamp | None:
    month, day, *time = found.groups()
    number = int(month) if month.isdigit() else _MONTHS.index(month) + 1
    ts_ns = _ns((YEARLESS_YEAR, number, int(day)), *time)
    return None if ts_ns is None else (ts_ns, YEARLESS)


def _iso(found: re.Match[str]) -> Stamp | None:
    year, _, month, day, hour, minute, second, fraction, zone = found.groups()
    ts_ns = _ns((int(year), int(month), int(day)), hour, minute, second or "0", fraction)
    if ts_ns is None:
        return None
    return (ts_ns - _zone_ns(zone), EPOCH) if zone else (ts_ns, LOCAL)


def _zone_ns(zone: str) -> int:
    if zone[0] not in "+-":
        return 0
    seconds = int(zone[1:3]) * 3600 + int(zone[-2:]) * 60
    return (-seconds if zone[0] == "-" else seconds) * SECOND


def _ctime(found: re.Match[str]) -> Stamp | None:
    month, day, hour, minute, second, fraction, zone, year = found.groups()
    ts_ns = _ns((int(year), _MONTHS.index(month) + 1, int(day)), hour, minute, second, fraction)
    return None if ts_ns is None else (ts_ns, EPOCH if zone in ("UTC", "GMT") else LOCAL)


def _american(found: re.Match[str]) -> Stamp | None:
    month, day, year, *time = found.groups()
    ts_ns = _ns((int(year) % 100 + 2000, int(month), int(day)), *time)
    return None if ts_ns is None else (ts_ns, LOCAL)


def _boot(found: re.Match[str]) -> Stamp:
    return int(found[1]) * SECOND + int(found[2]) * 1000, BOOT


def _epoch(found: re.Match[str]) -> Stamp:
    return int(found[1]) * SECOND + _fraction(found[2] or found[3]), EPOCH


_READERS = (
    (_GLOG, _yearless),
    (_PYGLOG, _yearless),
    (_ISO, _iso),
    (_CTIME, _ctime),
    (_SYSLOG, _yearless),
    (_US, _american),
    (_DETECTRON, _yearless),
    (_BOOT, _boot),
    (_EPOCH, _epoch),
)
