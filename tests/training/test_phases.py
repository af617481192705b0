"""Phases of a step: each second is in one of them, also where one interrupts another, and waits are not busy."""

import time
from pathlib import Path

import pytest
from tiny_run import RUN, make_store

from shoal import telemetry
from shoal.training.progress import Progress


def busy_seconds(phase: str) -> float:
    return float(telemetry.BUSY_SECONDS.labels(phase)._value.get())


def test_an_exchange_between_updates_is_a_wait_and_no_part_of_the_updates(tmp_path: Path) -> None:
    progress = Progress(RUN, None, make_store(tmp_path))
    before = busy_seconds("update"), busy_seconds("exchange")
    progress.begin(3)
    started = time.monotonic()
    with progress.phase("update", "of 2"):
        with progress.phase("exchange", "with others"):
            assert (progress._phase, progress._note) == ("exchange", "with others")
            time.sleep(0.2)
        assert (progress._phase, progress._note) == ("update", "of 2"), "the interrupted phase goes on"
    whole = time.monotonic() - started
    seconds = progress.seconds
    assert seconds["exchange"] >= 0.2
    assert seconds["update"] == pytest.approx(whole - seconds["exchange"], abs=0.05)
    assert sum(seconds.values()) <= whole
    assert busy_seconds("update") - before[0] == pytest.approx(seconds["update"])
    assert busy_seconds("exchange") == before[1]


def test_a_phase_that_fails_is_counted_and_the_outer_one_goes_on(tmp_path: Path) -> None:
    progress = Progress(RUN, None, make_store(tmp_path))
    with progress.phase("update"):
        with pytest.raises(OSError, match="gone"), progress.phase("exchange"):
            raise OSError("gone")
        assert progress._phase == "update"
    assert set(progress.seconds) == {"update", "exchange"}
