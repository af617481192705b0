"""Tables of the fields of documents, from their JSON schemas. Called by `http`."""

import inspect
import types
import typing
from collections.abc import Iterable
from typing import Any

from tools.docs.tables import table

from shoal.contracts.base import Contract


def messages(documents: Iterable[type[Contract]]) -> list[str]:
    """A section for each document and for each that is part of one, by name."""
    schemas: dict[str, dict[str, Any]] = {}
    for document in documents:
        schema = document.model_json_schema(by_alias=True, ref_template="{model}")
        schemas |= {_plain(name): below for name, below in schema.pop("$defs", {}).items()}
        schemas[_plain(document.__name__)] = schema
    lines: list[str] = []
    for name, schema in sorted(schemas.items()):
        if "properties" not in schema:
            continue
        text = inspect.cleandoc(schema.get("description", "")).split("\n\n")[0]
        lines += [f"### {name}", "", *([" ".join(text.split()), ""] if text else [])]
        needed = set(schema.get("required", []))
        rows = [
            (f"`{field}`", type_text(below), "yes" if field in needed else "", below.get("description", ""))
            for field, below in schema["properties"].items()
        ]
        lines += table(("field", "type", "required", ""), rows)
    return lines


def type_text(schema: dict[str, Any]) -> str:
    """A field's type with its bounds, in words."""
    if "$ref" in schema:
        name = _plain(schema["$ref"])
        return f"[{name}](#{name.lower()})"
    if "allOf" in schema and len(schema["allOf"]) == 1:
        return type_text(schema["allOf"][0])
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(type_text(member) for member in schema["anyOf"]))
    if "const" in schema:
        return f"`{schema['const']}`"
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    kind = str(schema.get("type", "any"))
    if kind == "array":
        return f"list of {type_text(schema.get('items', {}))}{_bounds(schema, 'minItems', 'maxItems')}"
    if kind == "object":
        below = schema.get("additionalProperties")
        return f"mapping to {type_text(below)}" if isinstance(below, dict) else "object"
    if kind == "string":
        return f"string{_bounds(schema, 'minLength', 'maxLength')}"
    words = []
    for key, sign in (("minimum", ">="), ("exclusiveMinimum", ">"), ("maximum", "<="), ("exclusiveMaximum", "<")):
        if key in schema:
            words.append(f"{sign} {schema[key]}")
    return f"{kind} {', '.join(words)}".strip()


def shown_type(kind: Any) -> str:
    """A Python type of documents as text: `Lease`, `Signed[Invite]`."""
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return " or ".join(shown_type(member) for member in typing.get_args(kind) if member is not type(None))
    return str(kind.__name__)


def _plain(name: str) -> str:
    """Pydantic writes generic models as `Signed[Invite]`, and as `Signed_Invite_` in schemas."""
    return name.replace("[", " ").replace("]", "").replace("_", " ").strip().replace(" ", "-")


def _bounds(schema: dict[str, Any], least: str, most: str) -> str:
    low, high = schema.get(least), schema.get(most)
    if low is not None and high is not None:
        return f", {low} to {high}"
    return f", at most {high}" if high is not None else f", at least {low}" if low is not None else ""
