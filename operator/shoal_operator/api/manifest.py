"""Reads a manifest: YAML text in, checked objects out, or one clear line for every mistake. Pure: the caller reads the file.

Called by `shoal up` and `shoal render`. What passes here passes on an API server with our CRDs: keys and types are strict, unknown keys are
refused, and the CEL rules of `rules.py` are evaluated after defaulting. All
mistakes are reported at once: those of the schema, and broken rules that read none of the wrong fields.
"""

import difflib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from shoal_operator.api import API_VERSION, KINDS, CustomObject
from shoal_operator.api.half_right import Mistaken, rules_broken_beside
from shoal_operator.api.rule import Rule
from shoal_operator.api.rules import holds, rules_of, variables
from shoal_operator.api.schema import Schema, describe, schema_at, structural_schema

Path = tuple[str | int, ...]

MAX_BYTES = 3 << 20
"""An API server takes at most 3 MiB in one request (etcd keeps at most 1.5)."""


@dataclass(frozen=True)
class Mistake:
    """One mistake: where it is, and what to write instead."""

    source: str
    document: int
    path: str
    problem: str

    def __str__(self) -> str:
        place = self.source if self.document == 0 else f"{self.source} (document {self.document + 1})"
        return f"{place}: {self.path}: {self.problem}" if self.path else f"{place}: {self.problem}"


class ManifestError(ValueError):
    """A manifest with mistakes; `str` gives one line for each."""

    def __init__(self, mistakes: Sequence[Mistake]) -> None:
        super().__init__("\n".join(str(mistake) for mistake in mistakes))


class _Loader(yaml.SafeLoader):
    """YAML as Kubernetes reads it: `1e-4` is a number, a repeated key is a mistake, dates stay text."""


_Loader.yaml_implicit_resolvers = {
    letter: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for letter, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)[eE][-+]?[0-9]+$"), list("-+.0123456789")
)


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: set[str] = set()
    for key_node, _ in node.value:
        key = str(getattr(key_node, "value", ""))
        if key in seen:
            raise yaml.constructor.ConstructorError(None, None, f"the key {key!r} is given twice", key_node.start_mark)
        seen.add(key)
    return loader.construct_mapping(node, deep=True)


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def load_manifest(text: str, source: str = "manifest") -> list[CustomObject]:
    """Check a manifest of one or more documents and return its objects with defaults filled in.

    Args:
        text: YAML.
        source: name of the file, for messages.

    Raises:
        ManifestError: with one line for each mistake of every document.
    """
    documents = _parse(text, source)
    objects: list[CustomObject] = []
    mistakes: list[Mistake] = []
    for number, document in enumerate(documents):
        found, wrong = check(document)
        mistakes += [Mistake(source, number, path, problem) for path, problem in wrong]
        if found is not None:
            objects.append(found)
    if mistakes:
        raise ManifestError(mistakes)
    return objects


def _parse(text: str, source: str) -> list[Any]:
    def wrong(problem: str) -> ManifestError:
        return ManifestError([Mistake(source, 0, "", problem)])

    if len(text.encode()) > MAX_BYTES:
        raise wrong(f"is larger than {MAX_BYTES} bytes, the most that an API server takes")
    try:
        documents = [document for document in yaml.load_all(text, _Loader) if document is not None]
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise wrong(f"{place}not valid YAML: {error.problem or error.context}") from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise wrong(f"not valid YAML: {' '.join(str(error).split())}") from None
    if not documents:
        raise wrong("has no document; write one with `kind: TrainingRun`, as in examples/arithmetic/trainingrun.yaml")
    return documents


def check(document: Any) -> tuple[CustomObject | None, list[tuple[str, str]]]:
    """Check one parsed document: the object with its defaults, or None with (path, problem) pairs."""
    if not isinstance(document, dict):
        return None, [("", f"given {_shown(document)}; allowed: a mapping with apiVersion, kind, metadata, spec")]
    mistakes = _type_mistakes(document)
    kind = document.get("kind")
    meant = kind if isinstance(kind, str) and kind in KINDS else _nearest(str(kind), list(KINDS))
    if meant is None:
        return None, mistakes
    model, checked = KINDS[meant], document | {"apiVersion": API_VERSION, "kind": meant}
    try:
        found = model.model_validate(checked, strict=True, by_alias=True, by_name=False)
    except ValidationError as error:
        return None, [*mistakes, *_schema_mistakes(model, checked, error)]
    mistakes += broken_rules(found)
    return (None, mistakes) if mistakes else (found, [])


def _schema_mistakes(
    model: type[CustomObject], document: Mapping[str, Any], error: ValidationError
) -> Iterator[tuple[str, str]]:
    """Every mistake that the schema finds, then every rule that is broken regardless of their correction."""
    schema = structural_schema(model)
    places: list[Path] = []
    names: set[str] = set()
    for details in error.errors():
        place = _place(schema, details)
        if details["type"] == "extra_forbidden":
            key, known = str(place[-1]), _known_keys(schema, place)
            names |= {key, _nearest(key, known) or key}
        else:
            places.append(place)
        yield _explain(schema, place, details)
    for place, value, rule in rules_broken_beside(document, schema, Mistaken(places, names)):
        yield _broken(place, value, rule)


def _type_mistakes(document: Mapping[str, Any]) -> list[tuple[str, str]]:
    mistakes = []
    for key, allowed in (("apiVersion", [API_VERSION]), ("kind", list(KINDS))):
        given = document.get(key)
        if given not in allowed:
            shown = "missing" if key not in document else f"given {_shown(given)}"
            mistakes.append((key, f"{shown}; allowed: {', '.join(allowed)}{_did_you_mean(str(given), allowed)}"))
    return mistakes


def _place(schema: Schema, error: ErrorDetails) -> Path:
    location: Path = tuple(error["loc"])
    while error["type"] != "extra_forbidden" and location and schema_at(schema, location) is None:
        location = location[:-1]  # Pydantic adds the member of a union to the path
    return location


def _known_keys(schema: Schema, place: Path) -> list[str]:
    return list((schema_at(schema, place[:-1]) or {}).get("properties", {}))


def _explain(schema: Schema, place: Path, error: ErrorDetails) -> tuple[str, str]:
    """One Pydantic error as (path, problem)."""
    if error["type"] == "extra_forbidden":
        known = _known_keys(schema, place)
        return _dotted(place), f"unknown key; allowed keys: {', '.join(known)}{_did_you_mean(str(place[-1]), known)}"
    field = schema_at(schema, place) or {}
    allowed = describe(field)
    if error["type"] == "missing":
        return _dotted(place), f"missing; required: {allowed}"
    suggestion = _did_you_mean(str(error["input"]), [str(value) for value in field.get("enum", [])])
    return _dotted(place), f"given {_shown(error['input'])}; allowed: {allowed}{suggestion}"


def _dotted(location: Path) -> str:
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else (f".{part}" if text else str(part))
    return text


def _shown(value: Any) -> str:
    """A value as the author wrote it, short: text in quotes, so that "60" is told from 60."""
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    try:
        text = json.dumps(value, ensure_ascii=False)
    except TypeError:
        text = str(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _nearest(given: str, known: Sequence[str]) -> str | None:
    """A known word that is close, whatever the case and the underscores."""

    def plain(word: str) -> str:
        return word.replace("_", "").replace("-", "").lower()

    by_plain = {plain(word): word for word in known}
    close = difflib.get_close_matches(plain(given), list(by_plain), n=1, cutoff=0.6)
    return by_plain[close[0]] if close else None


def _did_you_mean(given: str, known: Sequence[str]) -> str:
    nearest = _nearest(given, known)
    return f"; did you mean {nearest}?" if nearest is not None else ""


def broken_rules(found: BaseModel, old: BaseModel | None = None) -> Iterator[tuple[str, str]]:
    """(path, problem) of every CEL rule that an object breaks; with `old`, the rules of updates too."""
    yield from _broken_below(found, old, ())


def _broken_below(model: BaseModel, old: BaseModel | None, path: Path) -> Iterator[tuple[str, str]]:
    value = model.model_dump(mode="json", by_alias=True, exclude_none=True)
    before = None if old is None else old.model_dump(mode="json", by_alias=True, exclude_none=True)
    rules = rules_of(type(model).__name__)
    seen = variables(value, before) if rules else {}
    for rule in rules:
        if not holds(rule, seen):
            yield _broken(path, value, rule)
    for name, field in type(model).model_fields.items():
        child, key = getattr(model, name), field.alias or name
        if name == "status":
            continue
        if isinstance(child, BaseModel):
            before_child = getattr(old, name, None)
            below = before_child if isinstance(before_child, BaseModel) else None
            yield from _broken_below(child, below, (*path, key))
        elif isinstance(child, list):
            # Items of a list have no old value: an API server finds none either, unless the list is a map.
            for number, item in enumerate(child):
                if isinstance(item, BaseModel):
                    yield from _broken_below(item, None, (*path, key, number))


def _broken(path: Path, value: Mapping[str, Any], rule: Rule) -> tuple[str, str]:
    """A broken rule as (path, problem); `value` is what is at `path`."""
    location = _dotted((*path, *(rule.field.split(".") if rule.field else ())))
    return location, _rule_problem(value, rule.field, rule.message)


def _rule_problem(value: Mapping[str, Any], field: str, message: str) -> str:
    given: Any = value
    for part in field.split(".") if field else ():
        given = given.get(part) if isinstance(given, Mapping) else None
    if field and given is None:
        return f"missing; {message}"
    return f"given {_shown(given)}; {message}" if field and not isinstance(given, dict) else message
