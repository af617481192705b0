"""Keys that hold leases and bring nothing: what it costs them, and what it costs the run. Real orchestrator, a clock moved by hand."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hoarders
from protocol_stack import verdict_on
from run_states import Orchestrator
from servers import Redis
from shoal.contracts.problems import Refusal
from shoal.contracts.protocol import LeaseReturn
from shoal.contracts.recipe import Recipe
from shoal.contracts.validation import Validation
from shoal.contracts.work import lease_seconds
from shoal.orchestrator.nodes.registry import FULL_ROOM, NodeRecord
from shoal.orchestrator.work import handout, standing
from shoal.orchestrator.work.allocation import newcomers_have_room
from shoal.orchestrator.work.lease_returns import take_back
from shoal.orchestrator.work.load import under_way

STEPS, HONEST, HOARDING = 6, 4, 24
MOST_SLOWER = 1.2


@pytest.fixture(scope="module")
def seconds_without(tmp_path_factory: pytest.TempPathFactory, redis_server: Redis) -> float:
    return hoarders.finished(tmp_path_factory.mktemp("without"), redis_server.url, STEPS, HONEST).seconds_a_step


@pytest.mark.parametrize("kind", ["let leases run out", "hand them back just before"])
def test_24_hoarding_keys_do_not_slow_4_honest_nodes(
    tmp_path: Path, redis_server: Redis, seconds_without: float, kind: str
) -> None:
    """From the first step on, in which nobody has shown anything yet. All kinds, over 60 steps: `python -m benchmarks.trust hoarding`."""
    with_them = hoarders.finished(tmp_path, redis_server.url, STEPS, HONEST, HOARDING, kind).seconds_a_step
    assert with_them <= MOST_SLOWER * seconds_without


# What a dropped lease costs


@pytest.fixture
def run(tmp_path: Path, redis_server: Redis) -> Orchestrator:
    return Orchestrator(tmp_path, redis_server.url, recipe=Recipe(prompts_per_step=16, group_size=2), steps=3)


def record(run: Orchestrator, node: str) -> NodeRecord:
    found = run.state.nodes.get(node)
    assert found is not None
    return found


def accepted(run: Orchestrator, node: str, step: int = 0) -> None:
    """A good file of the node, without signal, so that its step stays open."""
    lease = run.lease_in_time(node, step)
    run.confirm(lease, run.upload(lease))
    run.judge(verdict_on(run.claimed(), rewards=[1.0] * 4))


def drop(run: Orchestrator, node: str, how: str) -> None:
    lease = run.lease_in_time(node)
    if how == "returned":
        take_back(run.state, LeaseReturn(node=node, lease=lease.lease))
    elif how == "run out":
        run.clock.now += lease_seconds(64) + 1
        handout.end_overdue_leases(run.state)
    else:
        with pytest.raises(Refusal, match="lease-dropped"):
            run.lease(node)


@pytest.mark.parametrize("how", ["returned", "run out", "asked for another"])
def test_a_lease_costs_the_same_however_it_is_dropped(run: Orchestrator, how: str) -> None:
    node = run.join()
    run.announce(0)
    drop(run, node, how)
    assert record(run, node).room == 0.5
    with pytest.raises(Refusal, match="lease-dropped: this node dropped a lease; it gets the next one in 20 s"):
        run.lease(node)


def test_a_node_that_waits_is_shown_no_step_and_nothing_is_looked_at_for_it(
    run: Orchestrator, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = run.join()
    run.announce(0)
    drop(run, node, "returned")
    with monkeypatch.context() as looked_at:
        looked_at.setattr(handout, "Look", lambda *_: pytest.fail("there is a look"))
        with pytest.raises(Refusal, match="it gets the next one in 20 s"):
            handout.step_for(run.state, node)
    run.clock.now += 21
    assert handout.step_for(run.state, node) is not None


def test_the_wait_doubles_with_each_dropped_lease_and_outlives_a_restart(run: Orchestrator) -> None:
    node = run.join()
    run.announce(0)
    waits = []
    for _ in range(12):
        drop(run, node, "returned")
        run.restarted()
        waits.append(record(run, node).waits_until_unix - run.clock.now)
    assert waits == [20, 40, 80, 160, 320, 640, 1280, 2560, 2560, 2560, 2560, 2560]


def test_a_node_that_crashed_has_its_full_room_again_after_good_files(run: Orchestrator) -> None:
    node = run.join()
    run.announce(0)
    drop(run, node, "run out")
    assert node not in standing.good_nodes(run.state)
    accepted(run, node)
    accepted(run, node)
    assert node in standing.good_nodes(run.state)
    for _ in range(4):
        accepted(run, node)
    assert record(run, node).room == FULL_ROOM


def test_a_node_that_crashes_at_every_other_file_goes_on(run: Orchestrator) -> None:
    node = run.join()
    run.announce(0)
    for _ in range(6):
        drop(run, node, "returned")
        assert record(run, node).waits_until_unix - run.clock.now <= 40
        accepted(run, node)


def test_a_lease_of_a_step_that_others_filled_costs_a_quick_node_nothing_and_a_late_one_its_standing(
    run: Orchestrator,
) -> None:
    quick, late, others = run.join(), run.join(), [run.join() for _ in range(10)]
    run.announce(0)
    for node in (quick, late):
        accepted(run, node)
    held = {late: run.lease(late)}
    run.clock.now += standing.relied_on(run.state) + 1
    held[quick] = run.lease(quick)
    for node in others:
        if not run.state.view.sealed:
            run.hand_in(node)
            run.judge(verdict_on(run.claimed()))
    assert run.state.view.sealed
    for node, lease in held.items():
        take_back(run.state, LeaseReturn(node=node, lease=lease.lease))
    assert (record(run, quick).room, record(run, late).room) == (FULL_ROOM, 0.5)
    assert record(run, late).waits_until_unix == 0.0, "a slow machine goes on"
    assert standing.good_nodes(run.state).keys() == {quick, *(n for n in others if n in run.state.view.accepted_unix)}


def test_a_slow_node_waits_after_its_first_drop_as_long_as_others_however_often_it_was_overtaken(
    run: Orchestrator,
) -> None:
    slow, others = run.join(), [run.join() for _ in range(10)]
    run.announce(0)
    for step in range(3):
        lease = run.lease(slow, step)
        run.clock.now += standing.relied_on(run.state) + 1
        while step not in run.state.view.sealed:
            for node in others:
                if step not in run.state.view.sealed:
                    run.hand_in(node, step)
                    run.judge(verdict_on(run.claimed()))
        take_back(run.state, LeaseReturn(node=slow, lease=lease.lease))
        run.announce(step + 1)
        assert (record(run, slow).room, record(run, slow).waits_until_unix) == (standing.OVERTAKEN_ROOM, 0.0)
        for node in (slow, *others):
            run.beat(node)


def test_late_leases_that_were_held_together_cost_once_when_others_fill_their_steps_and_a_later_drop_costs_too(
    tmp_path: Path, redis_server: Redis
) -> None:
    run = Orchestrator(tmp_path, redis_server.url, validation=Validation(probation_files=0), steps=3)
    slow, others = run.join(), [run.join() for _ in range(10)]
    run.announce(0)
    held = [run.lease(slow, step) for step in (0, 1)]
    run.clock.now += standing.relied_on(run.state) + 1
    for node in others:
        for step in (0, 1):
            if step not in run.state.view.sealed:
                run.hand_in(node, step)
                run.judge(verdict_on(run.claimed()))
    assert {0, 1} <= run.state.view.sealed.keys()
    for node in (slow, *others):
        run.beat(node)
    run.announce(1)
    run.announce(2)
    unsealed = run.lease(slow, 2)
    for lease in held:
        take_back(run.state, LeaseReturn(node=slow, lease=lease.lease))
    assert (record(run, slow).room, record(run, slow).waits_until_unix) == (FULL_ROOM / 2, 0.0)
    take_back(run.state, LeaseReturn(node=slow, lease=unsealed.lease))
    assert record(run, slow).room == FULL_ROOM / 4, "it dropped that one while it was wanted"
    assert record(run, slow).waits_until_unix > run.clock.now


# How many leases a node may have


def told(run: Orchestrator, node: str, together: int | None = 4) -> int | None:
    shown = handout.step_for(run.state, node, together=together)
    assert shown is not None
    return shown.leases


def test_a_node_is_told_how_many_leases_it_may_have_and_gets_more_with_its_files(
    tmp_path: Path, redis_server: Redis
) -> None:
    recipe = Recipe(prompts_per_step=200, group_size=2)
    validation = Validation(probation_files=1)
    run = Orchestrator(tmp_path, redis_server.url, recipe=recipe, validation=validation)
    node = run.join()
    run.announce(0)
    counts = []
    for _ in range(11):
        counts.append(told(run, node))
        accepted(run, node)
    assert standing.good_nodes(run.state) == {node: 4}
    assert told(run, node, together=1) == 1
    assert standing.good_nodes(run.state) == {node: 1}, "nobody else should wait for what its worker never takes"
    assert counts == [1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4]
    assert told(run, node, together=3) == 3
    assert told(run, node, together=None) is None, (
        "an agent of an earlier release refuses a field that it does not know"
    )
    held = [run.lease(node).submission for _ in range(4)]
    assert held == [11, 12, 13, 14]
    with pytest.raises(Refusal, match="lease-dropped"):
        run.lease(node)
    assert record(run, node).room == FULL_ROOM / 2
    run.clock.now += record(run, node).waits_until_unix
    assert told(run, node) == 2


def test_a_node_whose_worker_never_said_counts_with_two_leases(tmp_path: Path, redis_server: Redis) -> None:
    recipe, validation = Recipe(prompts_per_step=200, group_size=2), Validation(probation_files=1)
    run = Orchestrator(tmp_path, redis_server.url, recipe=recipe, validation=validation)
    node = run.join()
    run.announce(0)
    for _ in range(12):
        accepted(run, node)
    assert standing.most_leases(run.state, node) == 4
    assert standing.good_nodes(run.state) == {node: 2}


@given(st.floats(standing.LEAST_ROOM, FULL_ROOM), st.integers(1, 8))
def test_being_overtaken_costs_standing_and_gives_no_room(room: float, most: int) -> None:
    after = standing.room_when_overtaken(room, most)
    assert standing.room_after_drop(room, most) <= after <= room
    assert after >= min(room, standing.OVERTAKEN_ROOM)
    assert after < 1.0 or room >= 2.0


def test_a_rejected_file_costs_standing_where_it_does_not_evict(tmp_path: Path, redis_server: Redis) -> None:
    run = Orchestrator(tmp_path, redis_server.url, validation=Validation(slashing="Discard"))
    node = run.join()
    run.announce(0)
    accepted(run, node)
    run.hand_in(node)
    run.judge(verdict_on(run.claimed(), "reject", "reward", evidence="row 0"))
    assert node not in standing.good_nodes(run.state)
    with pytest.raises(Refusal, match="lease-dropped"):
        run.lease(node)


def test_an_accepted_file_counts_for_hours_and_the_runs_own_pods_need_none(run: Orchestrator) -> None:
    node, pod = run.join(), run.join()
    run.announce(0)
    run.state.nodes.change(record(run, pod), outside=False)
    assert standing.good_nodes(run.state) == {pod: 1}
    accepted(run, node)
    assert standing.good_nodes(run.state) == {pod: 1, node: 1}
    run.lose_redis()
    assert standing.good_nodes(run.restarted()) == {node: 1}, "the ledger has its file"
    run.clock.now += standing.RECENT_SECONDS + 1
    assert not standing.good_nodes(run.state)


# Who gets what of a step


def test_newcomers_take_no_place_from_nodes_in_good_standing(run: Orchestrator) -> None:
    good = [run.join() for _ in range(19)]
    newcomers = [run.join() for _ in range(30)]
    run.announce(0)
    for node in good:
        run.state.nodes.change(record(run, node), outside=False)
    refused = []
    for node in newcomers:
        try:
            run.lease(node)
        except Refusal as refusal:
            refused.append(refusal.code)
    assert set(refused) == {"newcomers-share"}
    assert len(newcomers) - len(refused) == 4, "a quarter of 19 files, which 16 groups need where half carry signal"
    for node in good:
        run.lease(node)
    with pytest.raises(Refusal, match="newcomers-share"):
        run.lease(newcomers[-1])


def test_without_anybody_in_good_standing_newcomers_do_everything(run: Orchestrator) -> None:
    *nodes, last = [run.join() for _ in range(20)]
    run.announce(0)
    for node in nodes:
        run.lease(node)
    with pytest.raises(Refusal, match="enough-under-way"):
        run.lease(last)


@given(st.integers(0, 100), st.integers(1, 8), st.floats(0, 100), st.integers(0, 100))
def test_newcomers_may_always_hold_a_file_and_what_others_cannot(
    held: int, file: int, planned: float, good: int
) -> None:
    assert newcomers_have_room(0, file, planned, good)
    assert newcomers_have_room(held, file, planned, good) <= newcomers_have_room(held, file, planned, 0)
    if held + file <= planned - good:
        assert newcomers_have_room(held, file, planned, good)


def test_a_step_does_not_rely_on_a_lease_that_takes_far_longer_than_files_do(run: Orchestrator) -> None:
    nodes = [run.join() for _ in range(9)]
    run.announce(0)
    for node in nodes[:8]:
        accepted(run, node)
    assert standing.relied_on(run.state) == standing.LEAST_RELIED_SECONDS
    run.lease(nodes[0])
    run.lease(nodes[8])

    def held() -> tuple[int, int]:
        found = under_way(run.state, standing.good_nodes(run.state))
        return found.good[0], found.newcomers[0]

    assert held() == (2, 2)
    run.clock.now += standing.LEAST_RELIED_SECONDS + 1
    assert held() == (0, 0)


@given(st.lists(st.floats(0, 10_000), max_size=64), st.floats(1, 10_000))
def test_a_lease_is_relied_on_for_no_longer_than_it_lasts_and_for_some_time(files: list[float], whole: float) -> None:
    assert min(whole, standing.LEAST_RELIED_SECONDS) <= standing.relied_on_seconds(files, whole) <= whole
