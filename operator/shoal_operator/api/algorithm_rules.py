"""The CEL rules about `recipe.algorithm`: which one is given, its clip, and what may change in a run. Part of `rules.RULES`.

Rules about the numbers of PRIME and VinePPO are in `prime_rules` and `vine_rules`.
"""

from shoal.contracts.algorithm import GROUP_SIZE as DEFAULT_GROUP_SIZE
from shoal.contracts.algorithm import (
    GROUP_SIZES,
    Algorithm,
    Clip,
    CustomObjective,
    Dapo,
    Grpo,
    Gspo,
    OneOf,
    PolicyLoss,
    SourceAlgorithm,
    TwoSidedClip,
    TwoSidedGrpo,
)
from shoal_operator.api.rule import Rule


def group_size_of(recipe: str) -> str:
    """The group size of the `Recipe` at a path, in CEL: an API server fills in none, since the default depends on the algorithm."""
    by_algorithm = "".join(f"has({recipe}.algorithm.{name}) ? {size} : " for name, size in GROUP_SIZES.items())
    return f"(has({recipe}.groupSize) ? {recipe}.groupSize : {by_algorithm}{DEFAULT_GROUP_SIZE})"


GROUP_SIZE = group_size_of("self")


def _exactly_one(union: type[OneOf]) -> Rule:
    members = [field.alias or name for name, field in union.model_fields.items()]
    return Rule(
        model=union.__name__,
        expression=f"[{', '.join(f'has(self.{name})' for name in members)}].exists_one(given, given)",
        message=f"must have exactly one of {', '.join(members)}, such as `{members[0]}: {{}}`, which has the defaults",
        field="",
        good={members[1]: {}},
        bad={members[0]: {}, members[1]: {}},
    )


def _clip_rules(model: type[Clip]) -> tuple[Rule, ...]:
    higher = Rule(
        model=model.__name__,
        expression="!has(self.clipEpsilonHigh) || self.clipEpsilonHigh >= self.clipEpsilon",
        message="must be at least clipEpsilon (clip-higher, arXiv:2503.14476)",
        field="clipEpsilonHigh",
        good={"clipEpsilon": 0.2, "clipEpsilonHigh": 0.28},
        bad={"clipEpsilon": 0.2, "clipEpsilonHigh": 0.1},
    )
    if not issubclass(model, TwoSidedClip):
        return (higher,)
    return (
        higher,
        Rule(
            model=model.__name__,
            expression="self.clipDelta > 1.0 + self.clipEpsilon",
            message="must be greater than 1 + clipEpsilon (paper section 3.4)",
            field="clipDelta",
            good={"clipDelta": 4.0, "clipEpsilon": 0.2},
            bad={"clipDelta": 1.1, "clipEpsilon": 0.2},
        ),
        Rule(
            model=model.__name__,
            expression="!has(self.clipEpsilonHigh) || self.clipDelta > 1.0 + self.clipEpsilonHigh",
            message="must be greater than 1 + clipEpsilonHigh: ratios between the two would be unbounded otherwise",
            field="clipDelta",
            good={"clipDelta": 4.0, "clipEpsilonHigh": 0.28},
            bad={"clipDelta": 1.25, "clipEpsilonHigh": 0.28, "clipEpsilon": 0.2},
        ),
    )


ALGORITHM_RULES: tuple[Rule, ...] = (
    _exactly_one(Algorithm),
    _exactly_one(PolicyLoss),
    _exactly_one(SourceAlgorithm),
    *(
        rule
        for model in (Clip, TwoSidedClip, Grpo, TwoSidedGrpo, Dapo, Gspo, CustomObjective)
        for rule in _clip_rules(model)
    ),
    *(
        Rule(
            model="TrainingRunSpec",
            expression=f"self.mode == 'Train' || !has(self.recipe.algorithm.{name})",
            message="goes with mode Train only",
            field=f"recipe.algorithm.{name}",
            good={"mode": "Train", "recipe": {"algorithm": {name: {}}}},
            bad={"mode": "SFT", "recipe": {"algorithm": {name: {}}}},
        )
        for name in GROUP_SIZES
    ),
    *(
        Rule(
            model="TrainingRunSpec",
            expression=f"has(self.recipe.algorithm.{name}) == has(oldSelf.recipe.algorithm.{name})",
            message=f"cannot change to or from {name} once the run exists: {why}; start a new run instead",
            field="recipe.algorithm",
            good={"recipe": {"algorithm": {name: {}}}},
            bad={"recipe": {"algorithm": {"dapo": {}}}},
            old={"recipe": {"algorithm": {name: {}}}},
        )
        for name, why in (
            ("prime", "its training states hold a reward model or not"),
            ("vineppo", "its files hold continuations or not"),
        )
    ),
    Rule(
        model="TrainingRunSpec",
        expression="has(self.recipe.routerReplay) == has(oldSelf.recipe.routerReplay)",
        message="cannot come or go once the run exists, whose files hold routes or not, as it was prepared; start a new run instead",
        field="recipe.routerReplay",
        good={"recipe": {"adamBeta1": 0.9, "routerReplay": "Replay"}},
        bad={"recipe": {"adamBeta1": 0.9}},
        old={"recipe": {"adamBeta1": 0.9, "routerReplay": "Report"}},
    ),
    *(
        Rule(
            model="Recipe",
            expression=f"!has(self.credit) || self.credit == 'Episode' || !has(self.algorithm.{name})",
            message=f"must be Episode with algorithm {name}, {why}",
            field="credit",
            good={"algorithm": {"dapo": {}}, "credit": "Turn"},
            bad={"algorithm": {name: {}}, "credit": "Turn"},
        )
        for name, why in (
            ("prime", "whose reward model says what each token earned"),
            ("vineppo", "whose continuations say what each part earned"),
            ("gspo", "whose ratio is of a whole completion"),
        )
    ),
    Rule(
        model="TrainingRunSpec",
        expression="(has(self.recipe.credit) && self.recipe.credit == 'Turn') == "
        "(has(oldSelf.recipe.credit) && oldSelf.recipe.credit == 'Turn')",
        message="cannot change once the run exists, whose verdicts tell rewards of turns or not; start a new run instead",
        field="recipe.credit",
        good={"recipe": {"adamBeta1": 0.9, "credit": "Turn"}},
        bad={"recipe": {"adamBeta1": 0.9}},
        old={"recipe": {"adamBeta1": 0.9, "credit": "Turn"}},
    ),
)
