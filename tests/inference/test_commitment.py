"""When a lease under generation is finished and when it is handed back."""

import threading
import time
from collections.abc import Callable

import pytest
import tiny_policy

from shoal.contracts.protocol import LEAVE_SECONDS, StepInfo
from shoal.inference.commitment import POLL_SECONDS, Commitment, is_sealed, longest_left
from shoal.inference.completions import Request

Deadline = Callable[..., object]


def info(step: int, first_unsealed: int | None, latest: int = 4) -> StepInfo:
    return tiny_policy.STEP.model_copy(
        update={"step": step, "first_unsealed_step": first_unsealed, "latest_version": latest}
    )


@pytest.mark.parametrize(
    ("shown", "sealed"),
    [
        (None, False),  # nobody answers, or all steps wait for the trainer
        (info(4, 4), False),
        (info(5, 4), False),  # others work ahead, and this step still takes files
        (info(5, 5), True),
        (
            info(4, None, latest=4),
            False,
        ),  # an orchestrator that does not say: a version was made of every step before it
        (info(6, None, latest=5), True),
    ],
)
def test_a_lease_is_lost_when_its_step_is_sealed_and_not_before(shown: StepInfo | None, sealed: bool) -> None:
    assert is_sealed(tiny_policy.WORK, shown) is sealed


def requests(*lengths: int) -> list[Request]:
    return [Request((5,), 0, 1.0, length) for length in lengths]


def test_the_steps_left_are_bounded_by_waves_of_the_longest() -> None:
    assert longest_left(requests(10, 40, 20), 3, 0) == 40
    assert longest_left(requests(10, 40, 20), 3, 25) == 15
    assert longest_left(requests(10, 40, 20), 2, 25) == 55
    assert longest_left(requests(10), 8, 11) == 0


def commitment(made: list[Request], shown: StepInfo | None, stop: threading.Event) -> Commitment:
    return Commitment(tiny_policy.WORK, tiny_policy.LEASE, [made], 8, lambda: shown, stop)


def test_a_round_begins_when_the_one_before_has_ended_whatever_the_engine_has_room_for() -> None:
    stop = threading.Event()
    with Commitment(
        tiny_policy.WORK, tiny_policy.LEASE, [requests(40), requests(*[30] * 6)], 8, lambda: None, stop
    ) as lease:
        assert lease._longest_left() == 70
        for _ in range(10):
            assert lease.over() is None
        assert lease._longest_left() == 60
        lease.begin_next_round(requests(*[20] * 6))
        assert lease._longest_left() == 20, "what the first round did not take is not counted for the second"
        assert lease.over() is None
        assert lease._longest_left() == 19


def test_on_leaving_the_rounds_to_come_are_reckoned_with() -> None:
    stop, rounds = threading.Event(), [requests(1), requests(*[1_000_000] * 4)]
    with Commitment(tiny_policy.WORK, tiny_policy.LEASE, rounds, 8, lambda: None, stop) as lease:
        assert lease.over() is None
        time.sleep(0.1)  # of one step, which was all of the first round
        stop.set()
        assert lease.over() == "leaving"


def test_a_sealed_step_ends_the_generation(deadline: Deadline) -> None:
    with commitment(requests(40), info(6, 6), threading.Event()) as lease:
        assert lease.over() is None
        deadline("the step to be found sealed", lambda: lease.over() == "sealed", seconds=20 * POLL_SECONDS)


def test_a_newer_version_alone_ends_nothing() -> None:
    asked = threading.Event()

    def ask() -> StepInfo:
        asked.set()
        return info(4, 4, latest=9)

    with Commitment(tiny_policy.WORK, tiny_policy.LEASE, [requests(40)], 8, ask, threading.Event()) as lease:
        assert asked.wait(20 * POLL_SECONDS)
        assert lease.over() is None


def test_on_leaving_what_can_be_finished_is_finished() -> None:
    stop = threading.Event()
    with commitment(requests(40), None, stop) as lease:
        assert lease.over() is None
        stop.set()
        for _ in range(39):
            assert lease.over() is None


def test_on_leaving_what_cannot_be_finished_is_handed_back_at_once() -> None:
    stop = threading.Event()
    with commitment(requests(1_000_000), None, stop) as lease:
        assert lease.over() is None
        time.sleep(0.1)  # of one step: a million of them take a day
        stop.set()
        asked = time.monotonic()
        assert lease.over() == "leaving"
        assert time.monotonic() - asked < LEAVE_SECONDS / 2
