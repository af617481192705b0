"""The CEL rules about a recipe's mismatch correction and schedules. Part of `rules.RULES`."""

from shoal.contracts.algorithm import Algorithm, PolicyLoss, SourceAlgorithm
from shoal_operator.api.rule import Rule

_WITH_A_CAP = [
    field.alias for name, field in Algorithm.model_fields.items() if name not in ("dppo", "prime", "vineppo")
]
_LOSSES = [field.alias for field in PolicyLoss.model_fields.values()]
_WEIGHED = " || ".join(
    [
        "has(self.algorithm.decoupledPpo)",
        "has(self.algorithm.dppo)",
        *(f"(has(self.algorithm.{name}) && has(self.algorithm.{name}.importanceCap))" for name in _WITH_A_CAP),
        *(
            f"(has(self.algorithm.{own}) && (has(self.algorithm.{own}.loss.decoupledPpo) || "
            + " || ".join(
                f"(has(self.algorithm.{own}.loss.{name}) && has(self.algorithm.{own}.loss.{name}.importanceCap))"
                for name in _LOSSES
            )
            + "))"
            for own in ("prime", "vineppo")
        ),
    ]
)
"""Whether tokens have an importance weight already."""
_WEIGHED_SOURCE = " || ".join(
    [
        "has(s.algorithm.decoupledPpo)",
        "has(s.algorithm.dppo)",
        *(
            f"(has(s.algorithm.{field.alias}) && has(s.algorithm.{field.alias}.importanceCap))"
            for name, field in SourceAlgorithm.model_fields.items()
            if name not in ("decoupled_ppo", "dppo")
        ),
    ]
)
"""The same of a source `s` with an algorithm of its own."""


def _schedule_rules(name: str, bounds: str, allowed: str, value: float, wrong: float) -> tuple[Rule, ...]:
    points = [{"step": 0, "value": value}, {"step": 100, "value": value}]
    return (
        Rule(
            model="Schedules",
            expression=f"!has(self.{name}) || self.{name}.all(p, {bounds})",
            message=f"must have values {allowed}",
            field=name,
            good={name: points},
            bad={name: [{"step": 0, "value": wrong}]},
        ),
        Rule(
            model="Schedules",
            expression=f"!has(self.{name}) || self.{name}.all(p, self.{name}.exists_one(q, q.step == p.step))",
            message="must not name a step twice",
            field=name,
            good={name: points},
            bad={name: [points[0], points[0]]},
        ),
    )


OBJECTIVE_RULES: tuple[Rule, ...] = (
    Rule(
        model="MismatchCorrection",
        expression="[has(self.truncate), has(self.mask), has(self.icepop)].filter(given, given).size() <= 1",
        message="must have at most one of truncate, mask, icepop: each of them weighs a token",
        field="",
        good={"truncate": {"cap": 2.0}, "sequence": {"low": 0.9, "high": 1.1}},
        bad={"truncate": {"cap": 2.0}, "icepop": {"low": 0.5, "high": 5.0}},
    ),
    Rule(
        model="MismatchCorrection",
        expression="has(self.truncate) || has(self.mask) || has(self.icepop) || has(self.sequence)",
        message="must have truncate, mask, icepop or sequence, such as `icepop: {}`, which has the defaults",
        field="",
        good={"sequence": {"low": 0.9, "high": 1.1}},
        bad={"probabilities": "Engine"},
    ),
    Rule(
        model="Recipe",
        expression=f"!has(self.mismatchCorrection) || !({_WEIGHED})",
        message="must not be given with algorithm decoupledPpo or dppo, or with importanceCap: tokens would be weighed twice",
        field="mismatchCorrection",
        good={"algorithm": {"dapo": {}}, "mismatchCorrection": {"icepop": {"low": 0.5, "high": 5.0}}},
        bad={"algorithm": {"decoupledPpo": {}}, "mismatchCorrection": {"icepop": {"low": 0.5, "high": 5.0}}},
    ),
    Rule(
        model="Recipe",
        expression="!has(self.mismatchCorrection) || !has(self.sources) || "
        f"self.sources.all(s, !has(s.algorithm) || !({_WEIGHED_SOURCE}))",
        message="must not have an algorithm decoupledPpo or dppo, or importanceCap, beside mismatchCorrection: tokens would be weighed twice",
        field="sources",
        good={
            "mismatchCorrection": {"icepop": {"low": 0.5, "high": 5.0}},
            "sources": [{"name": "code", "algorithm": {"gspo": {}}}],
        },
        bad={
            "mismatchCorrection": {"icepop": {"low": 0.5, "high": 5.0}},
            "sources": [{"name": "code", "algorithm": {"dppo": {}}}],
        },
    ),
    Rule(
        model="Recipe",
        expression="!has(self.sources) || !(has(self.algorithm.prime) || has(self.algorithm.vineppo))",
        message="must not be given with algorithm prime or vineppo, whose advantages are made of all rows together",
        field="sources",
        good={"algorithm": {"dapo": {}}, "sources": [{"name": "code", "algorithm": {"gspo": {}}}]},
        bad={"algorithm": {"prime": {}}, "sources": [{"name": "code", "algorithm": {"gspo": {}}}]},
    ),
    Rule(
        model="Recipe",
        expression="!has(self.schedules) || !has(self.algorithm.dppo) || "
        "!(has(self.schedules.clipEpsilon) || has(self.schedules.clipEpsilonHigh))",
        message="must not schedule clipEpsilon or clipEpsilonHigh with algorithm dppo, which has no clip",
        field="schedules",
        good={"algorithm": {"dppo": {}}, "schedules": {"klCoefficient": [{"step": 0, "value": 0.01}]}},
        bad={"algorithm": {"dppo": {}}, "schedules": {"clipEpsilon": [{"step": 0, "value": 0.2}]}},
    ),
    *_schedule_rules("learningRate", "p.value > 0.0 && p.value <= 1.0", "above 0, at most 1", 1e-6, 0.0),
    *_schedule_rules("klCoefficient", "p.value <= 10.0", "of at most 10", 0.001, 11.0),
    *_schedule_rules("clipEpsilon", "p.value > 0.0 && p.value < 1.0", "above 0 and below 1", 0.2, 1.0),
    *_schedule_rules("clipEpsilonHigh", "p.value > 0.0", "above 0", 0.28, 0.0),
)
