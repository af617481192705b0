"""The CEL rules about environments and a mixture of tasks (`spec.tasks.mixture`). Part of `rules.RULES`."""

from typing import Any

from shoal_operator.api.rule import Rule

_MATH: dict[str, Any] = {"name": "math", "environment": "math", "weight": 3}
_CODE: dict[str, Any] = {"name": "code", "environment": "code", "weight": 1}
_TWO: dict[str, Any] = {"mixture": [_MATH, _CODE]}
_SAMPLED = "(has({0}.offlineFilter) && !has({0}.offlineFilter.solveRate))"
_GENERATOR = "[a-z][a-z0-9_]*(@[0-9]{1,2}(-[0-9]{1,2})?)?([{].*[}])?([*][0-9]{1,4})?"
_GENERATORS = f"^reasoning-gym:{_GENERATOR}([+]{_GENERATOR})*$"
"""What `shoal.environments.reasoning_gym_names` reads, except for the JSON of settings and the names themselves."""


def _named(field: str) -> str:
    """CEL: an environment of generators names some."""
    return f"!{field}.matches('^reasoning-gym(:.*)?$') || {field}.matches('{_GENERATORS}')"


def _run(targets: list[int], **more: Any) -> dict[str, Any]:
    return {
        "tasks": {"mixture": [{**_MATH, "lengthTargets": targets}, _CODE]},
        "sampling": {"maxCompletionTokens": 96},
        **more,
    }


MIXTURE_RULES: tuple[Rule, ...] = (
    Rule(
        model="TaskSource",
        expression="has(self.environment) != has(self.mixture)",
        message="must have exactly one of environment and mixture",
        field="",
        good=_TWO,
        bad={**_TWO, "environment": "math"},
    ),
    Rule(
        model="TaskSource",
        expression="!has(self.mixture) || (!has(self.count) && !has(self.dataset) && !has(self.offlineFilter))",
        message="must not be given with count, dataset or offlineFilter: each of its sources has its own",
        field="mixture",
        good=_TWO,
        bad={**_TWO, "count": 8},
    ),
    Rule(
        model="TaskSource",
        expression="!has(self.mixture) || self.mixture.all(s, self.mixture.exists_one(t, t.name == s.name))",
        message="must not repeat a name",
        field="mixture",
        good=_TWO,
        bad={"mixture": [_MATH, {**_CODE, "name": "math"}]},
    ),
    Rule(
        model="TaskSource",
        expression=f"!has(self.mixture) || self.mixture.all(s, !{_SAMPLED.format('s')} || self.mixture.all(t, "
        f"!{_SAMPLED.format('t')} || (s.offlineFilter.samples == t.offlineFilter.samples && "
        "has(s.offlineFilter.model) == has(t.offlineFilter.model) && "
        "(!has(s.offlineFilter.model) || s.offlineFilter.model == t.offlineFilter.model))))",
        message="must have the same samples and model in every offlineFilter without solveRate: one run samples for all of them",
        field="mixture",
        good={"mixture": [{**_MATH, "offlineFilter": {"samples": 8}}, {**_CODE, "offlineFilter": {"samples": 8}}]},
        bad={"mixture": [{**_MATH, "offlineFilter": {"samples": 8}}, {**_CODE, "offlineFilter": {"samples": 4}}]},
    ),
    Rule(
        model="MixtureSource",
        expression="!has(self.lengthTargets) || self.lengthTargets.all(t, self.lengthTargets.exists_one(u, u == t))",
        message="must not repeat a target",
        field="lengthTargets",
        good={**_MATH, "lengthTargets": [16, 32]},
        bad={**_MATH, "lengthTargets": [16, 16]},
    ),
    Rule(
        model="TrainingRunSpec",
        expression="has(self.lengthReward) || !has(self.tasks.mixture) || self.tasks.mixture.all(s, !has(s.lengthTargets))",
        message="lengthTargets of a source need lengthReward, whose alpha says what a token of difference costs",
        field="tasks.mixture",
        good=_run([16], lengthReward={"targets": [32]}),
        bad=_run([16]),
    ),
    Rule(
        model="TrainingRunSpec",
        expression="!has(self.tasks.mixture) || self.tasks.mixture.all(s, !has(s.lengthTargets) || "
        "s.lengthTargets.all(t, t <= self.sampling.maxCompletionTokens))",
        message="lengthTargets must all be at most sampling.maxCompletionTokens",
        field="tasks.mixture",
        good=_run([96], lengthReward={"targets": [32]}),
        bad=_run([97], lengthReward={"targets": [32]}),
    ),
    Rule(
        model="TrainingRunSpec",
        expression="!has(self.recipe.sources) || (has(self.tasks.mixture) && self.recipe.sources.all(o, "
        "self.tasks.mixture.exists(s, s.name == o.name)))",
        message="must name sources of tasks.mixture: give each the name of one, or add it there",
        field="recipe.sources",
        good={"tasks": _TWO, "recipe": {"sources": [{"name": "code", "lossWeight": 2.0}]}},
        bad={"tasks": _TWO, "recipe": {"sources": [{"name": "sums", "lossWeight": 2.0}]}},
    ),
    Rule(
        model="TrainingRunSpec",
        expression="self.mode == 'Train' || !has(self.recipe.sources)",
        message="goes with mode Train only",
        field="recipe.sources",
        good={"mode": "Train", "tasks": _TWO, "recipe": {"sources": [{"name": "code"}]}},
        bad={"mode": "Generate", "tasks": _TWO, "recipe": {"sources": [{"name": "code"}]}},
    ),
    Rule(
        model="Recipe",
        expression="!has(self.sources) || self.sources.all(s, self.sources.exists_one(t, t.name == s.name))",
        message="must not repeat a name",
        field="sources",
        good={"sources": [{"name": "math"}, {"name": "code", "algorithm": {"gspo": {}}}]},
        bad={"sources": [{"name": "math"}, {"name": "math", "algorithm": {"gspo": {}}}]},
    ),
    Rule(
        model="Benchmark",
        expression="has(self.tasks.environment) != has(self.tasks.source)",
        message="must have exactly one of environment and source",
        field="tasks",
        good={"name": "sums", "tasks": {"environment": "math"}},
        bad={"name": "sums", "tasks": {"environment": "math", "source": "math"}},
    ),
    Rule(
        model="TrainingRunSpec",
        expression="!has(self.evaluation) || self.evaluation.benchmarks.all(b, !has(b.tasks.source) || "
        "(has(self.tasks.mixture) && self.tasks.mixture.exists(s, s.name == b.tasks.source)))",
        message="tasks.source must be the name of a source of tasks.mixture",
        field="evaluation.benchmarks",
        good={"tasks": _TWO, "evaluation": {"benchmarks": [{"name": "sums", "tasks": {"source": "math"}}]}},
        bad={"tasks": _TWO, "evaluation": {"benchmarks": [{"name": "sums", "tasks": {"source": "sums"}}]}},
    ),
    *(
        Rule(
            model=model,
            expression=f"!has(self.{field}) || {_named(f'self.{field}')}",
            message="must name generators, as in reasoning-gym:chain_sum or reasoning-gym:gcd@0-2+lcm*3",
            field=field,
            good=put("reasoning-gym:" + 'chain_sum{"max_terms":3}*2+gcd@0-2'),
            bad=put("reasoning-gym:chain_sum,gcd"),
        )
        for model, field, put in (
            ("TaskSource", "environment", lambda name: {"environment": name}),
            ("MixtureSource", "environment", lambda name: {"name": "sums", "environment": name}),
            ("Benchmark", "tasks.environment", lambda name: {"name": "sums", "tasks": {"environment": name}}),
        )
    ),
)
