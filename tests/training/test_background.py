"""Work behind the trainer's back: one job at a time, errors are seen; what is read ahead is used only if it is what the step wants."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tiny_run import MAX_LENGTH, VOCABULARY, accept_bytes, batch_of, config, fill_step, make_store, ranks, rows_of

from samples import RUN
from shoal.contracts import keys
from shoal.contracts.failures import FailurePolicy
from shoal.storage import LocalDiskFull, Store
from shoal.training import prefetch
from shoal.training.handover import Handover
from shoal.training.prefetch import Prefetch, Reader
from shoal.training.rollouts import BadBatch, RowLimits, read_batch
from small_disks import SmallDisk


def test_the_next_step_goes_on_while_a_job_runs_and_a_second_one_must_wait(deadline: Callable[..., object]) -> None:
    handover, gate = Handover(), threading.Event()
    handover.start("delivery of version 1", lambda: gate.wait(20) and None)
    assert not handover.idle()
    with pytest.raises(RuntimeError, match="version 2 was started while delivery of version 1 still runs"):
        handover.start("delivery of version 2", lambda: None)
    assert not handover.settle(0.01)
    gate.set()
    deadline("the job to end", handover.idle)
    handover.start("delivery of version 2", lambda: None)
    assert handover.settle(10)


def test_an_error_of_the_background_comes_to_the_main_thread(deadline: Callable[..., object]) -> None:
    handover = Handover()

    def fail() -> None:
        raise OSError("the disk is full")

    handover.start("delivery of version 1", fail)
    handover.settle(10)
    for look in (handover.check, handover.idle):
        with pytest.raises(OSError, match="the disk is full"):
            look()


def test_signs_of_life_go_on_while_one_process_does_something_long() -> None:
    beaten = threading.Event()
    assert ranks().each_does("a large file to be fetched", lambda: beaten.wait(20), beaten.set) is True


def test_an_error_of_something_long_is_raised_where_it_was_asked_for() -> None:
    def fail() -> None:
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"):
        ranks().each_does("a large file to be fetched", fail, lambda: None)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return make_store(tmp_path / "store")


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefetch, "LOOK_SECONDS", 0.01)


class CountingReader(Reader):
    """A reader that says how often rows were read."""

    def rows(self, batch):
        READS.append(batch.step)
        return super().rows(batch)


READS: list[int] = []


@pytest.fixture
def ahead(store: Store) -> Iterator[Prefetch]:
    READS.clear()
    made = Prefetch(CountingReader(config(), store, RowLimits(VOCABULARY, MAX_LENGTH)))
    yield made
    made.stop()


def test_rows_of_a_batch_that_comes_in_time_are_read_ahead_once(
    store: Store, ahead: Prefetch, deadline: Callable[..., object]
) -> None:
    ahead.start(1)
    batch = fill_step(store, 1)
    deadline("the rows to be read", lambda: READS == [1])
    assert len(ahead.rows(batch).groups) == 4
    assert READS == [1]


def test_rows_of_a_batch_that_comes_late_are_read_when_they_are_wanted(store: Store, ahead: Prefetch) -> None:
    ahead.start(1)
    ahead.stop()
    assert len(ahead.rows(fill_step(store, 1)).groups) == 4
    assert READS == [1]


def test_a_full_temporary_volume_is_named_at_once(store: Store, tmp_path: Path) -> None:
    disk = SmallDisk(tmp_path / "tmp", 1 << 20)
    reader = Reader(config(), store, RowLimits(VOCABULARY, MAX_LENGTH), within=disk.folder)
    batch = fill_step(store, 1)
    try:
        disk.fill(left_bytes=0)
        with pytest.raises(LocalDiskFull, match=r"cannot fetch uploads/.* is full: give trainer\.temporaryVolume more"):
            Prefetch(reader).rows(batch)
        disk.free()
        assert len(Prefetch(reader).rows(batch).groups) == 4
        assert [*disk.folder.iterdir()] == []
    finally:
        disk.unmount()


def test_rows_of_another_batch_are_not_taken_for_the_steps(
    store: Store, ahead: Prefetch, deadline: Callable[..., object]
) -> None:
    ahead.start(1)
    batch = fill_step(store, 1)
    deadline("the rows to be read", lambda: READS == [1])
    other = batch.model_copy(update={"groups": 2, "files": batch.files[:1]})
    assert len(ahead.rows(other).groups) == 2


def test_an_error_while_reading_ahead_is_the_steps_own_when_it_comes_there(
    store: Store, deadline: Callable[..., object]
) -> None:
    READS.clear()
    run = config(failure_policy=FailurePolicy(bad_data="Stop"))
    ahead = Prefetch(CountingReader(run, store, RowLimits(VOCABULARY, MAX_LENGTH)))
    rows = rows_of(1, groups=1)
    store.put(keys.step_batch(1), batch_of(1, [accept_bytes(store, b"PAR1", rows)]).to_json())
    ahead.start(1)
    deadline("the rows to be read", lambda: READS == [1])
    with pytest.raises(BadBatch, match="not a readable Parquet file"):
        ahead.rows(read_batch(store, RUN, 1))


def test_nothing_is_read_beyond_the_last_step(store: Store, ahead: Prefetch) -> None:
    fill_step(store, 3)
    ahead.start(3)
    assert READS == []
