"""Rules of pools: what strangers' machines are checked by, how an engine lies on pods, and what a queue may shrink."""

from typing import Any

from shoal_operator.api.rule import Rule

LONGEST_GROUPED_NAME = 46
"""A label has at most 63 characters: behind the pool's name it has a group's number below 10,000 and ten digits, with a dash before each. So 47; one
is to spare."""
_TOGETHER: dict[str, Any] = {"engine": {"tensorParallelSize": 2, "hosts": 2}}
_STAGED: dict[str, Any] = {"engine": {"tensorParallelSize": 4, "pipelineParallelSize": 2}}
_RANKS = (
    "self.engine.tensorParallelSize * (has(self.engine.pipelineParallelSize) ? self.engine.pipelineParallelSize : 1)"
)
_GROUPED = _TOGETHER | {"hostsBy": "LeaderWorkerSet"}
_SHARED: dict[str, Any] = {"weightsClaim": "node-a-weights"}


def _checked_if_open(model: str) -> Rule:
    return Rule(
        model=model,
        expression="!self.open || !has(self.sampler) || self.sampler != 'none'",
        message="must name a rule in an open pool: without one, strangers choose their tokens freely",
        field="sampler",
        good={"open": True, "sampler": "gumbel-murmur3-1"},
        bad={"open": True, "sampler": "none"},
    )


def _shared_by_hosts(model: str) -> Rule:
    return Rule(
        model=model,
        expression="!has(self.engine.hosts) || self.engine.hosts == 1 || "
        f"{_RANKS} == self.engine.hosts * (self.gpu.count == 0 ? 1 : self.gpu.count)",
        message="must be, times engine.pipelineParallelSize, engine.hosts x gpu.count, or engine.hosts without GPUs: "
        "each pod of an engine has an equal share of it",
        field="engine.tensorParallelSize",
        good={"engine": {"tensorParallelSize": 8, "pipelineParallelSize": 2, "hosts": 2}, "gpu": {"count": 8}},
        bad={"engine": {"tensorParallelSize": 8, "hosts": 2}, "gpu": {"count": 8}},
    )


def _within_its_pod(model: str) -> Rule:
    return Rule(
        model=model,
        expression=f"(has(self.engine.hosts) && self.engine.hosts > 1) || {_RANKS} == 1 || {_RANKS} <= self.gpu.count",
        message="must be, times engine.pipelineParallelSize, at most gpu.count: "
        "an engine spreads over the GPUs of its own pod, or over engine.hosts pods",
        field="engine.tensorParallelSize",
        good=_STAGED | {"gpu": {"count": 8}},
        bad=_STAGED | {"gpu": {"count": 4}},
    )


def _behind_its_policy(model: str) -> Rule:
    return Rule(
        model=model,
        expression="!has(self.engine.hosts) || self.engine.hosts == 1 || "
        "!has(self.podTemplate.hostNetwork) || !self.podTemplate.hostNetwork",
        message="must not be true with engine.hosts: vLLM's ranks believe whoever reaches them, and NetworkPolicies do not hold there",
        field="podTemplate.hostNetwork",
        good={"engine": {"tensorParallelSize": 2, "hosts": 2}, "podTemplate": {"hostNetwork": False}},
        bad={"engine": {"tensorParallelSize": 2, "hosts": 2}, "podTemplate": {"hostNetwork": True}},
    )


def _groups_hosts(model: str) -> Rule:
    return Rule(
        model=model,
        expression="!has(self.hostsBy) || (has(self.engine.hosts) && self.engine.hosts > 1)",
        message="is for engines of several pods: give engine.hosts too",
        field="hostsBy",
        good=_GROUPED,
        bad={"engine": {"tensorParallelSize": 1}, "hostsBy": "LeaderWorkerSet"},
    )


def _one_volume(model: str) -> Rule:
    return Rule(
        model=model,
        expression="!has(self.weightsClaim) || !has(self.weightsVolume)",
        message="goes without weightsVolume: its size and class are those of your claim",
        field="weightsClaim",
        good=_SHARED,
        bad=_SHARED | {"weightsVolume": {"size": "300Gi"}},
    )


POOL_RULES: tuple[Rule, ...] = (
    _checked_if_open("InferencePoolTemplate"),
    _checked_if_open("InferencePoolSpec"),
    _within_its_pod("InferencePoolTemplate"),
    _within_its_pod("InferencePoolSpec"),
    _shared_by_hosts("InferencePoolTemplate"),
    _shared_by_hosts("InferencePoolSpec"),
    _behind_its_policy("InferencePoolTemplate"),
    _behind_its_policy("InferencePoolSpec"),
    _groups_hosts("InferencePoolTemplate"),
    _groups_hosts("InferencePoolSpec"),
    _one_volume("InferencePoolTemplate"),
    _one_volume("InferencePoolSpec"),
    Rule(
        model="InferencePoolSpec",
        expression="has(self.hostsBy) == has(oldSelf.hostsBy)",
        message="cannot come or go once the pool exists; make another pool instead",
        field="hostsBy",
        good=_GROUPED,
        bad=_TOGETHER,
        old=_GROUPED,
    ),
    Rule(
        model="InferencePoolSpec",
        expression="has(self.weightsClaim) == has(oldSelf.weightsClaim)",
        message="cannot come or go once the pool exists; make another pool instead",
        field="weightsClaim",
        good=_SHARED,
        bad={},
        old=_SHARED,
    ),
    Rule(
        model="TrainingRunSpec",
        expression="self.inferencePools.all(pool, oldSelf.inferencePools.all(was, was.name != pool.name || "
        "has(was.hostsBy) == has(pool.hostsBy) && has(was.weightsClaim) == has(pool.weightsClaim)))",
        message="must keep hostsBy and weightsClaim, present or absent: a pool's pods move neither to another controller nor to another kind of"
        " volume; make another pool instead",
        field="inferencePools",
        good={"inferencePools": [{"name": "a"} | _GROUPED, {"name": "b"}]},
        bad={"inferencePools": [{"name": "a"} | _TOGETHER, {"name": "b"}]},
        old={"inferencePools": [{"name": "a"} | _GROUPED]},
    ),
    Rule(
        model="TrainingRunSpec",
        expression="self.inferencePools.all(pool, !has(pool.hostsBy) || "
        "self.inferencePools.all(other, !other.name.matches('^' + pool.name + '-[0-9]+$')))",
        message="must not name a pool like one with hostsBy and a number: LeaderWorkerSet names each group's StatefulSet so",
        field="inferencePools",
        good={"inferencePools": [{"name": "a"} | _GROUPED, {"name": "a-b0"}]},
        bad={"inferencePools": [{"name": "a"} | _GROUPED, {"name": "a-0"}]},
    ),
    Rule(
        model="InferencePool",
        expression=f"!has(self.spec.hostsBy) || self.metadata.name.size() <= {LONGEST_GROUPED_NAME}",
        message=f"must have at most {LONGEST_GROUPED_NAME} characters with hostsBy: pods of a group are labelled with it, its number and a digest",
        field="metadata.name",
        good={"metadata": {"name": "a" * LONGEST_GROUPED_NAME}, "spec": _GROUPED},
        bad={"metadata": {"name": "a" * (LONGEST_GROUPED_NAME + 1)}, "spec": _GROUPED},
    ),
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
