"""The tasks of a run, from wherever `spec.tasks` says: its environment, or a data set in the store, in a mounted folder or on a hub.

In: the run's configuration and environment. Out: tasks that the environment can ask and judge, and what became of the data set's other rows.
Called by `prepare`, which writes them as the run's task table.
"""

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from shoal.contracts.completions import LengthReward
from shoal.contracts.datasets import DatasetSource
from shoal.contracts.evaluation import Benchmark, BenchmarkTasks
from shoal.contracts.prompts import PromptSettings
from shoal.contracts.run import RunConfig
from shoal.contracts.task_source import MixtureSource, TaskOrigin, TaskSource
from shoal.contracts.tasks import RefusedTasks, Task, TaskReport
from shoal.environments import hub
from shoal.environments.base import Environment, known_count, load
from shoal.environments.datasets import (
    BadDataset,
    Imported,
    Refusals,
    Selection,
    from_store,
    holds_rows,
    import_files,
    split_files,
)
from shoal.environments.judgeable import fitting
from shoal.environments.mixture import Mixture, of_source
from shoal.errors import MayPass
from shoal.rewards.sandbox import SandboxFailed
from shoal.storage import Store, open_below_prefix

TASKS_OF_AN_ENVIRONMENT = 4096
"""An environment makes as many tasks as it is asked for; this many when the manifest does not say."""
TASKS_OF_A_BENCHMARK = 128
"""The same for a benchmark: the interval of its score is about 9 points wide to either side."""
CHARACTERS_PER_TOKEN = 8
"""More than any tokenizer makes of a text on average: a prompt longer than this times the sequence cannot fit."""


class BadTaskSource(MayPass):
    """The run's tasks are not available; the message begins with the field of the manifest to change."""


@dataclass(frozen=True)
class Found:
    """Tasks, and what became of the data set's other rows; `rows` is None where there is no data set."""

    tasks: list[Task]
    rows: int | None = None
    skipped: dict[str, int] = field(default_factory=dict)
    refused: Refusals = field(default_factory=Refusals)
    proven: int = 0

    @property
    def left_out(self) -> dict[str, int]:
        """Rows that are not among the tasks, by reason."""
        return dict(Counter(self.skipped) + self.refused.counts)

    def report(self) -> TaskReport | None:
        if self.rows is None:
            return None
        return TaskReport(
            rows=self.rows,
            tasks=len(self.tasks),
            skipped=self.skipped,
            refused=[
                RefusedTasks(reason=reason, count=count, first=self.refused.first[reason])
                for reason, count in self.refused.counts.most_common()
            ],
            proven=self.proven,
        )


@dataclass(frozen=True)
class RunSource:
    """One source of the run's tasks: its settings, its environment, and its field in the manifest. `name` is empty for the only one."""

    name: str
    field: str
    origin: TaskOrigin
    environment: Environment

    @classmethod
    def of_run(cls, tasks: TaskSource) -> "list[RunSource]":
        """The sources of a run, at least one. BadEnvironment for one that is not installed."""
        if tasks.mixture is None:
            return [cls("", "spec.tasks", tasks, load(tasks.judged_by))]
        return [
            cls(each.name, f"spec.tasks.mixture, {each.name}", each, load(each.judged_by)) for each in tasks.mixture
        ]

    @property
    def weight(self) -> int:
        return self.origin.weight if isinstance(self.origin, MixtureSource) else 1

    @property
    def own_targets(self) -> list[int]:
        """Lengths in tokens that it alone asks for; empty: those of the run."""
        return (self.origin.length_targets or []) if isinstance(self.origin, MixtureSource) else []

    def lengths(self, config: RunConfig) -> LengthReward | None:
        """The lengths that its prompts ask for."""
        if not self.own_targets or config.length_reward is None:
            return config.length_reward
        return LengthReward(targets=self.own_targets, alpha=config.length_reward.alpha)


def judged_by(sources: Sequence[RunSource]) -> Environment:
    """The environment of a run with these sources."""
    return sources[0].environment if not sources[0].name else Mixture({each.name: each.environment for each in sources})


def environment_name(tasks: TaskSource, benchmark: BenchmarkTasks) -> str:
    """The environment that judges a benchmark: its own, or that of the source of the mixture that it names."""
    named = [each for each in tasks.mixture or [] if each.name == benchmark.source]
    return named[0].environment if named else benchmark.environment or ""


def prompt_of(tasks: TaskSource, source: str | None) -> PromptSettings | None:
    """How a benchmark is asked that says nothing of it: as the source that it names, or as the run's tasks."""
    named = [each.prompt for each in tasks.mixture or [] if each.name == source]
    return (named[0] if named else None) or tasks.prompt


def find_tasks(
    config: RunConfig,
    source: RunSource,
    scratch: Path,
    found_before: Sequence[Store] = (),
    most_proofs: int | None = None,
    objects: Store | None = None,
) -> Found:
    """The tasks of one source of the run, as its table has them. `scratch` is a folder for data sets' files, which sources may share.

    `objects`: what lies below `storage.prefix`; None: as a pod of the run reaches it. `found_before` and `most_proofs` are as in `fitting`.
    Raises BadTaskSource. An environment makes each source's tasks with a seed of its own.
    """
    seed = config.seed if not source.name else _derived_seed(f"shoal-source {config.seed} {source.name}")
    usual = TASKS_OF_AN_ENVIRONMENT
    found = _find(
        config,
        source.origin,
        source.environment,
        scratch,
        source.field,
        usual,
        seed,
        found_before,
        most_proofs,
        objects,
    )
    return found if not source.name else replace(found, tasks=[of_source(task, source.name) for task in found.tasks])


def benchmark_tasks(
    config: RunConfig,
    benchmark: Benchmark,
    environment: Environment,
    scratch: Path,
    found_before: Sequence[Store] = (),
    objects: Store | None = None,
) -> Found:
    """The same of a benchmark. An environment draws them with a seed of their own: one with few tasks may give some that are trained on too."""
    field_ = f"spec.evaluation.benchmarks, {benchmark.name}: tasks"
    seed = _derived_seed(f"shoal-benchmark {config.seed} {benchmark.name}")
    usual = TASKS_OF_A_BENCHMARK
    return _find(config, benchmark.tasks, environment, scratch, field_, usual, seed, found_before, None, objects)


def _derived_seed(text: str) -> int:
    """31 bits of the text's digest."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") >> 1


def _find(
    config: RunConfig,
    wanted: TaskOrigin | BenchmarkTasks,
    environment: Environment,
    scratch: Path,
    where: str,
    usual: int,
    seed: int,
    found_before: Sequence[Store],
    most_proofs: int | None,
    objects: Store | None,
) -> Found:
    """`usual`: tasks of an environment that makes them with `seed`, where no count is given. `where` begins the message of BadTaskSource."""
    if wanted.dataset is None:
        try:
            return Found(environment.tasks(wanted.count or known_count(environment) or usual, seed))
        except ValueError as error:
            passing = isinstance(error, MayPass) and error.passing
            raise BadTaskSource(f"{where}: {error}", passing=passing) from error
    rule = wanted.offline_filter if isinstance(wanted, TaskOrigin) else None
    try:
        imported = _import(wanted.dataset, rule.solve_rate if rule is not None else None, config, scratch, objects)
        fit = fitting(
            imported.tasks,
            environment,
            wanted.count,
            CHARACTERS_PER_TOKEN * config.recipe.max_sequence_length,
            found_before,
            most_proofs,
        )
        refused = imported.refused + fit.refused
        _check_share(refused, len(fit.tasks), wanted.dataset.max_refused_share)
    except BadDataset as error:
        raise BadTaskSource(f"{where}.dataset: {error}") from error
    except hub.HubRefused as error:
        raise BadTaskSource(f"{where}.dataset: {error}", passing=error.passing) from error
    except SandboxFailed as error:
        raise BadTaskSource(f"{where}.dataset: a solution cannot be run here: {error}", passing=True) from error
    return Found(fit.tasks, imported.rows, imported.skipped, refused, fit.proven)


def _check_share(refused: Refusals, kept: int, most: float) -> None:
    bad = refused.counts.total()
    if bad > most * (bad + kept):
        raise BadDataset(
            f"{bad} of {bad + kept} tasks cannot be used; at most a share of {most:g} may be: {refused}. Correct layout, columns or extract,"
            " leave such rows out by where, or raise maxRefusedShare"
        )


def _import(
    source: DatasetSource, solve_rate: str | None, config: RunConfig, scratch: Path, objects: Store | None
) -> Imported:
    layout = source.columns if source.columns is not None else source.layout
    selection = Selection(source.where, source.row_limit, source.shuffle_seed, solve_rate)
    folder = scratch / "dataset"
    if source.hugging_face is not None:
        # Sources of one repository share its files.
        place = hashlib.sha256(f"{source.hugging_face} {source.revision}".encode()).hexdigest()[:16]
        folder /= place
        files = hub.fetch(source.hugging_face, source.revision or "", source.subset, source.split, folder)
        return import_files(files, layout, selection)
    if source.object is not None:
        store = objects or open_below_prefix(config)
        return from_store(store, _objects(store, source.object), folder, layout, selection)
    path = Path(source.path or "")
    if path.is_file():
        return import_files([path], layout, selection)
    if not path.is_dir():
        raise BadDataset(f"path: {path} is neither file nor folder; mount the data set there")
    return import_files(split_files(path, source.split, source.subset), layout, selection)


def _objects(store: Store, name: str) -> list[str]:
    """The key itself, or, of a prefix that ends in `/`, every file of tasks below it."""
    if not name.endswith("/"):
        return [name]
    found = sorted(info.key for info in store.list(name) if holds_rows(info.key))
    if not found:
        raise BadDataset(
            f"object: there is no Parquet, JSON or CSV file below {name}; it is looked for below storage.prefix"
        )
    return found
