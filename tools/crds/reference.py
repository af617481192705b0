"""The reference page of the four kinds, `docs/reference.md`: every field with its type, default, range and description. Pure.

It is made from the same schemas as the CRDs. A part that several kinds have (resources, exposure) is described once, under its own name.
"""

import json
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel
from tools.crds.crd import PLURALS, SHORT_NAMES, crd

from shoal_operator.api import API_VERSION, KINDS
from shoal_operator.api.rules import rules_of
from shoal_operator.api.schema import Schema

_HEAD = f"""# Reference of the kinds

Made by `make crds` from `operator/shoal_operator/api` and `workloads/shoal/contracts`: change it there.
All kinds are of `{API_VERSION}` and namespaced. A field without a default and not marked *required* may be absent.
"""


def reference_page() -> str:
    """The page as Markdown text."""
    parts: dict[str, list[str]] = {}
    text = [_HEAD]
    for kind, model in KINDS.items():
        schema = crd(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
        text.append(f"\n## {kind}\n\n{model.__doc__}\n\n`kubectl get {SHORT_NAMES[kind]}` ({PLURALS[kind]})\n")
        for part in ("spec", "status"):
            part_model = _model_of(model, part)
            text.append(f"\n### {kind} {part}\n\n{part_model.__doc__}\n")
            text += _table(part_model, schema[part], parts)
    text.append("\n## Parts\n")
    written: set[str] = set()
    while todo := sorted(set(parts) - written):
        written.add(todo[0])
        text.append(f"\n### {todo[0]}\n")
        text += parts[todo[0]]
    return "".join(text)


def _model_of(model: type[BaseModel], field: str) -> type[BaseModel]:
    found = _nested(model.model_fields[field].annotation)
    assert found is not None
    return found


def _nested(annotation: Any) -> type[BaseModel] | None:
    """The model inside a field's type: itself, optional, or the items of a list."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for inner in getattr(annotation, "__args__", ()):
        if (found := _nested(inner)) is not None:
            return found
    return None


def _table(model: type[BaseModel], schema: Schema, parts: dict[str, list[str]]) -> Iterator[str]:
    """Fields of one model as a table, its rules below it. Models inside are put into `parts`."""
    required = set(schema.get("required", []))
    yield "\n| field | type | default | description |\n|---|---|---|---|\n"
    for name, field in model.model_fields.items():
        key = field.alias or name
        node = schema["properties"][key]
        inner = _nested(field.annotation)
        if inner is not None and inner.__name__ not in parts:
            below = node["items"] if node.get("type") == "array" else node
            parts[inner.__name__] = []
            doc = " ".join((inner.__doc__ or "").split())
            parts[inner.__name__] += [f"\n{doc}\n", *_table(inner, below, parts)]
        default = "*required*" if key in required else _default(node, inner)
        described = node.get("description", "").replace("|", "\\|")
        yield f"| `{key}` | {_type(node, inner)} | {default} | {described} |\n"
    if rules := rules_of(model.__name__):
        yield "\n"
        for rule in rules:
            yield f"- {f'`{rule.field}` ' if rule.field else ''}{rule.message}\n"


def _default(node: Schema, inner: type[BaseModel] | None) -> str:
    if "default" not in node or (inner is not None and node.get("type") == "object"):
        return ""
    shown = json.dumps(node["default"])
    return f"`{shown}`" if len(shown) <= 100 else "see its fields"


def _type(node: Schema, inner: type[BaseModel] | None) -> str:
    """What a value may be, in a table's cell."""
    if inner is not None:
        link = f"[{inner.__name__}](#{inner.__name__.lower()})"
        return f"list of {link}, at most {node['maxItems']}" if node.get("type") == "array" else link
    if node.get("x-kubernetes-int-or-string"):
        return "quantity"
    if "enum" in node:
        return ", ".join(f"`{value}`" for value in node["enum"])
    if node.get("type") == "array":
        return f"list of {_type(node['items'], None)}, {node.get('minItems', 0)} to {node.get('maxItems', 'any')}"
    if node.get("type") == "object":
        return (
            "mapping"
            if "additionalProperties" not in node
            else f"mapping to {_type(node['additionalProperties'], None)}"
        )
    return str(node.get("type", "any")) + _range(node)


def _range(node: Schema) -> str:
    low, high = node.get("minimum"), node.get("maximum")
    if low is None and high is None:
        return ""
    words = []
    if low is not None:
        words.append(
            f"{'>' if node.get('exclusiveMinimum') else '>='} {low:g}" if isinstance(low, float) else f">= {low}"
        )
    if high is not None:
        words.append(
            f"{'<' if node.get('exclusiveMaximum') else '<='} {high:g}" if isinstance(high, float) else f"<= {high}"
        )
    return " " + ", ".join(words)
