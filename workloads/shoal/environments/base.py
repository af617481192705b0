"""What an environment is: tasks to solve, the prompt of a task, and a score for an answer.

A run names one environment, or a mixture of several (`mixture`).
`prepare` asks it for tasks, workers ask it for prompts and for the reward they claim, and
validators ask it for the reward that counts. All of them must get the same answer for the same input, so an
environment is deterministic and bounded: no clock, no network, no global random state, time linear in the text.

Environments are installed packages that list themselves under the entry point group `shoal.environments`; `load` finds
one by name. Those that are not Shoal's own run in a sandbox (`apart`). A run pins one by `digest`, so that a node with
another version is told apart before it does any work.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import re
import sys
from collections.abc import Iterator
from functools import cache
from importlib.metadata import EntryPoint, PackageNotFoundError, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from shoal.environments.places import (
    SANDBOXED,
    code_of_others,
    folders,
    locked,
    points_in,
    run_folder,
    spec_of,
    version_of,
)
from shoal.environments.results import BadEnvironment as BadEnvironment
from shoal.environments.results import Score as Score
from shoal.environments.results import Unscorable as Unscorable
from shoal.environments.results import is_repeatable as is_repeatable
from shoal.environments.results import runs_programs as runs_programs
from shoal.installed import installed as own_distribution

if TYPE_CHECKING:
    from shoal.contracts.tasks import Task

ENTRY_POINT_GROUP = "shoal.environments"
TRUSTED_VARIABLE = "SHOAL_TRUSTED_ENVIRONMENTS"
"""Names of installed environments, with commas or spaces between them, that this machine's owner trusts with its files, keys and network."""

SHOAL_MODULE = re.compile(r"shoal(\.[a-z_][a-z0-9_]*)+")
APART = "shoal.environments.apart"


@runtime_checkable
class Environment(Protocol):
    """One kind of task. `name` is the entry point's name; `version` changes whenever a score or a prompt may change.

    What an environment may have besides (read with `getattr`, so that a plain environment needs none of it):

    - `sources`: names of further modules and packages that its scores come from. `requires`: distributions whose versions they depend on. The digest
      pins both. `extra`: the extra of shoal that brings `requires`, for messages.
    - `has_answer(task, completion)`: whether a text gives a final answer, right or wrong, in the form that is asked for. It changes no score.
    - `broken(task)`: a completion close to the gold one that scores 0.
    - `flaw(task)`: why a right answer to a task might not be judged, proven on an equivalent of the gold one; None when it can. ValueError where the
      task brings none: prepare then refuses such tasks of a data set. It is called from several threads.
    - `problems()`: what this machine lacks for scoring, a line each.
    - `stop` and `observe`: see `episodes`.
    - `parameter`: what may stand behind a colon in the environment's name (`lm-eval:gsm8k_cot`). Its class is then made with that text, and calls
      itself by the whole name.
    - `each_task(count, seed)`: the same as `tasks`, one after the other, where making them all takes minutes.
    - `task_count()`: how many tasks there are, where nobody can make more.
    - `part_of(task)`: of several environments in one, that which judges a task.
    - `runs_programs`: true where scores come from programs that the model wrote. Two honest machines may then differ, so that no difference is held
      against a node, and proofs are verified before anything runs.
    - `repeatable`: false where a score cannot be made again, as of a judge model or a live API. Only a run without open pools takes it: validators
      check proofs, draws and format, and the worker's score counts. `TRUSTED_VARIABLE` on workers gives it the network, and nothing else does.
    - `rewards_turns`: true where each `Score` of an environment with turns says what each turn earned (`Score.turn_rewards`; `recipe.credit: Turn`).
    """

    name: str
    version: str

    def tasks(self, count: int, seed: int) -> list[Task]:
        """`count` different tasks, the same ones for the same seed. ValueError when there are not that many."""

    def prompt(self, task: Task, target_length: int | None) -> str:
        """The text that the model continues; a `target_length` (tokens) adds the request for that length."""

    def score(self, task: Task, completion: str) -> Score | Unscorable:
        """Score the completion's text (without the end-of-sequence token). Any string is allowed and never raises."""

    def gold(self, task: Task) -> str:
        """A completion that scores 1: the environment's own proof that its scoring works; teaches a warm start too."""


def length_suffix(target_length: int | None) -> str:
    """The request for a length, in the words of INTELLECT-2 (section 3.1.2); empty without a target."""
    if target_length is None:
        return ""
    if target_length < 1:
        raise ValueError(f"target_length is {target_length}; allowed: 1 or more tokens, or None for no target")
    return f" Think for {target_length} tokens before giving a response."


def installed() -> dict[str, EntryPoint]:
    """Environments on this machine by name. Nothing is imported yet. Of two with one name, the one that is Shoal's own counts, then the run's."""
    group, of_run = ENTRY_POINT_GROUP, run_folder()
    owners = [folder for folder in folders() if folder not in of_run]
    points = [*points_in(owners, group), *entry_points(group=group), *points_in(of_run, group)]
    return {point.name: point for point in sorted(points, key=lambda point: point in _own())}


def in_process(point: EntryPoint) -> bool:
    """Whether an environment runs with this process's rights: Shoal's own but `SANDBOXED`, and those named in `TRUSTED_VARIABLE`.

    None of the run's packages does: a name that the owner trusts may stand for anybody's code there.
    """
    if point in _own():
        return point.name not in SANDBOXED
    if point.dist is not None and str(point.dist.locate_file("")) in map(str, map(Path, run_folder())):
        return False
    return point.name in os.environ.get(TRUSTED_VARIABLE, "").replace(",", " ").split()


@cache
def _own() -> tuple[EntryPoint, ...]:
    """What the distribution of Shoal lists. Another one that lists the same name and class has no more than that."""
    try:
        return tuple(own_distribution().entry_points.select(group=ENTRY_POINT_GROUP))
    except PackageNotFoundError:
        return ()


def parameter(name: str) -> str | None:
    """The name of the parameter behind the colon in an environment's name. None for an environment without parts, or that cannot be imported."""
    point = installed()[name]
    try:
        if not (in_process(point) or point in _own()):
            from shoal.environments.apart import parameter_of  # sandboxes, which few processes need

            return parameter_of(name, point.value)
        found = getattr(_class_of(point), "parameter", None)
    except (ImportError, BadEnvironment):
        return None
    return None if found is None else str(found)


def known_count(environment: Environment) -> int | None:
    """How many tasks an environment has, None where it makes as many as it is asked for. ValueError when they are not available."""
    count = getattr(environment, "task_count", None)
    return None if count is None else int(count())


@cache
def load(name: str) -> Environment:
    """The environment called `name`, which may be `NAME:PART`. BadEnvironment when it is not installed or is not an environment."""
    found = installed()
    plain, colon, argument = name.partition(":")
    if plain not in found:
        names = ", ".join(sorted(found)) or "none"
        raise BadEnvironment(
            f"environment {plain!r} is not installed here; installed: {names}. "
            f"Name its wheel in tasks.packages, or install the package that lists it under the entry point group {ENTRY_POINT_GROUP!r}"
        )
    if not in_process(found[plain]):
        from shoal.environments.apart import Apart  # sandboxes, which few processes need

        return Apart(name, found[plain].value)
    make = _class_of(found[plain])
    if colon and getattr(make, "parameter", None) is None:
        raise BadEnvironment(
            f"environment {plain!r} has no parts to name: write {plain!r} without {colon + argument!r:.80}"
        )
    try:
        made = make(argument) if colon else make()
    except ValueError as error:
        raise BadEnvironment(str(error)) from None
    except Exception as error:  # others' code raises anything
        if found[plain] in _own():
            raise
        raise _not_loaded(plain, error) from error
    if not isinstance(made, Environment):
        raise BadEnvironment(
            f"environment {name!r} ({found[plain].value}) lacks one of: name, version, tasks, prompt, score, gold"
        )
    if made.name != name:
        raise BadEnvironment(
            f"entry point {name!r} ({found[plain].value}) is an environment with the name {made.name!r}"
        )
    return made


def _class_of(point: EntryPoint) -> Any:
    """What an entry point names, run in this process. BadEnvironment when one that the owner trusts cannot be loaded."""
    if point in _own():
        return point.load()
    folder = "" if point.dist is None else str(point.dist.locate_file(""))
    if folder in [str(Path(each)) for each in folders()] and folder not in sys.path:
        sys.path.append(folder)
    try:
        return point.load()
    except Exception as error:  # as above
        raise _not_loaded(point.name, error) from error


def _not_loaded(name: str, error: Exception) -> BadEnvironment:
    return BadEnvironment(f"environment {name!r} cannot be loaded: {type(error).__name__}: {error!s:.500}")


def digest(environment: Environment) -> str:
    """SHA-256 (hex) over name, version and source of an environment: what a run pins.

    The source is that of the modules of the environment's class and its
    base classes, and of this one: a change in a shared scorer or in the suffix counts too. It also covers `sources` with all modules below them,
    and the versions of `requires`. Line ends are normalised: they carry no meaning. BadEnvironment when one of these is not there.
    Of an environment that is not Shoal's own, sandboxed or trusted, it covers all files of its package but Python's caches. Of one among the run's
    packages it covers the digests of all of them.
    """
    versions = [*_versions(environment), *locked(packages_of(environment))]
    files = dict(_module_file(environment, name) for name in modules_of(environment) | {__name__, Score.__module__})
    for name in sources_of(environment):
        files |= dict(_files_below(environment, name))
    for name in packages_of(environment):
        files |= dict(_files_below(environment, name, "*"))
    sha = hashlib.sha256()
    for text in (environment.name, environment.version):
        _add(sha, text.encode())
    for name, path in sorted(files.items()):
        _add(sha, name.encode())
        data = path.read_bytes()
        _add(sha, data.replace(b"\r\n", b"\n") if path.suffix == ".py" else data)
    for each in versions:
        _add(sha, each.encode())
    return sha.hexdigest()


def _versions(environment: Environment) -> Iterator[str]:
    for name in sorted(getattr(environment, "requires", ())):
        try:
            yield f"{name}=={version_of(name)}"
        except PackageNotFoundError:
            extra = getattr(environment, "extra", None)
            what = (
                ""
                if extra is None
                else f": install the extra `{extra}` of shoal-rl in this machine's Python environment"
            )
            raise BadEnvironment(
                f"environment {environment.name!r} needs {name}, which is not installed{what}"
            ) from None


def modules_of(environment: Environment) -> set[str]:
    """Modules of the class and base classes of an environment of Shoal; of those in a sandbox their sources tell them."""
    return set() if _is_apart(environment) else {cls.__module__ for cls in type(environment).__mro__} - {
        "builtins", "typing",
    }  # fmt: skip


def sources_of(environment: Environment) -> tuple[str, ...]:
    """Further modules and packages. Of one in a sandbox: those of Shoal by their names, others by their package, which is not run."""
    sources = tuple(getattr(environment, "sources", ()))
    if not _is_apart(environment):
        return sources
    kept: dict[str, None] = {}
    for source in (*sources, *(cls.__module__ for cls in type(environment).__mro__)):
        top = source.partition(".")[0]
        if SHOAL_MODULE.fullmatch(source) and source != APART:
            kept[source] = None
        elif top.isidentifier() and top not in (*sys.stdlib_module_names, "shoal"):
            kept[top] = None
    return tuple(kept)


def packages_of(environment: Environment) -> tuple[str, ...]:
    """Packages of which every file counts: that of an environment which is not Shoal's own; those of `SANDBOXED` and of a mixture's parts."""
    package = _package_of(environment)
    own = code_of_others(environment.name)
    return (package,) if package else own or tuple(getattr(environment, "whole_packages", ()))


def _is_apart(environment: Environment) -> bool:
    return _package_of(environment) is not None or environment.name.partition(":")[0] in SANDBOXED


def _package_of(environment: Environment) -> str | None:
    point = installed().get(environment.name.partition(":")[0])
    return None if point is None or point in _own() else point.value.partition(":")[0].partition(".")[0]


def _module_file(environment: Environment, name: str) -> tuple[str, Path]:
    source = inspect.getsourcefile(sys.modules[name])
    if source is None:
        raise BadEnvironment(f"environment {environment.name!r}: module {name} has no source file to pin")
    return name, Path(source)


def _files_below(environment: Environment, name: str, pattern: str = "*.py") -> Iterator[tuple[str, Path]]:
    """A module, or every module (or other file) of a package, by its place below the package's name; nothing is run to find them."""
    found = spec_of(name)
    if found is None or found.origin is None:
        raise BadEnvironment(f"environment {environment.name!r}: its source {name} is missing and cannot be pinned")
    origin = Path(found.origin)
    if not found.submodule_search_locations:
        yield name, origin
        return
    for path in sorted(origin.parent.rglob(pattern)):
        if path.suffix == ".py" or (path.is_file() and "__pycache__" not in path.relative_to(origin.parent).parts):
            yield f"{name}/{path.relative_to(origin.parent).as_posix()}", path


def _add(sha: hashlib._Hash, part: bytes) -> None:
    """Length first, so that no two lists of parts give the same bytes."""
    sha.update(len(part).to_bytes(8, "big"))
    sha.update(part)
