"""The CEL rules about `recipe.algorithm` and PRIME's settings. Part of `rules.RULES`."""

from shoal.contracts.prime import GROUP_SIZES, PrimeSettings
from shoal_operator.api.rule import Rule


def group_size_of(recipe: str) -> str:
    """The group size of the `Recipe` at a path, in CEL: an API server fills in none, since the default depends on the algorithm."""
    by_algorithm = "".join(
        f"{recipe}.algorithm == '{name}' ? {size} : " for name, size in GROUP_SIZES.items() if name != "grpo"
    )
    return f"(has({recipe}.groupSize) ? {recipe}.groupSize : {by_algorithm}{GROUP_SIZES['grpo']})"


GROUP_SIZE = group_size_of("self")

_LOW, _HIGH = PrimeSettings().min_accuracy, PrimeSettings().max_accuracy

PRIME_RULES: tuple[Rule, ...] = (
    Rule(
        model="Recipe",
        expression="self.algorithm == 'prime' || !has(self.prime)",
        message="goes with algorithm prime only",
        field="prime",
        good={"algorithm": "prime", "prime": {"beta": 0.05}},
        bad={"algorithm": "grpo", "prime": {"beta": 0.05}},
    ),
    Rule(
        model="Recipe",
        expression="self.algorithm != 'prime' || self.onlineFilter == 'TaskReward'",
        message="must stay TaskReward with algorithm prime, whose accuracy filter takes its place; "
        "prime.minAccuracy 0 and prime.maxAccuracy 1 keep every group",
        field="onlineFilter",
        good={"algorithm": "prime", "onlineFilter": "TaskReward"},
        bad={"algorithm": "prime", "onlineFilter": "None"},
    ),
    Rule(
        model="Recipe",
        expression="self.algorithm != 'prime' || self.normalizeAdvantages",
        message="must stay true with algorithm prime, whose advantages are whitened over the step",
        field="normalizeAdvantages",
        good={"algorithm": "prime", "normalizeAdvantages": True},
        bad={"algorithm": "prime", "normalizeAdvantages": False},
    ),
    Rule(
        model="Recipe",
        # The largest number of right answers that the filter allows must not be fewer than the least. The small sum is for 0.8 * 15.0 < 12.0.
        expression=f"!has(self.prime) || self.prime.minAccuracy * double({GROUP_SIZE}) <= "
        f"double(int(self.prime.maxAccuracy * double({GROUP_SIZE}) + 0.000001)) + 0.000001",
        message="minAccuracy to maxAccuracy must hold k / groupSize for some whole number k, or no group would ever be learnt from",
        field="prime",
        good={"algorithm": "prime", "groupSize": 5, "prime": {"minAccuracy": 0.2, "maxAccuracy": 0.2}},
        bad={"algorithm": "prime", "groupSize": 4, "prime": {"minAccuracy": 0.3, "maxAccuracy": 0.45}},
    ),
    Rule(
        model="PrimeSettings",
        expression="self.minAccuracy <= self.maxAccuracy",
        message="must be at least minAccuracy",
        field="maxAccuracy",
        good={"minAccuracy": _LOW, "maxAccuracy": _HIGH},
        bad={"minAccuracy": _HIGH, "maxAccuracy": _LOW},
    ),
    Rule(
        model="PrimeSettings",
        expression="self.outcomeWeight + self.processWeight > 0.0",
        message="must be more than 0, or processWeight must be: with both 0 nothing would be learnt",
        field="outcomeWeight",
        good={"outcomeWeight": 0.0, "processWeight": 1.0},
        bad={"outcomeWeight": 0.0, "processWeight": 0.0},
    ),
    Rule(
        model="TrainingRunSpec",
        expression="self.mode == 'Train' || self.recipe.algorithm == 'grpo'",
        message="goes with mode Train only",
        field="recipe.algorithm",
        good={"mode": "Train", "recipe": {"algorithm": "prime"}},
        bad={"mode": "SFT", "recipe": {"algorithm": "prime"}},
    ),
    Rule(
        model="TrainingRunSpec",
        expression="self.recipe.algorithm == oldSelf.recipe.algorithm",
        message="cannot change once the run exists, since its training states hold a reward model or not, and its files continuations or not; "
        "start a new run instead",
        field="recipe.algorithm",
        good={"recipe": {"algorithm": "prime"}},
        bad={"recipe": {"algorithm": "grpo"}},
        old={"recipe": {"algorithm": "prime"}},
    ),
)
