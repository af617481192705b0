"""How generators of reasoning-gym are named in a manifest: `GENERATOR[@LEVEL[-LEVEL]][{SETTINGS}][*WEIGHT]`, several with `+` between them.

In: the text behind `reasoning-gym:`. Out: its parts. SETTINGS is a JSON object with fields of the generator's configuration. A level is one of the
package's curriculum. A category (`algebra`) stands for its generators, and `all` for every one. Pure; needs no reasoning-gym, because command lines
and tests read such names too. Called by `reasoning_gym` and `cli.preflight`.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

FORM = (
    "allowed: GENERATOR[@LEVEL[-LEVEL]][{SETTINGS}][*WEIGHT], several with + between them, as in "
    'reasoning-gym:chain_sum{"max_terms":3}*2+gcd@0-2'
)
LARGEST_WEIGHT = 1000
OURS = ("seed", "size")
"""Settings that a run decides: `spec.seed`, and `count` of its tasks."""
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_LEVELS = re.compile(r"@([0-9]{1,2})(?:-([0-9]{1,2}))?")
_WEIGHT = re.compile(r"\*([0-9]{1,4})")


class BadGenerators(ValueError):
    """The text names no generators; the message says where it stops to and what is allowed."""


@dataclass(frozen=True)
class Named:
    """One generator or category, with its levels (both inclusive; None: no curriculum), its settings and its weight."""

    name: str
    levels: tuple[int, int] | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    weight: int = 1


def parse(text: str) -> list[Named]:
    """BadGenerators when the text does not name any."""
    return list(_parts(text))


def _parts(text: str) -> Iterator[Named]:
    at = 0
    while True:
        name = _NAME.match(text, at)
        if name is None:
            raise BadGenerators(_wrong(text, at, "a generator's name is missing"))
        at, levels = name.end(), None
        settings: dict[str, Any] = {}
        if (found := _LEVELS.match(text, at)) is not None:
            low = int(found[1])
            levels = (low, int(found[2] or low))
            if levels[1] < low:
                raise BadGenerators(_wrong(text, at, "the second level is below the first"))
            at = found.end()
        if text.startswith("{", at):
            try:
                settings, at = json.JSONDecoder().raw_decode(text, at)
            except (ValueError, RecursionError):
                raise BadGenerators(_wrong(text, at, "the settings are no JSON object")) from None
            if ours := [each for each in OURS if each in settings]:
                raise BadGenerators(
                    f"reasoning-gym: {name[0]} must not set {' and '.join(ours)}: the run decides it, by spec.seed and tasks.count"
                )
        weight = 1
        if (found := _WEIGHT.match(text, at)) is not None:
            weight, at = int(found[1]), found.end()
            if not 1 <= weight <= LARGEST_WEIGHT:
                raise BadGenerators(f"reasoning-gym: {name[0]} has the weight {weight}; allowed: 1 to {LARGEST_WEIGHT}")
        yield Named(name[0], levels, settings, weight)
        if at == len(text):
            return
        if text[at] != "+":
            raise BadGenerators(_wrong(text, at, "it cannot be read from here"))
        at += 1


def _wrong(text: str, at: int, what: str) -> str:
    return f"reasoning-gym: {what}, at {text[at : at + 40]!r}, character {at + 1}; {FORM}"
