"""What `shoal up` can tell of a manifest before it starts anything: environments, models and trackers that are not on this machine.

prepare would find the same minutes later, after several attempts. Called for runs that are not prepared yet.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.environments.base import installed
from shoal.environments.harness_names import BadHarnessTask, HarnessTask
from shoal.environments.reasoning_gym_names import BadGenerators, parse
from shoal.environments.verifiers_names import ENVIRONMENT as VERIFIERS
from shoal.environments.verifiers_names import BadPackageName, parse_package

if TYPE_CHECKING:
    from shoal.contracts.task_source import TaskOrigin
    from shoal_operator.api.training_run import TrainingRunSpec


PACKAGES = "spec.tasks.packages"


def lacking(spec: TrainingRunSpec) -> list[str]:
    """A line for everything that this machine lacks."""
    brought = bool(spec.tasks.packages)
    lines = [
        f"{field}: {problem}"
        for field, name in _environments(spec)
        if (problem := _problem_of_environment(name, brought)) is not None
    ]
    lines += [
        f"{PACKAGES}[{number}].path: there is no file {each.path} on this machine; give the file of a wheel"
        for number, each in enumerate(spec.tasks.packages)
        if each.path is not None and Path(each.path).is_absolute() and not Path(each.path).is_file()
    ]
    for field, path in _models(spec):
        if path.is_absolute() and not (path / "config.json").is_file():
            what = "has no config.json" if path.is_dir() else "is not a folder on this machine"
            lines.append(f"{field}: {path} {what}; expected a folder with a Hugging Face checkpoint")
    lines += [
        f"spec.trackers.{name}: {name} is not installed here: pip install 'shoal-rl[{name}]'"
        for name in (spec.trackers.named if spec.trackers is not None else ())
        if importlib.util.find_spec(name) is None
    ]
    return lines


def _problem_of_environment(name: str, brought: bool) -> str | None:
    """`brought`: the run brings packages, which prepare looks into; a name that is not installed is then theirs."""
    package, _, part = name.partition(":")
    if package not in installed():
        if brought:
            return None
        return f"environment {name!r} is not installed here; installed: {', '.join(sorted(installed()))}"
    if package == "reasoning-gym":
        try:
            parse(part)
        except BadGenerators as error:
            return str(error)
    if package == VERIFIERS and part:
        try:
            parse_package(part)
        except BadPackageName as error:
            return str(error)
    if package != "lm-eval" or not part:
        return None
    try:
        wanted = HarnessTask.parse(part)
    except BadHarnessTask as error:
        return str(error)
    if wanted.is_file and not (Path(wanted.task).is_absolute() and Path(wanted.task).is_file()):
        return f"{name}: there is no such file on this machine; allowed: the absolute path of a task's YAML"
    return None


def _environments(spec: TrainingRunSpec) -> Iterator[tuple[str, str]]:
    for field, origin in _origins(spec):
        yield f"{field}.environment", origin.judged_by
    for number, benchmark in enumerate(spec.evaluation.benchmarks if spec.evaluation is not None else ()):
        if benchmark.tasks.environment is not None:
            yield f"spec.evaluation.benchmarks[{number}].tasks.environment", benchmark.tasks.environment


def _origins(spec: TrainingRunSpec) -> Iterator[tuple[str, TaskOrigin]]:
    """Where tasks come from, and the field that says it."""
    if spec.tasks.mixture is None:
        yield "spec.tasks", spec.tasks
    else:
        yield from ((f"spec.tasks.mixture[{number}]", each) for number, each in enumerate(spec.tasks.mixture))


def _models(spec: TrainingRunSpec) -> Iterator[tuple[str, Path]]:
    filters = [(field, each.offline_filter) for field, each in _origins(spec)]
    for field, model in (
        ("spec.model.path", spec.model),
        *((f"{field}.offlineFilter.model.path", each.model) for field, each in filters if each is not None),
    ):
        if model is not None and model.path is not None:
            yield field, Path(model.path)
