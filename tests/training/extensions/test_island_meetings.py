"""What a trainer's membership waits for: all islands before the run begins, and the last exchange before it ends. Each wait has its end."""

import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import structlog
from island_reef import NAMES, Reef, learnt
from torchft.coordination import LighthouseServer

from shoal import telemetry
from shoal.islands import members as island_members
from shoal.islands.lighthouse import serve
from shoal.islands.setting import IslandSettings
from shoal.planner.memory import state_bytes
from shoal.training.extensions.islands import membership as islands
from shoal.training.extensions.islands.membership import Membership

WAITS_ON_SECONDS = 4.0
"""A meeting of some takes a fraction of this."""


@pytest.fixture
def reef(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Reef]:
    monkeypatch.setenv("SHOAL_BIND", "127.0.0.1")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    monkeypatch.setattr(telemetry, "STOP", threading.Event())
    made = Reef(tmp_path)
    yield made
    telemetry.STOP.set()
    for member in made.members:
        member.close()
    made.lighthouse.shutdown()


def test_a_run_begins_when_all_its_islands_are_there(reef: Reef) -> None:
    two = [reef.member(name) for name in NAMES[:2]]
    joins = [reef.begun(lambda member=member: member.join(0)) for member in two]
    joins[0].join(WAITS_ON_SECONDS)
    assert all(thread.is_alive() for thread in joins), "a run began without one of its islands"
    third = reef.member(NAMES[2])
    reef.ended(*joins, reef.begun(lambda: third.join(0)))


def test_a_run_begins_with_those_that_came_once_the_wait_is_over(reef: Reef, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(islands, "JOIN_DEADLINE_SECONDS", 3.0)
    two = [reef.member(name) for name in NAMES[:2]]
    reef.ended(*(reef.begun(lambda member=member: member.join(0)) for member in two))


def test_an_island_with_progress_of_its_own_goes_on_with_those_that_are_there(reef: Reef) -> None:
    two = [reef.member(name) for name in NAMES[:2]]
    reef.ended(*(reef.begun(lambda member=member: member.join(1)) for member in two))


def test_the_last_exchange_is_tried_until_it_is_made(reef: Reef) -> None:
    first, second = (reef.member(name) for name in NAMES[:2])
    learnt(first)
    finish = reef.begun(lambda: first.finish(3))
    finish.join(WAITS_ON_SECONDS)
    assert finish.is_alive(), "one of three gave its last updates up at once"
    learnt(second)
    reef.ended(finish, reef.begun(lambda: second.finish(3)))
    assert [member._island.shared.meta.round for member in (first, second)] == [1, 1]
    assert first.position == 3


def test_a_last_exchange_that_is_never_made_is_given_up_with_an_error(
    reef: Reef, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(islands, "FINISH_DEADLINE_SECONDS", 1.0)
    alone = reef.member(NAMES[0])
    learnt(alone)
    with structlog.testing.capture_logs() as logs:
        alone.finish(3)
    said = [line for line in logs if line["log_level"] == "error"]
    assert [line["event"] for line in said] == ["the last exchange failed; this island ends with weights of its own"]


STEP_SECONDS = 9.0


def test_runs_whose_steps_are_longer_than_a_meeting_waits_meet_all_the_same(
    reef: Reef, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(islands, "IslandSettings", partial(IslandSettings, connect_seconds=1.0))
    reef.group_of_two(1)
    reef.config = reef.config.model_copy(update={"sft": None})  # as of mode Train
    two = [reef.member(name) for name in NAMES[:2]]
    reef.ended(*(reef.begun(lambda member=member: member.join(0)) for member in two))
    began, made = time.monotonic(), {}

    def step(member: Membership, offset: float) -> None:
        """One that comes `offset` seconds after the other, every time: the other's question is over by then, after three seconds."""
        time.sleep(began + offset + STEP_SECONDS - time.monotonic())
        learnt(member)
        made[member] = member.exchange(1)

    reef.ended(
        *(reef.begun(lambda member=member, at=at: step(member, at)) for member, at in zip(two, (0.0, 7.0), strict=True))
    )
    assert [made[member] for member in two] == [True, True]
    assert [member._island.shared.meta.round for member in two] == [1, 1]


SFT_ROUND_SECONDS = 5.0


@pytest.mark.parametrize("federated", [True, False], ids=["of a group", "of one run"])
def test_islands_of_unequal_speed_come_to_a_first_round_in_mode_sft(
    reef: Reef, monkeypatch: pytest.MonkeyPatch, federated: bool
) -> None:
    monkeypatch.setattr(islands, "IslandSettings", partial(IslandSettings, connect_seconds=1.0))
    reef.group_of_two(1)
    if not federated:
        reef.terms = reef.terms.model_copy(update={"group": None})
    two = [reef.member(name) for name in NAMES[:2]]
    reef.ended(*(reef.begun(lambda member=member: member.join(0)) for member in two))
    began, made = time.monotonic(), {}

    def train(member: Membership, late: float) -> None:
        time.sleep(began + SFT_ROUND_SECONDS + late - time.monotonic())
        learnt(member)
        learnt(member)  # an update takes no time beside a round
        made[member] = member.exchange(0)

    reef.ended(
        *(reef.begun(lambda member=member, late=late: train(member, late)) for member, late in zip(two, (0.0, 4.0), strict=True))
    )  # fmt: skip
    assert [made[member] for member in two] == [True, True], "the question of the faster one was over by then"


def at_one_meeting(reef: Reef, *members: Membership) -> None:
    """They meet, contribute what each has learnt, and make a round."""
    reef.ended(*(reef.begun(lambda member=member: member.exchange(1)) for member in members))


def test_who_copies_a_state_of_another_lineage_has_jumped_though_its_round_has_the_same_number(reef: Reef) -> None:
    reef.group_of_two(10.0)
    first, second = (reef.member(name) for name in NAMES[:2])
    reef.ended(*(reef.begun(lambda member=member: member.join(0)) for member in (first, second)))
    learnt(first)
    learnt(second)
    at_one_meeting(reef, first, second)
    assert [member.jumped for member in (first, second)] == [False, False], "an exchange is no jump"
    lighthouses, apart = [], []
    for name, member in zip(NAMES[:2], (first, second), strict=True):  # cut off from one another, both go on
        member.close()
        lighthouses.append(serve("127.0.0.1", 0, 1.0, 20.0))
        reef.terms = reef.terms.model_copy(update={"lighthouse": address_of(lighthouses[-1])})
        alone = reef.member(name)
        alone.take_up(member.tensors())
        learnt(alone)
        if name == NAMES[1]:
            learnt(alone)
        assert alone.exchange(2)
        apart.append(alone)
    assert [member._island.shared.meta.round for member in apart] == [2, 2]
    reef.terms = reef.terms.model_copy(update={"lighthouse": address_of(reef.lighthouse)})
    again = [reef.member(name) for name in NAMES[:2]]
    for member, former, lighthouse in zip(again, apart, lighthouses, strict=True):
        former.close()
        lighthouse.shutdown()
        member.take_up(former.tensors())
    reef.heard(*again)
    own = [member._island._digest for member in again]
    assert own[0] != own[1]
    at_one_meeting(reef, *again)
    assert sorted(member.jumped for member in again) == [False, True], "one copied what it had no part in"
    assert len({member._island._digest for member in again}) == 1


def test_what_a_run_learnt_before_its_restart_is_part_of_the_round_that_it_joins(reef: Reef) -> None:
    reef.group_of_two(10.0)
    first, second = (reef.member(name) for name in NAMES[:2])
    reef.ended(*(reef.begun(lambda member=member: member.join(0)) for member in (first, second)))
    learnt(first)
    learnt(second)
    at_one_meeting(reef, first, second)
    for _ in range(2):
        learnt(second)
    weights, state = second._island._parameters.read(), second.tensors()
    second.close()
    again = reef.member(NAMES[1])
    again.take_up(state)
    again._island._parameters.write(weights)
    reef.heard(first, again)
    learnt(first)
    with structlog.testing.capture_logs() as logs:
        reef.ended(reef.begun(lambda: again.join(2)), reef.begun(lambda: first.exchange(2)))
    said = [line["contributors"] for line in logs if line["event"] == "islands exchanged"]
    assert said == [[*NAMES[:2]]] * 2, "what it learnt before its restart is gone"
    assert [member._island.shared.meta.round for member in (first, again)] == [2, 2]
    assert not again.jumped


def test_who_has_learnt_nothing_of_the_round_that_it_joins_has_jumped(reef: Reef) -> None:
    reef.group_of_two(10.0)
    first, second = (reef.member(name) for name in NAMES[:2])
    reef.heard(first, second)
    learnt(first)
    reef.ended(reef.begun(lambda: first.exchange(1)), reef.begun(lambda: second.join(0)))
    assert [member._island.shared.meta.round for member in (first, second)] == [1, 1]
    assert [member.jumped for member in (first, second)] == [False, True]


def test_who_makes_no_update_for_long_falls_silent_before_the_first_round_too(
    reef: Reef, monkeypatch: pytest.MonkeyPatch
) -> None:
    reef.group_of_two(10.0)
    first, second = (reef.member(name) for name in NAMES[:2])
    reef.ended(*(reef.begun(lambda member=member: member.join(0)) for member in (first, second)))
    assert second._island.shared.meta.round == 0
    monkeypatch.setattr(island_members, "LONGEST_PAUSE_SECONDS", 0.2)
    second.due()
    time.sleep(0.3)
    assert second._island._members.late
    second.due()
    assert not second._island._members.late, "it trains"


def test_an_overdue_exchange_looks_for_the_others_and_trains_on(reef: Reef, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(islands, "OWED_SECONDS", 1.0)
    monkeypatch.setattr(islands, "IslandSettings", partial(IslandSettings, connect_seconds=1.0))
    reef.group_of_two(1.0)
    first, second = (reef.member(name) for name in NAMES[:2])
    reef.ended(*(reef.begun(lambda member=member: member.join(0)) for member in (first, second)))
    learnt(first)
    first._step_seconds = 0.0
    assert not first.exchange(1)
    assert first.progress().missed == 1
    missed = islands.ROUNDS.labels("missed")._value.get()
    first._step_seconds = 60.0
    for _ in range(2):
        began = time.monotonic()
        assert not first.exchange(1, overdue=True)
        assert time.monotonic() - began < 20.0, "it waits as long as for an exchange that is due"
    assert first.progress().missed == 1, "one exchange counts once, however many looks it takes"
    assert islands.ROUNDS.labels("missed")._value.get() == missed
    learnt(second)
    second._step_seconds = 60.0
    waits = reef.begun(lambda: second.exchange(1))
    deadline = time.monotonic() + 60
    while not first.exchange(2, overdue=True):
        assert time.monotonic() < deadline, "one that waits is not met"
    reef.ended(waits)
    assert first.progress().missed == 0


def test_whom_no_lighthouse_answers_names_it_and_blames_nobody(reef: Reef, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(island_members, "UNHEARD_SECONDS", 1.0)
    monkeypatch.setattr(island_members, "LISTEN_SECONDS", 1.0)
    reef.group_of_two(10.0)
    reef.terms = reef.terms.model_copy(update={"lighthouse": "http://127.0.0.1:9"})
    alone = reef.member(NAMES[0])
    learnt(alone)
    assert not alone.exchange(1)
    said = alone.progress()
    assert said.problem == f"the lighthouse at {reef.terms.lighthouse} does not answer"
    assert (said.missed, said.absent) == (1, [])


def test_what_was_learnt_before_a_restart_is_part_of_the_last_exchange_though_no_update_follows(reef: Reef) -> None:
    reef.group_of_two(10.0)
    first, second = (reef.member(name) for name in NAMES[:2])
    reef.ended(*(reef.begun(lambda member=member: member.join(0)) for member in (first, second)))
    for member in (first, second):
        learnt(member)
    at_one_meeting(reef, first, second)
    learnt(second)
    weights, state = second._island._parameters.read(), second.tensors()
    second.close()
    again = reef.member(NAMES[1])
    again.take_up(state)
    again._island._parameters.write(weights)
    reef.heard(first, again)
    learnt(first)
    with structlog.testing.capture_logs() as logs:
        reef.ended(*(reef.begun(lambda member=member: member.finish(2)) for member in (first, again)))
    said = [line["contributors"] for line in logs if line["event"] == "islands exchanged"]
    assert said == [[*NAMES[:2]]] * 2, "it ends without what it had learnt"
    assert [member._island.shared.meta.round for member in (first, again)] == [2, 2]
    for member in (first, again):
        member.close()
    over = reef.member(NAMES[1])
    over.take_up(again.tensors())
    with structlog.testing.capture_logs() as logs:
        reef.ended(reef.begun(lambda: over.finish(2)))
    assert not logs, "nothing is left to exchange, and nobody to exchange it with"


def address_of(lighthouse: LighthouseServer) -> str:
    return f"http://127.0.0.1:{lighthouse.address().rsplit(':', 1)[1]}"


def test_a_run_that_finds_other_settings_trains_on_and_says_who_differs_in_what(reef: Reef) -> None:
    reef.group_of_two(10.0)
    mine, other = reef.member(NAMES[0]), reef.member(NAMES[1], inner_steps=7)
    reef.heard(mine, other)
    reef.ended(reef.begun(lambda: mine.join(1)), reef.begun(lambda: other.join(1)))
    learnt(mine)
    learnt(other)
    began = time.monotonic()
    made: list[bool] = []
    reef.ended(*(reef.begun(lambda member=member: made.append(member.exchange(1))) for member in (mine, other)))
    assert made == [False, False]
    assert time.monotonic() - began < 10.0, "it waits for what cannot come about"
    said = mine.progress()
    assert [(one.island, one.setting, one.values) for one in said.differing] == [
        (NAMES[1], "innerSteps", "7 there, 2 here")
    ]
    assert (said.round, said.missed, said.members, said.absent, said.problem) == (0, 1, [], [], "settings differ")
    assert islands.MISSED.collect()[0].samples[0].value == 1
    (metric,) = next(iter(islands.DIFFERS.collect())).samples  # of whoever was told last: both are of this process
    assert (metric.labels["setting"], metric.value) == ("innerSteps", 1.0)
    other.close()
    same = reef.member(NAMES[1])
    reef.heard(same)
    reef.ended(reef.begun(lambda: same.join(1)), reef.begun(lambda: mine.exchange(2)))
    said = mine.progress()
    assert (said.round, said.missed, said.members, said.differing, said.problem) == (1, 0, [*NAMES[:2]], [], "")
    assert said.made_unix is not None
    assert islands.MISSED.collect()[0].samples[0].value == 0
    assert not next(iter(islands.DIFFERS.collect())).samples


def test_what_was_left_behind_is_part_of_the_training_state(reef: Reef) -> None:
    before, after = reef.member(NAMES[0]), reef.member(NAMES[1])
    before.left_behind = 4
    after.take_up(before.tensors())
    assert after.left_behind == 4


def test_what_islands_share_takes_the_bytes_of_a_state_that_are_planned(reef: Reef) -> None:
    member = reef.member(NAMES[0])
    count = member._island._parameters.count
    planned = state_bytes(count, islands=True) - state_bytes(count)
    assert sum(tensor.nbytes for tensor in member.tensors().values()) == planned + islands.SAID_BYTES
