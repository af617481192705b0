"""Many nodes ask for the open step: what is read for them, how old it may be, and when each is told to ask again."""

from pathlib import Path
from unittest.mock import patch

import pytest

from protocol_stack import sha
from run_states import Clock, Orchestrator
from servers import Redis
from shoal.contracts.problems import ProblemCode, Refusal
from shoal.contracts.protocol import HandedPart, Lease, LeaseRequest, LeaseReturn, SubmissionNotice
from shoal.contracts.recipe import Recipe
from shoal.contracts.settings import Rollouts
from shoal.contracts.work import LeasePart
from shoal.orchestrator.work import handout, uploads
from shoal.orchestrator.work.allocation import planned_groups
from shoal.orchestrator.work.handout import ANSWERS_A_SECOND, FEW_MEMBERS, SURVEY_SECONDS, Surveys, pace
from shoal.orchestrator.work.lease_returns import take_back
from shoal.orchestrator.work.parts import MOST_CONTINUING


@pytest.fixture
def run(tmp_path: Path, redis_server: Redis) -> Orchestrator:
    made = Orchestrator(tmp_path, redis_server.url, recipe=Recipe(prompts_per_step=2000, group_size=2))
    made.announce(0)
    return made


def test_few_nodes_each_see_what_is_now(run: Orchestrator) -> None:
    node, other = run.join(), run.join()
    surveys = Surveys(run.state, Clock())
    before = handout.step_for(run.state, node, surveys=surveys)
    run.lease(other)
    after = handout.step_for(run.state, node, surveys=surveys)
    assert before is not None
    assert after is not None
    assert after.pending_groups > before.pending_groups
    assert handout.step_for(run.state, node, paced=True, surveys=surveys) == after, "nobody is told to wait"


def test_many_nodes_share_what_is_read_for_a_moment_and_no_longer(run: Orchestrator) -> None:
    nodes = [run.join() for _ in range(FEW_MEMBERS + 1)]
    clock = Clock()
    surveys = Surveys(run.state, clock)
    with patch.object(handout, "survey_of", wraps=handout.survey_of) as read:
        first = [handout.step_for(run.state, node, surveys=surveys) for node in nodes]
        assert read.call_count == 1
        run.lease(nodes[0])
        read.reset_mock()
        assert handout.step_for(run.state, nodes[1], surveys=surveys) == first[1]
        assert read.call_count == 0
        clock.now += SURVEY_SECONDS
        later = handout.step_for(run.state, nodes[1], surveys=surveys)
    assert first[1] is not None
    assert later is not None
    assert later.pending_groups > first[1].pending_groups


def test_a_lease_is_given_by_a_new_look(tmp_path: Path, redis_server: Redis) -> None:
    run = Orchestrator(tmp_path, redis_server.url, recipe=Recipe(prompts_per_step=2, group_size=2))
    run.announce(0)
    nodes = [run.join() for _ in range(FEW_MEMBERS + 1)]
    surveys = Surveys(run.state, Clock())
    shown = handout.step_for(run.state, nodes[0], surveys=surveys)
    assert shown is not None
    for node in nodes[1:4]:  # three files of two groups: one more than the two needed will probably carry signal
        run.lease(node, shown.step)
    old = handout.step_for(run.state, nodes[0], surveys=surveys)
    assert old is not None
    assert old.pending_groups == shown.pending_groups, "it is of before"
    with pytest.raises(Refusal, match="ask GET /v1/step again"):
        run.lease(nodes[0], shown.step)


@pytest.fixture
def full(tmp_path: Path, redis_server: Redis) -> tuple[Orchestrator, list[str]]:
    """A run whose step is full with leases, and more nodes than have one; parts of leases may be handed in."""
    recipe, rollouts = Recipe(prompts_per_step=4, group_size=2), Rollouts(hand_in_every_seconds=60)
    run = Orchestrator(tmp_path, redis_server.url, recipe=recipe, rollouts=rollouts)
    run.announce(0)
    nodes = [run.join() for _ in range(FEW_MEMBERS + 1)]
    fill(run, nodes)
    return run, nodes


def fill(run: Orchestrator, nodes: list[str]) -> None:
    """Lease until there is no room."""
    waiting = iter(nodes)
    while handout.survey_of(run.state).under_way.all[0] < planned_groups(4, 0, 0.5) / 0.5:
        run.lease(next(waiting))
    with pytest.raises(Refusal, match=ProblemCode.ENOUGH_UNDER_WAY):
        run.lease(next(waiting))


def lease_of(run: Orchestrator, node: str) -> Lease:
    """The one lease of a node."""
    [lease] = [record.lease for record in run.state.leases.all() if record.lease.node == node]
    return lease


def hand_in_first_group(run: Orchestrator, node: str) -> Lease:
    """A part of a node's lease, which leaves the rest to others; the lease."""
    lease = lease_of(run, node)
    data = run.upload(lease)
    notice = SubmissionNotice(
        node=node, lease=lease.lease, size=len(data), sha256=sha(data), groups=1, part=HandedPart(groups=[0])
    )
    uploads.submit(run.state, notice)
    return lease


def asks(run: Orchestrator, node: str, surveys: Surveys, *held: str, parts: bool = False) -> Lease:
    return handout.lease_for(run.state, LeaseRequest(node=node, step=0, held=[*held], parts=parts), surveys)


def test_of_many_that_ask_for_a_full_step_each_is_refused_without_a_look_of_its_own(
    full: tuple[Orchestrator, list[str]],
) -> None:
    run, nodes = full
    surveys = Surveys(run.state, Clock())
    surveys.newest()
    with patch.object(run.state.leases, "all", side_effect=AssertionError("it looks")):
        for node in nodes[-8:]:
            for parts in (False, True):
                with pytest.raises(Refusal, match=ProblemCode.ENOUGH_UNDER_WAY):
                    asks(run, node, surveys, parts=parts)


def test_a_node_that_did_not_hear_of_its_lease_has_it_again_though_the_step_is_full(
    full: tuple[Orchestrator, list[str]],
) -> None:
    run, nodes = full
    assert asks(run, nodes[0], Surveys(run.state, Clock())) == lease_of(run, nodes[0])


def test_the_rest_of_a_lease_is_given_though_the_step_is_full(full: tuple[Orchestrator, list[str]]) -> None:
    run, nodes = full
    lease = hand_in_first_group(run, nodes[0])
    fill(run, nodes[-9:-1])
    surveys = Surveys(run.state, Clock())
    with pytest.raises(Refusal, match=ProblemCode.ENOUGH_UNDER_WAY):
        asks(run, nodes[-1], surveys)
    assert asks(run, nodes[-1], surveys, parts=True).part == LeasePart(
        node=nodes[0], submission=lease.submission, groups=[1]
    )


def test_a_rest_that_nobody_is_offered_any_more_makes_no_node_look(full: tuple[Orchestrator, list[str]]) -> None:
    run, nodes = full
    hand_in_first_group(run, nodes[0])
    for tries in range(MOST_CONTINUING):
        rest = asks(run, nodes[-1 - tries], Surveys(run.state, Clock()), parts=True)
        assert rest.part is not None
        take_back(run.state, LeaseReturn(node=rest.node, lease=rest.lease))
    fill(run, nodes[-9:-3])
    surveys = Surveys(run.state, Clock())
    surveys.newest()
    with (
        patch.object(run.state.leases, "all", side_effect=AssertionError("it looks")),
        pytest.raises(Refusal, match=ProblemCode.ENOUGH_UNDER_WAY),
    ):
        asks(run, nodes[-3], surveys, parts=True)


def test_a_node_that_must_wait_hears_for_how_long_though_the_step_is_full(full: tuple[Orchestrator, list[str]]) -> None:
    run, nodes = full
    record = run.state.nodes.require_member(nodes[-1])
    run.state.nodes.change(record, waits_until_unix=run.clock() + 20.0)
    with pytest.raises(Refusal, match=ProblemCode.LEASE_DROPPED) as refused:
        asks(run, nodes[-1], Surveys(run.state, Clock()))
    assert refused.value.retry_after_seconds == pytest.approx(20.0)


def test_together_the_nodes_ask_as_often_as_the_orchestrator_answers() -> None:
    assert [pace(members) for members in (0, 1, ANSWERS_A_SECOND)] == [None, None, None]
    assert [pace(members) for members in (ANSWERS_A_SECOND + 1, 300, 3000, 10**6)] == [2, 6, 10, 10]


def test_a_node_that_does_not_ask_for_the_pace_is_not_told(run: Orchestrator) -> None:
    nodes = [run.join() for _ in range(ANSWERS_A_SECOND + 1)]
    surveys = Surveys(run.state, Clock())
    told = handout.step_for(run.state, nodes[0], paced=True, surveys=surveys)
    silent = handout.step_for(run.state, nodes[0], surveys=surveys)
    assert told is not None
    assert silent is not None
    assert (told.again_seconds, silent.again_seconds) == (2, None)
    assert b"again_seconds" not in silent.to_json(), (
        "an agent of an earlier release refuses a field that it does not know"
    )
