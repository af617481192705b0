"""The CEL rules about DiLoCo islands (`spec.trainer.islands`). Part of `rules.RULES`."""

from typing import Any

from shoal_operator.api.rule import Rule

_KEY, _OTHER = "0" * 64, "1" * 64
_BOTH = {"sums": _KEY, "run-b": _OTHER}
_DATA = {"dataset": {"path": "/data"}}
_EXPOSED: dict[str, Any] = {"type": "LoadBalancer"}
_GROUP = "(has({0}.spec.trainer.islands) && has({0}.spec.trainer.islands.group))"


def _sft(islands: dict[str, Any], **spec: Any) -> dict[str, Any]:
    """A run of mode SFT with islands; `spec` are further fields, those of the trainer under `trainer`."""
    return {"mode": "SFT", "sft": _DATA, **spec, "trainer": {**spec.get("trainer", {}), "islands": islands}}


def _group(**group: Any) -> dict[str, Any]:
    return {"group": {"name": "north-south", "serveLighthouse": True, **group}}


ISLAND_RULES: tuple[Rule, ...] = (
    Rule(
        model="IslandsSpec",
        expression="has(self.count) != has(self.group)",
        message="must have exactly one of count (islands of this run) and group (runs that are islands)",
        field="",
        good=_group(),
        bad={"count": 2, **_group()},
    ),
    Rule(
        model="IslandGroup",
        expression="has(self.lighthouse) != self.serveLighthouse",
        message="must be given, but not with serveLighthouse: all runs of a group meet at one lighthouse, which one of them may serve",
        field="lighthouse",
        good={"serveLighthouse": False, "lighthouse": "meet.example.com:29510"},
        bad={"serveLighthouse": False},
    ),
    Rule(
        model="IslandGroup",
        expression="self.exposure.type == 'ClusterIP' || self.serveLighthouse",
        message="is of the lighthouse that this run serves (serveLighthouse)",
        field="exposure",
        good={"exposure": _EXPOSED, "serveLighthouse": True},
        bad={"exposure": _EXPOSED, "serveLighthouse": False, "lighthouse": "meet.example.com:29510"},
    ),
    Rule(
        model="IslandGroup",
        expression="!(self.exposure.type in ['Ingress', 'Gateway'])",
        message="must be NodePort or LoadBalancer: a lighthouse speaks gRPC on a port of its own",
        field="exposure.type",
        good={"exposure": _EXPOSED},
        bad={"exposure": {"type": "Ingress", "domain": "example.com"}},
    ),
    Rule(
        model="IslandGroup",
        expression="!has(self.exposure.tlsSecret)",
        message="is not possible: a lighthouse does not speak TLS",
        field="exposure.tlsSecret",
        good={"exposure": _EXPOSED},
        bad={"exposure": {**_EXPOSED, "tlsSecret": "meet-tls"}},
    ),
    Rule(
        model="IslandGroup",
        expression="self.name == oldSelf.name",
        message="cannot change once the run exists: what islands signed is of their group; start a new run instead",
        field="name",
        good={"name": "north-south"},
        bad={"name": "east-west"},
        old={"name": "north-south"},
    ),
    Rule(
        model="IslandGroup",
        expression="self.members.all(name, name.matches('^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$'))",
        message="must have names of runs as keys",
        field="members",
        good={"members": {"sums": _KEY}},
        bad={"members": {"sums": _KEY, "Run B": _KEY}},
    ),
    Rule(
        model="IslandGroup",
        expression="oldSelf.members.all(name, name in self.members)",
        message="cannot lose a member: the signatures of all vouch for what the group shares; name it in excluded instead",
        field="members",
        good={"members": {"sums": _KEY, "run-b": _OTHER}},
        bad={"members": {"sums": _KEY}},
        old={"members": {"sums": _KEY, "run-b": _OTHER}},
    ),
    Rule(
        model="TrainingRun",
        expression=f"!has(oldSelf.status) || !has(oldSelf.status.policyVersion) || oldSelf.status.policyVersion == 0 || !{_GROUP.format('self')} || "
        f"!{_GROUP.format('oldSelf')} || oldSelf.spec.trainer.islands.group.members.all(name, "
        "!(name in self.spec.trainer.islands.group.members) || "
        "self.spec.trainer.islands.group.members[name] == oldSelf.spec.trainer.islands.group.members[name])",
        message="cannot change a key once the run has trained: signatures of the old one vouch for its weights; give the island its former key back"
        " (Secret <run>-island-0-key), or start a new group",
        field="spec.trainer.islands.group.members",
        good={"spec": {"trainer": {"islands": _group(members={"sums": _KEY, "run-b": _OTHER})}}},
        bad={"spec": {"trainer": {"islands": _group(members={"sums": _KEY, "run-b": "2" * 64})}}},
        old={
            "spec": {"trainer": {"islands": _group(members={"sums": _KEY, "run-b": _OTHER})}},
            "status": {"policyVersion": 3},
        },
    ),
    Rule(
        model="IslandGroup",
        expression="self.excluded.all(name, name in self.members)",
        message="must name members",
        field="excluded",
        good={"members": {"sums": _KEY, "run-b": _OTHER}, "excluded": ["run-b"]},
        bad={"members": {"sums": _KEY, "run-b": _OTHER}, "excluded": ["run-c"]},
    ),
    Rule(
        model="TrainingRunSpec",
        expression="!has(self.trainer.islands) || self.mode == 'SFT' || (self.mode == 'Train' && has(self.trainer.islands.group))",
        message="islands of one run (count) go with mode SFT only; in mode Train give a group, each of whose islands is a run",
        field="trainer.islands",
        good={"mode": "Train", "trainer": {"islands": _group()}},
        bad={"mode": "Train", "trainer": {"islands": {"count": 2}}},
    ),
    Rule(
        model="TrainingRunSpec",
        expression="!has(self.trainer.islands) || self.trainer.replicas == 1",
        message="an island is one pod, of as many GPUs as it likes; raise gpu or the number of islands instead of replicas",
        field="trainer",
        good=_sft({"count": 3}, trainer={"replicas": 1}),
        bad=_sft({"count": 3}, trainer={"replicas": 2}),
    ),
    Rule(
        model="TrainingRunSpec",
        expression="has(self.trainer.islands) == has(oldSelf.trainer.islands) && (!has(self.trainer.islands) || "
        "(has(self.trainer.islands.count) == has(oldSelf.trainer.islands.count) && "
        "(!has(self.trainer.islands.count) || self.trainer.islands.count == oldSelf.trainer.islands.count)))",
        message="islands cannot come to a run or go from it; start a new run instead",
        field="trainer",
        good=_sft({"count": 2, "innerSteps": 50}),
        bad=_sft({"count": 3}),
        old=_sft({"count": 2}),
    ),
    Rule(
        model="TrainingRunSpec",
        expression="!has(self.trainer.islands) || self.stability.action == 'Report'",
        message="must be Report with trainer.islands: one that pauses or goes back alone is carried on by the next exchange",
        field="stability.action",
        good=_sft({"count": 2}, stability={"action": "Report"}),
        bad=_sft({"count": 2}, stability={"action": "Pause"}),
    ),
    Rule(
        model="TrainingRunSpec",
        expression="!has(self.trainer.islands) || !has(self.rollBack)",
        message="does not go with trainer.islands: the next exchange would undo it",
        field="rollBack",
        good={"mode": "Train", "rollBack": {"toVersion": 1, "atStep": 3}, "trainer": {}},
        bad={"mode": "Train", "rollBack": {"toVersion": 1, "atStep": 3}, "trainer": {"islands": _group()}},
    ),
    Rule(
        model="TrainingRun",
        expression="!has(self.spec.trainer.islands) || !has(self.spec.trainer.islands.group) || "
        "self.spec.trainer.islands.group.members.size() == 0 || self.metadata.name in self.spec.trainer.islands.group.members",
        message="must name this run too: its own name with its own status.islandPublicKey",
        field="spec.trainer.islands.group.members",
        good={
            "metadata": {"name": "sums"},
            "spec": {"trainer": {"islands": _group(members={"sums": _KEY, "run-b": _OTHER})}},
        },
        bad={"metadata": {"name": "sums"}, "spec": {"trainer": {"islands": _group(members={"run-b": _OTHER})}}},
    ),
    Rule(
        model="TrainingRun",
        expression="!has(self.spec.trainer.islands) || !has(self.spec.trainer.islands.group) || "
        "!(self.metadata.name in self.spec.trainer.islands.group.excluded)",
        message="cannot name this run: suspend it, or delete it",
        field="spec.trainer.islands.group.excluded",
        good={
            "metadata": {"name": "sums"},
            "spec": {"trainer": {"islands": _group(members=_BOTH, excluded=["run-b"])}},
        },
        bad={"metadata": {"name": "sums"}, "spec": {"trainer": {"islands": _group(members=_BOTH, excluded=["sums"])}}},
    ),
)
