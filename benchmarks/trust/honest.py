"""Honest workers of every kind before the validators: how many of their files are rejected, and how sure one can be of that rate.

In: the demo's models. Out: a row for each way of generating (batch sizes, together with other files, two ranks, a compiled model, a
restarted engine, an engine whose cache is too small, so that sequences are preempted and computed again), and the rate of false rejects
with its interval. Every row of every file is checked, as for a node on probation.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.trust.engine_client import EngineProcess
from benchmarks.trust.in_process import PaperRun, paper_config
from benchmarks.trust.interval import clopper_pearson
from benchmarks.trust.models import TrainedModels, calibrate, for_long_completions
from shoal.contracts.pools import EngineSettings
from shoal.contracts.protocol import Lease
from shoal.contracts.run import RunConfig
from shoal.inference.completions import Completion
from shoal.inference.rollouts import PlannedRow

LONG_TOKENS = 384
LONG_GROUPS = 2
SMALL_CACHE_BYTES = 1 << 20
"""Holds 682 tokens of the demo's model: of 16 long sequences most are preempted at least once."""


@dataclass(frozen=True)
class Way:
    """A way to generate: `batch` sequences decoded at once, `files` files, with `together` files in one call."""

    name: str
    batch: int
    files: int
    together: int = 1
    settings: EngineSettings = field(default_factory=EngineSettings)


WAYS = (
    Way("one sequence at a time", 1, 1),
    Way("seven at a time", 7, 4),
    Way("a file at a time", 48, 5),
    Way("several files at a time", 128, 6, together=3),
    Way("two ranks, tensor parallel", 48, 2, settings=EngineSettings(tensor_parallel_size=2)),
    Way("compiled", 48, 2, settings=EngineSettings(compiled=True)),
)
"""With the restarted engine's files and the preempted ones more than 1,000 sequences."""
RESTARTED = Way("after a restart of the engine", 48, 2)
PREEMPTED = Way("preempted, in a small cache", 16, 3)


@dataclass
class Tally:
    """Files and what became of them."""

    files: int = 0
    sequences: int = 0
    rejected: int = 0
    evidence: str = ""

    def row(self, name: str) -> dict[str, Any]:
        """For the result."""
        return {
            "way": name, "files": self.files, "sequences": self.sequences, "rejected": self.rejected,
            "evidence": self.evidence,
        }  # fmt: skip


def measure(made: TrainedModels, home: Path) -> dict[str, Any]:
    """Some six minutes on one core."""
    run = PaperRun(home / "honest", paper_config(), made.base, made.current)
    length = run.config.recipe.max_sequence_length
    rows, number = [], 0
    for way in WAYS:
        with EngineProcess(made.current, max_sequence_length=length, batch=way.batch, settings=way.settings) as engine:
            rows.append(judged(run, engine, made.current, way, number).row(way.name))
        number += way.files
    with EngineProcess(made.current, max_sequence_length=length, batch=RESTARTED.batch) as engine:
        # The leases of the first way: the same seeds in an engine that has done nothing before.
        rows.append(judged(run, engine, made.current, RESTARTED, 0).row(RESTARTED.name))
    rows.append(preempted(made, home))
    files, rejected = (sum(row[name] for row in rows) for name in ("files", "rejected"))
    low, high = clopper_pearson(rejected, files)
    return {
        "dtype": "float32",
        "ways": rows,
        "files": files,
        "sequences": sum(row["sequences"] for row in rows),
        "rejected_files": rejected,
        "false_reject_rate": rejected / files,
        "interval_95": [low, high],
    }


def preempted(made: TrainedModels, home: Path) -> dict[str, Any]:
    """Long completions in an engine whose cache cannot hold them all: vLLM throws sequences out and computes them again."""
    config = long_config(LONG_TOKENS, LONG_GROUPS)
    base = for_long_completions(made.base, home / "long-base", config.recipe.max_sequence_length)
    calibrate(config, base)
    run = PaperRun(home / "preempted", config, base)
    settings = EngineSettings(kv_cache_bytes=SMALL_CACHE_BYTES)
    length = config.recipe.max_sequence_length
    with EngineProcess(base, max_sequence_length=length, batch=PREEMPTED.batch, settings=settings) as engine:
        return judged(run, engine, base, PREEMPTED, 1000).row(PREEMPTED.name)


def long_config(tokens: int, groups: int) -> RunConfig:
    """The demo with completions of `tokens` tokens, `groups` groups a file."""
    config = paper_config()
    prompt_room = config.recipe.max_sequence_length - config.sampling.max_completion_tokens
    recipe = config.recipe.model_copy(update={"max_sequence_length": tokens + prompt_room})
    sampling = config.sampling.model_copy(update={"max_completion_tokens": tokens, "groups_per_submission": groups})
    return config.model_copy(update={"recipe": recipe, "sampling": sampling})


def judged(run: PaperRun, engine: EngineProcess, folder: Path, way: Way, first: int) -> Tally:
    """Generate and judge the files of leases `first` and on."""
    tally = Tally()
    for lease, planned, completions in written(run, engine, folder, way, first):
        verdict = run.judge(run.write(run.rows(lease, planned, completions)), lease)
        tally.files += 1
        tally.sequences += len(planned)
        if verdict.outcome != "accept":
            tally.rejected += 1
            tally.evidence = f"{verdict.outcome} {verdict.reason}: {verdict.evidence}"[:500]
    return tally


def written(
    run: PaperRun, engine: EngineProcess, folder: Path, way: Way, first: int
) -> Iterator[tuple[Lease, Sequence[PlannedRow], Sequence[Completion]]]:
    """Leases with their completions, `way.together` leases in one call of the engine."""
    for start in range(first, first + way.files, way.together):
        leases = [run.lease(number) for number in range(start, min(start + way.together, first + way.files))]
        requests = [row.request for _, planned in leases for row in planned]
        generated = engine.generate(folder, requests)
        if way is PREEMPTED and generated.preemptions == 0:
            raise RuntimeError("no sequence was preempted: the cache is too large for that, lower SMALL_CACHE_BYTES")
        made = generated.completions
        for lease, planned in leases:
            yield lease, planned, made[: len(planned)]
            made = made[len(planned) :]
