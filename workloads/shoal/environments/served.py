"""An environment that is not Shoal's own, inside its sandbox: what `apart` asks is answered here.

Questions and answers are frames: 4 bytes of length, then JSON. The first answer describes the environment (`Described`), before any question. Nothing
here protects anybody, since the environment's code may change all of it: the walls do, and what `apart` lets in. Started by `rewards.sandbox`.
"""

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from typing import Any

from shoal.contracts.tasks import Task
from shoal.environments.base import Environment, Score, Unscorable, runs_programs
from shoal.environments.prompts import check_functions
from shoal.environments.turns import Answers, FunctionCall, WithTurns
from shoal.rewards.parent import ParentLine, read_frame, use_line, write_frame

METHODS = ("task_count", "has_answer", "broken", "flaw", "problems", "observe", "part_of", "answers")
"""Members that an environment may have besides the six."""
WORDS = 4096
"""Characters of a detail or reason."""
BATCH_BYTES = 1 << 20
BATCH_SECONDS = 20.0
"""Tasks come in parts of about this many bytes, or made within this time."""
NO_DOWNLOAD = "; nothing can be downloaded in a sandbox: name the tasks in the manifest (tasks.dataset), or put them into the package as files"


def serve(questions: int, answers: int, arguments: Mapping[str, Any]) -> None:
    """Answer until the other side hangs up. Shoal's judges and programs ask it in turn (`rewards.parent`)."""
    line = ParentLine(questions, answers)
    use_line(line)
    environment, described = _made(arguments["value"], arguments["name"])
    try:
        data = json.dumps(described)
    except (TypeError, ValueError) as error:
        data = json.dumps({"error": f"its name, version or another member cannot be JSON: {error}"[:1000]})
    write_frame(answers, data.encode())
    while (question := read_frame(questions)) is not None:
        line.open = True
        try:
            call, given = question["call"], question["arguments"]
            if "task" in given:
                given["task"] = Task.model_validate(given["task"])
            if call == "answers":
                given["turns"] = [[FunctionCall(**each) for each in turn] for turn in given["turns"]]
            by_one = call == "tasks" and hasattr(environment, "each_task")
            value = getattr(environment, "each_task" if by_one else call)(**given)
            if call == "tasks":
                for part in _parts(value):
                    write_frame(answers, json.dumps({"value": part}).encode())
                value = []  # the end
            if call == "part_of":
                value = {"name": value.name, "version": value.version, "runs_programs": runs_programs(value)}
            data = json.dumps({"value": _plain(value)})
        except Exception as error:  # an environment raises anything
            advice = NO_DOWNLOAD if call in ("tasks", "task_count") and _wanted_files(error) else ""
            words = f"{call}() raised {type(error).__name__}: {error}"[:700] + advice
            data = json.dumps({"error": words, "refused": isinstance(error, ValueError)})
        line.open = False
        write_frame(answers, data.encode())


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
        if isinstance(made, WithTurns):
            check_functions(made.functions)
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
    if isinstance(made, WithTurns):
        described |= {
            "functions": list(made.functions),
            "most_turns": made.most_turns,
            "longest_turn": made.longest_turn,
        }
    return made, described


def _plain(value: Any) -> Any:
    """A score as JSON, its words cut to what the other side takes; other values are sent as they are, for the other side to check."""
    if isinstance(value, Score):
        return {"task_reward": float(value.task_reward), "detail": value.detail[:WORDS]}
    if isinstance(value, Unscorable):
        return {"reason": value.reason[:WORDS], "passing": value.passing}
    if isinstance(value, Answers):
        return {"turns": [[each.text for each in turn] for turn in value.turns]}
    return value


def _wanted_files(error: BaseException | None) -> bool:
    """Whether a file or the network is behind an error. A library's own error has it as its cause."""
    while error is not None:
        if isinstance(error, OSError):
            return True
        error = error.__cause__ or error.__context__
    return False


def _parts(tasks: Iterable[Task]) -> Iterator[list[dict[str, Any]]]:
    """Tasks in parts of at least one each; none is empty, because an empty one is the end."""
    part: list[dict[str, Any]] = []
    size, began = 0, time.monotonic()
    for task in tasks:
        part.append(task.model_dump(mode="json"))
        size += len(task.model_dump_json())
        if size >= BATCH_BYTES or time.monotonic() - began >= BATCH_SECONDS:
            yield part
            part, size, began = [], 0, time.monotonic()
    if part:
        yield part
