"""Environments of verifiers 0.4, unchanged: `verifiers:PACKAGE{SETTINGS}`, whose task set gives the questions and whose rewards judge the answers.

A package is what `vf-eval` takes: a module that exports one `Taskset`. prepare loads it, and writes each task's data into the task table; the beacon
draws from there. Workers sample with their own engine, validators score again from what the model wrote (`verifiers_trace`). Tools are functions of
turns (`turns`): the model calls them by the chat template, and every machine runs them itself. All of this happens in a sandbox (`places.SANDBOXED`).

What needs more than its trace is refused when it is loaded: judge models, runtimes, containers, simulated users, loops of their own.
The reward is the sum that verifiers makes, divided by the sum of positive weights above 1; then it is held between 0 and 1.

Each episode imports the package again, so that nothing of another is left in its modules and classes. Libraries stay as they are.

Cost: a process takes 4 s of CPU time and 300 MB to start, since verifiers imports clients of models. A score takes 8 ms, with three calls of tools
15 ms, most of it for importing the package, and the package's own time. So 300 steps of 4,096 rows take a validator 3 to 5 hours of one core.
"""

import gc
import hashlib
import json
import re
import signal
import sys
import typing
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from importlib import import_module
from importlib.metadata import distributions
from itertools import islice
from types import ModuleType
from typing import Any

from pydantic import BaseModel

from shoal.contracts.tasks import ChatMessage, Task
from shoal.environments import verifiers_trace, verifiers_world
from shoal.environments.base import Score, Unscorable, length_suffix
from shoal.environments.places import version_of
from shoal.environments.turns import TURN_END, Answers, FunctionCall, ToolAnswer
from shoal.environments.verifiers_names import ENVIRONMENT, NamedPackage, parse_package
from shoal.rewards.parent import line

VERSION = "0.4.0"
MOST_TASKS = 1_000_000
MOST_REPEATS = 1000
MOST_TURNS = 8
"""Of an episode with tools: verifiers leaves it to the caller."""
TRIAL_SECONDS = 5.0
TRIALS = 3
"""Tasks that prepare scores a few answers of."""
IMPORTS_KEPT = 32
"""Imports of a package after which the earlier ones are freed: a package with 2 MB of data at its head grew by 2 MB an episode."""
UNUSED = {
    "anthropic": (),
    "anthropic.types": ("Message", "Usage"),
    "prime_sandboxes": (),
    "prime_sandboxes.models": ("validate_egress_lists",),
    "tomli_w": (),
}
"""Modules that verifiers imports and no task needs, with the names that it takes from them. Empty ones stand in their place while it is imported."""
UNKNOWN_NETWORK = "nothing can be reached from a sandbox, and what another machine cannot score again is refused"
GOLD_FIELDS = ("answer", "gold", "target", "solution", "ground_truth", "expected")
GOLD_FORMS = ("{}", "\\boxed{{{}}}", "<answer>{}</answer>", "#### {}", "Answer: {}")
RAISED = (Exception, SystemExit)
"""What a package's code may raise, which a line then names. An end of Python is among them: it would end the sandbox without a word."""


class VerifiersPackage:
    """See the module's page. Without a package it says how to name one."""

    parameter = "PACKAGE[{SETTINGS}]"
    version = "1"
    sources = (
        "shoal.environments.turns",
        "shoal.environments.verifiers_names",
        "shoal.environments.verifiers_trace",
        "shoal.environments.verifiers_world",
    )
    requires: tuple[str, ...] = (ENVIRONMENT, "math-verify")
    extra = ENVIRONMENT
    runs_programs = True
    """The rewards are programs of others: a difference between two machines is not held against a node."""

    def __init__(self, wanted: str | None = None) -> None:
        self.name = ENVIRONMENT if wanted is None else f"{ENVIRONMENT}:{wanted}"
        self._package: _Package | None = None
        if wanted is None:
            return
        if line() is None:
            raise ValueError(f"{ENVIRONMENT}: packages are loaded in a sandbox only")
        self._package = package = _Package(parse_package(wanted))
        self.requires = tuple(sorted({*self.requires, *package.requires}))
        self.task_count = package.task_count
        if package.functions:
            self.functions, self.most_turns, self.longest_turn = package.functions, MOST_TURNS, None
            self.answers = package.answers

    def tasks(self, count: int, seed: int) -> list[Task]:
        """`count` different tasks of the task set. ValueError when it has fewer, or cannot score them."""
        return list(self.each_task(count, seed))

    def each_task(self, count: int, seed: int) -> Iterator[Task]:
        """The same, one after the other."""
        return self._loaded.each_task(count, seed)

    def prompt(self, task: Task, target_length: int | None) -> str:
        """The question as the package asks it, and the request for a length. Of messages all texts, for a model without a template."""
        text = task.prompt if isinstance(task.prompt, str) else "\n\n".join(each.content for each in task.prompt)
        return text + length_suffix(target_length)

    def score(self, task: Task, completion: str) -> Score | Unscorable:
        """What the package's rewards say of the model's turns."""
        return self._loaded.score(task, completion.split(TURN_END))

    def gold(self, task: Task) -> str:
        """The answer that a field of the task's data holds, in the first usual form that the rewards take. ValueError where none does."""
        return self._loaded.gold(task)

    @property
    def _loaded(self) -> "_Package":
        if self._package is None:
            raise ValueError(
                f"{ENVIRONMENT}: a package must be named: {ENVIRONMENT}:{self.parameter}, such as {ENVIRONMENT}:word-sums"
            )
        return self._package


class _Package:
    """One package of verifiers, loaded. ValueError, in one line, for whatever keeps it from being scored again."""

    def __init__(self, named: NamedPackage) -> None:
        self.named = named
        self._imports = 0
        self._loaders = _loaders()
        self.requires = self._required()
        verifiers_world.settle()
        verifiers_world.begin()
        self.taskset = self._taskset()
        self.task_type = type(self.taskset).task_type()
        self._refuse_what_cannot_be_scored_again()
        self.functions = self._told(verifiers_trace.functions_of, self._toolsets()) if self._toolsets() else []
        self.task_count = None if self.taskset.INFINITE else lambda: len(self._all)

    def each_task(self, count: int, seed: int) -> Iterator[Task]:
        """Tasks of the whole set in an order that the seed decides; of an endless one the first."""
        if self.taskset.INFINITE:
            tasks = self._listed(count)
        else:
            tasks = list(self._all)
            verifiers_world.begin()
            verifiers_world.SettledRandom(seed).shuffle(tasks)
        if len(tasks) < count:
            raise self._wrong(f"its task set has {len(tasks)} different tasks, and {count} are asked for: lower count")
        self._try(tasks[: min(count, TRIALS)])
        return iter(tasks[:count])

    def score(self, task: Task, turns: Sequence[str]) -> Score | Unscorable:
        """See `VerifiersPackage.score`."""
        try:
            found = self._judged(task, turns)
        except MemoryError:
            return Unscorable(f"task {task.problem_id}: the rewards of {self.named.name} have no memory for the answer")
        except RAISED as error:
            return Unscorable(f"task {task.problem_id}: {self._raised('scoring', error)}")
        reward = found.reward / max(found.weights, 1.0)
        words = f"{self.named.name} gives {found.reward:g} ({found.words})"
        return Score(min(max(reward, 0.0), 1.0), words[:1000])

    def gold(self, task: Task) -> str:
        """See `VerifiersPackage.gold`."""
        data = task.verification_info["data"]
        for value in (data[name] for name in GOLD_FIELDS if isinstance(data.get(name), str | int | float)):
            for form in GOLD_FORMS:
                found = self.score(task, [text := form.format(value)])
                if isinstance(found, Score) and found.task_reward == 1.0:
                    return text
        raise ValueError(f"task {task.problem_id}: {self.named.name} tells no right answer")

    def answers(self, task: Task, turns: Sequence[Sequence[FunctionCall]]) -> Answers | Unscorable:
        """See `turns.WithTurns`. No answer is sure: the code is a stranger's."""
        try:
            self._import_again()
            shared = len(self._shared())
            found = verifiers_trace.answers(self._made(task), self._toolsets(), shared, turns)
        except RAISED as error:
            return Unscorable(f"task {task.problem_id}: {self._raised('its tools', error)}")
        return Answers([[ToolAnswer(text) for text in turn] for turn in found])

    @cached_property
    def _all(self) -> list[Task]:
        tasks = self._listed(MOST_TASKS + 1)
        if len(tasks) > MOST_TASKS:
            raise self._wrong(
                f"its task set gives more than {MOST_TASKS} tasks; one without an end sets INFINITE = True in its Taskset"
            )
        if not tasks:
            raise self._wrong("its task set is empty")
        return tasks

    def _listed(self, most: int) -> list[Task]:
        """The first different tasks."""
        found: dict[str, Task] = {}
        verifiers_world.begin()
        try:
            for made in islice(self.taskset, 2 * most + MOST_REPEATS):
                task = self._task(made)
                found.setdefault(task.problem_id, task)
                if len(found) >= most:
                    break
        except BadPackage:
            raise
        except RAISED as error:
            raise self._wrong(self._raised("its task set", error)) from error
        return list(found.values())

    def _task(self, made: Any) -> Task:
        """A task as it stands in the task table."""
        if type(made) is not self.task_type:
            raise self._wrong(f"its task set gives {type(made).__name__}, and says {self.task_type.__name__}")
        data = made.data
        what = f"task {data.idx}"
        for name, words in (("image", "a container"), ("workdir", "a runtime"), ("agent_user", "a runtime")):
            if getattr(data, name) is not None:
                raise self._wrong(
                    f"{what} has {name}, so it needs {words}; only tasks judged by their trace are allowed"
                )
        for name in ("skills", "artifacts"):
            if getattr(data, name):
                raise self._wrong(
                    f"{what} has {name}, so it needs a runtime; only tasks judged by their trace are allowed"
                )
        row = {
            name: each for name, each in _written(data).items() if name not in self._blank or each != self._blank[name]
        }
        if not _is_read_back(data, row):
            raise self._wrong(f"{what} is another one after it has been written as JSON: keep its data in plain fields")
        if data.prompt is None:
            raise self._wrong(
                f"{what} has no prompt: its user opens the conversation, and an episode begins with a question"
            )
        messages = [_message(each, what, self._wrong) for each in verifiers_trace._asked(data)]
        same = json.dumps({key: each for key, each in row.items() if key != "idx"}, sort_keys=True)
        return Task(
            problem_id=f"{self.named.module[:60]}-{hashlib.sha256(same.encode()).hexdigest()[:24]}",
            task_type=ENVIRONMENT,
            prompt=messages[0].content if [each.role for each in messages] == ["user"] else messages,
            verification_info={"type": self.task_type.__name__, "data": row},
            metadata={},
        )

    @cached_property
    def _blank(self) -> dict[str, Any]:
        """What every task's data has that says nothing else."""
        return _written(import_module("verifiers.v1").TaskData())

    def _made(self, task: Task) -> Any:
        data = self.task_type.data_type().model_validate(task.verification_info["data"])
        return self.task_type(data, self.taskset.config.task)

    def _judged(self, task: Task, turns: Sequence[str]) -> verifiers_trace.JudgedEpisode:
        self._import_again()
        return verifiers_trace.judged(self._made(task), self._toolsets(), len(self._shared()), turns)

    def _try(self, tasks: Sequence[Task]) -> None:
        """Score a few answers twice: what fails for all of them, or reaches for the network, shows before a run begins."""
        for task in tasks:
            failures = []
            texts = ("", "42", "The answer is \\boxed{42}.")
            for text in texts:
                try:
                    with _limited(TRIAL_SECONDS):
                        first, again = self._judged(task, [text]), self._judged(task, [text])
                except RAISED as error:
                    if _reached_out(error) or isinstance(error, _TooLong | verifiers_trace.NeedsRuntime):
                        raise self._wrong(self._raised("scoring", error)) from error
                    failures.append(error)
                    continue
                if first != again:
                    raise self._wrong(
                        f"the same answer is scored as {first.reward:g} and then as {again.reward:g}: it cannot be scored again"
                    )
            if len(failures) == len(texts):
                raise self._wrong(self._raised("scoring", failures[0])) from failures[0]

    def _taskset(self) -> Any:
        name, loaders = self.named.name, self._loaders
        if _is_absent(self.named.module):
            raise self._wrong(
                f"there is no module {self.named.module}; name its wheel in tasks.packages, or install it beside Shoal or in SHOAL_ENVIRONMENTS"
            )
        try:
            made = self._made_taskset()
        except RAISED as error:
            raise self._wrong(self._raised("loading it", error)) from error
        self._module = loaders.import_taskset(name).__name__
        own = loaders.environment_class(name)
        if own.__name__ != "SingleAgentEnv":
            raise self._wrong(f"it has a loop of its own ({own.__name__}); only a task set with one agent is allowed")
        if loaders.default_harness_id(name) == name:
            raise self._wrong("it has a harness of its own; the model here is asked by its chat template only")
        return made

    def _made_taskset(self) -> Any:
        name = self.named.name
        config = self._loaders.taskset_config_type(name).model_validate({**self.named.settings, "id": name})
        return self._loaders.taskset_class(name)(config)

    def _import_again(self) -> None:
        """Begin an episode: the package's modules, classes and task set are new, and so are the clock and random numbers."""
        verifiers_world.begin()
        for name in [each for each in sys.modules if f"{each}.".startswith(f"{self._module}.")]:
            del sys.modules[name]
        self._imports += 1
        if self._imports % IMPORTS_KEPT == 0:
            _forget_imports()
        self.taskset = self._made_taskset()
        self.task_type = type(self.taskset).task_type()
        verifiers_world.begin()

    def _refuse_what_cannot_be_scored_again(self) -> None:
        kind, config = self.task_type, self.taskset.config.task
        if kind.NEEDS_CONTAINER:
            raise self._wrong("its tasks need a container; only tasks judged by their trace are allowed")
        if config.judges:
            raise self._wrong(
                "a judge model scores its tasks, and nothing can be reached from a sandbox; a judge gives another answer on another day."
                " Allowed where all pools are closed: an environment of Shoal's own protocol with repeatable = False"
            )
        task = kind.__new__(kind)  # hooks are found on a task of any data
        task.config = config
        discovered = import_module("verifiers.v1.utils.decorators").discover_decorated
        for hook in (*task.hooks("stop"), *discovered(task, "intercept")):
            raise self._wrong(
                f"{hook.__name__} of its task stops or changes turns, which only verifiers' own loop does"
            )
        rewards, metrics = task.hooks("reward"), task.hooks("metric")
        if not rewards:
            raise self._wrong("its tasks have no @vf.reward")
        for hook in (*rewards, *metrics):
            if verifiers_trace.wants_runtime(hook):
                raise self._wrong(f"{hook.__name__} wants a runtime: {verifiers_trace.NO_RUNTIME}")
        for server in self._told(self._toolsets):
            if getattr(server.config, "url", None):
                raise self._wrong(f"tool server {server.server_name!r} is at an address: {UNKNOWN_NETWORK}")

    def _shared(self) -> list[Any]:
        return list(type(self.taskset).toolsets(self.taskset.config))

    def _toolsets(self) -> list[Any]:
        """Servers of one episode, new ones each time: first those of the task set, then those of a task."""
        return self._shared() + list(self.task_type.toolsets(self.taskset.config.task))

    def _required(self) -> list[str]:
        """Distributions that the package names, and itself: their versions count in the digest. ValueError when one is not installed."""
        found: list[str] = []
        for each in distributions(name=self.named.name.replace("_", "-"), path=sys.path):
            found.append(each.metadata["Name"])
            for line_ in each.requires or ():
                name = re.match(r"[A-Za-z0-9._-]+", line_)
                if name is None or "extra ==" in line_ or name[0].lower() == ENVIRONMENT:
                    continue
                try:
                    version_of(name[0])
                except ModuleNotFoundError:
                    raise self._wrong(
                        f"it needs {line_.partition(';')[0].strip()}, which is not installed here"
                    ) from None
                found.append(name[0])
            break
        return found

    def _told(self, work: Any, *given: Any) -> Any:
        try:
            return work(*given)
        except BadPackage:
            raise
        except RAISED as error:
            raise self._wrong(self._raised("loading it", error)) from error

    def _raised(self, doing: str, error: BaseException) -> str:
        """What went wrong, in a line."""
        while type(error).__name__ == "TaskError" and error.__cause__ is not None:
            error = error.__cause__
        words = f"{doing} raised {type(error).__name__}: {' '.join(str(error).split())[:300]}"
        return f"{words}; {UNKNOWN_NETWORK}" if _reached_out(error) else words

    def _wrong(self, words: str) -> "BadPackage":
        return BadPackage(f"{ENVIRONMENT}:{self.named.name}: {words}")


def _forget_imports() -> None:
    """Free the modules that were imported before: caches of `typing` hold the newest 64, and cycles wait for a collection that counts no bytes."""
    for forget in getattr(typing, "_cleanups", ()):
        forget()
    gc.collect()


class BadPackage(ValueError):
    """A package that cannot be used; the message is one line."""


class _TooLong(Exception):
    """Scoring takes too much CPU time."""


def _written(data: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(data.model_dump_json())
    return found


def _is_read_back(data: Any, row: dict[str, Any]) -> bool:
    """Whether a task's data is the same after it has been written as JSON."""
    try:
        return bool(type(data).model_validate(row) == data)
    except ValueError:
        return False


def _message(message: Any, what: str, wrong: Any) -> ChatMessage:
    content = message.content
    if getattr(message, "tool_calls", None) or not (content is None or isinstance(content, str)):
        raise wrong(f"{what} has a message of images or calls in its prompt; only texts are allowed")
    return ChatMessage(role=message.role, content=content or "")


def _loaders() -> Any:
    """verifiers' own loaders. ValueError when the package is not here, or in another version."""
    try:
        found = version_of(ENVIRONMENT)
    except ModuleNotFoundError:
        raise ValueError(
            f"needs {ENVIRONMENT} {VERSION}, which is not installed: install the extra `{ENVIRONMENT}` of shoal"
        ) from None
    if found != VERSION:
        raise ValueError(
            f"needs {ENVIRONMENT} {VERSION}; {found} is installed: install the extra `{ENVIRONMENT}` of shoal"
        )
    stand_ins = {name: _stand_in(name, members) for name, members in UNUSED.items() if name not in sys.modules}
    sys.modules.update(stand_ins)
    try:
        return import_module("verifiers.v1.utils.loaders")
    except ImportError as error:
        raise ValueError(
            f"{ENVIRONMENT} {VERSION} cannot be imported: {error}; install the extra `{ENVIRONMENT}` of shoal"
        ) from None
    finally:
        for name in stand_ins:
            del sys.modules[name]


def _stand_in(name: str, members: Sequence[str]) -> ModuleType:
    made = ModuleType(name)
    made.__path__ = []
    for member in members:
        setattr(made, member, type(member, (BaseModel,), {}))
    return made


def _is_absent(module: str) -> bool:
    from importlib.util import find_spec

    if module in sys.modules:
        return False
    try:
        return find_spec(module) is None
    except (ImportError, ValueError):
        return True


def _reached_out(error: BaseException | None) -> bool:
    """Whether the network or a file is behind an error. A library's own error has it as its cause."""
    seen = 0
    while error is not None and seen < 20:
        if isinstance(error, OSError) or "Connection" in type(error).__name__:
            return True
        error, seen = error.__cause__ or error.__context__, seen + 1
    return False


@contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """_TooLong after this much CPU time of the block."""

    def stop(number: int, frame: Any) -> None:
        raise _TooLong(f"it takes more than {seconds:g} s of CPU time for a short answer")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
