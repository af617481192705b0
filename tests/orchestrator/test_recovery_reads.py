"""What recovery reads follows from what is open, not from what there was: counted over a store that says it holds a million closed files."""

import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from protocol_stack import sha, verdict_on
from read_counter import ReadCounter
from run_states import Orchestrator
from servers import Redis, wait_until
from shoal.contracts import keys
from shoal.contracts.protocol import Lease, SubmissionNotice
from shoal.ledger.entries import Accepted
from shoal.orchestrator import background, recovery
from shoal.orchestrator.progress import run_progress
from shoal.orchestrator.run_state import RunState
from shoal.orchestrator.verdicts.verdicts import expire
from shoal.orchestrator.work import uploads
from shoal.transport import SignedClient

CLOSED = 1_000_000


class FilesOfClosedStep(list[Accepted]):
    def __iter__(self) -> Iterator[Accepted]:
        pytest.fail("accepted files of a closed step are walked")


@pytest.fixture
def run(tmp_path: Path, redis_server: Redis) -> Orchestrator:
    return Orchestrator(tmp_path, redis_server.url)


def test_a_million_closed_leases_cost_recovery_no_read(run: Orchestrator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "WINDOW_GROUPS", 0)  # the newest files are walked for it, whichever their step
    run.announce(0)
    nodes = [run.join() for _ in range(3)]
    run.hand_in(nodes[0])
    run.judge(verdict_on(run.claimed()))
    waiting = run.hand_in(nodes[1])
    run.lease(nodes[2])
    counting = ReadCounter(run.folder / "store")
    run.state.store = run.state.leases._store = counting
    run.redis.flushall()
    recovery.rebuild(run.state)
    few = counting.reads
    counting.closed = CLOSED
    run.state.view.settled.update({("a" * 64, f"{number:064x}"): "accepted" for number in range(CLOSED)})
    run.state.view.accepted[1000] = FilesOfClosedStep()
    run.redis.flushall()
    counting.reads = 0
    recovery.rebuild(run.state)
    assert counting.reads == few <= 40
    assert counting.listed_closed == 0, "no folder of all files is listed"
    assert {job.record.sha256 for job in run.state.queue.all()} == {waiting}
    assert Counter(record.status for record in run.state.leases.all()) == {"submitted": 2, "open": 1}


def test_a_store_of_an_earlier_release_is_read_once_and_nothing_of_it_is_lost(run: Orchestrator) -> None:
    run.announce(0)
    nodes = [run.join() for _ in range(3)]
    accepted, late, waiting = (run.hand_in(node) for node in nodes)
    jobs = {job.record.sha256: job.record for job in run.state.queue.all()}
    expire(run.state, jobs[late], "too late")
    for info in run.store.list(keys.WAITING) + run.store.list(keys.EXPIRED):
        run.store.delete(info.key)
    run.store.delete(keys.INDEXED)
    run.redis.flushall()
    progress = run_progress(run.restarted())
    assert (progress.files_pending, progress.files_expired) == (2, 1)
    assert {info.key.rpartition("/")[2] for info in run.store.list(keys.WAITING)} == {
        f"{file}.json" for file in (accepted, waiting)
    }
    counting = ReadCounter(run.folder / "store")
    run.state.store = counting
    recovery.rebuild(run.state)
    assert not counting.folders & {keys.VERDICTS, keys.SUBMISSIONS, keys.UPLOADS}


def test_a_concluded_file_waits_no_more_and_a_late_one_is_counted_by_its_name(run: Orchestrator) -> None:
    run.announce(0)
    nodes = [run.join(), run.join()]
    run.hand_in(nodes[0])
    run.hand_in(nodes[1])
    assert len(run.store.list(keys.WAITING)) == 2
    run.judge(verdict_on(run.claimed()))
    expire(run.state, run.state.queue.all()[0].record, "too late")
    assert run.store.list(keys.WAITING) == []
    assert len(run.store.list(keys.EXPIRED)) == 1


def test_a_file_whose_lease_was_bound_to_it_and_no_more_is_queued(run: Orchestrator) -> None:
    run.announce(0)
    node = run.join()
    file = run.hand_in(node)
    run.store.delete(keys.submission(node, file))  # the process ended before it
    run.lose_redis()
    assert {job.record.sha256 for job in run.state.queue.all()} == {file}
    assert run.store.exists(keys.submission(node, file))


def test_a_note_that_led_to_nothing_goes_after_an_hour_with_the_bytes_that_came(run: Orchestrator) -> None:
    run.clock.now = time.time()  # the store dates its objects by it
    run.announce(0)
    node = run.join()
    file = run.hand_in(node)
    lease = run.state.queue.all()[0].record.lease
    for key in (keys.submission(node, file), keys.lease_file(lease)):
        run.store.delete(key)
    run.redis.flushall()
    run.restarted()
    assert len(run.store.list(keys.WAITING)) == 1
    recovery.sweep_waiting(run.state)
    assert len(run.store.list(keys.WAITING)) == 1, "a notice may be repeated yet"
    run.clock.now += recovery.FORGOTTEN_SECONDS + 60
    recovery.sweep_waiting(run.state)
    assert run.store.list(keys.WAITING) == []
    assert run.store.list(keys.UPLOADS) == [], "nobody would find these bytes any more"


def old_note_without_its_file(run: Orchestrator) -> Lease:
    """A lease whose file was noted and uploaded an hour ago, and whose orchestrator ended there. The node's notice is to come again."""
    run.clock.now = time.time()
    run.announce(0)
    lease = run.lease(run.join())
    data = run.upload(lease)
    run.confirm(lease, data)
    for key in (keys.submission(lease.node, sha(data)), keys.lease_file(lease.lease)):
        run.store.delete(key)
    for info in run.store.list(keys.UPLOADS):
        run.store.delete(info.key)
    run.store.put(keys.staging(lease.node, lease.lease), data)
    run.redis.flushall()
    run.restarted()
    [note] = (run.folder / "store").rglob("waiting/**/*.json")
    hour_ago = run.clock.now - recovery.FORGOTTEN_SECONDS - 60
    os.utime(note, (hour_ago, hour_ago))
    return lease


def test_a_note_of_an_hour_ago_is_new_again_when_its_notice_is_repeated(
    run: Orchestrator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other orchestrator of a roll looks at old notes while this one promotes the bytes."""
    lease = old_note_without_its_file(run)
    other = run.new_state(run.open_store())
    other.ledger.load()
    promote = uploads._promote

    def promoted_while_the_other_looks(state: RunState, notice: SubmissionNotice) -> None:
        promote(state, notice)
        recovery.sweep_waiting(other)

    monkeypatch.setattr(uploads, "_promote", promoted_while_the_other_looks)
    assert run.confirm(lease, f"rollouts {lease.lease}".encode()).status == "queued"
    assert len(run.store.list(keys.UPLOADS)) == 1


def test_a_note_that_became_new_after_it_was_listed_is_left_alone(
    run: Orchestrator, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = old_note_without_its_file(run)
    listed = recovery._noted

    def listed_before_the_notice_came_again(state: RunState) -> list[recovery.WaitingFile]:
        found = listed(state)
        [info] = run.store.list(keys.WAITING)
        run.store.put(info.key, run.store.get(info.key))
        return found

    monkeypatch.setattr(recovery, "_noted", listed_before_the_notice_came_again)
    recovery.sweep_waiting(run.state)
    assert len(run.store.list(keys.WAITING)) == 1
    assert run.confirm(lease, f"rollouts {lease.lease}".encode()).status == "queued"


def test_old_notes_of_files_that_wait_for_their_verdict_stay(run: Orchestrator) -> None:
    run.clock.now = time.time()
    run.announce(0)
    for node in [run.join(), run.join()]:
        run.hand_in(node)
    judged = run.claimed()
    waiting = next(job.record for job in run.state.queue.all() if job.record.sha256 != judged.sha256)
    note = keys.waiting(0, judged.node, judged.sha256)
    data = run.store.get(note)
    run.judge(verdict_on(judged))
    run.store.create(note, data)  # a notice that was repeated was slower than the verdict
    run.clock.now += recovery.FORGOTTEN_SECONDS + 60
    recovery.sweep_waiting(run.state)
    assert [info.key for info in run.store.list(keys.WAITING)] == [keys.waiting(0, waiting.node, waiting.sha256)]
    assert len(run.store.list(keys.UPLOADS)) == 2
    assert [job.record for job in run.state.queue.all()] == [waiting]


def test_housekeeping_goes_on_while_the_state_is_rebuilt(run: Orchestrator, monkeypatch: pytest.MonkeyPatch) -> None:
    run.announce(0)
    held, rounds = threading.Event(), Counter[str]()
    real = recovery.rebuild

    def slow(state: object) -> None:
        rounds["rebuild"] += 1
        held.wait(20)
        real(run.state)

    def late(state: object) -> None:
        rounds["settle"] += 1

    monkeypatch.setattr(recovery, "rebuild", slow)
    monkeypatch.setattr(background, "settle_late", late)
    started = background.Background(run.state, SignedClient("http://127.0.0.1:1", run.role_keys["orchestrator"]))
    started.start()
    try:
        wait_until("housekeeping to begin", lambda: rounds["settle"] > 0)
        run.redis.set(f"{run.state.prefix}:{recovery.BUILT}", "the process before")
        started.wake()
        wait_until("a rebuild to begin", lambda: rounds["rebuild"] > 0)
        before = rounds["settle"]
        wait_until("housekeeping to go on", lambda: rounds["settle"] > before + 1)
    finally:
        held.set()
        started.stop()
