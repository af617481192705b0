"""Rules of pools: what strangers' machines are checked by."""

from shoal_operator.api.rule import Rule


def _checked_if_open(model: str) -> Rule:
    return Rule(
        model=model,
        expression="!self.open || !has(self.sampler) || self.sampler != 'none'",
        message="must name a rule in an open pool: without one, strangers choose their tokens freely",
        field="sampler",
        good={"open": True, "sampler": "gumbel-murmur3-1"},
        bad={"open": True, "sampler": "none"},
    )


POOL_RULES: tuple[Rule, ...] = (_checked_if_open("InferencePoolTemplate"), _checked_if_open("InferencePoolSpec"))
