"""The CEL rules about `rollouts.versions`: rows that go on under newer weights (ADR 0108). Part of `mode_rules.MODE_RULES`."""

from typing import Any

from shoal_operator.api.rule import Rule

_SEVERAL = "has(self.rollouts) && has(self.rollouts.versions) && self.rollouts.versions == 'Several'"
_GOOD: dict[str, Any] = {
    "rollouts": {"versions": "Several"},
    "asyncLevel": 2,
    "recipe": {"algorithm": {"twoSidedGrpo": {}}},
    "trainer": {},
    "inferencePools": [{"name": "pool", "sampler": "gumbel-murmur3-1"}],
}


def _refused(expression: str, message: str, **bad: Any) -> Rule:
    """What does not go with rows of several versions."""
    return Rule(
        model="TrainingRunSpec",
        expression=f"!({_SEVERAL}) || {expression}",
        message=f"Several {message}",
        field="rollouts.versions",
        good=_GOOD,
        bad=_GOOD | bad,
    )


SEVERAL_RULES: tuple[Rule, ...] = (
    _refused(
        "self.asyncLevel > 0", "needs an asyncLevel of 1 or more: with 0 a step accepts one version", asyncLevel=0
    ),
    _refused(
        "!has(self.rollouts.handInEverySeconds)",
        "does not go with handInEverySeconds: groups of a lease would be of different versions, and a rest of others again",
        rollouts={"versions": "Several", "handInEverySeconds": 60},
    ),
    _refused(
        "!has(self.evaluation)",
        "does not go with evaluation: a benchmark's answers are of the version that they score",
        evaluation={"benchmarks": []},
    ),
    _refused(
        "!has(self.recipe.algorithm.vineppo)",
        "does not go with algorithm vineppo: continuations say what one version makes of a completion",
        recipe={"algorithm": {"vineppo": {}}},
    ),
    _refused(
        "!has(self.recipe.routerReplay)",
        "does not go with routerReplay: routes of a row are recorded as a whole, by the version that drew all of it",
        recipe={"algorithm": {}, "routerReplay": "Report"},
    ),
    _refused(
        "!has(self.trainer.islands)",
        "does not go with islands: their weights may be replaced by another island's under the number that a row goes on from",
        trainer={"islands": {}},
    ),
    _refused(
        "self.inferencePools.all(p, !has(p.sampler) || p.sampler != 'none')",
        "needs pools whose tokens are drawn again: without that nothing says which version drew a token",
        inferencePools=[{"name": "pool", "sampler": "none"}],
    ),
    Rule(
        model="TrainingRunSpec",
        expression=f"({_SEVERAL}) == ({_SEVERAL.replace('self', 'oldSelf')})",
        message="cannot change once the run exists: validators and workers would not expect the same files; start a new run instead",
        field="rollouts.versions",
        good={"rollouts": {"versions": "Several"}},
        bad={"rollouts": {"versions": "One"}},
        old={"rollouts": {"versions": "Several"}},
    ),
)
