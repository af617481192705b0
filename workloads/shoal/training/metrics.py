"""What a step's report says: the numbers of `steps/<step>/metrics.json`, put together from what was measured.

In: groups, plan, updates, times. Out: `StepMetrics`. Pure; called by `loop`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from types import MappingProxyType
from typing import Any

import numpy as np

from shoal.contracts.recipe import Recipe
from shoal.contracts.schedules import Schedules
from shoal.contracts.steps import SourceGroups, StepMetrics, TypeMeans
from shoal.training.batches import StepPlan
from shoal.training.experts import Balance
from shoal.training.loss import LossWeights
from shoal.training.rollouts import RolloutGroup
from shoal.training.update import Updates


@dataclass(frozen=True)
class StepTimes:
    """Unix times of start and end (s), and wall-clock seconds by phase."""

    started_unix: float
    finished_unix: float
    phase_seconds: dict[str, float]


def step_metrics(
    *,
    run: str,
    step: int,
    attempt: str,
    groups: Sequence[RolloutGroup],
    plan: StepPlan,
    updates: Updates,
    mismatch_kl: float,
    times: StepTimes,
    rows_left_out: int = 0,
    by_source: Mapping[str, SourceGroups] = MappingProxyType({}),
    recipe: Recipe | None = None,
    extra: Mapping[str, Any] = MappingProxyType({}),
) -> StepMetrics:
    """The report of a step. With every update skipped the gradient norm is 0, and `skipped_updates` says so.

    `by_source`: of a mixture, what was sampled for the step. `recipe`: one with `sources`, whose losses are reported. `extra`: further fields, which
    extensions measured.
    """
    samples = list(chain.from_iterable(group.samples for group in groups))
    lags = np.array(
        [step - sample.token_versions.mean() if sample.segments else step - sample.policy_version for sample in samples]
    )
    norms = updates.norms or [0.0]
    return StepMetrics(
        run=run,
        step=step,
        policy_version=step + 1,
        attempt=attempt,
        started_unix=times.started_unix,
        finished_unix=times.finished_unix,
        reward=float(np.mean([sample.reward for sample in samples])),
        task_reward=float(np.mean([sample.task_reward for sample in samples])),
        length_penalty=float(np.mean([sample.length_penalty for sample in samples])),
        loss=finite(updates.loss),
        gradient_norm=float(np.mean(norms)),
        gradient_norm_max=float(np.max(norms)),
        skipped_updates=updates.skipped,
        clip_low=updates.clip_low,
        clip_high=updates.clip_high,
        clip_delta=updates.clip_delta,
        importance_capped=updates.importance_capped,
        entropy=finite(updates.entropy),
        kl=None if updates.kl is None else finite(updates.kl),
        mismatch_kl=finite(mismatch_kl),
        policy_lag_mean=float(lags.mean()),
        policy_lag_max=max(step - sample.policy_version for sample in samples),
        rows=len(samples),
        completion_tokens=sum(batch.token_count for batch in plan.optimizer_batches),
        completion_length_mean=float(np.mean([sample.completion_length for sample in samples])),
        packing_density=plan.packing_density,
        data_digest=plan.digest,
        learning_rate=updates.applied[-1].learning_rate,
        rows_left_out=rows_left_out,
        by_task_type=means_by_task_type(groups, by_source, {} if recipe is None else source_measures(recipe, updates)),
        phase_seconds=times.phase_seconds,
        **extra,
    )


def recipe_measures(recipe: Recipe, step: int, updates: Updates) -> dict[str, float]:
    """Fields of the report that belong to a part of the recipe, where it has that part: the mismatch correction's shares, scheduled values."""
    found: dict[str, float] = {}
    correction, plan, weights = (
        recipe.mismatch_correction,
        recipe.schedules or Schedules(),
        LossWeights.of(recipe, step),
    )
    if correction is not None and correction.truncate is not None:
        found["mismatch_truncated"] = updates.mismatch_truncated
    if correction is not None and (correction.mask or correction.icepop) is not None:
        found["mismatch_masked"] = updates.mismatch_masked
    if correction is not None and correction.sequence is not None:
        found["completions_masked"] = updates.completions_masked
    if plan.kl_coefficient is not None:
        found["kl_coefficient"] = weights.kl
    if plan.clip_epsilon is not None:
        found["clip_epsilon"] = weights.epsilon
    if plan.clip_epsilon_high is not None:
        found["clip_epsilon_high"] = weights.high
    return found


def source_measures(recipe: Recipe, updates: Updates) -> dict[str, dict[str, Any]]:
    """Fields of `TypeMeans` of each source that the recipe names: its objective and factor, and means over its tokens where it had some."""
    found: dict[str, dict[str, Any]] = {}
    for each in recipe.sources or []:
        found[each.name] = {"objective": recipe.of_source(each.name).objective, "loss_weight": each.loss_weight}
        if (sums := updates.by_source.get(each.name)) is not None:
            found[each.name] |= {
                "loss": finite(sums.loss),
                "entropy": finite(sums.entropy),
                "clip_ratio": sums.clip_low + sums.clip_high + sums.clip_delta,
            }
    return found


def expert_measures(experts: Balance | None, router_mismatch: float | None = None) -> dict[str, float]:
    """Fields of the report that belong to a mixture of experts."""
    if experts is None:
        return {}
    recorded = {} if router_mismatch is None else {"router_replay_mismatch": router_mismatch}
    return recorded | {
        "expert_load_largest": experts.largest,
        "expert_load_entropy": experts.entropy,
        "experts_unused": experts.unused,
    }


def means_by_task_type(
    groups: Sequence[RolloutGroup],
    by_source: Mapping[str, SourceGroups] = MappingProxyType({}),
    losses: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
) -> dict[str, TypeMeans]:
    """Means of each task type, in the order of their names; none where all rows have one and the run has no mixture.

    `losses` has further fields, of those that are learnt from in their own way.
    """
    found: dict[str, list[RolloutGroup]] = {}
    for group in groups:
        found.setdefault(group.samples[0].task_type, []).append(group)
    if len(found) < 2 and not by_source:
        return {}
    all_sampled = sum(each.sampled for each in by_source.values())
    means = {}
    for name, own in sorted(found.items()):
        samples = [sample for group in own for sample in group.samples]
        sampled = by_source.get(name)
        means[name] = TypeMeans(
            groups=len(own),
            rows=len(samples),
            task_reward=float(np.mean([sample.task_reward for sample in samples])),
            reward=float(np.mean([sample.reward for sample in samples])),
            completion_length_mean=float(np.mean([sample.completion_length for sample in samples])),
            share=len(own) / len(groups),
            sampled_share=sampled.sampled / all_sampled if sampled is not None else None,
            signal_share=sampled.with_signal / sampled.sampled if sampled is not None and sampled.sampled else None,
            **losses.get(name, {}),
        )
    return means


def untrained_metrics(
    *,
    run: str,
    step: int,
    attempt: str,
    times: StepTimes,
    warnings: Sequence[str],
    rows_left_out: int = 0,
    rolled_back_to: int | None = None,
) -> StepMetrics:
    """The report of a step that made a version without training: no rows, and every mean over them 0."""
    return bare_metrics(
        run=run,
        step=step,
        attempt=attempt,
        times=times,
        warnings=list(warnings),
        rows_left_out=rows_left_out,
        rolled_back_to=rolled_back_to,
    )


def bare_metrics(*, run: str, step: int, attempt: str, times: StepTimes, **measured: Any) -> StepMetrics:
    """A report in which everything that was not `measured` is 0."""
    means = (
        "reward", "task_reward", "length_penalty", "loss", "gradient_norm", "gradient_norm_max", "clip_low", "clip_high", "clip_delta",
        "entropy", "kl", "mismatch_kl", "policy_lag_mean", "completion_length_mean", "packing_density", "learning_rate",
    )  # fmt: skip
    counts = ("skipped_updates", "policy_lag_max", "rows", "completion_tokens")
    said = {
        "run": run,
        "step": step,
        "policy_version": step + 1,
        "attempt": attempt,
        "started_unix": times.started_unix,
        "finished_unix": times.finished_unix,
        "phase_seconds": times.phase_seconds,
    }
    return StepMetrics(**{**dict.fromkeys(means, 0.0), **dict.fromkeys(counts, 0), **measured, **said})


def finite(value: float) -> float:
    """JSON has no NaN; a sum that overflowed belongs to a skipped update and is reported as 0 beside its count."""
    return value if np.isfinite(value) else 0.0
