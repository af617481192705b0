"""Rules of validators: how many there are, against how many must agree."""

from shoal_operator.api.rule import Rule


def _enough_for_votes(model: str) -> Rule:
    return Rule(
        model=model,
        expression="self.replicas == 0 || self.validation.slashVotes <= self.replicas",
        message="must be at most replicas: with fewer validators than must agree no file is ever rejected",
        field="validation.slashVotes",
        good={"replicas": 3, "validation": {"slashVotes": 2}},
        bad={"replicas": 1, "validation": {"slashVotes": 2}},
    )


VALIDATOR_RULES: tuple[Rule, ...] = (_enough_for_votes("ValidatorTemplate"), _enough_for_votes("ValidatorSpec"))
