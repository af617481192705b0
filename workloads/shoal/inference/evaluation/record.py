"""A model scored once on environments or on a run's benchmarks: the record of it, and a table for people.

In: a checkpoint's folder, what it is asked and how. Out: lines of a table, and a JSON file with every problem's score. Called by `cli/eval.py`.
"""

import json
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from pydantic import Field

from shoal import environments
from shoal.contracts.base import Contract, Sha256Hex, unset
from shoal.contracts.evaluation import Benchmark, Truncation
from shoal.contracts.pools import EngineSettings
from shoal.contracts.run import RunConfig
from shoal.contracts.tasks import Task
from shoal.environments import BadEnvironment
from shoal.environments.base import Environment
from shoal.environments.task_source import BadTaskSource, benchmark_tasks, environment_name, prompt_of
from shoal.evaluation.scores import Estimate, Scores, scores
from shoal.files import write_atomically
from shoal.inference.evaluation.sampling import CannotEvaluate, EvaluationRequest, ask
from shoal.installed import installed
from shoal.storage import Store, not_told

USUAL_TASKS = 64
"""Of an environment that makes as many as it is asked for, where no count is given."""


class NothingScored(RuntimeError):
    """Every answer was unscorable: scoring does not work here, and says nothing of the model."""


class Evaluation(Contract):
    """One part of the record: what was asked, how, of what, and the figures."""

    environment: str
    environment_version: str
    environment_digest: Sha256Hex
    benchmark: str | None = Field(default=None, exclude_if=unset, description="name in the run's manifest; none: --env")
    tasks: int = Field(ge=1)
    samples: int = Field(ge=1)
    temperature: float = Field(ge=0.0)
    truncation: Truncation | None = Field(
        default=None, exclude_if=unset, description="what the sampler left out; none: nothing"
    )
    max_tokens: int = Field(ge=1)
    targets: list[int] = Field(
        description="lengths that prompts asked for, one a task in turn; none: none was asked for"
    )
    seed: int = Field(ge=0)
    seconds: float = Field(ge=0.0)
    scores: Scores

    @property
    def name(self) -> str:
        return self.benchmark or self.environment


@dataclass(frozen=True)
class Asked:
    """Tasks that the model is asked, and how; `benchmark` is their name in a manifest."""

    environment: Environment
    tasks: Sequence[Task]
    wanted: EvaluationRequest
    benchmark: str | None = None

    @property
    def name(self) -> str:
        return self.benchmark or self.environment.name


def of_environments(names: Sequence[str], count: int | None, wanted: EvaluationRequest) -> list[Asked]:
    """Tasks that environments make or read themselves. Raises CannotEvaluate."""
    if wanted.temperature == 0.0 and wanted.samples > 1:
        raise CannotEvaluate("--temperature 0 gives the same answer each time; allowed with --samples 1")
    if len(set(names)) < len(names):
        raise CannotEvaluate(f"--env {' --env '.join(names)}: each environment once")
    return [_of_environment(name, count, wanted) for name in names]


def _of_environment(name: str, count: int | None, wanted: EvaluationRequest) -> Asked:
    try:
        environment = environments.load(name)
    except BadEnvironment as error:
        raise CannotEvaluate(f"--env {name}: {error}") from None
    try:
        count = count or environments.known_count(environment) or USUAL_TASKS
        return Asked(environment, environment.tasks(count, wanted.seed), wanted)
    except ValueError as error:
        asked = "" if count is None else f" --count {count}"
        raise CannotEvaluate(f"--env {name}{asked}: {error}") from None


def of_benchmarks(config: RunConfig, engine: EngineSettings, seed: int, objects: Store | None = None) -> list[Asked]:
    """What the run's workers would ask for spec.evaluation, sampled with `seed` by such an engine. Reads the data sets. Raises CannotEvaluate.

    `objects`: what lies below `storage.prefix`, for data sets that are there; None: these are refused.
    """
    if config.evaluation is None:
        raise CannotEvaluate("spec.evaluation: absent; give --env, or the benchmarks there")
    found = []
    for each in config.evaluation.benchmarks:
        where = f"spec.evaluation.benchmarks, {each.name}"
        if each.tasks.dataset is not None and each.tasks.dataset.object is not None and objects is None:
            raise CannotEvaluate(f"{where}: tasks.dataset.object {not_told(config)}")
        try:
            environment = environments.load(environment_name(config.tasks, each.tasks))
            with tempfile.TemporaryDirectory(prefix="shoal-eval-") as scratch:
                tasks = benchmark_tasks(config, each, environment, Path(scratch), objects=objects).tasks
        except BadEnvironment as error:
            raise CannotEvaluate(f"{where}: {error}") from None
        except BadTaskSource as error:
            raise CannotEvaluate(str(error)) from None
        found.append(Asked(environment, tasks, _request(config, engine, each, seed), each.name))
    return found


def _request(config: RunConfig, engine: EngineSettings, each: Benchmark, seed: int) -> EvaluationRequest:
    return EvaluationRequest(
        each.samples,
        each.temperature,
        each.max_completion_tokens or config.sampling.max_completion_tokens,
        seed,
        each.target_length or 0,
        Truncation.of(each.min_p, each.top_k, each.top_p),
        each.prompt or prompt_of(config.tasks, each.tasks.source),
        config.recipe.max_sequence_length,
        engine,
    )


def check_paths(model: Path, output: Path | None) -> None:
    """Before tasks are read, which may take minutes. Raises CannotEvaluate."""
    if not (model / "config.json").is_file():
        raise CannotEvaluate(f"{model}: no config.json; give a folder with a Hugging Face checkpoint")
    if output is not None and not output.parent.is_dir():
        raise CannotEvaluate(f"--json {output}: there is no folder {output.parent}")


def evaluate_all(model: Path, asked: Sequence[Asked], output: Path | None, write: Callable[[str], None]) -> None:
    """Score the model on each, one after the other; `write` is told a line at a time. Raises CannotEvaluate, NothingScored."""
    found = []
    for each in asked:
        found.append(_one(model, each, write))
        if output is not None:  # after each, so that what an interrupted evaluation has found is there
            _save(output, model, found)
    for line in table(found):
        write(line)
    if output is not None:
        write(f"every problem's score: {output}")
    if all(one.scores.avg_at_k is None for one in found):
        raise NothingScored(
            "no answer could be scored; `shoal env check` says what the environment lacks on this machine"
        )


def _one(model: Path, asked: Asked, write: Callable[[str], None]) -> Evaluation:
    started = time.monotonic()
    environment = asked.environment
    settings, problems = ask(model, environment, asked.tasks, asked.wanted, lambda line: write(f"{asked.name}: {line}"))
    return Evaluation(
        environment=environment.name,
        environment_version=environment.version,
        environment_digest=environments.digest(environment),
        benchmark=asked.benchmark,
        tasks=len(asked.tasks),
        samples=settings.samples,
        temperature=settings.temperature,
        truncation=settings.truncation,
        max_tokens=settings.max_tokens,
        targets=list(settings.targets),
        seed=settings.seed,
        seconds=round(time.monotonic() - started, 3),
        scores=scores(problems, settings.samples),
    )


def table(found: Sequence[Evaluation]) -> list[str]:
    """The figures for people: a row each, below it each pass@k."""
    rows = [("NAME", "TASKS", "SCORE", "VALUE", "95 % INTERVAL", "TOKENS", "CUT", "NO ANSWER", "UNSCORED")]
    for one in found:
        lengths = one.scores.lengths
        silent = one.scores.unanswered_share
        none = "-" if silent is None else f"{silent:.1%}"
        rest = (f"{lengths.mean:.0f}", f"{lengths.cut_share:.1%}", none, str(one.scores.unscored))
        rows.append((one.name, str(one.tasks), f"avg@{one.samples}", *_figures(one.scores.avg_at_k), *rest))
        rows += [("", "", f"pass@{found_k.k}", *_figures(found_k), "", "", "", "") for found_k in one.scores.pass_at_k]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _figures(estimate: Estimate | None) -> tuple[str, str]:
    if estimate is None:
        return "-", "-"
    return f"{estimate.value:.1%}", f"{estimate.low:.1%} - {estimate.high:.1%}"


def _save(path: Path, model: Path, found: Sequence[Evaluation]) -> None:
    """Whole or not at all."""
    packages = {"shoal": installed().version} | {
        name: version(name).split("+")[0] for name in ("torch", "transformers")
    }
    record = {"model": str(model), "software": packages, "evaluations": [one.model_dump() for one in found]}
    write_atomically(path, (json.dumps(record, indent=1) + "\n").encode())
