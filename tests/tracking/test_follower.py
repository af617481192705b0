"""What the follower does with a tracker that fails, and with a report that is not readable: how often it opens, what it sends."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from run_documents import RunFolder, step_metrics

from shoal.contracts import keys
from shoal.tracking.follower import LONGEST_WAIT_SECONDS, StepFollower
from shoal.tracking.points import TrackedStep

LOOK_SECONDS = 5


class Kept:
    """Trackers that keep their steps here, and take nothing while `away`."""

    name = "kept"

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.away = False
        self.opened = self.closed = 0

    def open(self) -> "Kept":
        self.opened += 1
        return self

    def last_step(self) -> int:
        return max(self.steps, default=-1)

    def write(self, points: Sequence[TrackedStep]) -> None:
        if self.away:
            raise ConnectionError("the server takes nothing")
        self.steps += [point.step for point in points]

    def close(self) -> None:
        self.closed += 1


class Clock:
    """Time that passes when a test says so, in seconds."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path)


def looks(follower: StepFollower, clock: Clock, seconds: float) -> None:
    end = clock.now + seconds
    while clock.now < end:
        follower.follow()
        clock.now += LOOK_SECONDS


def test_a_failing_tracker_is_opened_less_and_less_often_and_at_once_where_the_process_ends(run: RunFolder) -> None:
    kept, other, clock = Kept(), Kept(), Clock()
    follower = StepFollower(run.store, [kept.open, other.open], clock)
    run.add_step(step_metrics(0))
    kept.away = True
    looks(follower, clock, 24 * 3600)
    assert 100 < kept.opened < 320, "once in five to ten minutes"
    assert (kept.opened, other.opened, other.steps) == (kept.closed, 1, [0])
    kept.away = False
    follower.follow(patient=False)
    assert kept.steps == [0]
    kept.away = True
    run.add_step(step_metrics(1))
    before = kept.opened
    looks(follower, clock, 25)
    assert kept.opened > before, "after a success the first pause is short again"


def test_a_tracker_is_not_opened_before_there_is_something_to_send(run: RunFolder) -> None:
    kept, clock = Kept(), Clock()
    follower = StepFollower(run.store, [kept.open], clock)
    looks(follower, clock, 60)
    assert kept.opened == 0
    run.add_step(step_metrics(0))
    looks(follower, clock, 60)
    assert (kept.opened, kept.steps) == (1, [0])


def test_a_report_that_is_not_readable_closes_no_tracker_and_what_comes_before_it_is_sent(run: RunFolder) -> None:
    kept, clock = Kept(), Clock()
    follower = StepFollower(run.store, [kept.open], clock)
    run.add_step(step_metrics(0))
    run.add_step(step_metrics(1))
    run.store.put(keys.step_metrics(2), b'{"step": 2}')
    looks(follower, clock, 3600)
    assert (kept.opened, kept.closed, kept.steps) == (1, 0, [0, 1])
    run.store.delete(keys.step_metrics(2))
    run.add_step(step_metrics(2))
    looks(follower, clock, LONGEST_WAIT_SECONDS + LOOK_SECONDS)
    assert (kept.opened, kept.steps) == (1, [0, 1, 2])
