"""An environment that is not Shoal's own, inside its sandbox: what `apart` asks is answered here.

Questions and answers are frames: 4 bytes of length, then JSON. The first answer describes the environment (`Described`), before any question. Nothing
here protects anybody, since the environment's code may change all of it: the walls do, and what `apart` lets in. Started by `rewards.sandbox`.
"""

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from importlib.metadata import distributions
from pathlib import Path
from traceback import walk_tb
from typing import Any

from shoal.contracts.tasks import Task
from shoal.environments.base import Environment, Score, Unscorable, is_repeatable, runs_programs
from shoal.environments.prompts import check_functions
from shoal.environments.results import judge_of
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
    packages = arguments["packages"]
    environment, described = _made(arguments["value"], arguments["name"], packages)
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
                judge: Any = judge_of(value, given["task"])
                value = {"name": judge.name, "version": judge.version, "runs_programs": runs_programs(judge)}
                value["repeatable"] = is_repeatable(judge)
            data = json.dumps({"value": _plain(value)})
        except Exception as error:  # an environment raises anything
            advice = NO_DOWNLOAD if call in ("tasks", "task_count") and _wanted_files(error) is not None else ""
            words = (
                f"{call}() raised {type(error).__name__}: {error}"[:700] + _who_reached_out(error, packages) + advice
            )
            data = json.dumps({"error": words, "refused": isinstance(error, ValueError)})
        line.open = False
        write_frame(answers, data.encode())


def _made(value: str, name: str, packages: Sequence[str]) -> tuple[Any, dict[str, Any]]:
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
        words = f"{type(error).__name__}: {error}"[:1000] + _who_reached_out(error, packages)
        return None, described | {"error": words}
    described |= {
        "name": made.name,
        "version": made.version,
        "members": [member for member in METHODS if callable(getattr(made, member, None))],
        "runs_programs": bool(getattr(made, "runs_programs", False)),
        "repeatable": is_repeatable(made),
        "rewards_turns": bool(getattr(made, "rewards_turns", False)),
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
        said = {"task_reward": float(value.task_reward), "detail": value.detail[:WORDS]}
        return said | {"turn_rewards": [float(each) for each in value.turn_rewards]}
    if isinstance(value, Unscorable):
        return {"reason": value.reason[:WORDS], "passing": value.passing}
    if isinstance(value, Answers):
        return {"turns": [[each.text for each in turn] for turn in value.turns]}
    return value


def _wanted_files(error: BaseException | None) -> BaseException | None:
    """The file or the network that is behind an error, as an error. A library's own error has it as its cause."""
    while error is not None and not isinstance(error, OSError):
        error = error.__cause__ or error.__context__
    return error


def _who_reached_out(error: BaseException, packages: Sequence[str]) -> str:
    """Which of the run's packages asked for a file or the network, in words; empty where none did. The newest of its frames tells."""
    refused = _wanted_files(error)
    if refused is None or (
        isinstance(refused, FileNotFoundError) and str(refused.filename).startswith(tuple(packages))
    ):
        return ""  # a file of its own is missing
    files = [Path(frame.f_code.co_filename) for frame, _ in walk_tb(refused.__traceback__)]
    inside = [
        (folder, file.relative_to(folder)) for file in files for folder in packages if file.is_relative_to(folder)
    ]
    if not inside:
        return ""
    folder, file = inside[-1]
    owners = (each for each in distributions(path=[folder]) if any(file == Path(one) for one in each.files or ()))
    owner = next((f"{each.name} {each.version}" for each in owners), file.parts[0])
    return f"; package {owner:.150} reached out of its room ({file}): in a sandbox there is no network and no file to write"


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
