"""Chaos: many runs are created, edited, scaled, suspended and deleted at random while the operator is killed at random.

At the end the cluster is what the specs say, by the pure reconcilers and by counting, and nothing is left of what was deleted. The seed is
printed; give it back with `SHOAL_CHAOS_SEED`.
"""

import os
import random
import time
from dataclasses import dataclass, field

import pytest
from cluster_story import Story
from kube_client import Kube, Refused
from operator_process import OperatorProcess, StartOperator
from snapshot_cluster import unsettled

SETTLE_SECONDS = 180.0
OWN = ("TrainingRun", "InferencePool", "RelayServer", "Validator")


@dataclass
class Chaos:
    """Random people and a random killer. `runs` is what should be there, by name."""

    story: Story
    dice: random.Random
    most: int
    runs: set[str] = field(default_factory=set)
    made: int = 0
    done: dict[str, int] = field(default_factory=dict)

    def step(self) -> None:
        """One thing that someone does."""
        act = self.dice.choice(("create", "create", "edit", "edit", "scale", "suspend", "suspend", "delete", "meddle"))
        if act == "create" or not self.runs:
            if len(self.runs) >= self.most:
                return
            act = "create"
        try:
            getattr(self, f"_{act}")()
        except Refused as refused:
            if refused.status not in (404, 409):  # it is not there yet, or someone was quicker: as in life
                raise
        self.done[act] = self.done.get(act, 0) + 1

    def _any(self) -> str:
        return self.dice.choice(sorted(self.runs))

    def _create(self) -> None:
        self.made += 1
        name = f"r{self.made}"
        self.story.create(name, validator={"replicas": self.dice.randint(0, 2)})
        self.runs.add(name)

    def _edit(self) -> None:
        rate = self.dice.choice((1e-5, 2e-5, 3e-5))
        change = self.dice.choice(
            ({"recipe": {"learningRate": rate}}, {"validator": {"replicas": self.dice.randint(0, 3)}})
        )
        self.story.edit(self._any(), **change)

    def _scale(self) -> None:
        scale = {"spec": {"replicas": self.dice.randint(0, 3)}}
        self.story.kube.merge(
            "InferencePool", f"{self._any()}-pool", self.story.namespace, scale, sub="scale", manager="hpa"
        )

    def _suspend(self) -> None:
        self.story.edit(self._any(), suspend=self.dice.random() < 0.5)

    def _delete(self) -> None:
        name = self._any()
        self.runs.discard(name)
        self.story.kube.delete("TrainingRun", name, self.story.namespace)

    def _meddle(self) -> None:
        kind, part = self.dice.choice(
            (
                ("Deployment", "orchestrator"),
                ("StatefulSet", "relay"),
                ("ConfigMap", "config"),
                ("Service", "discovery"),
            )
        )
        self.story.kube.delete(kind, f"{self._any()}-{part}", self.story.namespace)


def unleash(
    chaos: Chaos, start: StartOperator, seconds: float, kills: int, actions_per_second: float
) -> list[OperatorProcess]:
    """People act for so long; the leading operator is killed so many times on the way, and another one is started."""
    operators = [start(name="operator-a"), start(name="operator-b")]
    begin = time.monotonic()
    moments = sorted(chaos.dice.uniform(0.1, 0.9) * seconds for _ in range(kills))
    while (now := time.monotonic() - begin) < seconds:
        if moments and now > moments[0]:
            moments.pop(0)
            victim = next((each for each in operators if each.is_leader()), operators[0])
            victim.kill()
            operators.remove(victim)
            operators.append(start(name=f"operator-{len(moments)}"))
        chaos.step()
        time.sleep(chaos.dice.expovariate(actions_per_second))
    return operators


def whole(chaos: Chaos, kube: Kube) -> None:
    """What must hold at the end, by counting: no oracle of ours is asked."""
    story = chaos.story
    live = {each["metadata"]["name"]: each for each in kube.list("TrainingRun", story.namespace)}
    assert set(live) == chaos.runs
    uids = {each["metadata"]["uid"] for kind in OWN for each in kube.list(kind, story.namespace)}
    for (kind, name), child in story.managed().items():
        for owner in child["metadata"].get("ownerReferences", []):
            if owner["kind"] in OWN:
                assert owner["uid"] in uids, f"{kind}/{name} is an orphan"
    for name, found in live.items():
        conditions = {each["type"]: each["status"] for each in found["status"]["conditions"]}
        jobs = kube.list("Job", story.namespace, f"shoal.dev/run={name},shoal.dev/component=trainer")
        if found["spec"]["suspend"]:
            assert conditions["Suspended"] == "True", name
            assert jobs == [], name
        else:
            assert conditions["Ready"] == "True", (name, found["status"]["conditions"])
            assert len(jobs) == 1, name
            wanted = found["spec"]["validator"]["replicas"]
            assert story.get("Deployment", f"{name}-validator")["status"].get("readyReplicas", 0) == wanted
            pool = story.get("InferencePool", f"{name}-pool")["spec"]["replicas"]
            assert story.get("StatefulSet", f"{name}-pool")["status"].get("readyReplicas", 0) == pool


def chaotic(
    story: Story, start: StartOperator, kube: Kube, *, most: int, seconds: float, kills: int, actions_per_second: float
) -> None:
    seed = int(os.environ.get("SHOAL_CHAOS_SEED") or time.time_ns() % 1_000_000)
    print(f"SHOAL_CHAOS_SEED={seed}")
    chaos = Chaos(story, random.Random(seed), most)
    operators = unleash(chaos, start, seconds, kills, actions_per_second)
    print(f"{len(chaos.runs)} runs of {chaos.made} are left after {chaos.done}")
    story.wait_for("all runs to be what their specs say", lambda: settled_now(chaos, kube), SETTLE_SECONDS)
    whole(chaos, kube)
    assert all(each.is_healthy() for each in operators)


def settled_now(chaos: Chaos, kube: Kube) -> bool:
    """Whether nothing is left to write, and no run is on its way."""
    live = kube.list("TrainingRun", chaos.story.namespace)
    if {each["metadata"]["name"] for each in live} != chaos.runs:
        return False
    for each in live:
        conditions = {found["type"]: found["status"] for found in each.get("status", {}).get("conditions", [])}
        if conditions.get("Suspended" if each["spec"]["suspend"] else "Ready") != "True":
            time.sleep(1.0)
            return False
    left = unsettled(chaos.story)
    if left:
        print("left:", left[:5])
        time.sleep(1.0)
    return not left


def test_after_half_a_minute_of_chaos_the_cluster_is_what_the_specs_say(
    story: Story, start_operator: StartOperator, kube: Kube
) -> None:
    chaotic(story, start_operator, kube, most=8, seconds=25.0, kills=2, actions_per_second=3.0)


@pytest.mark.soak
def test_two_minutes_of_chaos_with_fifty_runs(story: Story, start_operator: StartOperator, kube: Kube) -> None:
    chaotic(story, start_operator, kube, most=50, seconds=120.0, kills=8, actions_per_second=5.0)
