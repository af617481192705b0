"""The CEL rules about PRIME's settings. Part of `rules.RULES`."""

from shoal.contracts.algorithm import Prime
from shoal_operator.api.algorithm_rules import GROUP_SIZE
from shoal_operator.api.rule import Rule

_LOW, _HIGH = Prime().min_accuracy, Prime().max_accuracy

PRIME_RULES: tuple[Rule, ...] = (
    Rule(
        model="Recipe",
        expression="!has(self.algorithm.prime) || self.onlineFilter == 'TaskReward'",
        message="must stay TaskReward with algorithm prime, whose accuracy filter takes its place; "
        "minAccuracy 0 and maxAccuracy 1 keep every group",
        field="onlineFilter",
        good={"algorithm": {"prime": {}}, "onlineFilter": "TaskReward"},
        bad={"algorithm": {"prime": {}}, "onlineFilter": "None"},
    ),
    Rule(
        model="Recipe",
        # The largest number of right answers that the filter allows must not be fewer than the least. The small sum is for 0.8 * 15.0 < 12.0.
        expression=f"!has(self.algorithm.prime) || self.algorithm.prime.minAccuracy * double({GROUP_SIZE}) <= "
        f"double(int(self.algorithm.prime.maxAccuracy * double({GROUP_SIZE}) + 0.000001)) + 0.000001",
        message="minAccuracy to maxAccuracy must hold k / groupSize for some whole number k, or no group would ever be learnt from",
        field="algorithm.prime",
        good={"groupSize": 5, "algorithm": {"prime": {"minAccuracy": 0.2, "maxAccuracy": 0.2}}},
        bad={"groupSize": 4, "algorithm": {"prime": {"minAccuracy": 0.3, "maxAccuracy": 0.45}}},
    ),
    Rule(
        model="Prime",
        expression="self.minAccuracy <= self.maxAccuracy",
        message="must be at least minAccuracy",
        field="maxAccuracy",
        good={"minAccuracy": _LOW, "maxAccuracy": _HIGH},
        bad={"minAccuracy": _HIGH, "maxAccuracy": _LOW},
    ),
    Rule(
        model="Prime",
        expression="self.outcomeWeight + self.processWeight > 0.0",
        message="must be more than 0, or processWeight must be: with both 0 nothing would be learnt",
        field="outcomeWeight",
        good={"outcomeWeight": 0.0, "processWeight": 1.0},
        bad={"outcomeWeight": 0.0, "processWeight": 0.0},
    ),
)
