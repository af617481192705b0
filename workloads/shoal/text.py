"""Words and numbers for people: makes foreign text harmless, and formats figures the same way everywhere.

Comes in: anything that a process, a manifest or a stranger's machine wrote. Goes out: short printable text without control codes, which is safe
in a terminal; callers put it into `rich.text.Text`, never into markup. Called by every module of `cli` and `report` that shows something. Pure.
"""

import math
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence

SPARKS = "▁▂▃▄▅▆▇█"
NONE = "-"
"""Shown where a figure is not known (yet)."""


def plain(value: object, limit: int = 120) -> str:
    """`value` as one line of printable text, at most `limit` characters.

    Control, format (bidirectional overrides, zero-width), surrogate, private and unassigned characters and line separators become `\\x1b`-like
    escapes: a terminal must not obey them, and a reader should see that they were there.
    """
    out: list[str] = []
    room = limit
    for character in str(value)[: limit + 1]:
        hidden = unicodedata.category(character)[0] == "C" or unicodedata.category(character) in ("Zl", "Zp")
        piece = _escape(character) if hidden else character
        room -= len(piece)
        if room < 0:
            while out and sum(map(len, out)) > limit - 3:
                out.pop()
            return "".join(out) + "..."
        out.append(piece)
    return "".join(out)


HIDDEN = "***"
_SECRET_NAME = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|(^|_)(API_?)?KEY(_|$)", re.IGNORECASE)
_SHORTEST_SECRET = 6
"""Characters; a shorter value is a setting, and hiding it would make holes in every line."""
_LOGIN = re.compile(r"(?<=://)[^/\s@\"']+(?=@)")


def secret_values(variables: Mapping[str, str]) -> list[str]:
    """The values of environment variables whose names say that they are secret, the longest first."""
    found = {value for name, value in variables.items() if _SECRET_NAME.search(name) and len(value) >= _SHORTEST_SECRET}
    return sorted(found, key=len, reverse=True)


def without_secrets(text: str, secrets: Iterable[str]) -> str:
    """The text without these values, and without user and password of any URL."""
    for secret in secrets:
        text = text.replace(secret, HIDDEN)
    return _LOGIN.sub(HIDDEN, text) if "@" in text else text


def _escape(character: str) -> str:
    code = ord(character)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def number(value: float | None, digits: int = 3) -> str:
    """A figure with `digits` decimals; small ones in scientific notation; `-` for None or a value that is not finite."""
    if value is None or not math.isfinite(value):
        return NONE
    if value != 0 and abs(value) < 0.5 * 10**-digits:
        return f"{value:.1e}"
    return f"{value:.{digits}f}"


def count(value: float | None) -> str:
    """A count, with thin grouping: `12,480`."""
    return NONE if value is None or not math.isfinite(value) else f"{value:,.0f}"


def percent(share: float | None) -> str:
    """A share of 1 as a percentage: `0.8 %`."""
    return NONE if share is None or not math.isfinite(share) else f"{100 * share:.1f} %"


def duration(seconds: float | None) -> str:
    """Seconds as people say them: `42 s`, `3 min 05 s`, `2 h 07 min`."""
    if seconds is None or not math.isfinite(seconds) or seconds < 0:
        return NONE
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def size(nbytes: float | None) -> str:
    """Bytes in decimal units, as network rates are given: `3.4 MB`."""
    if nbytes is None or not math.isfinite(nbytes):
        return NONE
    for unit in ("B", "kB", "MB", "GB"):
        if abs(nbytes) < 1000:
            return f"{nbytes:.0f} {unit}" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1000
    return f"{nbytes:.1f} TB"


def sparkline(values: Sequence[float], width: int = 24) -> str:
    """The last `width` finite values as block characters, lowest to highest of those shown; empty for none."""
    shown = [value for value in values if math.isfinite(value)][-width:]
    if not shown:
        return ""
    low, high = min(shown), max(shown)
    if high == low:
        return SPARKS[len(SPARKS) // 2] * len(shown)
    return "".join(SPARKS[min(len(SPARKS) - 1, int((value - low) / (high - low) * len(SPARKS)))] for value in shown)
