"""The pure deciders: node states, step counting, batches, allocation, verdicts, invites."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.contracts.node_states import (
    EDGES,
    EXCLUDED,
    LATE_SECONDS,
    MEMBERS,
    SILENT_SECONDS,
    Event,
    next_state,
    silence_event,
)
from shoal.contracts.protocol import Hardware, KnownNode, NodeState, Registration
from shoal.contracts.steps import SourceGroups
from shoal.contracts.verdicts import NEVER_ALONE, STATISTICAL, Outcome, RejectReason, RowReward, Verdict
from shoal.contracts.work import FileShape, TrainingStep, lease_seconds
from shoal.crypto.keys import PrivateKey
from shoal.orchestrator.nodes.invites import wants_invite
from shoal.orchestrator.nodes.registry import NodeRecord
from shoal.orchestrator.verdicts.queue import OpinionNote
from shoal.orchestrator.verdicts.verdicts import EVICTED, Decision, decide
from shoal.orchestrator.work.allocation import (
    OVERSHOOT,
    StepLoad,
    has_room,
    is_short,
    may_serve,
    planned_groups,
    signal_rate,
    step_to_serve,
)
from shoal.orchestrator.work.step_counter import (
    AcceptedFile,
    OnlineFilter,
    openable_steps,
    select_batch,
    signal_groups,
)

STATES: tuple[NodeState, ...] = get_args(NodeState)
EVENTS: tuple[Event, ...] = get_args(Event)
NODE = PrivateKey.generate().public


# Node states


@pytest.mark.parametrize(
    ("state", "event", "leads_to"),
    [
        ("Discovered", "invited", "Invited"),
        ("Invited", "invite-expired", "Discovered"),
        ("Invited", "joined", "Healthy"),
        ("Healthy", "late", "Unhealthy"),
        ("Unhealthy", "heartbeat", "Healthy"),
        ("Unhealthy", "silent", "Dead"),
        ("Dead", "invited", "Invited"),
        ("Dead", "joined", "Healthy"),
        ("Healthy", "evict", "Evicted"),
        ("Evicted", "ban", "Banned"),
    ],
)
def test_a_node_moves_along_the_edges_of_the_table(state: NodeState, event: Event, leads_to: NodeState) -> None:
    assert next_state(state, event) == leads_to


def test_a_dead_node_does_not_come_back_by_a_heartbeat_alone() -> None:
    assert next_state("Dead", "heartbeat") == "Dead"


def test_a_stranger_does_not_become_a_member_without_an_invite() -> None:
    assert {next_state("Discovered", event) for event in EVENTS} & MEMBERS == set()


@pytest.mark.parametrize("state", sorted(EXCLUDED))
def test_there_is_no_way_back_for_the_excluded_but_a_ban_taken_back(state: NodeState) -> None:
    assert {next_state(state, event) for event in EVENTS if event != "unban"} <= EXCLUDED
    assert next_state(state, "unban") == {"Banned": "Discovered", "Evicted": "Evicted"}[state]


def test_every_other_state_can_be_evicted_and_banned() -> None:
    for state in set(STATES) - EXCLUDED:
        assert next_state(state, "evict") == "Evicted"
        assert next_state(state, "ban") == "Banned"


def test_every_state_but_the_first_is_reached_by_some_edge() -> None:
    assert set(EDGES.values()) | {"Discovered"} == set(STATES)


def test_three_missed_heartbeats_are_silence() -> None:
    assert silence_event(LATE_SECONDS - 0.1) is None
    assert silence_event(LATE_SECONDS) == "late"
    assert silence_event(SILENT_SECONDS) == "silent"


# Steps


@pytest.mark.parametrize(
    ("sealed", "latest", "k", "expected"),
    [
        ((), None, 2, None),  # the base model is not announced
        ((), 0, 2, 0),
        ((0,), 0, 0, None),  # synchronous: step 1 needs version 1
        ((0,), 0, 1, 1),
        ((0, 1), 0, 1, None),
        ((0, 1, 2), 1, 2, 3),
        ((0, 2), 0, 2, 1),  # a later step may be full first
        (range(5), 5, 2, None),  # the run is over
    ],
)
def test_the_open_step_is_the_smallest_one_that_may_be_fed(
    sealed: Sequence[int], latest: int | None, k: int, expected: int | None
) -> None:
    assert next(iter(openable_steps(set(sealed), latest, k, steps=5)), None) == expected


SHAPE = FileShape(groups=2, group_size=4, max_completion_tokens=8, targets=None, rows_each=1)


@given(latest=st.integers(0, 20), k=st.integers(0, 4), sealed=st.sets(st.integers(0, 20)))
def test_every_openable_step_accepts_the_newest_version(latest: int, k: int, sealed: set[int]) -> None:
    for step in openable_steps(sealed, latest, k, steps=15):
        oldest, newest = TrainingStep(step, SHAPE, 100, k).window
        assert oldest <= latest <= newest
        assert step not in sealed
        assert step < 15


def rows(*task_rewards: float | None, penalty: float = 0.0) -> list[RowReward]:
    return [
        RowReward(
            task_reward=r, length_penalty=None if r is None else penalty, reward=None if r is None else r - penalty
        )
        for r in task_rewards
    ]


def test_groups_with_equal_task_rewards_carry_no_signal() -> None:
    rewards = rows(1, 1) + rows(0, 0) + rows(1, 0)
    assert signal_groups(rewards, [7, 8, 9], 2, "TaskReward") == [9]


def test_length_penalties_give_signal_only_to_the_total_reward_filter() -> None:
    rewards = rows(1, penalty=0.1) + rows(1, penalty=0.2)
    assert signal_groups(rewards, [7], 2, "TaskReward") == []
    assert signal_groups(rewards, [7], 2, "TotalReward") == [7]


def test_rows_that_could_not_be_scored_are_left_out_of_their_group() -> None:
    assert signal_groups(rows(1, None, 1), [7], 3, "TaskReward") == []
    assert signal_groups(rows(1, None, 0), [7], 3, "TaskReward") == [7]


@pytest.mark.parametrize("online_filter", ["TaskReward", "TotalReward", "None"])
def test_a_group_without_a_scored_row_never_counts(online_filter: OnlineFilter) -> None:
    assert signal_groups(rows(None, None), [7], 2, online_filter) == []


def test_without_a_filter_every_scored_group_counts() -> None:
    assert signal_groups(rows(1, 1, 0, 0), [7, 8], 2, "None") == [7, 8]


def test_rewards_that_do_not_fit_the_groups_are_refused() -> None:
    with pytest.raises(ValueError, match="3 rewards do not fit 2 groups of 2"):
        signal_groups(rows(1, 0, 1), [7, 8], 2, "TaskReward")


def file(number: int, *prompts: int, dropped: int = 0) -> AcceptedFile:
    return AcceptedFile(
        node=NODE,
        submission=number,
        sha256=f"{number:064d}",
        policy_version=0,
        rows=8,
        signal_prompts=prompts,
        dropped_groups=dropped,
    )


def test_a_batch_takes_whole_groups_in_the_order_of_acceptance() -> None:
    batch = select_batch("tiny", 0, "b" * 64, 4, [file(5, 1, 2, 3, dropped=1), file(2, 4, 9), file(1, 6)])
    assert batch is not None
    assert [(f.submission, f.prompt_indices) for f in batch.files] == [(5, [1, 2, 3]), (2, [4])]
    assert (batch.groups, batch.groups_dropped) == (4, 1)


def test_of_a_mixture_the_batch_says_what_was_sampled_of_each_source() -> None:
    both = {"math": SourceGroups(sampled=3, with_signal=2), "code": SourceGroups(sampled=1, with_signal=0)}
    files = [replace(file(number, 1, 2, dropped=2), by_source=both) for number in range(3)]
    batch = select_batch("tiny", 0, "b" * 64, 3, files)
    assert batch is not None
    assert batch.by_source == {
        "code": SourceGroups(sampled=2, with_signal=0),
        "math": SourceGroups(sampled=6, with_signal=4),
    }
    assert b"by_source" not in batch.model_copy(update={"by_source": {}}).to_json()


def test_a_file_without_signal_is_counted_as_dropped_and_not_trained_on() -> None:
    batch = select_batch("tiny", 0, "b" * 64, 1, [file(0, dropped=4), file(1, 3, dropped=3)])
    assert batch is not None
    assert [f.submission for f in batch.files] == [1]
    assert batch.groups_dropped == 7


@given(sizes=st.lists(st.integers(0, 5), max_size=12), needed=st.integers(1, 20))
def test_a_batch_has_exactly_the_groups_needed_or_is_not_made(sizes: list[int], needed: int) -> None:
    files = [file(n, *range(size), dropped=5 - size) for n, size in enumerate(sizes)]
    batch = select_batch("tiny", 0, "b" * 64, needed, files)
    if sum(sizes) < needed:
        assert batch is None
    else:
        assert batch is not None
        assert sum(len(f.prompt_indices) for f in batch.files) == needed
        # What is accepted afterwards cannot change the batch.
        assert select_batch("tiny", 0, "b" * 64, needed, [*files, file(99, 1, 2)]) == batch


# Allocation


def test_work_is_handed_out_until_the_step_will_probably_be_full() -> None:
    assert is_short(StepLoad(0, needed_groups=8, accepted_groups=0, pending_groups=15), rate=0.5)
    assert not is_short(StepLoad(0, needed_groups=8, accepted_groups=0, pending_groups=16), rate=0.5)
    assert not is_short(StepLoad(0, needed_groups=8, accepted_groups=8, pending_groups=0), rate=0.5)


def test_whoever_has_nothing_else_to_do_makes_sure_of_a_step() -> None:
    assert has_room(StepLoad(0, needed_groups=8, accepted_groups=0, pending_groups=19), rate=0.5)
    assert not has_room(StepLoad(0, needed_groups=8, accepted_groups=0, pending_groups=20), rate=0.5)
    assert not has_room(StepLoad(0, needed_groups=8, accepted_groups=8, pending_groups=0), rate=0.5)


RATES = st.floats(0.01, 1.0)


@given(needed=st.integers(1, 500), accepted=st.integers(0, 500), rate=RATES)
def test_a_step_that_is_short_of_groups_and_has_nothing_pending_always_has_room(
    needed: int, accepted: int, rate: float
) -> None:
    load = StepLoad(0, needed_groups=needed, accepted_groups=accepted, pending_groups=0)
    assert has_room(load, rate) == is_short(load, rate) == (accepted < needed)
    assert OVERSHOOT > 1


@given(needed=st.integers(1, 500), accepted=st.integers(0, 500), pending=st.integers(0, 5000), rate=RATES)
def test_a_step_that_is_short_has_room_and_one_with_more_under_way_has_no_more_of_it(
    needed: int, accepted: int, pending: int, rate: float
) -> None:
    load = StepLoad(0, needed, accepted, pending)
    assert has_room(load, rate) or not is_short(load, rate)
    for more in (
        replace(load, pending_groups=pending + 1),
        replace(load, accepted_groups=accepted + 1),
    ):
        assert is_short(load, rate) or not is_short(more, rate)
        assert has_room(load, rate) or not has_room(more, rate)


@given(needed=st.integers(1, 500), accepted=st.integers(0, 500), rate=RATES)
def test_no_more_is_planned_than_a_quarter_above_the_need_and_less_the_more_is_there(
    needed: int, accepted: int, rate: float
) -> None:
    planned = planned_groups(needed, accepted, rate)
    assert needed <= planned <= OVERSHOOT * needed
    assert planned_groups(needed, accepted + 1, rate) <= planned
    assert planned_groups(needed, accepted, min(1.0, rate + 0.1)) <= planned
    assert planned_groups(needed, accepted, 1.0) == planned_groups(needed, needed, rate) == needed


def test_a_large_step_is_planned_with_one_deviation_more_and_a_small_one_with_a_quarter() -> None:
    assert planned_groups(8, 0, 0.5) == 10
    assert planned_groups(4, 0, 0.5) == 5
    assert planned_groups(256, 0, 0.5) == pytest.approx(267.3, abs=0.1)
    assert planned_groups(256, 224, 0.5) == 260, "32 groups are uncertain, not 256"
    assert planned_groups(256, 256, 0.5) == 256
    assert planned_groups(256, 0, 0.75) == 264, "of 341 groups fewer are in doubt than of 512"
    assert planned_groups(300, 0, 0.25) == 315


@given(missing=st.integers(20, 100), rate=st.sampled_from([0.25, 0.5, 0.9]))
def test_the_deviation_is_that_of_the_groups_that_are_still_to_be_judged(missing: int, rate: float) -> None:
    sampled = missing / rate
    variance = sampled * rate * (1 - rate)
    assert planned_groups(1000, 1000 - missing, rate) == pytest.approx(1000 + math.sqrt(variance))


def test_nodes_serve_the_smallest_step_that_is_short_and_make_sure_of_one_when_none_is() -> None:
    def served(*loads: StepLoad) -> int | None:
        return step_to_serve(loads, lambda load: is_short(load, 0.5), lambda load: has_room(load, 0.5))

    over = StepLoad(3, needed_groups=4, accepted_groups=2, pending_groups=40)
    likely = StepLoad(3, needed_groups=4, accepted_groups=2, pending_groups=4)
    later = StepLoad(4, needed_groups=4, accepted_groups=2, pending_groups=5)
    free = StepLoad(5, needed_groups=4, accepted_groups=0, pending_groups=0)
    assert served(free, over) == 5
    assert served(free, likely) == 5, "its files may fill the step before"
    assert served(later, likely) == 3
    assert served(later, over) == 4
    assert served(over) is None


def test_the_estimated_rate_moves_from_a_half_to_what_was_seen() -> None:
    assert signal_rate(0, 0) == 0.5
    assert signal_rate(1000, 100) == pytest.approx(0.1, abs=0.01)
    assert signal_rate(1000, 0) > 0


def test_only_nodes_admitted_before_the_reveal_may_serve() -> None:
    assert may_serve(5, None, [])
    assert may_serve(5, 9, [5])
    assert not may_serve(12, 9, [5, 12])


def test_later_nodes_may_serve_when_no_earlier_one_is_left() -> None:
    assert may_serve(12, 9, [12, 13])


def test_a_lease_lives_longer_for_longer_completions() -> None:
    assert lease_seconds(64) < 90
    assert lease_seconds(30_720) == pytest.approx(1596)


# Verdicts


def verdict(outcome: Outcome, reason: RejectReason | None = None, version: int = 3) -> Verdict:
    rewards = rows(1, 0) if outcome == "accept" else []
    return Verdict(
        run="tiny",
        node=NODE,
        lease="0" * 32,
        step=4,
        submission=0,
        sha256="a" * 64,
        policy_version=version,
        outcome=outcome,
        reason=reason,
        rewards=rewards,
        rows=len(rewards),
    )


def decided(
    found: Verdict,
    opinions: Sequence[OpinionNote] = (),
    *,
    sealed: bool = False,
    digest: str = "d" * 64,
    by: str = "validator-1",
    alone: bool = False,
    votes: int = 1,
    evicted: bool = False,
) -> Decision:
    return decide(
        found, digest, opinions, validator=by, alone=alone, sealed=sealed, window=(2, 4), votes=votes, evicted=evicted
    )


def opinion(reason: RejectReason, digest: str = "e" * 64, by: str = "validator-0") -> OpinionNote:
    return OpinionNote(validator=by, reason=reason, digest=digest)


@pytest.mark.parametrize("reason", sorted(set(get_args(RejectReason)) - STATISTICAL))
def test_a_deterministic_reject_stands_at_once(reason: RejectReason) -> None:
    assert decided(verdict("reject", reason)).kind == "record"


@pytest.mark.parametrize("reason", sorted(STATISTICAL))
def test_a_statistical_reject_needs_a_second_finding(reason: RejectReason) -> None:
    assert decided(verdict("reject", reason)).kind == "second-opinion"
    assert decided(verdict("reject", reason), [opinion(reason)]).kind == "record"


@pytest.mark.parametrize("reason", sorted(STATISTICAL - NEVER_ALONE))
def test_the_same_validator_confirms_itself_only_when_no_other_came(reason: RejectReason) -> None:
    notes = [opinion(reason)]
    assert decided(verdict("reject", reason), notes, by="validator-0").kind == "second-opinion"
    assert decided(verdict("reject", reason), notes, by="validator-0", alone=True).kind == "record"


def test_what_a_validator_could_not_read_it_never_confirms_by_itself() -> None:
    found = verdict("reject", "unread")
    notes = [opinion("unread"), opinion("unread", digest="f" * 64)]
    for votes in (1, 3):
        assert decided(found, notes, by="validator-0", alone=True, votes=votes).kind == "second-opinion"
    assert decided(found, notes, by="validator-1").kind == "record"


def test_the_same_verdict_sent_twice_is_one_opinion() -> None:
    note = opinion("computation", digest="d" * 64)
    assert decided(verdict("reject", "computation"), [note]).kind == "repeated"


def test_two_different_statistical_reasons_do_not_agree() -> None:
    notes = [opinion("computation")]
    assert decided(verdict("reject", "token_sampling"), notes).kind == "second-opinion"
    notes.append(opinion("token_sampling", "f" * 64))
    assert decided(verdict("reject", "computation"), notes).kind == "record"


@pytest.mark.parametrize("reason", get_args(RejectReason))
def test_with_k_votes_every_reject_needs_k_validators_that_agree(reason: RejectReason) -> None:
    found = verdict("reject", reason)
    notes = [opinion(reason, f"{number:064d}", f"validator-{number}") for number in range(3)]
    for before in range(2):
        assert decided(found, notes[:before], by="validator-9", votes=3).kind == "second-opinion"
    assert decided(found, notes[:2], by="validator-9", votes=3).kind == "record"
    if reason not in NEVER_ALONE:
        assert decided(found, notes[:2], by="validator-1", votes=3, alone=True) == Decision(
            "again", "2 of 3 validators agree; more must check the file"
        )
    others: RejectReason = "format" if reason != "format" else "bounds"
    assert decided(verdict("reject", others), notes[:2], by="validator-9", votes=3).kind == "second-opinion"


def test_an_accept_after_a_statistical_reject_stands() -> None:
    assert decided(verdict("accept"), [opinion("computation")]).kind == "record"


def test_a_file_accepted_after_the_seal_is_expired() -> None:
    decision = decided(verdict("accept"), sealed=True)
    assert decision == Decision("expire", "step 4 was sealed before this file was accepted")


@pytest.mark.parametrize(("version", "kind"), [(1, "expire"), (2, "record"), (4, "record"), (5, "expire")])
def test_a_version_outside_the_window_is_expired(version: int, kind: str) -> None:
    assert decided(verdict("accept", version=version)).kind == kind


def test_nothing_of_an_evicted_node_is_accepted_any_more_and_its_cheats_are_still_recorded() -> None:
    assert decided(verdict("accept"), evicted=True) == Decision("expire", EVICTED)
    assert decided(verdict("reject", "bounds"), evicted=True).kind == "record"
    assert decided(verdict("inconclusive"), evicted=True).kind == "again"


def test_a_cheat_is_recorded_even_after_the_seal() -> None:
    assert decided(verdict("reject", "reward"), sealed=True).kind == "record"


def test_an_inconclusive_check_is_made_again() -> None:
    assert decided(verdict("inconclusive")).kind == "again"


# Invites


def known(seen_unix: float, run: str = "tiny") -> KnownNode:
    registration = Registration(
        node=NODE,
        run=run,
        pool="pool",
        software_version="test",
        hardware=Hardware(cpus=1, memory_bytes=0, disk_free_bytes=0),
    )
    return KnownNode(registration=registration, address="127.0.0.1", seen_unix=seen_unix)


def test_each_registration_is_answered_once() -> None:
    assert wants_invite(known(10.0), None, "tiny")
    record = NodeRecord(node=NODE, state="Invited", answered_seen_unix=10.0)
    assert not wants_invite(known(10.0), record, "tiny")
    assert wants_invite(known(10.5), record, "tiny")


@pytest.mark.parametrize("state", sorted(EXCLUDED))
def test_the_excluded_are_not_invited(state: NodeState) -> None:
    assert not wants_invite(known(99.0), NodeRecord(node=NODE, state=state), "tiny")


def test_a_node_of_another_run_is_not_invited() -> None:
    assert not wants_invite(known(1.0, run="other"), None, "tiny")
