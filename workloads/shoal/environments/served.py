"""An environment that is not Shoal's own, inside its sandbox: what `apart` asks is answered here.

Questions and answers are frames: 4 bytes of length, then JSON. The first answer describes the environment (`Described`), before any question. Nothing
here protects anybody, since the environment's code may change all of it: the walls do, and what `apart` lets in. Started by `rewards.sandbox`.
"""

import json
import os
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

from shoal.contracts.tasks import Task
from shoal.environments.base import Environment, Score, Unscorable

METHODS = ("task_count", "has_answer", "broken", "flaw", "problems", "observe")
"""Members that an environment may have besides the six."""
BATCH_BYTES = 1 << 20
"""Tasks come in parts of about this many bytes."""


def serve(questions: int, answers: int, arguments: Mapping[str, Any]) -> None:
    """Answer until the other side hangs up."""
    environment, described = _made(arguments["value"], arguments["name"])
    try:
        data = json.dumps(described)
    except (TypeError, ValueError) as error:
        data = json.dumps({"error": f"its name, version or another member cannot be JSON: {error}"[:1000]})
    _write(answers, data)
    while (question := _read(questions)) is not None:
        try:
            call, given = question["call"], question["arguments"]
            if "task" in given:
                given["task"] = Task.model_validate(given["task"])
            value = getattr(environment, call)(**given)
            if call == "tasks":
                for part in _parts(value):
                    _write(answers, json.dumps({"value": part}))
                value = []  # the end
            data = json.dumps({"value": _plain(value)})
        except Exception as error:  # an environment raises anything
            data = json.dumps({"error": f"{call}() raised {type(error).__name__}: {error}"[:1000]})
        _write(answers, data)


def _made(value: str, name: str) -> tuple[Any, dict[str, Any]]:
    """The environment, and its description. Without one its `error` says why."""
    described: dict[str, Any] = {}
    try:
        module, _, attribute = value.partition(":")
        make: Any = import_module(module)
        for part in attribute.split("."):
            make = getattr(make, part)
        described["parameter"] = getattr(make, "parameter", None)
        plain, colon, argument = name.partition(":")
        if colon and described["parameter"] is None:
            raise ValueError(f"it has no parts to name: write {plain!r} without {colon + argument!r:.80}")
        made = make(argument) if colon else make()
        if not isinstance(made, Environment):
            raise ValueError(f"{value} lacks one of: name, version, tasks, prompt, score, gold")
    except Exception as error:
        return None, described | {"error": f"{type(error).__name__}: {error}"[:1000]}
    described |= {
        "name": made.name,
        "version": made.version,
        "members": [member for member in METHODS if callable(getattr(made, member, None))],
        "runs_programs": bool(getattr(made, "runs_programs", False)),
        "requires": list(getattr(made, "requires", ())),
        "extra": getattr(made, "extra", None),
        "sources": [*getattr(made, "sources", ()), *(each.__module__ for each in type(made).__mro__)],
    }
    if hasattr(made, "stop"):
        described |= {"stop": list(made.stop), "most_calls": getattr(made, "most_calls", 0)}
    return made, described


def _plain(value: Any) -> Any:
    """A score as JSON; other values are sent as they are, for the other side to check."""
    if isinstance(value, Score):
        return {"task_reward": value.task_reward, "detail": value.detail, "program_seconds": value.program_seconds}
    if isinstance(value, Unscorable):
        return {"reason": value.reason, "program_seconds": value.program_seconds, "passing": value.passing}
    return value


def _parts(tasks: list[Task]) -> Iterator[list[dict[str, Any]]]:
    """Tasks in parts of at least one each; none is empty, because an empty one is the end."""
    part: list[dict[str, Any]] = []
    size = 0
    for task in tasks:
        part.append(task.model_dump(mode="json"))
        size += len(task.model_dump_json())
        if size >= BATCH_BYTES:
            yield part
            part, size = [], 0
    if part:
        yield part


def _read(descriptor: int) -> Any:
    length = int.from_bytes(_exactly(descriptor, 4), "big")
    return json.loads(_exactly(descriptor, length)) if length else None


def _exactly(descriptor: int, count: int) -> bytes:
    data = bytearray()
    while len(data) < count and (more := os.read(descriptor, count - len(data))):
        data += more
    return bytes(data)


def _write(descriptor: int, text: str) -> None:
    data = text.encode()
    left = memoryview(len(data).to_bytes(4, "big") + data)
    while left:
        left = left[os.write(descriptor, left) :]
