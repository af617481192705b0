"""The CEL rules of the four kinds: checks between fields, which a schema of single fields cannot say.

The expressions go into the CRDs (`x-kubernetes-validations`), where the API server evaluates them, and are evaluated here by cel-python for
manifests on one machine; both see values after defaulting. Each rule carries a good and a bad example that a test runs. A rule that speaks of
`oldSelf` applies to updates only.
"""

import functools
from dataclasses import dataclass
from typing import Any

import celpy
from celpy.adapter import json_to_cel
from celpy.evaluation import CELEvalError


@dataclass(frozen=True)
class Rule:
    """One rule of one model.

    Attributes:
        model: class name of the model whose value is `self`.
        expression: the CEL expression; true means allowed.
        message: what is allowed, for the author of the manifest.
        field: path below the model that the message is about, in camelCase; empty for the model itself.
        good: a value of the model (after defaulting, only what the rule reads) that passes.
        bad: one that does not.
        old: value of `oldSelf` in the examples; only rules of updates have one.
    """

    model: str
    expression: str
    message: str
    field: str
    good: dict[str, Any]
    bad: dict[str, Any]
    old: dict[str, Any] | None = None

    @property
    def of_updates(self) -> bool:
        return "oldSelf" in self.expression


def _immutable(field: str, old: Any, new: Any) -> Rule:
    return Rule(
        model="TrainingRunSpec",
        expression=f"self.{field} == oldSelf.{field}",
        message=f"{field} cannot change once the run exists; start a new run instead",
        field=field,
        good={field: old},
        bad={field: new},
        old={field: old},
    )


RULES: tuple[Rule, ...] = (
    Rule(
        model="Recipe",
        expression="self.clipDelta > 1.0 + self.clipEpsilon",
        message="must be greater than 1 + clipEpsilon (paper section 3.4)",
        field="clipDelta",
        good={"clipDelta": 4.0, "clipEpsilon": 0.2},
        bad={"clipDelta": 1.1, "clipEpsilon": 0.2},
    ),
    Rule(
        model="Recipe",
        expression="(self.promptsPerStep * self.groupSize) % self.optimizerSteps == 0",
        message="promptsPerStep x groupSize must be divisible by optimizerSteps",
        field="optimizerSteps",
        good={"promptsPerStep": 256, "groupSize": 16, "optimizerSteps": 8},
        bad={"promptsPerStep": 16, "groupSize": 16, "optimizerSteps": 3},
    ),
    Rule(
        model="Recipe",
        expression="!has(self.packLength) || self.packLength >= self.maxSequenceLength",
        message="must be at least maxSequenceLength: a sample is never cut",
        field="packLength",
        good={"packLength": 4096, "maxSequenceLength": 1024},
        bad={"packLength": 512, "maxSequenceLength": 1024},
    ),
    Rule(
        model="LengthReward",
        expression="self.targets.all(t, self.targets.exists_one(u, u == t))",
        message="must not repeat a target",
        field="targets",
        good={"targets": [1000, 2000]},
        bad={"targets": [1000, 1000]},
    ),
    Rule(
        model="ModelSource",
        expression="[has(self.huggingFace), has(self.path), has(self.generated)].exists_one(given, given)",
        message="must have exactly one of huggingFace, path, generated",
        field="",
        good={"path": "/models/base"},
        bad={"path": "/models/base", "huggingFace": "Qwen/Qwen3-0.6B"},
    ),
    Rule(
        model="ModelSource",
        expression="has(self.huggingFace) == has(self.revision)",
        message="must be given with huggingFace, and only with it: an unpinned model is another run tomorrow",
        field="revision",
        good={"huggingFace": "Qwen/Qwen3-0.6B", "revision": "main"},
        bad={"huggingFace": "Qwen/Qwen3-0.6B"},
    ),
    Rule(
        model="S3Storage",
        expression="self.endpoint.startsWith('http://') || self.endpoint.startsWith('https://')",
        message="must start with http:// or https://",
        field="endpoint",
        good={"endpoint": "http://minio:9000"},
        bad={"endpoint": "minio:9000"},
    ),
    Rule(
        model="TrainingRunSpec",
        expression="self.sampling.maxCompletionTokens < self.recipe.maxSequenceLength",
        message="must be less than recipe.maxSequenceLength, which counts the prompt too",
        field="sampling.maxCompletionTokens",
        good={"sampling": {"maxCompletionTokens": 96}, "recipe": {"maxSequenceLength": 160}},
        bad={"sampling": {"maxCompletionTokens": 160}, "recipe": {"maxSequenceLength": 160}},
    ),
    Rule(
        model="TrainingRunSpec",
        expression="self.sampling.groupsPerSubmission <= self.recipe.promptsPerStep",
        message="must be at most recipe.promptsPerStep",
        field="sampling.groupsPerSubmission",
        good={"sampling": {"groupsPerSubmission": 4}, "recipe": {"promptsPerStep": 32}},
        bad={"sampling": {"groupsPerSubmission": 64}, "recipe": {"promptsPerStep": 32}},
    ),
    Rule(
        model="TrainingRunSpec",
        expression="!has(self.lengthReward) || "
        "self.lengthReward.targets.all(t, t <= self.sampling.maxCompletionTokens)",
        message="must all be at most sampling.maxCompletionTokens",
        field="lengthReward.targets",
        good={"lengthReward": {"targets": [16, 32]}, "sampling": {"maxCompletionTokens": 96}},
        bad={"lengthReward": {"targets": [16, 128]}, "sampling": {"maxCompletionTokens": 96}},
    ),
    _immutable("model", {"path": "/models/a"}, {"path": "/models/b"}),
    _immutable("tasks", {"environment": "arithmetic", "count": 8}, {"environment": "arithmetic", "count": 9}),
    _immutable("storage", {"prefix": "shoal"}, {"prefix": "other"}),
)


def rules_of(model: str) -> list[Rule]:
    """The rules whose `self` is the model of this class name."""
    return [rule for rule in RULES if rule.model == model]


@functools.cache
def _program(expression: str) -> Any:
    environment = celpy.Environment()
    return environment.program(environment.compile(expression))


def holds(rule: Rule, value: dict[str, Any], old: dict[str, Any] | None = None) -> bool:
    """Whether `value` (camelCase, after defaulting, absent for None) passes the rule.

    An expression that cannot be evaluated does not pass, as on an API server; a rule of updates passes where there is no old value.
    """
    if rule.of_updates and old is None:
        return True
    variables = {"self": json_to_cel(value)}
    if old is not None:
        variables["oldSelf"] = json_to_cel(old)
    try:
        return bool(_program(rule.expression).evaluate(variables))
    except CELEvalError:
        return False
