"""Structural schemas (Kubernetes OpenAPI v3) from the Pydantic models: what goes into a CRD, and what error messages call "allowed".

A structural schema has no references, no unions and no nulls: optional means absent. `structural_schema` inlines, drops and rewrites what
Pydantic writes as JSON Schema 2020-12, attaches the CEL rules, and refuses what the API server would refuse. Pure.
"""

import copy
import functools
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from shoal_operator.api.rule import Rule
from shoal_operator.api.rules import rules_of

Schema = dict[str, Any]

_KEPT = {
    "type", "description", "enum", "pattern", "minLength", "maxLength", "minimum", "maximum", "minItems", "maxItems",
    "default", "format", "required", "x-kubernetes-int-or-string", "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys", "x-kubernetes-map-type", "x-kubernetes-preserve-unknown-fields",
}  # fmt: skip
_DROPPED = {"title", "additionalProperties", "$ref", "$defs", "properties", "items", "anyOf", "const"}


class UnsupportedSchema(TypeError):
    """A model uses something that a structural schema cannot express."""


@functools.cache
def _json_schema(model: type[BaseModel]) -> Schema:
    return model.model_json_schema(by_alias=True, mode="validation")


def structural_schema(model: type[BaseModel]) -> Schema:
    """The structural schema of a model's spec or status, with defaults, bounds, descriptions and CEL rules."""
    document = _json_schema(model)
    return _convert({**document, "title": model.__name__}, document.get("$defs", {}), model.__name__)


def _convert(node: Schema, definitions: Mapping[str, Schema], where: str) -> Schema:
    node, optional = _resolve(node, definitions, where)
    out: Schema = {key: value for key, value in node.items() if key in _KEPT}
    if optional and out.get("default") is None:
        out.pop("default", None)
    if "default" in out:
        out["default"] = _without_nulls(out["default"])
    if "const" in node:
        out |= {"type": "string", "enum": [node["const"]]}
    for bound, flag in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if flag in node:
            out |= {bound: node[flag], flag: True}
    if node.get("type") == "integer":
        out["format"] = "int64"
    if node.get("type") == "array":
        out["items"] = _convert(node["items"], definitions, f"{where}[]")
    if node.get("type") == "object":
        _convert_object(node, out, definitions, where)
    unknown = set(node) - _KEPT - _DROPPED - {"exclusiveMinimum", "exclusiveMaximum", "maxProperties"}
    if unknown:
        raise UnsupportedSchema(f"{where}: a structural schema cannot hold {', '.join(sorted(unknown))}")
    if not {"type", "x-kubernetes-int-or-string", "x-kubernetes-preserve-unknown-fields"} & set(out):
        raise UnsupportedSchema(f"{where}: has no type; a structural schema needs one")
    return out


def _without_nulls(value: Any) -> Any:
    """A default as the API server takes it: what is None is absent."""
    if isinstance(value, dict):
        return {key: _without_nulls(below) for key, below in value.items() if below is not None}
    return [_without_nulls(below) for below in value] if isinstance(value, list) else value


def _convert_object(node: Schema, out: Schema, definitions: Mapping[str, Schema], where: str) -> None:
    if isinstance(values := node.get("additionalProperties"), dict):
        out["additionalProperties"] = _convert(values, definitions, f"{where}.*")
        # Every map is bounded, so that the API server can bound the cost of CEL rules.
        out["maxProperties"] = node.get("maxProperties", 64)
        return
    required = set(node.get("required", []))
    properties = {}
    for name, value in node.get("properties", {}).items():
        child = _convert(value, definitions, f"{where}.{name}")
        _, optional = _resolve(value, definitions, where)
        # The API server fills in nested defaults only below an object that is there, and evaluates the rules on a default as it is written.
        if child.get("type") == "object" and name not in required and not optional and "default" not in child:
            below = child.get("properties", {})
            child["default"] = {key: copy.deepcopy(below[key]["default"]) for key in below if "default" in below[key]}
        properties[name] = child
    out["properties"] = properties
    if rules := rules_of(node.get("title", "")):
        out["x-kubernetes-validations"] = [{"rule": rule.expression, "message": schema_message(rule)} for rule in rules]


def schema_message(rule: Rule) -> str:
    """What an API server says when the rule is broken."""
    return f"{rule.field} {rule.message}".strip()


def _resolve(node: Schema, definitions: Mapping[str, Schema], where: str) -> tuple[Schema, bool]:
    """Inline references and take `| None` off; the flag says whether None was allowed (which means: absent)."""
    optional = False
    while "$ref" in node or "anyOf" in node:
        outer = {key: value for key, value in node.items() if key not in ("$ref", "anyOf")}
        if "$ref" in node:
            inner = definitions[node["$ref"].rsplit("/", 1)[1]]
        else:
            members = [member for member in node["anyOf"] if member.get("type") != "null"]
            if len(members) != 1:
                raise UnsupportedSchema(f"{where}: unions are not allowed, only `| None` for what may be absent")
            optional = optional or len(members) < len(node["anyOf"])
            inner = members[0]
        outer.pop("title", None)  # the title of a class is its name, which finds its rules
        node = {**inner, **outer}
    if "x-kubernetes-preserve-unknown-fields" not in node and not {"type", "const", "x-kubernetes-int-or-string"} & set(
        node
    ):
        node = {**node, "x-kubernetes-preserve-unknown-fields": True}
    return node, optional


def schema_at(schema: Schema, path: tuple[str | int, ...]) -> Schema | None:
    """The part of a structural schema at a path of keys and list indexes, or None where there is none."""
    for part in path:
        below = schema.get("properties", {}).get(part) or schema.get("additionalProperties")
        found = schema.get("items") if isinstance(part, int) else below
        if not isinstance(found, dict):
            return None
        schema = found
    return schema


def describe(schema: Schema) -> str:
    """What a value may be, in words: `integer, 1 to 65536`, `one of A, B`."""
    if "enum" in schema:
        return "one of " + ", ".join(str(value) for value in schema["enum"])
    if schema.get("x-kubernetes-int-or-string"):
        return "a size such as 20Gi, more than nothing" if schema["minimum"] else "a quantity such as 500m, 2 or 4Gi"
    words_for = {"object": "a mapping", "array": "a list", "boolean": "true or false", "string": "text"}
    kind = str(words_for.get(schema.get("type", ""), schema.get("type", "anything")))
    parts = [kind]
    low, high = schema.get("minimum"), schema.get("maximum")
    more, less = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
    if low is not None and high is not None and not more and not less:
        parts.append(f"{low:g} to {high:g}" if isinstance(low, float) else f"{low} to {high}")
    else:
        if low is not None:
            parts.append(f"{'more than' if more else 'at least'} {low:g}")
        if high is not None:
            parts.append(f"{'less than' if less else 'at most'} {high:g}")
    for key, words in (
        ("minLength", "at least {} characters"), ("maxLength", "at most {} characters"),
        ("minItems", "at least {} items"), ("maxItems", "at most {} items"), ("pattern", "matching {}"),
    ):  # fmt: skip
        if key in schema:
            parts.append(words.format(schema[key]))
    if kind == "a mapping" and schema.get("properties"):
        parts.append("with keys " + ", ".join(schema["properties"]))
    return ", ".join(parts)
