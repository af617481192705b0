"""`shoal plan`: what a manifest needs and how long its steps take, before anything runs. Text for people, JSON for machines.

In: the manifest, what nobody can read from it (`PlanRequest`), and a run to take measured rates from. Out: a `Plan` of `shoal.planner`, as lines.
"""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from shoal.cli.model_size import shape_of_source
from shoal.errors import InputWrong
from shoal.planner.facts import Surroundings
from shoal.planner.plan import as_json, plan
from shoal.planner.rates import (
    DELTA_RATIO_LARGE_RATE,
    DELTA_RATIO_SMALL_RATE,
    GPUS,
    POOL_BYTES,
    POOL_SECONDS,
    SMALL_RATE,
    USUAL_GPU,
    gpu_named,
)
from shoal.text import count, duration, percent, size

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from shoal.contracts.steps import StepMetrics
    from shoal.planner.facts import RunFacts
    from shoal.planner.plan import Plan
    from shoal.storage.store import Store
    from shoal_operator.api.training_run import TrainingRun

MEAN_SHARE = 0.29
"""Of the longest completion, where neither the person nor length targets say a mean (planner/lengths.py)."""
PROMPT_TOKENS = 256.0
"""Of a prompt, or what the sequence leaves for it."""
MEASURED_STEPS = 10
EVERY_PROBLEMS = 100_000
"""Of a curriculum whose manifest does not say how many problems it has."""
TRAINING_PHASES = ("behaviour_logprobs", "old_logprobs", "reference_logprobs", "update")


@dataclass(frozen=True)
class PlanRequest:
    """The options of `shoal plan`; None for those that follow from the manifest."""

    parameters: str | None = None
    gpu: str = USUAL_GPU
    mean_tokens: float | None = None
    prompt_tokens: float | None = None
    signal_share: float | None = None
    uplink_mbit: float = 50.0
    downlink_mbit: float = 500.0
    relay_mbit: float = 1000.0
    store_mbit: float = 10_000.0
    delta_ratio: float | None = None
    strangers: Sequence[str] = ()
    price: float | None = None


@dataclass(frozen=True)
class Measured:
    """Medians of the newest steps of a run."""

    steps: int
    step_seconds: float | None
    train_seconds: float
    mean_tokens: float
    signal_share: float


@dataclass(frozen=True)
class Planned:
    """A plan, what it was made with in words, and what was measured."""

    plan: Plan
    assumed: tuple[str, ...]
    measured: Measured | None


def planned(run: TrainingRun, asked: PlanRequest, measured: Measured | None = None) -> Planned:
    """Plan a manifest. Raises InputWrong for an option, a mode or a model that cannot be planned."""
    facts, around, assumed = surroundings(run, asked, measured)
    return Planned(plan(facts, around), assumed, measured)


def surroundings(
    run: TrainingRun, asked: PlanRequest, measured: Measured | None = None
) -> tuple[RunFacts, Surroundings, tuple[str, ...]]:
    """What a plan is made from, and what of it is assumed, in words. Raises InputWrong."""
    from shoal_operator.plan_facts import run_facts

    facts = run_facts(run)
    if facts is None:
        raise InputWrong(f"spec.mode: given {run.spec.mode}; only runs of mode Train have a plan")
    gpu = gpu_named(asked.gpu)
    if gpu is None:
        raise InputWrong(f"--gpu {asked.gpu}: not known; allowed: {', '.join(each.name for each in GPUS)}")
    shape, guessed = shape_of_source(run.spec.model, asked.parameters)
    mean, mean_from = _mean_tokens(run, asked, measured)
    if mean > facts.completion_tokens:
        raise InputWrong(
            f"--mean-tokens {mean:g}: longer than sampling.maxCompletionTokens; allowed: up to {facts.completion_tokens}"
        )
    usual = DELTA_RATIO_SMALL_RATE if facts.learning_rate <= SMALL_RATE else DELTA_RATIO_LARGE_RATE
    around = Surroundings(
        model=shape,
        gpu=gpu,
        mean_tokens=mean,
        prompt_tokens=asked.prompt_tokens or max(1.0, min(PROMPT_TOKENS, facts.sequence_tokens - mean)),
        signal_share=asked.signal_share or (measured.signal_share if measured else 0.5),
        uplink_mbit=asked.uplink_mbit,
        downlink_mbit=asked.downlink_mbit,
        relay_mbit=asked.relay_mbit,
        store_mbit=asked.store_mbit,
        delta_ratio=asked.delta_ratio or usual,
        strangers=_strangers(asked.strangers, facts),
        price=asked.price,
        train_seconds=measured.train_seconds if measured else None,
    )
    assumed = (*_assumed(facts, around, mean_from, guessed, measured), *_pools(run))
    return facts, around, assumed


def _mean_tokens(run: TrainingRun, asked: PlanRequest, measured: Measured | None) -> tuple[float, str]:
    if asked.mean_tokens is not None:
        return asked.mean_tokens, "--mean-tokens"
    if measured is not None:
        return measured.mean_tokens, f"median of {measured.steps} steps"
    limit, lengths = run.spec.sampling.max_completion_tokens, run.spec.length_reward
    if lengths is not None:
        sources = run.spec.tasks.mixture or []
        if not any(each.length_targets for each in sources):
            return min(statistics.fmean(lengths.targets), limit), "mean of lengthReward.targets"
        means = [statistics.fmean(each.length_targets or lengths.targets) for each in sources]
        mean = statistics.fmean(means, weights=[each.weight for each in sources])
        return min(mean, limit), "mean of the targets of tasks.mixture by weight"
    return max(1.0, MEAN_SHARE * limit), f"{MEAN_SHARE} of maxCompletionTokens"


def _strangers(given: Sequence[str], facts: RunFacts) -> dict[str, int]:
    """`12` for the only open pool, or `POOL=12`."""
    pools = [pool.name for pool in facts.pools if pool.open]
    found: dict[str, int] = {}
    for text in given:
        name, equals, number = text.rpartition("=")
        if not number.isdecimal() or int(number) > 100_000:
            raise InputWrong(f"--strangers {text}: allowed: a number of machines up to 100000, or POOL=NUMBER")
        if not pools:
            raise InputWrong(f"--strangers {text}: no pool of the manifest is open; set open: true in one")
        if not equals and len(pools) > 1:
            raise InputWrong(f"--strangers {text}: several pools are open; write POOL={number}, of {', '.join(pools)}")
        if equals and name not in pools:
            raise InputWrong(f"--strangers {text}: no open pool {name!r}; allowed: {', '.join(pools)}")
        found[name or pools[0]] = int(number)
    return found


def _assumed(
    facts: RunFacts, around: Surroundings, mean_from: str, guessed: str, measured: Measured | None
) -> Iterator[str]:
    shape = "its own shape" if around.model.exact else "widths of a published model of that size"
    yield f"model: {count(around.model.parameters)} parameters, {shape}{f' ({guessed})' if guessed else ''}"
    yield f"completions: {around.mean_tokens:,.0f} tokens on average ({mean_from}), prompts {around.prompt_tokens:,.0f}"
    if facts.filtered:
        yield f"{percent(around.signal_share)} of the groups carry signal ({'measured' if measured else '--signal-share'})"
    devices = {facts.trainer_gpu, facts.validator_gpu, *(pool.gpu for pool in facts.pools)} - {None}
    named = ", ".join(sorted(gpu.name for gpu in devices if gpu is not None))
    yield f"GPUs: {named or around.gpu.name}{' by the manifest' if named else ' (--gpu)'}; parts without GPUs have 8 cores"
    yield (
        f"links, 10^6 bits a second: relay {around.relay_mbit:,.0f}, object store {around.store_mbit:,.0f},"
        f" strangers {around.uplink_mbit:,.0f} up and {around.downlink_mbit:,.0f} down"
    )
    yield f"a delta is {around.delta_ratio:g} times smaller than a version"


def _pools(run: TrainingRun) -> Iterator[str]:
    """What a curriculum costs, and what no plan knows of it."""
    if run.spec.tasks.curriculum is None:
        return
    given = run.spec.tasks.count
    problems = given or EVERY_PROBLEMS
    yield (
        f"curriculum: orchestrator and validators make pools of {'' if given else 'every '}{problems:,} problems,"
        f" {POOL_SECONDS * problems:.2g} s a step and {size(POOL_BYTES * problems)} each;"
        " how many groups carry signal changes with the pools, so measure it with --run"
    )


def measured_rates(store: Store) -> Measured:
    """Medians of the newest steps that a run trained. Raises InputWrong where there is none."""
    from shoal.contracts import keys
    from shoal.contracts.steps import StepBatch
    from shoal.report.facts import read_steps
    from shoal.storage import find

    steps = [each for each in read_steps(store) if each.trained and not each.supervised][-MEASURED_STEPS:]
    if not steps:
        raise InputWrong("--run: the run has trained no step yet; wait for one, or leave out --run")
    shares = []
    for each in steps:
        batch = find(store, keys.step_batch(each.step), StepBatch.from_json)
        if batch is not None:
            shares.append(batch.groups / (batch.groups + batch.groups_dropped))
    return Measured(
        steps=len(steps),
        step_seconds=_median_period(steps),
        train_seconds=statistics.median(
            sum(each.phase_seconds.get(name, 0.0) for name in TRAINING_PHASES) for each in steps
        ),
        mean_tokens=statistics.median(each.completion_length_mean for each in steps),
        signal_share=statistics.median(shares) if shares else 1.0,
    )


def _median_period(steps: Sequence[StepMetrics]) -> float | None:
    """Seconds from the end of a step to the end of the next."""
    pairs = pairwise(steps)
    periods = [later.finished_unix - each.finished_unix for each, later in pairs if later.step == each.step + 1]
    return statistics.median(periods) if periods else None


def rates_of_run(name: str, runs_dir: Path) -> Measured:
    """Those of a run on this machine. Raises InputWrong where there is none."""
    from shoal.report.access import NoRun, open_run
    from shoal.report.run_folders import find_run

    try:
        return measured_rates(open_run(find_run(name, runs_dir)).store)
    except NoRun as error:
        raise InputWrong(f"--run {name}: {error}") from None


def document(made: Planned) -> dict[str, Any]:
    """What `--json` prints."""
    found = as_json(made.plan) | {"assumed": list(made.assumed)}
    if made.measured is not None:
        found["measured"] = {key: value for key, value in vars(made.measured).items() if value is not None}
    return found


def json_text(found: Mapping[str, Any]) -> str:
    """Stable text of a plan."""
    return json.dumps(found, indent=1, ensure_ascii=False)


def lines(made: Planned) -> Iterator[str]:
    """The plan for people."""
    found = made.plan
    yield f"{found.run}: {size(found.version_bytes)} a version, {size(found.delta_bytes)} a delta, {count(found.tokens_a_step)} tokens a step"
    for assumption in made.assumed:
        yield f"  {assumption}"
    yield ""
    yield f"A step takes {_time(found.step_seconds)}; the run {_days(found.run_seconds)}."
    yield f"The first version reaches all in {_time(found.start_seconds)}."
    yield from _beginning(found)
    if made.measured is not None and made.measured.step_seconds is not None:
        yield f"Measured: {_time(made.measured.step_seconds)} a step, median of {made.measured.steps}."
    yield f"Places in engines that rows have: {percent(found.slot_occupancy)}; engines idle: {percent(found.engine_idle_share)}."
    yield f"Bottleneck: {found.bottleneck.part}. {found.bottleneck.change[:1].upper()}{found.bottleneck.change[1:]}."
    yield ""
    yield from _table(
        ("part", "of", "seconds", "idle"),
        [(part.name, part.stage, _time(part.seconds), percent(part.idle_share)) for part in found.parts],
    )
    yield ""
    yield from _table(
        ("machines", "have", "enough"),
        [
            (each.part, count(each.have), count(each.enough) if each.enough is not None else "-")
            for each in found.counts
        ],
    )
    yield ""
    yield from _table(
        ("disk", "has", "needs", "field"),
        [(disk.name, size(disk.given), size(disk.needs), disk.field) for disk in found.disks],
    )
    yield ""
    yield from _table(
        ("memory", "needs", "usable", "largest part"),
        [
            (
                each.part,
                size(sum(part.nbytes for part in each.parts)),
                f"{size(each.usable_bytes)} of {each.gpu}" if each.gpus else "host memory",
                max(each.parts, key=lambda part: part.nbytes).cause,
            )
            for each in found.memory
        ],
    )
    yield ""
    yield from _table(
        ("link", "10^6 bit/s", "of"),
        [(each.name, f"{each.mbit:,.1f}", f"{each.capacity_mbit:,.0f}") for each in found.links],
    )
    yield ""
    hours = f"{count(found.cost.gpu_hours)} GPU hours, and {count(found.cost.stranger_gpu_hours)} of strangers"
    yield hours + (f"; {count(found.cost.money)} at the given price" if found.cost.money is not None else "")
    for each in found.findings:
        yield f"{'CANNOT WORK' if each.certain else 'MAY NOT WORK'}: {each}"


def _beginning(found: Plan) -> Iterator[str]:
    """What new nodes' files take, where that is longer than steps take later."""
    slower = found.probation
    if slower.seconds:
        later = _days(slower.steps * found.step_seconds)
        yield (
            f"The first {slower.steps:,.0f} steps take {_days(slower.seconds)} instead of {later}: validators look at more rows of new nodes,"
            f" which have one lease at a time ({count(slower.files)} files)."
            " Have more validators until then, or lower validator.validation.probationFiles."
        )


def _time(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 10 else duration(seconds)


def _days(seconds: float) -> str:
    return f"{seconds / 86400:,.1f} days" if 2 * 86400 < seconds < float("inf") else duration(seconds)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    for row in (head, *rows):
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
