"""A model scored once on environments: the record of it, and a table for people.

In: a checkpoint's folder, environments, how to sample. Out: lines of a table, and a JSON file with every problem's score. Called by `cli/eval.py`.
"""

import json
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path

from pydantic import Field

from shoal import environments
from shoal.contracts.base import Contract, Sha256Hex, unset
from shoal.contracts.evaluation import Truncation
from shoal.environments import BadEnvironment
from shoal.evaluation.scores import Estimate, Scores, scores
from shoal.inference.evaluation.sampling import CannotEvaluate, EvaluationRequest, ask

USUAL_TASKS = 64
"""Of an environment that makes as many as it is asked for, where no count is given."""


class NothingScored(RuntimeError):
    """Every answer was unscorable: scoring does not work here, and says nothing of the model."""


class Evaluation(Contract):
    """One environment's part of the record: what was asked, how, of what, and the figures."""

    environment: str
    environment_version: str
    environment_digest: Sha256Hex
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


def evaluate_all(
    model: Path,
    names: Sequence[str],
    count: int | None,
    wanted: EvaluationRequest,
    output: Path | None,
    write: Callable[[str], None],
) -> None:
    """Score the model on each environment, one after the other; `write` is told a line at a time. Raises CannotEvaluate, NothingScored."""
    if wanted.temperature == 0.0 and wanted.samples > 1:
        raise CannotEvaluate("--temperature 0 gives the same answer each time; allowed with --samples 1")
    if len(set(names)) < len(names):
        raise CannotEvaluate(f"--env {' --env '.join(names)}: each environment once")
    if not (model / "config.json").is_file():
        raise CannotEvaluate(f"{model}: no config.json; give a folder with a Hugging Face checkpoint")
    if output is not None and not output.parent.is_dir():
        raise CannotEvaluate(f"--json {output}: there is no folder {output.parent}")
    found = []
    for name in names:
        found.append(_one(model, name, count, wanted, write))
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


def _one(
    model: Path, name: str, count: int | None, wanted: EvaluationRequest, write: Callable[[str], None]
) -> Evaluation:
    started = time.monotonic()
    try:
        environment = environments.load(name)
    except BadEnvironment as error:
        raise CannotEvaluate(f"--env {name}: {error}") from None
    try:
        count = count or environments.known_count(environment) or USUAL_TASKS
        tasks = environment.tasks(count, wanted.seed)
    except ValueError as error:
        asked = "" if count is None else f" --count {count}"
        raise CannotEvaluate(f"--env {name}{asked}: {error}") from None
    settings, problems = ask(model, environment, tasks, wanted, lambda line: write(f"{name}: {line}"))
    return Evaluation(
        environment=name,
        environment_version=environment.version,
        environment_digest=environments.digest(environment),
        tasks=len(tasks),
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
    """The figures for people: a row an environment, below it each pass@k."""
    rows = [("ENVIRONMENT", "TASKS", "SCORE", "VALUE", "95 % INTERVAL", "TOKENS", "CUT", "UNSCORED")]
    for one in found:
        lengths = one.scores.lengths
        rest = (f"{lengths.mean:.0f}", f"{lengths.cut_share:.1%}", str(one.scores.unscored))
        rows.append((one.environment, str(one.tasks), f"avg@{one.samples}", *_figures(one.scores.avg_at_k), *rest))
        rows += [("", "", f"pass@{found_k.k}", *_figures(found_k), "", "", "") for found_k in one.scores.pass_at_k]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _figures(estimate: Estimate | None) -> tuple[str, str]:
    if estimate is None:
        return "-", "-"
    return f"{estimate.value:.1%}", f"{estimate.low:.1%} - {estimate.high:.1%}"


def _save(path: Path, model: Path, found: Sequence[Evaluation]) -> None:
    """Whole or not at all."""
    packages = {name: version(name).split("+")[0] for name in ("shoal", "torch", "transformers")}
    record = {"model": str(model), "software": packages, "evaluations": [one.model_dump() for one in found]}
    partial = path.with_suffix(path.suffix + ".part")
    partial.write_text(json.dumps(record, indent=1) + "\n")
    partial.replace(path)
