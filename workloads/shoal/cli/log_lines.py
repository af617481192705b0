"""Reads lines of logs: when each was written and how to show it. Pure; used by `logs.py`.

Our own processes write one JSON object a line with an ISO time. nginx, Redis and libraries write plain lines in their own ways; a line whose time is
not understood belongs to the one before it (a wrapped message).
"""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from shoal.text import json_object, plain

TIME_KEYS = ("timestamp", "time", "ts")
HIDDEN_KEYS = frozenset({*TIME_KEYS, "event", "level", "role", "pod", "run", "pool", "exception"})
"""Shown elsewhere in the line, or the same in all lines of a file."""
OWN_NODE_ROLES = frozenset({"agent", "fetch", "worker"})
"""Whose lines all have the same `node`: their own."""
MAX_SHOWN = 2000
MAX_TRACEBACK_LINES = 60

_ISO = re.compile(r"^(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(?:[.,](\d{1,9}))?(Z|[+-]\d\d:?\d\d)?")
_SLASHED = re.compile(r"^(\d{4})/(\d\d)/(\d\d) (\d\d:\d\d:\d\d)")  # nginx's error log
_REDIS = re.compile(r"^\d+:[A-Z] (\d\d) ([A-Z][a-z]{2}) (\d{4}) (\d\d:\d\d:\d\d)\.(\d{3})")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


@dataclass(frozen=True)
class LogLine:
    """One line of one part. `part` is `pod/container`; `unix` is the time in the line."""

    unix: float
    part: str
    text: str


def _from_iso(text: str) -> float | None:
    found = _ISO.match(text)
    if not found:
        return None
    day, clock, fraction, zone = found.groups()
    digits = (fraction or "0")[:6].ljust(6, "0")
    zone = "+00:00" if zone == "Z" else zone or ""
    try:
        return datetime.fromisoformat(f"{day}T{clock}.{digits}{zone}").timestamp()
    except ValueError:
        return None


def _from_value(value: object) -> float | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return float(value) if 0 < value < 1e11 else None
    return _from_iso(value) if isinstance(value, str) else None


def line_time(text: str) -> float | None:
    """Seconds since 1970 that a line gives as its time, or None. Times without a zone are local, as their writers mean them."""
    if text.startswith("{"):
        document = json_object(text)
        times = (_from_value(document[key]) for key in TIME_KEYS if key in document)
        return next((time for time in times if time is not None), None)
    try:
        if found := _SLASHED.match(text):
            year, month, day, clock = found.groups()
            return datetime.fromisoformat(f"{year}-{month}-{day}T{clock}").timestamp()
        if found := _REDIS.match(text):
            day, month, year, clock, milliseconds = found.groups()
            number = _MONTHS.index(month) + 1
            return datetime.fromisoformat(f"{year}-{number:02d}-{day}T{clock}.{milliseconds}").timestamp()
    except ValueError:
        return None
    return _from_iso(text)


def dated(part: str, lines: Iterable[str], begin_unix: float = 0.0) -> Iterator[LogLine]:
    """Lines of one file with their times; never going back, so that a merge keeps the order of the file."""
    unix = begin_unix
    for line in lines:
        unix = max(unix, line_time(line) or unix)
        yield LogLine(unix, part, line)


def said(text: str) -> str:
    """A log line in one line for people: `event key=value`; a plain line as it is, without control codes. A traceback is left out."""
    document = json_object(text) if text.startswith("{") else {}
    event = document.get("event")
    if event is None:
        return plain(text, MAX_SHOWN)
    level = str(document.get("level", "info"))
    mark = "" if level in ("info", "debug") else f"{level.upper()} "
    hidden = HIDDEN_KEYS | {"node"} if document.get("role") in OWN_NODE_ROLES else HIDDEN_KEYS
    rest = " ".join(
        f"{key}={value if isinstance(value, str) else json.dumps(value)}"
        for key, value in document.items()
        if key not in hidden
    )
    return plain(f"{mark}{event} {rest}".rstrip(), MAX_SHOWN)


def show(line: LogLine) -> str:
    """`04:18:07.123 pod/container  event key=value`, and the end of the event's traceback, if it has one, in lines below."""
    stamp = datetime.fromtimestamp(line.unix, UTC).astimezone()
    shown = f"{stamp:%H:%M:%S}.{stamp.microsecond // 1000:03d} {plain(line.part, 80)}  {said(line.text)}"
    found = json_object(line.text).get("exception") if line.text.startswith("{") else None
    if not isinstance(found, str):
        return shown
    return "\n".join([shown, *(f"    {plain(each, 400)}" for each in found.splitlines()[-MAX_TRACEBACK_LINES:])])


def since_unix(text: str, now_unix: float) -> float:
    """The moment that `--since` means: `90s`, `10m`, `2h`, `1d` before now, or an ISO time. Raises ValueError."""
    if found := re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text.strip()):
        return now_unix - float(found[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[found[2]]
    unix = _from_iso(text.strip())
    if unix is None:
        raise ValueError(
            f"--since {plain(text, 60)!r}: allowed: 90s, 10m, 2h, 1d, or a time such as 2026-11-21T04:15:00"
        )
    return unix
