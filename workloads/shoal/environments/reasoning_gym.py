"""The generators of reasoning-gym as an environment: `reasoning-gym:chain_sum{"max_terms":3}*2+gcd@0-2`, scored by the package itself.

What stands behind the colon names generators, their settings, levels of their curricula and weights (`reasoning_gym_names`). prepare makes the tasks;
a task holds all that its scorer needs, in JSON that gives the same values back. The code of the package runs in a sandbox only (`places.SANDBOXED`),
and no answer reaches a scorer that would run it (`reasoning_gym_answers`). The reward is the package's, from 0 to 1.

Cost: the package takes 2 s to import and 150 MB. Most generators make 5,000 tasks a second, a dozen 2 to 20, so that 285,000 tasks of those take
days and come in parts. A score takes 0.2 ms to ask and the scorer's own time, of expressions up to 11 ms.
"""

import dataclasses
import difflib
import hashlib
import json
import math
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType
from typing import Any

from shoal.contracts.tasks import Task
from shoal.environments.base import Score, Unscorable, length_suffix
from shoal.environments.exact_json import from_json, to_json
from shoal.environments.reasoning_gym_answers import CLOSING, OPENING, answer_of, harmless
from shoal.environments.reasoning_gym_names import Named, parse

PACKAGE, VERSION = "reasoning-gym", "0.1.25"
"""Another version may score otherwise, and run answers that this one does not."""
SOURCES_ALONE = {
    "cellpylib": ("game_of_life", "game_of_life_halting"),
    "pycosat": ("zebra_puzzles",),
    "zss": ("codeio",),
}
"""Packages that come as sources only, and the generators that need them. The others work without."""
INSTRUCTION = f"Write the final answer, and nothing else, between {OPENING} and {CLOSING}."
EXAMPLES = {
    "graph_color": "possible_answer",
    "propositional_logic": "example_answer",
    "rubiks_cube": "example_correct_answer",
}
"""Where generators without one right answer have an example of it."""
UNTOLD = ("boxnet", "rush_hour")
"""Those that tell no right answer, so that nothing proves their scorers. No category has them: name them."""
MOST_REPEATS = 500
"""Items in a row that are no new task, until a generator counts as exhausted."""
MOST_FAILURES = 20
MOST_CHARACTERS = 16_384
"""Of an answer, unless the right one is a fourth as long."""

MOST_VARIABLES = 3
"""That a formula has besides those of the task: parts of a broken one are taken for variables."""


@dataclass(frozen=True)
class Generator:
    """One generator with its settings and level, both as JSON for tasks to hold."""

    name: str
    settings: str
    level: int | None
    weight: int

    def __str__(self) -> str:
        level = "" if self.level is None else f"@{self.level}"
        return f"{self.name}{level}{self.settings if self.settings != '{}' else ''}"


class ReasoningGym:
    """See the module's page. Without generators it says how to name them."""

    parameter = "GENERATOR[@LEVEL][{SETTINGS}][*WEIGHT][+...]"
    version = "1"
    sources = (
        "shoal.environments.exact_json",
        "shoal.environments.reasoning_gym_answers",
        "shoal.environments.reasoning_gym_names",
    )
    requires: tuple[str, ...] = (PACKAGE, "magiccube", "sympy")
    extra = PACKAGE

    def __init__(self, wanted: str | None = None) -> None:
        self.name = PACKAGE if wanted is None else f"{PACKAGE}:{wanted}"
        self.generators = [] if wanted is None else _generators(parse(wanted))
        needed = {found for each in self.generators if (found := _needs(each.name)) is not None}
        self.requires = (*self.requires, *sorted(needed))

    def tasks(self, count: int, seed: int) -> list[Task]:
        """`count` different tasks, of several generators by turns. ValueError when there are not that many, or the settings give none."""
        return list(self.each_task(count, seed))

    def each_task(self, count: int, seed: int) -> Iterator[Task]:
        """The same, one after the other."""
        return (task for task, _, _ in self.each_item(count, seed))

    def each_item(self, count: int, seed: int) -> Iterator[tuple[Task, Any, dict[str, Any]]]:
        """Each with the package's data set and item that it was made from."""
        if not self.generators:
            raise ValueError(
                f"{PACKAGE}: generators must be named: {PACKAGE}:{self.parameter}, such as {PACKAGE}:chain_sum"
            )
        shares = _shares(count, [each.weight for each in self.generators])
        made = [_made(each, share, seed) for each, share in zip(self.generators, shares, strict=True)]
        for turn in _turns(shares):
            yield next(made[turn])

    def prompt(self, task: Task, target_length: int | None) -> str:
        """The question, the form of the answer, and the request for a length."""
        return f"{str(task.prompt).rstrip()}\n\n{INSTRUCTION}{length_suffix(target_length)}"

    def score(self, task: Task, completion: str) -> Score | Unscorable:
        """What the package's scorer says of the last answer between tags, 0 without one. An answer that its scorer cannot take is worth 0."""
        answer = answer_of(completion)
        try:
            name, scorer, entry = _entry(task)
        except Exception as error:  # of a task of another version, or of nobody's
            return Unscorable(f"task {task.problem_id}: {type(error).__name__}: {error!s:.300}")
        if answer is None:
            return Score(0.0, f"there is no answer between {OPENING} and {CLOSING}")
        right = [str(entry["answer"]).strip(), *entry["metadata"].get("valid_answers", ())]
        if len(answer) > max(MOST_CHARACTERS, 4 * len(right[0])):
            return Score(0.0, f"the answer has {len(answer)} characters")
        try:
            seen = harmless(name, answer, right, entry["metadata"].get("numbers", ()))
            if name == "propositional_logic" and not _few_variables(scorer, seen, entry):
                seen = ""
            reward = float(scorer.score_answer(seen, entry))
        except MemoryError:
            return Unscorable(f"task {task.problem_id}: the scorer of {name} has no memory for the answer")
        except Exception as error:  # most scorers say 0 by themselves
            return Score(0.0, f"the scorer of {name} cannot take the answer: {type(error).__name__}")
        if not math.isfinite(reward):
            return Unscorable(f"task {task.problem_id}: the scorer of {name} gave {reward}")
        return Score(min(max(reward, 0.0), 1.0), f"{name} gives {reward:g}")

    def has_answer(self, task: Task, completion: str) -> bool:
        """Whether there is something between the tags."""
        return bool(answer_of(completion))

    def gold(self, task: Task) -> str:
        """The generator's answer, or its example of one. ValueError where it has none."""
        name, _, entry = _entry(task)
        answer = entry["answer"]
        if answer is None and name in EXAMPLES:
            found = entry["metadata"][EXAMPLES[name]]
            answer = found if isinstance(found, str) else json.dumps({str(key): each for key, each in found.items()})
        if not isinstance(answer, str):
            raise ValueError(f"task {task.problem_id}: generator {name} gives no right answer")
        return f"{OPENING}{answer}{CLOSING}"


def _few_variables(scorer: Any, answer: str, entry: dict[str, Any]) -> bool:
    """Whether a formula has few variables besides those of the task: the scorer makes each assignment of them."""
    from reasoning_gym.logic.propositional_logic import Expression

    variables = scorer._collect_variables([Expression.from_string(answer)])
    return len(variables | set(entry["metadata"]["variables"])) <= len(entry["metadata"]["variables"]) + MOST_VARIABLES


def _generators(named: list[Named]) -> list[Generator]:
    """The generators that are named, categories and levels written out, each tried with its settings. ValueError."""
    known = _known()
    found: list[Generator] = []
    for each in named:
        members = _members(each.name)
        if members and each.settings:
            raise ValueError(
                f"{PACKAGE}: {each.name} stands for {len(members)} generators; settings are for a single one"
            )
        if not members and each.name not in known:
            near = difflib.get_close_matches(each.name, known, 5, 0.6)
            raise ValueError(
                f"{PACKAGE}: there is no generator {each.name!r}; "
                + (
                    f"near are {', '.join(near)}"
                    if near
                    else f"allowed: all, or of {len(known)} such as {', '.join(list(known)[:5])}"
                )
            )
        for name in members or [each.name]:
            if not members and (needed := _needs(name)) is not None and not _is_there(needed):
                raise ValueError(f"{PACKAGE}: generator {name} needs the package {needed}, which is not installed")
            levels: list[int | None] = [None]
            if each.levels is not None:
                levels = _levels(name, each.levels, of_many=bool(members))
            found += [Generator(name, _plain(each.settings), level, each.weight) for level in levels]
    if len({(each.name, each.settings, each.level) for each in found}) < len(found):
        twice = next(each for each in found if sum(_same(each, other) for other in found) > 1)
        raise ValueError(f"{PACKAGE}: {twice} is named twice; give it a weight instead, as in {twice}*2")
    for one in found:
        _dataset(one.name, one.settings, one.level, 0, 1)
    return found


def _same(one: Generator, other: Generator) -> bool:
    return (one.name, one.settings, one.level) == (other.name, other.settings, other.level)


def _members(name: str) -> list[str]:
    """Generators of a category that work here; none for another name."""
    if name in _known():
        return []
    return [
        each
        for each, category in _known().items()
        if name in ("all", category) and each not in UNTOLD and ((needed := _needs(each)) is None or _is_there(needed))
    ]


def _levels(name: str, wanted: tuple[int, int], of_many: bool) -> list[int | None]:
    """Levels of a generator's curriculum. Of many generators each gives the nearest that it has and its own settings allow. ValueError."""
    curricula = _package().factory.CURRICULA
    if name not in curricula:
        if of_many:
            return [None]
        raise ValueError(f"{PACKAGE}: generator {name} has no curriculum: leave out @{wanted[0]}")
    highest = max(len(each.levels) for each in curricula[name]().attributes.values()) - 1
    if wanted[1] > highest and not of_many:
        raise ValueError(f"{PACKAGE}: generator {name} has no level {wanted[1]}; allowed: 0 to {highest}")
    levels = dict.fromkeys(min(level, highest) for level in range(wanted[0], wanted[1] + 1))
    return [level for level in levels if not of_many or _allowed(name, level)]


def _allowed(name: str, level: int) -> bool:
    """Whether a level of a curriculum is one: some of the package's are refused by its own checks."""
    try:
        _dataset(name, "{}", level, 0, 1)
    except ValueError:
        return False
    return True


def _shares(count: int, weights: list[int]) -> list[int]:
    """How many of `count` each weight gets: within one of its exact share, the first ones first."""
    shares = [count * weight // sum(weights) for weight in weights]
    rests = sorted(range(len(weights)), key=lambda n: (-(count * weights[n] % sum(weights)), n))
    for number in rests[: count - sum(shares)]:
        shares[number] += 1
    return shares


def _turns(shares: list[int]) -> Iterator[int]:
    """Each number as often as its share says, evenly: the k-th of n comes at (k + 1/2) / n of the way."""
    places = [((place + 0.5) / share, number) for number, share in enumerate(shares) for place in range(share)]
    return (number for _, number in sorted(places))


def _made(generator: Generator, count: int, seed: int) -> Iterator[tuple[Task, Any, dict[str, Any]]]:
    """`count` different tasks of one generator. ValueError when it has fewer, or fails."""
    text = f"shoal-reasoning-gym {seed} {generator}"
    own_seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") >> 1
    size = 2 * count + MOST_REPEATS
    dataset = _dataset(generator.name, generator.settings, generator.level, own_seed, size)
    seen: set[str] = set()
    given = repeats = failures = index = 0
    while given < count:
        if repeats > MOST_REPEATS or index == size:
            raise ValueError(
                f"{PACKAGE}: {generator} gives {given} different tasks, not {count}: lower count or its weight"
            )
        random.seed(own_seed + index)  # what a generator draws beside its own source
        index += 1
        try:
            item = dataset[index - 1]
            task = _task(generator, item)
        except Exception as error:  # some give up on some seeds
            failures += 1
            if failures > MOST_FAILURES:
                raise ValueError(f"{PACKAGE}: {generator} makes no task: {_words(error)}") from None
            continue
        failures = 0
        if task.problem_id in seen:
            repeats += 1
            continue
        repeats = 0
        seen.add(task.problem_id)
        given += 1
        yield task, dataset, item


def _task(generator: Generator, item: dict[str, Any]) -> Task:
    info = {
        "generator": generator.name,
        "settings": json.loads(generator.settings),
        "level": generator.level,
        "answer": to_json(item["answer"]),
        "metadata": to_json({key: each for key, each in item["metadata"].items() if key != "source_index"}),
    }
    # What makes it another task: the question and the answer, and for a scorer that looks at the puzzle alone that too.
    told = json.dumps([item["question"], info], sort_keys=True)
    return Task(
        problem_id=f"{generator.name}-{hashlib.sha256(told.encode()).hexdigest()[:24]}",
        task_type=PACKAGE,
        prompt=item["question"],
        verification_info=info,
        metadata={},
    )


def _entry(task: Task) -> tuple[str, Any, dict[str, Any]]:
    """The generator's name, an instance of it that scores, and the entry that it made. Any exception for a task that is not ours."""
    info = task.verification_info
    if (needed := _needs(info["generator"])) is not None and not _is_there(needed):
        raise ValueError(f"generator {info['generator']} needs the package {needed}, which is not installed")
    scorer = _dataset(info["generator"], _plain(info["settings"]), info["level"], 0, 1)
    metadata = from_json(info["metadata"])
    return (
        info["generator"],
        scorer,
        {"question": task.prompt, "answer": from_json(info["answer"]), "metadata": metadata},
    )


@cache
def _dataset(name: str, settings: str, level: int | None, seed: int, size: int) -> Any:
    """The package's data set. ValueError, in one line, for settings that it does not have or allow."""
    package, wanted = _package(), json.loads(settings)
    if name not in _known():
        raise ValueError(f"{PACKAGE}: there is no generator {name!r}")
    make, config_of = package.factory.DATASETS[name]
    fields = sorted(each.name for each in dataclasses.fields(config_of) if each.name not in ("seed", "size"))
    if unknown := sorted(set(wanted) - set(fields)):
        raise ValueError(f"{PACKAGE}: {name} has no setting {unknown[0]!r:.60}; allowed: {', '.join(fields)}")
    try:
        if level is None:
            config = config_of(seed=seed, size=size, **wanted)
        else:
            curriculum = package.factory.CURRICULA[name]()
            curriculum.set_global_level(level)
            config = curriculum.generate_configuration({"seed": seed, "size": size})
            config = dataclasses.replace(config, **wanted)
        return make(config)
    except Exception as error:
        at = "" if level is None else f"@{level}"
        raise ValueError(f"{PACKAGE}: {name}{at} does not allow {settings}: {_words(error)}") from None


@cache
def _known() -> dict[str, str]:
    """Names of generators, and the category of each: the folder of the package that it lies in."""
    found = _package().factory.DATASETS
    return {name: found[name][0].__module__.split(".")[1] for name in sorted(found) if name != "composite"}


@cache
def _package() -> Any:
    """The package. ValueError when it is not here, or in another version."""
    try:
        found = version(PACKAGE)
    except PackageNotFoundError:
        raise ValueError(f"needs {PACKAGE}, which is not installed: install the extra `{PACKAGE}` of shoal") from None
    if found != VERSION:
        raise ValueError(f"needs {PACKAGE} {VERSION}; {found} is installed: install the extra `{PACKAGE}` of shoal")
    for name in SOURCES_ALONE:
        if not _is_there(name):
            sys.modules[name] = ModuleType(name)  # empty: whoever needs it is refused by name
    import reasoning_gym

    return reasoning_gym


def _needs(generator: str) -> str | None:
    """The package of `SOURCES_ALONE` that a generator needs."""
    return next((package for package, those in SOURCES_ALONE.items() if generator in those), None)


@cache
def _is_there(package: str) -> bool:
    try:
        version(package)
    except PackageNotFoundError:
        return False
    return True


def _plain(settings: dict[str, Any]) -> str:
    return json.dumps(settings, sort_keys=True, separators=(",", ":"))


def _words(error: Exception) -> str:
    return " ".join(f"{error}".split())[:200] or type(error).__name__
