"""The CEL rules that a document breaks which has other mistakes too: those that read nothing of what is mistaken. Pure.

A model cannot be made of such a document. So the rules are evaluated on the document itself, with the schema's defaults filled in, as an API server
does. A rule that reads a field with a mistake, or one that an unknown key may have meant, is
left for the next check: its result may differ once that field is correct. Called by `manifest`.
"""

import contextlib
import copy
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from shoal_operator.api.rule import Rule
from shoal_operator.api.rules import RULES, evaluated, variables
from shoal_operator.api.schema import Schema, schema_message

Place = tuple[str | int, ...]

_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_BY_SCHEMA = {(rule.expression, schema_message(rule)): rule for rule in RULES}


@dataclass(frozen=True)
class Mistaken:
    """Places whose values cannot be relied on, and names of fields that unknown keys may have meant, wherever they are."""

    places: Collection[Place]
    names: Collection[str]

    def touches(self, place: Place, rule: Rule) -> bool:
        """Whether the rule, whose `self` is at `place`, may read something that is mistaken."""
        words = {*_WORD.findall(rule.expression)}
        if words & {*self.names}:
            return True
        for mistaken in self.places:
            if mistaken == place[: len(mistaken)]:
                return True  # the whole of `self` is
            if mistaken[: len(place)] == place:
                below = {part for part in mistaken[len(place) :] if isinstance(part, str)}
                if below <= words:
                    return True
        return False


def rules_broken_beside(
    document: Mapping[str, Any], schema: Schema, mistaken: Mistaken
) -> Iterator[tuple[Place, Mapping[str, Any], Rule]]:
    """(place, value of `self`, rule) of every rule that is broken whatever the mistaken places should be."""
    yield from _below(_with_defaults(document, schema), schema, (), mistaken)


def _below(
    value: Any, schema: Schema, place: Place, mistaken: Mistaken
) -> Iterator[tuple[Place, Mapping[str, Any], Rule]]:
    if isinstance(value, dict):
        for each in schema.get("x-kubernetes-validations", ()):
            rule = _BY_SCHEMA[each["rule"], each["message"]]
            if not mistaken.touches(place, rule) and _is_broken(rule, value):
                yield place, value, rule
        for name, below in value.items():
            found = _schema_of(name, schema)
            if found is not None and (place, name) != ((), "status"):
                yield from _below(below, found, (*place, name), mistaken)
    elif isinstance(value, list) and isinstance(items := schema.get("items"), dict):
        for number, item in enumerate(value):
            yield from _below(item, items, (*place, number), mistaken)


def _is_broken(rule: Rule, value: dict[str, Any]) -> bool:
    try:
        return evaluated(rule, variables(value)) is False
    except Exception:  # a value beside those that the rule reads has no counterpart in CEL; its own mistake is told
        return False


def _with_defaults(value: Any, schema: Schema) -> Any:
    """A copy with defaults in absent fields, as an API server fills them in. Nulls and unknown fields count as absent."""
    if "properties" in schema or "additionalProperties" in schema:
        return _object_with_defaults(value, schema) if isinstance(value, dict) else None
    if "items" in schema:
        return [_with_defaults(item, schema["items"]) for item in value] if isinstance(value, list) else None
    if isinstance(value, dict | list):
        return None
    if schema.get("type") == "number" and isinstance(value, int) and not isinstance(value, bool):
        with contextlib.suppress(OverflowError):  # so large that it is a mistake of its own
            return float(value)
    return value


def _object_with_defaults(value: Mapping[Any, Any], schema: Schema) -> dict[str, Any]:
    given = {str(name): below for name, below in value.items()}
    for name, field in schema.get("properties", {}).items():
        if given.get(name) is None and "default" in field:
            given[name] = copy.deepcopy(field["default"])
    made = {
        name: _with_defaults(below, found)
        for name, below in given.items()
        if (found := _schema_of(name, schema)) is not None
    }
    return {name: below for name, below in made.items() if below is not None}


def _schema_of(name: str, schema: Schema) -> Schema | None:
    found = schema.get("properties", {}).get(name) or schema.get("additionalProperties")
    return found if isinstance(found, dict) else None
