"""Configuration documents of a later release: keys that this one does not know are left out, with one line in the log (ADR 0092).

For `run.json`, `node.json` and `relay.json`, which builders write, and for what an orchestrator tells the operator of its run. A manifest, in which a
key may be misspelt, stays strict. A key inside of a signed document is refused, because the signature is over all keys. Everything else that is wrong
is refused as before. `not_known_here` says what of an answer a later release means, where nothing may be left out.
"""

import json
import logging
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from shoal.contracts.base import Contract

Document = TypeVar("Document", bound=Contract)
log = logging.getLogger(__name__)

UNKNOWN, OTHER_WORD = "extra_forbidden", "literal_error"
MOST_UNKNOWN = 1000
"""Of one document; with more it is refused. Who chooses an orchestrator's image decides what it says, and to look at 12,000 keys takes 65 ms."""
MOST_SHOWN, SHOWN_CHARACTERS = 10, 64
"""Keys that the log names, and of each."""


def from_newer_json(model: type[Document], data: bytes | str) -> Document:
    """Parse and check as `model.from_json` does, without keys that only a later release has."""
    try:
        return model.from_json(data)
    except ValidationError as error:
        if error.error_count() > MOST_UNKNOWN:
            raise
        unknown = [each["loc"] for each in error.errors(include_url=False) if each["type"] == UNKNOWN]
        if not unknown or len(unknown) != error.error_count():
            raise
        document = json.loads(data)
        if not all(_left_out(document, place) for place in unknown):
            raise
        found = model.from_json(json.dumps(document))
    shown = [".".join(map(str, place))[:SHOWN_CHARACTERS] for place in unknown[:MOST_SHOWN]]
    _say(model.__name__, tuple(shown), len(unknown) - len(shown))
    return found


def not_known_here(error: ValidationError) -> str:
    """What a refused document asks for that this release does not know, with what it knows instead; empty where something else is wrong, too."""
    wrong = error.errors(include_url=False)
    if any(each["type"] not in (UNKNOWN, OTHER_WORD) for each in wrong):
        return ""
    said = [_asked(each) for each in wrong[:MOST_SHOWN]]
    return ", ".join(said) + (f" and {len(wrong) - MOST_SHOWN} more" if len(wrong) > MOST_SHOWN else "")


def _asked(each: ErrorDetails) -> str:
    place, value = (ascii(said)[:SHOWN_CHARACTERS] for said in (".".join(map(str, each["loc"])), each["input"]))
    known = each["ctx"]["expected"] if each["type"] == OTHER_WORD else "none"
    return f"{place} {value} (known here: {known})"


def _left_out(document: Any, place: Sequence[str | int]) -> bool:
    """Take a key out of a document; False where it is signed, or cannot be found. A place may also name members of unions."""
    inner = document
    for part in place[:-1]:
        if isinstance(inner, dict) and {"document", "signer", "signature"} <= inner.keys():
            return False
        if (isinstance(inner, dict) and part in inner) or (isinstance(inner, list) and isinstance(part, int)):
            inner = inner[part]  # type: ignore[index]  # mypy does not join both conditions
    if not isinstance(inner, dict) or place[-1] not in inner or "signature" in inner:
        return False
    del inner[place[-1]]
    return True


@lru_cache(maxsize=64)
def _say(name: str, shown: tuple[str, ...], others: int) -> None:
    """Once for the same keys: a mounted file is read again and again."""
    more = f" and {others} more" if others else ""
    log.warning("%s is of a later release; not known here: %s%s", name, ", ".join(shown), more)
