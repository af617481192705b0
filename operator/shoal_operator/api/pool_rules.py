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


POOL_RULES: tuple[Rule, ...] = (
    _checked_if_open("InferencePoolTemplate"),
    _checked_if_open("InferencePoolSpec"),
    Rule(
        model="InferencePoolTemplate",
        expression="!has(self.minReplicas) || self.minReplicas <= self.replicas",
        message="must be at most replicas",
        field="minReplicas",
        good={"minReplicas": 2, "replicas": 4},
        bad={"minReplicas": 5, "replicas": 4},
    ),
    Rule(
        model="InferencePoolTemplate",
        expression="!has(self.maxReplicas) || self.maxReplicas >= self.replicas",
        message="must be at least replicas",
        field="maxReplicas",
        good={"maxReplicas": 8, "replicas": 4},
        bad={"maxReplicas": 2, "replicas": 4},
    ),
    Rule(
        model="TrainingRunSpec",
        expression="self.inferencePools.filter(pool, has(pool.minReplicas)).size() <= 1",
        message="may have minReplicas in one pool only: a queue shrinks one set of pods of a run",
        field="inferencePools",
        good={"inferencePools": [{"name": "a", "minReplicas": 1}, {"name": "b"}]},
        bad={"inferencePools": [{"name": "a", "minReplicas": 1}, {"name": "b", "minReplicas": 1}]},
    ),
    Rule(
        model="TrainingRunSpec",
        expression="has(self.managedBy) == has(oldSelf.managedBy)",
        message="cannot come or go once the run exists; start a new run instead",
        field="managedBy",
        good={"managedBy": "kueue.x-k8s.io/multikueue"},
        bad={},
        old={"managedBy": "kueue.x-k8s.io/multikueue"},
    ),
)
