"""The tasks of a run, from wherever `spec.tasks` says: its environment, or a data set in the store, in a mounted folder or on a hub.

In: the run's configuration and environment. Out: tasks that the environment can ask and judge, and how many rows were left out for which reason.
Called by `prepare`, which writes them as the run's task table.
"""

import hashlib
from collections import Counter
from pathlib import Path

from shoal.contracts.datasets import DatasetColumns, DatasetSource
from shoal.contracts.evaluation import Benchmark, BenchmarkTasks
from shoal.contracts.recipe import TaskSource
from shoal.contracts.run import RunConfig
from shoal.contracts.tasks import Task
from shoal.environments.base import Environment, Unscorable, known_count
from shoal.environments.datasets import SUFFIXES, BadDataset, Imported, from_hub, from_store, import_files, split_files
from shoal.environments.layouts import Columns
from shoal.storage import Store, open_below_prefix

TASKS_OF_AN_ENVIRONMENT = 4096
"""An environment makes as many tasks as it is asked for; so many when the manifest does not say."""
TASKS_OF_A_BENCHMARK = 128
"""The same for a benchmark: the interval of its score is some 9 points wide to either side."""


class BadTaskSource(ValueError):
    """The run's tasks cannot be had; the message begins with the field of the manifest to change."""


def find_tasks(config: RunConfig, environment: Environment, scratch: Path) -> tuple[list[Task], dict[str, int]]:
    """The run's tasks, and rows of the data set that are none by reason; `scratch` is a folder for its files. Raises BadTaskSource."""
    return _find(config, config.tasks, environment, scratch, "spec.tasks", TASKS_OF_AN_ENVIRONMENT, config.seed)


def benchmark_tasks(
    config: RunConfig, benchmark: Benchmark, environment: Environment, scratch: Path
) -> tuple[list[Task], dict[str, int]]:
    """The same of a benchmark. An environment draws them with a seed of their own: one with few tasks may give some that are trained on too."""
    field = f"spec.evaluation.benchmarks, {benchmark.name}: tasks"
    seed = int.from_bytes(
        hashlib.sha256(f"shoal-benchmark {config.seed} {benchmark.name}".encode()).digest()[:4], "big"
    )
    return _find(config, benchmark.tasks, environment, scratch, field, TASKS_OF_A_BENCHMARK, seed >> 1)


def _find(
    config: RunConfig,
    wanted: TaskSource | BenchmarkTasks,
    environment: Environment,
    scratch: Path,
    field: str,
    usual: int,
    seed: int,
) -> tuple[list[Task], dict[str, int]]:
    """`usual`: tasks of an environment that makes them with `seed`, where no count is given. `field` begins the message of BadTaskSource."""
    if wanted.dataset is None:
        try:
            return environment.tasks(wanted.count or known_count(environment) or usual, seed), {}
        except ValueError as error:
            raise BadTaskSource(f"{field}: {error}") from error
    try:
        imported = _import(wanted.dataset, config, scratch)
        tasks, unfit = fitting(imported.tasks, environment, wanted.count)
    except BadDataset as error:
        raise BadTaskSource(f"{field}.dataset: {error}") from error
    return tasks, dict(Counter(imported.skipped) + unfit)


def fitting(tasks: list[Task], environment: Environment, count: int | None) -> tuple[list[Task], Counter[str]]:
    """The first `count` tasks that the environment can ask and judge. BadDataset, with the first one's reason, when there is none."""
    kept: list[Task] = []
    unfit: Counter[str] = Counter()
    first = ""
    for task in tasks:
        if count is not None and len(kept) == count:
            break
        problem = _unfit(task, environment)
        if problem is None:
            kept.append(task)
            continue
        unfit[f"cannot be judged by environment {environment.name!r}"] += 1
        first = first or problem
    if not kept:
        raise BadDataset(f"environment {environment.name!r} can judge none of {len(tasks)} tasks; the first: {first}")
    return kept, unfit


def _unfit(task: Task, environment: Environment) -> str | None:
    """Why the environment cannot use a task, or None. An empty answer is wrong, and unscorable only where the task itself is at fault."""
    try:
        environment.prompt(task, None)
    except Exception as error:  # an environment is written for its own tasks; what it makes of others is its own
        return f"task {task.problem_id}: it has no prompt for it: {type(error).__name__}: {str(error)[:200]}"
    try:
        scored = environment.score(task, "")
    except Exception as error:  # as above: a data set's `verification_info` holds anything
        return f"task {task.problem_id}: it cannot be scored: {type(error).__name__}: {str(error)[:200]}"
    return scored.reason if isinstance(scored, Unscorable) else None


def _import(source: DatasetSource, config: RunConfig, scratch: Path) -> Imported:
    layout = _columns(source.columns) if source.columns is not None else source.layout
    folder = scratch / "dataset"
    if source.hugging_face is not None:
        return from_hub(source.hugging_face, source.revision or "", source.split, folder, layout)
    if source.object is not None:
        store = open_below_prefix(config)
        return from_store(store, _objects(store, source.object), folder, layout)
    path = Path(source.path or "")
    if path.is_file():
        return import_files([path], layout)
    if not path.is_dir():
        raise BadDataset(f"path: {path} is neither file nor folder; mount the data set there")
    return import_files(split_files(path, source.split), layout)


def _objects(store: Store, name: str) -> list[str]:
    """The key itself, or, of a prefix that ends in `/`, every file of tasks below it."""
    if not name.endswith("/"):
        return [name]
    found = sorted(info.key for info in store.list(name) if info.key.endswith(SUFFIXES))
    if not found:
        raise BadDataset(
            f"object: there is no Parquet or JSON lines file below {name}; it is looked for below storage.prefix"
        )
    return found


def _columns(given: DatasetColumns) -> Columns:
    return Columns(
        prompt=given.prompt,
        answer=given.answer,
        verification_info=given.verification_info,
        problem_id=given.problem_id,
        task_type=given.task_type,
        metadata=tuple(given.metadata),
    )
