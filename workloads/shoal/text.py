"""Words and numbers for people: makes foreign text harmless, and formats figures the same way everywhere.

Comes in: anything that a process, a manifest or a stranger's machine wrote. Goes out: short printable text without control codes, which is safe
in a terminal; callers put it into `rich.text.Text`, never into markup. Called by every module of `cli` and `report` that shows something. Pure.
"""

import json
import math
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence

SPARKS = "▁▂▃▄▅▆▇█"
NONE = "-"
"""Shown where a figure is not known (yet)."""
Say = Callable[[str], None]
"""Shows a line to whoever asked."""


def json_object(text: str) -> dict[str, object]:
    """The JSON object that `text` is; empty where it is anything else."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


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
_SECRET_NAME = re.compile(
    r"TOKEN|SECRET|PASSW|PASSPHRASE|PWD|CREDENTIAL|AUTH(?!OR(S|_|$))|(^|_)(PAT|(API_?)?KEY)(_|$)", re.IGNORECASE
)
_FOLDERS = frozenset({"PWD", "OLDPWD"})
"""A shell's own variables: what they hold is in every path."""
_SHORTEST_SECRET = 6
"""Characters; a shorter value is a setting, and hiding it would make holes in every line."""
_SHORTEST_PART = 8
"""Characters of a secret that was cut off; fewer may well be something else."""
_AFTER_SCHEME = re.compile(r"(?<=://)(?:(?!://)[^\s\"'])+")


def secret_values(variables: Mapping[str, str]) -> list[str]:
    """The values of environment variables whose names say that they are secret, the longest first."""
    named = (value for name, value in variables.items() if _SECRET_NAME.search(name) and name not in _FOLDERS)
    return sorted({value for value in named if len(value) >= _SHORTEST_SECRET}, key=len, reverse=True)


def without_secrets(text: str, secrets: Iterable[str]) -> str:
    """The text without these values, and without user and password of any URL."""
    for secret in secrets:
        text = text.replace(secret, HIDDEN)
    return _AFTER_SCHEME.sub(_without_login, text) if "@" in text else text


def _without_login(found: re.Match[str]) -> str:
    """What follows `://`. A password may hold `/` and `@`: where it might be one, all before the last `@` goes, which may take a host along."""
    text = found[0]
    authority, slash, path = text.partition("/")
    if slash and ":" not in authority:
        _, at, host = authority.rpartition("@")
        return f"{HIDDEN}@{host}/{path}" if at else text
    _, at, rest = text.rpartition("@")
    return f"{HIDDEN}@{rest}" if at else text


def without_cut_secrets(text: str, secrets: Iterable[str]) -> str:
    """The same for a text that was cut: also without the first characters of a secret at its end or before `...`, and the last at its beginning."""
    text = without_secrets(text, secrets := list(secrets))
    for secret in secrets:
        body = text.removesuffix("...")
        at = body.find(secret[:_SHORTEST_PART], max(0, len(body) - len(secret)))
        while 0 <= at <= len(body) - _SHORTEST_PART:
            if secret.startswith(body[at:]):
                text = body[:at] + HIDDEN + text[len(body) :]
                break
            at = body.find(secret[:_SHORTEST_PART], at + 1)
        at = text.rfind(secret[-_SHORTEST_PART:], 0, len(secret))
        while at >= 0:
            end = at + _SHORTEST_PART
            if secret.endswith(text[:end]):
                text = HIDDEN + text[end:]
                break
            at = text.rfind(secret[-_SHORTEST_PART:], 0, end - 1)
    return text


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
