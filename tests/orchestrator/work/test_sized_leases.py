"""Leases as large as their nodes are fast: how many groups, who has the others, and what a node that feigns gains."""

import json
from pathlib import Path
from statistics import fmean

import pytest

from protocol_stack import TASKS, sha, verdict_on
from run_states import Orchestrator
from servers import Redis
from shoal.contracts.completions import LengthReward, Sampling
from shoal.contracts.problems import ProblemCode, Refusal
from shoal.contracts.protocol import HandedPart, Lease, LeaseRequest, LeaseReturn, SubmissionNotice
from shoal.contracts.recipe import Recipe
from shoal.contracts.settings import Rollouts
from shoal.contracts.validation import Validation
from shoal.contracts.verdicts import RowReward
from shoal.contracts.work import TOGETHER, LeasePart, draw
from shoal.orchestrator.work import handout, sizing, uploads
from shoal.orchestrator.work.beacons import beacon_of, drawn_prompts
from shoal.orchestrator.work.lease_returns import take_back
from shoal.orchestrator.work.leases import LeaseBook
from shoal.orchestrator.work.load import accepted_groups, loads
from shoal.orchestrator.work.open_work import known
from shoal.orchestrator.work.records import LeaseRecord

GROUPS, SIZE, TOKENS = 48, 4, 100
"""Of a file, of a group, and of a group's completions. A lease lasts 63.2 s, so one of two together should take 31.6 s."""


def orchestrator(folder: Path, redis_server: Redis, **changes: object) -> Orchestrator:
    fields: dict[str, object] = {
        "validation": Validation(claim_seconds=1, probation_files=0, slashing="Discard"),
        "rollouts": Rollouts(hand_in_every_seconds=60),
        "recipe": Recipe(prompts_per_step=8 * GROUPS, group_size=SIZE, max_sequence_length=128),
        "sampling": Sampling(max_completion_tokens=64, groups_per_submission=GROUPS),
    }
    run = Orchestrator(folder, redis_server.url, **(fields | changes))
    run.announce(0)
    return run


@pytest.fixture
def run(tmp_path: Path, redis_server: Redis) -> Orchestrator:
    return orchestrator(tmp_path, redis_server)


def asked(run: Orchestrator, node: str, held: list[str] | None = None) -> Lease:
    return handout.lease_for(run.state, LeaseRequest(node=node, step=0, parts=True, held=held))


def places(lease: Lease) -> list[int]:
    return list(range(GROUPS)) if lease.part is None else list(lease.part.groups)


def hand_in(run: Orchestrator, lease: Lease, groups: list[int] | None = None) -> None:
    data = run.upload(lease)
    part = HandedPart(groups=groups) if groups is not None else None
    notice = SubmissionNotice(
        node=lease.node,
        lease=lease.lease,
        size=len(data),
        sha256=sha(data),
        groups=len(groups or places(lease)),
        part=part,
    )
    uploads.submit(run.state, notice)


def judge(run: Orchestrator, tokens: float = TOKENS) -> None:
    """Accept the next file, whose groups have so many tokens each."""
    job = run.claimed()
    groups = GROUPS if job.part is None else len(job.part.groups)
    rewards = [
        RowReward(task_reward=float(n % 2), length_penalty=0.0, reward=float(n % 2)) for n in range(groups * SIZE)
    ]
    changes = {"rows": len(rewards), "rewards": rewards, "completion_tokens": int(groups * tokens)}
    run.judge(verdict_on(job).model_copy(update=changes))


def work(run: Orchestrator, node: str, seconds: float, tokens: float = TOKENS) -> Lease:
    """A lease of this node, whose file comes after these seconds and is accepted."""
    lease = asked(run, node)
    run.clock.now += seconds
    hand_in(run, lease)
    judge(run, tokens)
    return lease


def slow(run: Orchestrator) -> str:
    """A node that makes 80 tokens a second, 25 groups in 31.6 s."""
    node: str = run.join()
    assert places(work(run, node, seconds=60)) == list(range(GROUPS)), "of whom nothing is known, it gets all"
    return node


def slow_and_fast(run: Orchestrator, fast: int = 1) -> list[str]:
    """The same, and nodes that make three times as much, all in good standing: who comes later may not serve the step, nor finish for others."""
    others = [run.join() for _ in range(fast)]
    node = run.join()
    for each in others:
        work(run, each, seconds=20)
    work(run, node, seconds=60)
    return [node, *others]


@pytest.mark.parametrize(
    ("wished", "leases", "seconds"), [(300.0, 1, 798.0), (300.0, 4, 300.0), (10.0, 4, 199.5), (3600.0, 4, 399.0)]
)
def test_leases_of_a_node_together_take_half_a_leases_life_at_least_and_all_of_it_at_most(
    wished: float, leases: int, seconds: float
) -> None:
    assert sizing.seconds_between_files(wished, 1596.0, leases) == seconds


@pytest.mark.parametrize(
    ("tokens", "least", "groups"), [(350, 1, 3), (10, 1, 1), (10, 4, 4), (1e9, 1, 16), (1_100, 1, 16), (1_000, 1, 10)]
)
def test_a_lease_has_the_groups_that_fit_and_leaves_no_small_rest(tokens: float, least: int, groups: int) -> None:
    assert sizing.fitting([100.0] * 16, tokens, least) == groups


def test_leases_of_a_node_fill_the_smallest_engines_together() -> None:
    assert 2 * 16 * sizing.least_groups(16, 2) >= TOGETHER
    assert sizing.least_groups(1024, 4) == 1


def test_a_slow_node_gets_the_groups_that_it_makes_in_time_and_a_fast_one_all(run: Orchestrator) -> None:
    node, fast = slow_and_fast(run)
    lease = asked(run, node)
    assert (lease.submission, places(lease)) == (1, list(range(25)))
    run.clock.now += 60
    hand_in(run, lease)
    judge(run)
    assert places(asked(run, fast)) == list(range(25, GROUPS)), "what is left is given out before anything new"
    assert places(asked(run, fast)) == list(range(GROUPS))


def test_a_slow_node_alone_draws_the_same_groups_as_a_fast_one_in_the_same_order(run: Orchestrator) -> None:
    node = slow(run)
    found: list[int] = []
    for _ in range(2):
        lease = work(run, node, seconds=40)
        of = (node, lease.submission) if lease.part is None else lease.part.drawn_for
        drawn = drawn_prompts(run.state, run.state.codec.step(0), *of)
        found += [drawn[place] for place in places(lease)]
        assert of == (node, 1)
    assert found == drawn_prompts(run.state, run.state.codec.step(0), node, 1)
    assert accepted_groups(run.state, 0) == 2 * GROUPS
    assert run.state.view.accepted_in_a_row[node] == 3


def test_groups_of_a_number_count_together_however_its_leases_were_sized(run: Orchestrator) -> None:
    node, other = slow_and_fast(run)
    work(run, node, seconds=30)
    assert accepted_groups(run.state, 0) == 2 * GROUPS, "of the first numbers alone"
    assert loads(run.state, [0])[0].pending_groups == 0, "a step does not wait for what nobody works on"
    rest = asked(run, other)
    assert rest.part == LeasePart(node=node, submission=1, groups=list(range(25, GROUPS)))
    assert loads(run.state, [0])[0].pending_groups == GROUPS
    hand_in(run, rest)
    judge(run)
    assert accepted_groups(run.state, 0) == 3 * GROUPS


def test_while_groups_are_left_a_step_has_room_for_who_takes_them(run: Orchestrator) -> None:
    node = slow(run)
    lease = asked(run, node)
    assert loads(run.state, [0])[0].pending_groups == 0
    rest = asked(run, node, held=[lease.lease])
    assert (rest.part and rest.part.groups[0], loads(run.state, [0])[0].pending_groups) == (25, GROUPS)


def test_a_sized_lease_that_was_dropped_comes_again_to_its_node(run: Orchestrator) -> None:
    node = slow(run)
    lease = asked(run, node)
    take_back(run.state, LeaseReturn(node=node, lease=lease.lease))
    run.clock.now += 60
    found = [work(run, node, seconds=1) for _ in range(2)]
    assert [places(each)[0] for each in found] == [25, 0], "and what it left"
    assert {each.part.drawn_for for each in found if each.part is not None} == {(node, 1)}


def test_a_sized_lease_that_was_dropped_is_not_given_to_a_worker_that_takes_no_parts(run: Orchestrator) -> None:
    node = slow(run)
    take_back(run.state, LeaseReturn(node=node, lease=asked(run, node).lease))
    run.clock.now += 60
    lease = run.lease(node)
    assert (lease.submission, lease.part) == (2, None), "an earlier one could not read it, and would ask for ever"
    hand_in(run, lease)
    judge(run)
    assert asked(run, node).part is not None, "those groups are still there"


def test_a_sized_lease_that_was_dropped_and_taken_by_another_is_given_once(run: Orchestrator) -> None:
    node, other = slow_and_fast(run)
    lease = asked(run, node)
    take_back(run.state, LeaseReturn(node=node, lease=lease.lease))
    taken = [places(asked(run, other)) for _ in range(2)]
    assert sorted(taken) == [list(range(25)), list(range(25, GROUPS))]
    run.clock.now += 60
    assert asked(run, node).submission == 2


def test_what_another_node_drops_of_a_sized_draw_goes_to_the_one_it_was_drawn_for(run: Orchestrator) -> None:
    node, other = slow_and_fast(run)
    work(run, node, seconds=30)
    rest = asked(run, other)
    take_back(run.state, LeaseReturn(node=other, lease=rest.lease))
    again = asked(run, node)
    assert again.part == rest.part


def test_handing_back_what_nobody_had_begun_costs_what_a_draw_of_its_own_does(run: Orchestrator) -> None:
    node, other, third = slow_and_fast(run, fast=2)
    asked(run, node)
    rest = asked(run, other)
    assert rest.part is not None
    assert rest.part.node == node
    take_back(run.state, LeaseReturn(node=other, lease=rest.lease))
    with pytest.raises(Refusal, match=str(ProblemCode.LEASE_DROPPED)):
        asked(run, other)
    again = asked(run, third)
    assert again.part == rest.part
    take_back(run.state, LeaseReturn(node=third, lease=again.lease))
    assert asked(run, third).part is None, "it was begun before: handing it back is free"


def test_a_sized_lease_may_be_handed_in_in_parts(run: Orchestrator) -> None:
    node, other, third = slow_and_fast(run, fast=2)
    hand_in(run, asked(run, node), [3, 5])
    judge(run)
    found = [asked(run, each) for each in (other, third)]
    left = [place for place in range(25) if place not in (3, 5)]
    assert sorted(places(each) for each in found) == sorted([left, list(range(25, GROUPS))])
    for each in found:
        hand_in(run, each)
        judge(run)
    assert accepted_groups(run.state, 0) == 4 * GROUPS


@pytest.mark.parametrize("redis_lost", [False, True])
def test_a_rejected_sized_lease_goes_to_another_node(run: Orchestrator, redis_lost: bool) -> None:
    node, other = slow_and_fast(run)
    hand_in(run, asked(run, node))
    run.judge(verdict_on(run.claimed(), "reject", "format"))
    if redis_lost:
        run.lose_redis()
        for each in (node, other):
            run.beat(each, run.invite(each, sha(each.encode())[:32]))
    run.clock.now += 60
    mine = [work(run, node, seconds=1) for _ in range(2)]
    assert (mine[0].submission, places(mine[0])) == (2, list(range(GROUPS))), "it has had what was rejected"
    assert places(mine[1])[0] == 25, "what it left, once it is in good standing again"
    assert asked(run, other).part == LeasePart(node=node, submission=1, groups=list(range(25)))


@pytest.mark.parametrize("taken", [False, True])
def test_what_a_sized_lease_left_outlives_redis(run: Orchestrator, taken: bool) -> None:
    node, other = slow_and_fast(run)
    work(run, node, seconds=30)
    rest = asked(run, other) if taken else None
    run.lose_redis()
    for each in (node, other):
        run.beat(each, run.invite(each, sha(each.encode())[:32]))
    again = asked(run, node)
    assert (again.submission == 2) == taken, "nothing is leased twice"
    hand_in(run, rest or again)
    judge(run)
    assert accepted_groups(run.state, 0) == 3 * GROUPS


class Crash(Exception):
    """The process is gone."""


def crashes(run: Orchestrator, node: str, patched: pytest.MonkeyPatch) -> None:
    """The lease that this node asks for is in the store, and not in Redis; another process goes on."""

    def put(book: LeaseBook, record: LeaseRecord) -> None:
        raise Crash

    patched.setattr(LeaseBook, "put", put)
    with pytest.raises(Crash):
        asked(run, node)
    patched.undo()
    run.restarted()


def test_a_crash_behind_a_sized_lease_loses_no_group(run: Orchestrator, monkeypatch: pytest.MonkeyPatch) -> None:
    node, other = slow_and_fast(run)
    crashes(run, node, monkeypatch)
    assert places(asked(run, other)) == list(range(25, GROUPS))
    assert places(asked(run, node, held=[])) == list(range(25)), "the answer that was lost"


def test_a_crash_behind_a_lease_for_what_was_left_gives_no_group_twice(
    run: Orchestrator, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, other, third = slow_and_fast(run, fast=2)
    asked(run, node)
    crashes(run, other, monkeypatch)
    assert asked(run, third).part is None, "somebody has what was left"
    assert places(asked(run, other, held=[])) == list(range(25, GROUPS)), "the answer that was lost"


def test_leases_of_two_nodes_are_each_of_their_own_size_down_to_the_last_group(run: Orchestrator) -> None:
    node, slower = slow_and_fast(run)
    run.state.redis.hset(sizing._speeds(run.state), slower, json.dumps(sizing.Speed(1.0, 20.0)))
    lease = asked(run, node)
    found = [places(lease), places(asked(run, slower))]
    assert [len(each) for each in found] == [25, 23], "the last ones are taken together"
    assert found[0] + found[1] == list(range(GROUPS))


@pytest.mark.parametrize(
    "changes",
    [{"rollouts": None}, {"validation": Validation(claim_seconds=1, probation_files=9, slashing="Discard")}],
)
def test_all_groups_go_to_a_node_on_probation_and_to_all_of_a_run_without_parts(
    tmp_path: Path, redis_server: Redis, changes: dict[str, object]
) -> None:
    run = orchestrator(tmp_path, redis_server, **changes)
    assert places(asked(run, slow(run))) == list(range(GROUPS))


def test_a_worker_that_takes_no_parts_gets_whole_leases(run: Orchestrator) -> None:
    assert run.lease(slow(run)).part is None


def test_leases_that_a_node_works_on_together_count_their_time_once(run: Orchestrator) -> None:
    node = run.join()
    first = asked(run, node)
    second = asked(run, node, held=[first.lease])
    run.clock.now += 60
    hand_in(run, first)
    run.clock.now += 2
    hand_in(run, second)
    judge(run)
    judge(run)
    speed = sizing.speed_of(run.state, node)
    assert (speed.seconds, speed.tokens) == pytest.approx((sizing.KEPT * 60 + 2, (sizing.KEPT + 1) * GROUPS * TOKENS))


def test_the_time_of_an_evaluations_file_is_none_of_the_next_files() -> None:
    between = sizing.speed_after(sizing.Speed(100.0, 10.0, 50.0), 50.0, 80.0, 5, learns=False)
    assert between == sizing.Speed(100.0, 10.0, 80.0)
    assert sizing.speed_after(between, 40.0, 90.0, 25) == sizing.Speed(100.0, 17.5, 90.0)


def test_a_node_that_says_it_is_fast_or_slow_changes_nothing(run: Orchestrator) -> None:
    node = slow(run)
    run.state.nodes.change(run.state.nodes.require_member(node), metrics={"generated_tokens_per_second": 1e9})
    assert len(places(asked(run, node))) == 25


def test_a_group_that_asks_for_more_takes_more_of_a_lease(tmp_path: Path, redis_server: Redis) -> None:
    """Whatever a node draws: its groups have half as many tokens again as they ask for."""
    run = orchestrator(tmp_path, redis_server, length_reward=LengthReward(targets=[8, 40]))
    node = run.join()
    for _ in range(6):
        lease = asked(run, node)
        step = known(run.state, lease.step)
        assert step is not None
        drawn = draw(
            step,
            beacon=beacon_of(run.state, step),
            run=run.state.config.run,
            node=node,
            submission=lease.submission,
            part=lease.part,
        )
        run.clock.now += 60
        hand_in(run, lease)
        judge(run, tokens=1.5 * SIZE * fmean(group.target_length or 0 for group in drawn))
    assert sizing._known(run.state) == pytest.approx({"/8": 1.5 * 8 * SIZE, "/40": 1.5 * 40 * SIZE}, rel=0.02)


def test_a_node_with_two_leases_is_refused_a_third_of_any_size(run: Orchestrator) -> None:
    node = slow(run)
    held = [asked(run, node).lease]
    held.append(asked(run, node, held=held).lease)
    with pytest.raises(Refusal, match=str(ProblemCode.ENOUGH_UNDER_WAY)):
        asked(run, node, held=held)
    assert len(TASKS) >= GROUPS
