"""Cache of parsed records from Redis: a pass over ten thousand of them parses only the changed ones.

What is kept is never believed: it saves parsing a text that is still the same, no more. Used by `nodes.registry`, `work.leases` and
`verdicts.queue`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

R = TypeVar("R")


@dataclass(frozen=True)
class ParsedRecord(Generic[R]):
    """A record and the text in Redis that it was read from, or written as."""

    text: str
    record: R


class RecordCache(Generic[R]):
    """One hash's records by the names of their fields. Safe to use from several threads: entries are replaced as a whole."""

    def __init__(self, parse: Callable[[str], R]) -> None:
        self._parse = parse
        self._seen: dict[str, ParsedRecord[R]] = {}

    def recall(self, name: str) -> ParsedRecord[R] | None:
        """The record as it was read or written last; by now it may be another."""
        return self._seen.get(name)

    def remember(self, name: str, text: str, record: R) -> ParsedRecord[R]:
        """Remember the record that was just written."""
        seen = ParsedRecord(text, record)
        self._seen[name] = seen
        return seen

    def read(self, name: str, data: str | bytes) -> ParsedRecord[R]:
        """Parse a record, unless it is the one that was read last under this name."""
        text = data if isinstance(data, str) else data.decode()
        seen = self._seen.get(name)
        return seen if seen is not None and seen.text == text else self.remember(name, text, self._parse(text))

    def all(self, found: Mapping[str | bytes, str | bytes]) -> list[R]:
        """The records of the whole hash, as the client gives it; others that are kept are forgotten."""
        records = [self.read(str(name), data).record for name, data in found.items()]
        if len(self._seen) > len(found):
            self._seen = {name: seen for name, seen in list(self._seen.items()) if name in found}
        return records
