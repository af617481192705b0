"""Orchestrators that take the operator's request and never answer: edits of other runs are applied meanwhile, in their namespace and in others.

The operator under test waits an hour for an answer instead of a second and a half. Whoever waited for one would never be seen to end, so that no
test here needs a clock.
"""

from collections.abc import Iterator

import pytest
from cluster_story import Story
from hollow_node import HollowNode
from kube_client import Kube, make_namespace
from operator_process import StartOperator
from orchestrators import Orchestrators

from shoal_operator.engine.manager import Options
from shoal_operator.engine.progress import PLACES, PLACES_A_NAMESPACE

HOUR = 3600.0


@pytest.fixture
def places(kube: Kube, node: HollowNode, orchestrators: Orchestrators) -> Iterator[list[Story]]:
    """Namespaces of their own, more than the operator can read from at a time."""
    stories = [Story(kube, make_namespace(kube), node, orchestrators) for _ in range(PLACES // PLACES_A_NAMESPACE + 1)]
    yield stories
    for each in stories:
        orchestrators.silent.discard(each.namespace)
        kube.delete("Namespace", each.namespace)


def edited_beside(silent: list[Story], counts: list[int], story: Story, seconds: float) -> None:
    """Make silent runs in each namespace, and edit a run of `story` and one that stands beside silent ones until the children have it."""
    story.running()
    beside = silent[0]
    beside.running("well")
    for place, count in zip(silent, counts, strict=True):
        place.orchestrators.silent.add(place.namespace)
        for number in range(count):
            place.create(f"silent-{number}")
    held = story.orchestrators.held
    spaces = {place.namespace for place in silent}
    most = min(PLACES, sum(min(count, PLACES_A_NAMESPACE) for count in counts))

    def all_hold() -> bool:
        """Whichever runs of these namespaces came first, the one that is edited too."""
        return sum(name.split(".")[1] in spaces for name in list(held)) >= most

    story.wait_for(f"{most} silent orchestrators to hold a request", all_hold, seconds)
    for replicas in (3, 2):
        story.edit(validator={"replicas": replicas})
        beside.edit("well", validator={"replicas": replicas})
        for place, run in ((story, "sums"), (beside, "well")):
            place.wait_field("Deployment", f"{run}-validator", "spec.replicas", replicas)
            generation = place.get("TrainingRun", run)["metadata"]["generation"]
            place.wait_field("TrainingRun", run, "status.observedGeneration", generation)


def test_more_silent_orchestrators_than_workers_delay_no_edit(
    places: list[Story], story: Story, start_operator: StartOperator
) -> None:
    start_operator(patience=HOUR)
    edited_beside(places[:1], [Options.workers + 1], story, 90.0)


@pytest.mark.soak
@pytest.mark.timeout(1500)
def test_a_hundred_silent_orchestrators_delay_no_edit(
    places: list[Story], story: Story, start_operator: StartOperator
) -> None:
    """All places for reading are taken for good: nothing more is learnt of any run, and edits are applied."""
    start_operator(patience=HOUR)
    edited_beside(places, [20] * len(places), story, 900.0)
