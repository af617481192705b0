"""The CEL rules about `rollouts.quantization`: rollouts by rounded weights (ADR 0116). Part of `mode_rules.MODE_RULES`."""

from typing import Any

from shoal_operator.api.rule import Rule

_ROUNDED = "has(self.rollouts) && has(self.rollouts.quantization)"
_OLD = _ROUNDED.replace("self", "oldSelf")
_CORRECTION = "self.recipe.mismatchCorrection"
_GOOD: dict[str, Any] = {
    "rollouts": {"quantization": "fp8"},
    "recipe": {"mismatchCorrection": {"truncate": {"cap": 2.0}, "probabilities": "Engine"}},
    "inferencePools": [{"name": "pool", "quantization": "fp8"}],
}


def _refused(expression: str, message: str, **bad: Any) -> Rule:
    """What does not go with rounded weights."""
    return Rule(
        model="TrainingRunSpec",
        expression=f"!({_ROUNDED}) || {expression}",
        message=message,
        field="rollouts.quantization",
        good=_GOOD,
        bad=_GOOD | bad,
    )


QUANTIZATION_RULES: tuple[Rule, ...] = (
    _refused(
        f"(has({_CORRECTION}) && (has({_CORRECTION}.truncate) || has({_CORRECTION}.mask) || has({_CORRECTION}.icepop)))",
        "needs recipe.mismatchCorrection with truncate, mask or icepop: rounded weights sample from another policy than the trainer's",
        recipe={"mismatchCorrection": {"sequence": {"low": 0.9, "high": 1.1}}},
    ),
    _refused(
        f"(has({_CORRECTION}) && {_CORRECTION}.probabilities == 'Engine')",
        "needs probabilities Engine in recipe.mismatchCorrection: the trainer would compute them again with weights that are not rounded",
        recipe={"mismatchCorrection": {"truncate": {"cap": 2.0}, "probabilities": "Recomputed"}},
    ),
    _refused(
        "self.inferencePools.all(p, has(p.quantization) && p.quantization == self.rollouts.quantization)",
        "needs the same quantization in every pool: validators hold one model of each version",
        inferencePools=[{"name": "pool"}],
    ),
    _refused(
        "!has(self.evaluation)",
        "does not go with evaluation: a benchmark's scores would be those of the rounded weights, not of the version that is published",
        evaluation={"benchmarks": []},
    ),
    Rule(
        model="TrainingRunSpec",
        expression=f"({_ROUNDED}) || self.inferencePools.all(p, !has(p.quantization))",
        message="must not have a pool with quantization unless rollouts.quantization says so: its files would be judged by other weights",
        field="inferencePools",
        good=_GOOD,
        bad={"inferencePools": [{"name": "pool", "quantization": "fp8"}]},
    ),
    Rule(
        model="TrainingRunSpec",
        expression=f"({_ROUNDED}) == ({_OLD}) && (!({_ROUNDED}) || self.rollouts.quantization == oldSelf.rollouts.quantization)",
        message="cannot change once the run exists: files of one step would be judged by other weights than drew them; start a new run instead",
        field="rollouts.quantization",
        good=_GOOD,
        bad=_GOOD | {"rollouts": {"handInEverySeconds": 60}, "inferencePools": [{"name": "pool"}]},
        old=_GOOD,
    ),
)
