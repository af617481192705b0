"""An environment that is not Shoal's own, in a sandbox: the same members as any, answered by a process without files, network and keys.

In: an entry point's name and value; nothing of its package is imported here. Out: an `Environment`. `base.load` makes it, so that prepare, workers,
validators and evaluations all have it. `served` is the other side. The process sees Python, the installed packages, Shoal's source and the
environment's package, and has no variable of ours. Answers are JSON, bounded in bytes, and checked by a schema, for the package may send anything.
A process that ends, hangs or says something else is ended, and the next question starts another: the row is unscorable, never a zero.

Cost, at a run's size: a question with its answer takes 0.2 ms (5,000 a second), a task of `tasks` 0.07 ms. In prepare
285,000 tasks with a prompt, a gold answer and its score take about three minutes. A process takes 1 s to start and
100 MB. Up to `MOST_PROCESSES` of them answer several threads.
"""

import atexit
import json
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pkgutil import iter_modules
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, TypeAdapter, ValidationError

import shoal
from shoal import telemetry
from shoal.contracts.tasks import Task
from shoal.environments.places import code_of_others, folders, run_folder, spec_of
from shoal.environments.results import (
    Answers,
    BadEnvironment,
    EnvironmentBroke,
    FunctionCall,
    Score,
    ToolAnswer,
    Unscorable,
    runs_programs,
)
from shoal.rewards.calls import Calls
from shoal.rewards.sandbox.program import NoIsolation
from shoal.rewards.sandbox.service import ServedModule, Service, ServiceFailed

Answer = TypeVar("Answer")

MOST_PROCESSES = 4
QUESTION_SECONDS = 5.0
"""CPU time of a score, a prompt or a tool's output, as the judges of mathematics have it."""
TASKS_SECONDS = 300.0
"""CPU time until the first tasks come, and again until the next."""
LOAD_SECONDS = 120.0
ANSWER_BYTES = 16 << 20
"""Of any answer. A task with its tests may take megabytes; parts of a list of tasks are smaller."""
MOST_TASKS_BYTES = 8 << 30
TRIES = 2
"""A process that ended by itself may have been killed because the machine had no memory."""

Words = Annotated[str, StringConstraints(max_length=4096)]
Name = Annotated[str, StringConstraints(min_length=1, max_length=253)]


class Described(BaseModel):
    """What the process says of its environment before the first question."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Name = "?"
    version: Name = "?"
    parameter: Words | None = None
    members: list[Name] = Field(default_factory=list, max_length=16)
    runs_programs: bool = False
    rewards_turns: bool = False
    repeatable: bool = True
    requires: list[Name] = Field(default_factory=list, max_length=64)
    extra: Name | None = None
    sources: list[Name] = Field(default_factory=list, max_length=256)
    stop: list[Name] = Field(default_factory=list, max_length=16)
    most_calls: int = Field(default=0, ge=0, le=10_000)
    functions: list[dict[str, Any]] = Field(default_factory=list, max_length=64)
    most_turns: int = Field(default=0, ge=0, le=1000)
    longest_turn: int | None = Field(default=None, ge=1)
    error: Words | None = None


class _Said(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class SaidScore(_Said):
    task_reward: float = Field(ge=0, le=1)
    detail: Words
    turn_rewards: list[float] = Field(default_factory=list, max_length=1000)


class SaidUnscorable(_Said):
    reason: Words
    passing: bool


class SaidAnswers(_Said):
    """Texts of a tool's answers, by turn and call. Nobody vouches for them: none is sure."""

    turns: Annotated[list[list[str]], Field(max_length=1000)]


class SaidPart(_Said):
    name: Name
    version: Words
    runs_programs: bool
    repeatable: bool


Told = TypeVar("Told", SaidScore, SaidAnswers, str | None)
SCORES: TypeAdapter[SaidScore | SaidUnscorable] = TypeAdapter(SaidScore | SaidUnscorable)
TEXTS = TypeAdapter(str, config=ConfigDict(strict=True))
MAYBE_TEXTS: TypeAdapter[str | None] = TypeAdapter(str | None, config=ConfigDict(strict=True))
OUTPUTS: TypeAdapter[str | SaidUnscorable | None] = TypeAdapter(str | SaidUnscorable | None)
ANSWERS: TypeAdapter[SaidAnswers | SaidUnscorable] = TypeAdapter(SaidAnswers | SaidUnscorable)
PARTS = TypeAdapter(SaidPart)
FLAGS = TypeAdapter(bool, config=ConfigDict(strict=True))
COUNTS: TypeAdapter[int] = TypeAdapter(Annotated[int, Field(ge=0, strict=True)])
LINES: TypeAdapter[list[str]] = TypeAdapter(Annotated[list[Words], Field(max_length=100)])
TASKS: TypeAdapter[list[Task]] = TypeAdapter(list[Task])


class NoAnswer(Exception):
    """The environment gave none; the message says what it did instead."""


class Apart:
    """An environment called `name` (`NAME` or `NAME:PART`) with the entry point `value`. BadEnvironment when it cannot be used."""

    judged_apart = True

    def __init__(self, name: str, value: str) -> None:
        self._processes = _Processes(name, value)
        described = self._processes.described
        if described.error is not None or described.name != name:
            self._processes.close()
        if described.error is not None:
            raise BadEnvironment(f"environment {name!r}: {described.error}")
        if described.name != name:
            raise BadEnvironment(
                f"entry point {name!r} ({value}) is an environment with the name {described.name!r:.100}"
            )
        self.name, self.version = name, described.version
        self.runs_programs, self.rewards_turns = described.runs_programs, described.rewards_turns
        self.repeatable = described.repeatable
        self.requires, self.extra = tuple(described.requires), described.extra
        self.sources = tuple(described.sources)
        if described.parameter is not None:
            self.parameter = described.parameter
        for member in ("task_count", "has_answer", "broken", "flaw", "problems", "part_of"):
            if member in described.members:  # others look whether an environment has them
                setattr(self, member, getattr(self, f"_{member}"))
        if "observe" in described.members and described.stop:
            self.stop, self.most_calls = tuple(described.stop), described.most_calls
            self.observe = self._observe
        if "answers" in described.members and described.functions:
            self.functions = described.functions
            self.most_turns, self.longest_turn = max(described.most_turns, 1), described.longest_turn
            self.answers = self._answers

    def tasks(self, count: int, seed: int) -> list[Task]:
        """As of any environment. ValueError also when it gives no tasks, or more than it was asked for."""
        try:
            return self._processes.tasks(count, seed)
        except NoAnswer as error:
            raise ValueError(str(error)) from None

    def prompt(self, task: Task, target_length: int | None) -> str:
        """As of any environment. BadEnvironment when it gives none."""
        return self._text("prompt", task=task, target_length=target_length)

    def score(self, task: Task, completion: str) -> Score | Unscorable:
        """As of any environment; EnvironmentBroke when it gives none."""
        said, seconds = self._judged("score", SCORES, task, completion=completion)
        if isinstance(said, SaidScore):
            return Score(said.task_reward, said.detail, seconds, tuple(said.turn_rewards))
        return said

    def gold(self, task: Task) -> str:
        """As of any environment. BadEnvironment when it gives none."""
        return self._text("gold", task=task)

    def _broken(self, task: Task) -> str:
        return self._text("broken", task=task)

    def _flaw(self, task: Task) -> str | None:
        try:
            return self._processes.ask("flaw", MAYBE_TEXTS, task=task)
        except _Refused as error:
            raise ValueError(str(error)) from None
        except NoAnswer as error:  # which says nothing about the task
            raise RuntimeError(str(error)) from None

    def _observe(self, task: Task, text: str) -> str | Unscorable | None:
        return self._judged("observe", OUTPUTS, task, text=text)[0]

    def _answers(self, task: Task, turns: Sequence[Sequence[FunctionCall]]) -> Answers | Unscorable:
        calls = [[{"name": each.name, "arguments": dict(each.arguments)} for each in turn] for turn in turns]
        said, seconds = self._judged("answers", ANSWERS, task, turns=calls)
        if isinstance(said, SaidAnswers):
            return Answers([[ToolAnswer(text) for text in turn] for turn in said.turns], seconds)
        return said

    def _judged(
        self, call: str, answers: TypeAdapter[Told | SaidUnscorable], task: Task, **arguments: Any
    ) -> tuple[Told | Unscorable, float]:
        """What is said of a completion, and CPU seconds that it took: of the environment's process, of judges and of programs."""
        calls = Calls(runs_programs(self, task))
        try:
            said = self._processes.ask(call, answers, calls=calls, task=task, **arguments)
        except NoAnswer as error:
            return EnvironmentBroke(str(error), calls.cpu_seconds), calls.cpu_seconds
        if isinstance(said, SaidUnscorable):
            return Unscorable(said.reason, calls.cpu_seconds, said.passing), calls.cpu_seconds
        return said, calls.cpu_seconds

    def _part_of(self, task: Task) -> "Apart | PartApart":
        """The part that judges a task; the whole where it does not say."""
        try:
            return PartApart(self, self._processes.ask("part_of", PARTS, task=task))
        except NoAnswer:
            return self

    def _has_answer(self, task: Task, completion: str) -> bool:
        try:
            return self._processes.ask("has_answer", FLAGS, task=task, completion=completion)
        except NoAnswer:
            return False

    def _task_count(self) -> int:
        try:
            return self._processes.ask("task_count", COUNTS, seconds=TASKS_SECONDS)
        except NoAnswer as error:
            raise ValueError(str(error)) from None

    def _problems(self) -> list[str]:
        try:
            return self._processes.ask("problems", LINES)
        except NoAnswer as error:
            return [str(error)]

    def _text(self, call: str, **arguments: Any) -> str:
        try:
            return self._processes.ask(call, TEXTS, **arguments)
        except NoAnswer as error:
            raise BadEnvironment(str(error)) from None


class PartApart:
    """The part of an environment apart that judges a task: what it says of itself, with the members of the whole."""

    judged_apart = True

    def __init__(self, whole: Apart, said: SaidPart) -> None:
        self.name, self.version, self.runs_programs = said.name, said.version, said.runs_programs
        self.repeatable = said.repeatable
        self.tasks, self.prompt, self.score, self.gold = whole.tasks, whole.prompt, whole.score, whole.gold


class _Raised(NoAnswer):
    """Its code raised an exception, or gave another value, and its process goes on."""


class _Refused(_Raised):
    """Its code raised ValueError."""


class _Wrong(_Raised):
    """A value of another kind."""


class _Processes:
    """Processes of one environment: as many as questions come at once, at most `MOST_PROCESSES`. Any thread may ask."""

    def __init__(self, name: str, value: str) -> None:
        self._name = name
        self._served = _served(name, value)
        self._owner = os.getpid()
        self._idle: list[Service] = []
        self._lock, self._room = _lock_and_room()
        atexit.register(self.close)
        try:
            service, self.described = self._started()
        except (NoIsolation, ServiceFailed, NoAnswer) as error:
            raise BadEnvironment(
                f"environment {name!r} is not Shoal's own, and must run in a sandbox: {error}"
            ) from None
        self._keep(service)

    def ask(
        self,
        call: str,
        answers: TypeAdapter[Answer],
        *,
        seconds: float | None = None,
        calls: Calls | None = None,
        **arguments: Any,
    ) -> Answer:
        """The answer to one question. NoAnswer when there is none, or it is none of `answers`. `calls`: its call backs, of all tries together."""
        calls = calls or Calls(self.described.runs_programs)
        failure: ServiceFailed | None = None
        for _ in range(TRIES):
            try:
                with self._taken() as service:
                    said = service.ask(
                        _question(call, arguments), ANSWER_BYTES, seconds or QUESTION_SECONDS, calls.answer, calls.took
                    )
                    return self._checked(call, said, answers)
            except ServiceFailed as error:
                failure = error
                if not error.ended_by_itself:
                    break
        raise NoAnswer(f"environment {self._name!r}: {call}() {failure}")

    def tasks(self, count: int, seed: int) -> list[Task]:
        """Tasks, which come in parts. NoAnswer when they do not, or are too many."""
        found: list[Task] = []
        size, question = 0, _question("tasks", {"count": count, "seed": seed})
        calls = Calls(self.described.runs_programs)
        try:
            with self._taken() as service:
                while True:
                    said = service.ask(question, ANSWER_BYTES, TASKS_SECONDS, calls.answer)
                    try:
                        part = self._checked("tasks", said, TASKS)
                    except _Wrong as error:  # more parts may follow
                        raise NoAnswer(str(error)) from None
                    if not part:
                        return found
                    found += part
                    size += len(said)
                    if len(found) > count or size > MOST_TASKS_BYTES:
                        raise NoAnswer(
                            f"environment {self._name!r}: tasks() gave {len(found)} tasks in {size} bytes; asked: {count},"
                            f" in at most {MOST_TASKS_BYTES}"
                        )
                    question = b""
        except ServiceFailed as error:
            raise NoAnswer(f"environment {self._name!r}: tasks() {error}") from None

    def close(self) -> None:
        """End those that wait."""
        with self._lock:
            idle = self._idle if self._owner == os.getpid() else []
            self._idle = []
        for service in idle:
            service.close()

    @contextmanager
    def _taken(self) -> Iterator[Service]:
        """A process for one question. It is ended when the question fails, unless its code has only raised."""
        if self._owner != os.getpid():  # after a fork the parent's processes are the parent's
            self._forget()
        with self._room:
            with self._lock:
                service = self._idle.pop() if self._idle else None
            if service is not None and not service.quiet:
                telemetry.get_logger().warning(
                    "a process of an environment spoke, or ended, while no question was open; another takes its place",
                    environment=self._name,
                )
                service.close()
                service = None
            if service is None:
                service, described = self._started()
                if described != self.described:
                    service.close()
                    raise NoAnswer(f"environment {self._name!r}: a second process has another description of it")
            try:
                yield service
            except _Raised:
                self._keep(service)
                raise
            except BaseException:
                service.close()
                raise
            self._keep(service)

    def _keep(self, service: Service) -> None:
        with self._lock:
            self._idle.append(service)

    def _forget(self) -> None:
        self._owner, self._idle = os.getpid(), []
        self._lock, self._room = _lock_and_room()

    def _started(self) -> tuple[Service, Described]:
        """A process that has loaded the environment. NoIsolation, ServiceFailed or NoAnswer."""
        service = Service(self._served)
        try:
            said = service.ask(b"", ANSWER_BYTES, LOAD_SECONDS)
            try:
                return service, Described.model_validate(json.loads(said))
            except (ValidationError, ValueError, RecursionError) as error:
                raise NoAnswer(f"it does not describe itself: {_short(error)}") from None
        except BaseException:
            service.close()
            raise

    def _checked(self, call: str, said: bytes, answers: TypeAdapter[Answer]) -> Answer:
        try:
            answer = json.loads(said)
            if (
                isinstance(answer, dict)
                and answer.keys() <= {"error", "refused"}
                and isinstance(answer.get("error"), str)
            ):
                kind = _Refused if answer.get("refused") is True else _Raised
                raise kind(f"environment {self._name!r}: {answer['error']:.1000}")
            if not isinstance(answer, dict) or answer.keys() != {"value"}:
                raise ValueError("neither a value nor an error")
        except (ValueError, RecursionError) as error:
            raise NoAnswer(self._no_answer(call, error)) from None
        try:
            return answers.validate_python(answer["value"])
        except (ValidationError, RecursionError) as error:
            raise _Wrong(self._no_answer(call, error)) from None

    def _no_answer(self, call: str, error: Exception) -> str:
        return f"environment {self._name!r}: {call}() gave no answer of its kind: {_short(error)}"


def _lock_and_room() -> tuple[threading.Lock, threading.BoundedSemaphore]:
    return threading.Lock(), threading.BoundedSemaphore(min(MOST_PROCESSES, len(os.sched_getaffinity(0))))


def parameter_of(name: str, value: str) -> str | None:
    """What may stand behind a colon in an environment's name. BadEnvironment when it cannot be loaded."""
    processes = _Processes(name, value)
    processes.close()
    return processes.described.parameter


def _served(name: str, value: str) -> ServedModule:
    """What an environment's process runs and may read. Nothing of the package is run to find it."""
    top = value.partition(":")[0].partition(".")[0]
    place = _places((top,)).get(top)
    if place is None:
        raise BadEnvironment(f"environment {name!r}: {top} is no package with a file __init__.py, and no module")
    packages = {
        os.path.realpath(entry)
        for entry in (*sys.path, *folders())
        if os.path.isdir(entry)
        and (entry in folders() or os.path.basename(entry) in ("site-packages", "dist-packages"))
    }
    own = os.path.dirname(os.path.realpath(shoal.__file__))
    of_run = [os.path.realpath(folder) for folder in run_folder()]
    modules = [name for folder in of_run for _, name, _ in iter_modules([folder])]
    return ServedModule(
        module="shoal.environments.served",
        arguments={"name": name, "value": value, "packages": of_run},
        places={**_places(modules), **_places(code_of_others(name)), top: place, "shoal": own},
        path=(*of_run, *sorted(packages.difference(of_run))),
    )


def _places(names: Sequence[str]) -> dict[str, str]:
    """The file or folder of each top-level module that is there. Nothing is run to find them."""
    found: dict[str, str] = {}
    for name in names:
        spec = spec_of(name)
        if spec is not None and spec.origin is not None and os.path.isfile(spec.origin):
            place = os.path.dirname(spec.origin) if spec.submodule_search_locations else spec.origin
            found[name] = os.path.realpath(place)
    return found


def _question(call: str, arguments: dict[str, Any]) -> bytes:
    plain = {key: each.model_dump(mode="json") if isinstance(each, Task) else each for key, each in arguments.items()}
    return json.dumps({"call": call, "arguments": plain}).encode()


def _short(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False)[0]
        return f"{'.'.join(map(str, first['loc'])) or 'it'}: {first['msg']}"[:300]
    return " ".join(str(error).split())[:300] or type(error).__name__
