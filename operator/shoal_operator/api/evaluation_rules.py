"""The CEL rules about `spec.evaluation`. Part of `rules.RULES`."""

from typing import Any

from shoal_operator.api.rule import Rule

_SUMS: dict[str, Any] = {"name": "sums", "tasks": {"environment": "arithmetic"}}
_TWO: dict[str, Any] = {"benchmarks": [_SUMS, {**_SUMS, "name": "others"}]}
_RUN: dict[str, Any] = {"mode": "Train", "sampling": {"maxCompletionTokens": 96}, "recipe": {"maxSequenceLength": 160}}


def _with(**benchmark: Any) -> dict[str, Any]:
    return {**_RUN, "evaluation": {"benchmarks": [{**_SUMS, **benchmark}]}}


EVALUATION_RULES: tuple[Rule, ...] = (
    Rule(
        model="EvaluationSettings",
        expression="self.benchmarks.all(b, self.benchmarks.exists_one(c, c.name == b.name))",
        message="must not repeat a name",
        field="benchmarks",
        good=_TWO,
        bad={"benchmarks": [_SUMS, _SUMS]},
    ),
    Rule(
        model="EvaluationSettings",
        expression="!has(self.bestBy) || self.benchmarks.exists(b, b.name == self.bestBy)",
        message="must be the name of one of benchmarks",
        field="bestBy",
        good={**_TWO, "bestBy": "others"},
        bad={**_TWO, "bestBy": "none"},
    ),
    Rule(
        model="TrainingRunSpec",
        expression="self.mode == 'Train' || !has(self.evaluation)",
        message="goes with mode Train only: the other modes have no workers beside a policy that changes",
        field="evaluation",
        good=_with(),
        bad={**_with(), "mode": "Generate"},
    ),
    Rule(
        model="TrainingRunSpec",
        expression="!has(self.evaluation) || self.evaluation.benchmarks.all(b, !has(b.maxCompletionTokens) || "
        "b.maxCompletionTokens < self.recipe.maxSequenceLength)",
        message="maxCompletionTokens must be less than recipe.maxSequenceLength, for which the workers' engines are started",
        field="evaluation.benchmarks",
        good=_with(maxCompletionTokens=96),
        bad=_with(maxCompletionTokens=160),
    ),
    Rule(
        model="TrainingRunSpec",
        expression="!has(self.evaluation) || self.evaluation.benchmarks.all(b, !has(b.targetLength) || b.targetLength <= "
        "(has(b.maxCompletionTokens) ? b.maxCompletionTokens : self.sampling.maxCompletionTokens))",
        message="targetLength must be at most maxCompletionTokens, or sampling.maxCompletionTokens where that is not given",
        field="evaluation.benchmarks",
        good=_with(targetLength=96),
        bad=_with(targetLength=97),
    ),
    Rule(
        model="TrainingRunSpec",
        expression="has(self.evaluation) == has(oldSelf.evaluation) && "
        "(!has(self.evaluation) || self.evaluation == oldSelf.evaluation)",
        message="cannot change once the run exists: what is scored is pinned when it is prepared; start a new run instead",
        field="evaluation",
        good=_with(),
        bad=_with(samples=2),
        old=_with(),
    ),
)
