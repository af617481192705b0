"""What layouts share: a row's columns, texts and JSON, and the making of a task. Pure; errors name the column.

Called by `layouts` and `benchmark_layouts`.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from shoal.contracts.tasks import Task

Row = Mapping[str, Any]
MOST_INTEGER = 2**53 - 1
"""Of RFC 8785, whose numbers are those of IEEE 754."""
NO_DIGEST = (
    f"has a value that no digest can hold: an integer beyond {MOST_INTEGER}, no finite number, or no Unicode text"
)


@dataclass(frozen=True)
class Skipped:
    """A row that is no task of ours; the reason is the same text for all rows of its kind.

    `fault`: the row should have been one. Such rows count towards `spec.tasks.dataset.maxRefusedShare`.
    """

    reason: str
    fault: bool = False


class BadRow(ValueError):
    """A row that its layout does not allow; the message names the column."""


def read_test(test: dict[str, Any]) -> dict[str, Any]:
    name, given, wanted = test.get("fn_name"), test.get("input"), test.get("output")
    if not name:
        return {"type": "stdin_stdout", "input": text_of(given), "output": text_of(wanted)}
    if isinstance(given, str):  # an argument a line, as competition sites give them
        given = [parse_json(line, "input of a function test") for line in given.splitlines() if line.strip()]
    if isinstance(wanted, str):
        wanted = _json_or_text(wanted)
    elif isinstance(wanted, list) and len(wanted) == 1:
        wanted = wanted[0]  # these layouts wrap the one returned value
    if not isinstance(given, list):
        raise BadRow("input of a function test is not a list of arguments")
    return {"type": "function_call", "fn_name": str(name), "input": given, "output": wanted}


def make_task(
    identity: object, kind: str, prompt: str | list[dict[str, Any]], info: dict[str, Any], metadata: dict[str, Any]
) -> Task | Skipped:
    """The task, or Skipped where the task table's digest (RFC 8785) could not hold its values."""
    try:
        if not (has_digest(info) and has_digest(metadata)):
            return Skipped(NO_DIGEST, fault=True)
    except RecursionError:
        return Skipped(NO_DIGEST, fault=True)
    if identity is None or not str(identity):
        seen = prompt if isinstance(prompt, str) else json.dumps(prompt, sort_keys=True)
        identity = f"{kind}-{hashlib.sha256(seen.encode(errors='replace')).hexdigest()[:20]}"
    try:
        return Task.model_validate(
            {
                "problem_id": str(identity),
                "task_type": kind,
                "prompt": prompt,
                "verification_info": info,
                "metadata": metadata,
            }
        )
    except ValidationError as error:
        worst = max(error.errors(include_url=False), key=lambda each: len(each["loc"]))  # of a union the nearest member
        place = ".".join(str(part) for part in worst["loc"] if "[" not in str(part))
        raise BadRow(f"{place} is {str(worst['input'])[:60]!r}: {worst['msg'][:200]}") from error


def has_digest(value: object) -> bool:
    """Whether RFC 8785 has a text for a value: some microseconds a value, a tenth of what the text takes."""
    if isinstance(value, str):
        return value.isascii() or value.encode(errors="replace").decode() == value
    if isinstance(value, int):
        return abs(value) <= MOST_INTEGER
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and has_digest(key) and has_digest(each) for key, each in value.items())
    return all(map(has_digest, value)) if isinstance(value, list | tuple) else True


def column(row: Row, name: str) -> Any:
    """The value of a column, or of an object in one: `extra.level`. BadRow names the columns that there are."""
    if name in row:
        return row[name]
    value: Any = row
    for part in name.split("."):
        if not isinstance(value, Mapping) or part not in value:
            raise BadRow(f"column {name!r} is missing; columns: {', '.join(sorted(row))}")
        value = value[part]
    return value


def scalar(value: object, name: str) -> str | None:
    """A text, number or truth value as text, also one alone in a list; None without a value."""
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, bool):
        return str(value).lower()
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, int | float):
        return str(value)
    raise BadRow(f"column {name!r} is neither a text nor a number, but {type(value).__name__}")


def prompt_of(value: object, name: str) -> Any:
    if isinstance(value, str) and value.strip():
        return value
    if isinstance(value, list) and value and all(isinstance(message, dict) for message in value):
        return [{"role": message.get("role"), "content": message.get("content")} for message in value]
    raise BadRow(f"column {name!r} is neither a text nor a list of chat messages")


def object_of(value: object, name: str) -> dict[str, Any]:
    if isinstance(value, str):
        value = parse_json(value, name)
    if not isinstance(value, dict):
        raise BadRow(f"column {name!r} is not a JSON object")
    return value


def parse_json(text: str, name: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadRow(f"{name} is not JSON: {str(error)[:120]}") from error


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def text_of(value: object) -> str:
    """Standard input or output: a text, or a list of lines."""
    return "\n".join(map(str, value)) if isinstance(value, list) else str(value)
