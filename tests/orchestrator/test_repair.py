"""An error of the store or of Redis at any write: what failed is repaired, nothing else is read, and nothing is lost or counted twice."""

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from fragile_store import FragileRedis, FragileStore
from redis import RedisError
from test_recovery import check_books, finish, submit_and_settle

from bad_minutes import store_away
from protocol_stack import sha, verdict_on
from run_states import Orchestrator
from servers import Redis, wait_until
from shoal.contracts import keys
from shoal.contracts.answers import FileAnswers
from shoal.contracts.problems import Refusal
from shoal.contracts.protocol import HandedPart, SubmissionNotice, ValidationJob
from shoal.contracts.settings import Rollouts
from shoal.contracts.signed import sign
from shoal.contracts.validation import Validation
from shoal.contracts.verdicts import Verdict
from shoal.orchestrator import background, recovery
from shoal.orchestrator.doubts import FileInDoubt, LeasesInDoubt
from shoal.orchestrator.nodes import admin
from shoal.orchestrator.run_state import RunState
from shoal.orchestrator.verdicts import verdicts
from shoal.orchestrator.work import uploads
from shoal.orchestrator.work.records import LeaseRecord
from shoal.storage import StoreUnavailable
from shoal.transport import SignedClient

MOST_READS = 12
"""Of a repair, whatever the run's size: two listings, the ledger's next entry; verdict, submission, lease and note of one file, some twice."""
NOBODY = FileInDoubt(0, "a" * 64, "b" * 64)


class Broken:
    """A run whose step 0 lacks one file, over a store and a Redis that fail at a write."""

    def __init__(self, folder: Path, redis_url: str) -> None:
        folder.mkdir()
        self.run = run = Orchestrator(folder, redis_url)
        run.clock.now = time.time()  # the store dates its objects by it
        first, self.node = run.join(), run.join()
        run.announce(0)
        run.hand_in(first)
        run.judge(verdict_on(run.claimed()))
        self.store, self.redis = FragileStore(folder / "store"), FragileRedis.from_url(redis_url, decode_responses=True)
        self.store.failure = StoreUnavailable("away")
        run.store, run.redis = self.store, self.redis
        run.restarted(self.store)
        record = run.state.nodes.get(self.node)
        assert record is not None
        run.state.nodes.change(record, room=1.0, program_seconds=100.0, program_seconds_unix=run.clock())

    def fail_at(self, peer: str, write: int, moment: str) -> None:
        if peer == "store":
            self.store.kill_at = (self.store.writes + write, moment)
        else:
            self.redis.fail_at = (self.redis.writes + write, moment)

    def is_whole(self) -> None:
        self.store.kill_at = self.redis.fail_at = None


def telling(job: ValidationJob) -> Verdict:
    """An accept of which everything is noted that an accept can say."""
    answers = FileAnswers(rows=4, right=2, cut=0, unscorable=0, groups=2, groups_right=0, groups_wrong=0)
    verdict: Verdict = verdict_on(job).model_copy(update={"program_seconds": 40.0, "answers": answers})
    return verdict


class Noted(NamedTuple):
    """What an accepted file counts for, beside the ledger."""

    room: float
    program_seconds: float
    file_times: int
    answered_groups: int


def noted(state: RunState, node: str) -> Noted:
    record = state.nodes.get(node)
    assert record is not None
    times = int(state.redis.llen(f"{state.prefix}:file-seconds"))
    return Noted(record.room, record.program_seconds, times, state.answers.groups)


def noted_once(folder: Path, url: str) -> Noted:
    whole = Broken(folder, url)
    submit_and_settle(whole.run, whole.node, telling)
    return noted(whole.run.state, whole.node)


def what_is_known(state: RunState) -> tuple[object, ...]:
    """What a rebuild would make from the store: leases of open steps, queue and nodes."""
    leases = [each for each in state.leases.all() if each.lease.step not in state.view.sealed]
    return (
        Counter((each.lease.node, each.lease.submission, each.status) for each in leases),
        {each.name for each in state.queue.all()},
        {each.node: each.state for each in state.nodes.all()},
        {info.key for info in state.store.list(keys.WAITING)},
        state.answers.groups,
    )


def failures(folder: Path, url: str) -> Iterator[tuple[str, int, str]]:
    whole = Broken(folder, url)
    before = (whole.store.writes, whole.redis.writes)
    submit_and_settle(whole.run, whole.node, telling)
    counts = {"store": whole.store.writes - before[0], "redis": whole.redis.writes - before[1]}
    assert counts["store"] >= 10
    assert counts["redis"] >= 6
    for peer, count in counts.items():
        for write in range(1, count + 1):
            for moment in ("before", "after"):
                yield peer, write, moment


def test_after_an_error_at_any_write_only_its_file_is_read_again(tmp_path: Path, redis_server: Redis) -> None:
    for peer, write, moment in list(failures(tmp_path / "whole", redis_server.url)):
        name = f"{peer}-{write}-{moment}"
        broken = Broken(tmp_path / name, redis_server.url)
        run = broken.run
        broken.fail_at(peer, write, moment)
        with pytest.raises((StoreUnavailable, RedisError)):
            submit_and_settle(run, broken.node, telling)
        broken.is_whole()
        before = broken.store.reads
        assert not recovery.must_rebuild(run.state)
        recovery.repair(run.state)
        assert broken.store.reads - before <= MOST_READS, name
        repaired = what_is_known(run.state)
        run.redis.flushall()
        recovery.rebuild(run.state)
        assert repaired == what_is_known(run.state), name
        finish(run, broken.node)
        check_books(run)


def test_after_an_error_at_any_write_the_node_goes_on_without_a_rebuild(tmp_path: Path, redis_server: Redis) -> None:
    once = noted_once(tmp_path / "once", redis_server.url)
    for peer, write, moment in list(failures(tmp_path / "whole", redis_server.url)):
        name = f"{peer}-{write}-{moment}"
        broken = Broken(tmp_path / name, redis_server.url)
        broken.fail_at(peer, write, moment)
        with pytest.raises((StoreUnavailable, RedisError)):
            submit_and_settle(broken.run, broken.node, telling)
        broken.is_whole()
        recovery.repair(broken.run.state)
        finish(broken.run, broken.node, telling)
        check_books(broken.run)
        found = noted(broken.run.state, broken.node)
        assert found.answered_groups == once.answered_groups, name
        assert found.room <= once.room, name
        assert found.file_times <= once.file_times, name
        assert found.program_seconds > 0.999 * once.program_seconds, name  # they fade while `finish` waits two seconds
        if (peer, moment) == ("store", "before"):
            assert (found.room, found.file_times) == (once.room, once.file_times), name


def test_an_accept_counts_once_however_often_its_entry_cannot_be_written(
    tmp_path: Path, redis_server: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    once = noted_once(tmp_path / "once", redis_server.url)
    broken = Broken(tmp_path / "run", redis_server.url)
    run, state = broken.run, broken.run.state
    run.hand_in(broken.node)
    verdict = telling(run.claimed())

    def away(_: object) -> None:
        raise StoreUnavailable("writes fail")

    with monkeypatch.context() as patched:
        patched.setattr(state.ledger, "append", away)
        with pytest.raises(StoreUnavailable):
            run.judge(verdict)
        for _ in range(3):
            with pytest.raises(StoreUnavailable):
                recovery.repair(state)
    recovery.repair(state)
    assert noted(state, broken.node) == once


def test_an_accept_that_another_orchestrator_concluded_meanwhile_counts_once(
    tmp_path: Path, redis_server: Redis
) -> None:
    once = noted_once(tmp_path / "once", redis_server.url)
    broken = Broken(tmp_path / "run", redis_server.url)
    run = broken.run
    other = run.new_state(run.open_store())
    other.ledger.load()
    run.hand_in(broken.node)
    verdict = telling(run.claimed())
    broken.fail_at("store", 2, "before")  # the verdict is there, its entry in the ledger is not
    with pytest.raises(StoreUnavailable):
        run.judge(verdict)
    broken.is_whole()
    verdicts.receive(other, sign(verdict, run.role_keys["validator"]))
    assert noted(other, broken.node)[:3] == once[:3]
    recovery.repair(run.state)
    assert noted(run.state, broken.node)[:3] == once[:3]
    check_books(run)


def test_what_cannot_be_repaired_yet_stays_in_doubt(tmp_path: Path, redis_server: Redis) -> None:
    broken = Broken(tmp_path / "run", redis_server.url)
    run = broken.run
    broken.fail_at("redis", 2, "before")  # the lease is in the store, and not in Redis
    with pytest.raises(RedisError):
        run.lease(broken.node)
    broken.is_whole()
    for _ in range(2):
        with store_away(run.folder / "store"), pytest.raises(StoreUnavailable):
            recovery.repair(run.state)
    assert {each.lease.node for each in run.state.leases.all()} != {broken.node}
    recovery.repair(run.state)
    assert [each.status for each in run.state.leases.all() if each.lease.node == broken.node] == ["open"]
    before = broken.store.reads
    recovery.repair(run.state)
    assert broken.store.reads == before, "nothing is in doubt any more"


def test_one_part_that_cannot_be_read_does_not_keep_others_from_repair(tmp_path: Path, redis_server: Redis) -> None:
    broken = Broken(tmp_path / "run", redis_server.url)
    run = broken.run
    run.store.put(keys.verdict(NOBODY.node, NOBODY.sha256), b"no verdict")
    broken.fail_at("redis", 2, "before")
    with pytest.raises(RedisError):
        run.lease(broken.node)
    broken.is_whole()
    run.state.doubts.add([NOBODY])
    with pytest.raises(ValueError, match="Verdict"):
        recovery.repair(run.state)
    assert [each.status for each in run.state.leases.all() if each.lease.node == broken.node] == ["open"]
    assert run.state.doubts.taken() == [NOBODY]


@pytest.mark.parametrize("bad", [1, 3])
def test_objects_that_the_store_never_gives_do_not_hold_up_others(
    tmp_path: Path, redis_server: Redis, monkeypatch: pytest.MonkeyPatch, bad: int
) -> None:
    broken = Broken(tmp_path / "run", redis_server.url)
    state = broken.run.state
    refused = [FileInDoubt(0, NOBODY.node, f"{number}" * 64) for number in range(bad)]
    names = {keys.verdict(each.node, each.sha256) for each in refused}
    get = broken.store.get

    def archived(key: str) -> bytes:
        if key in names:
            raise StoreUnavailable("archived")
        return get(key)

    monkeypatch.setattr(broken.store, "get", archived)
    state.doubts.add([*refused, *(LeasesInDoubt(0, f"{number:064x}") for number in range(20))])
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            recovery.repair(state)
    left = state.doubts.taken()
    assert sorted(left, key=str) == sorted(refused, key=str)


def test_a_verdict_on_a_file_that_nobody_knows_leaves_nothing_in_doubt(tmp_path: Path, redis_server: Redis) -> None:
    broken = Broken(tmp_path / "run", redis_server.url)
    run = broken.run
    run.hand_in(broken.node)
    invented = telling(run.claimed()).model_copy(update={"step": 77, "sha256": "b" * 64})
    with store_away(run.folder / "store"), pytest.raises(StoreUnavailable):
        run.judge(invented)
    assert run.state.doubts.taken() == []


class Parted:
    """A part of a lease whose file is in the store, and Redis does not know yet that its lease has it."""

    def __init__(self, folder: Path, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        validation = Validation(claim_seconds=1, probation_files=0, slashing="Discard")
        self.run = run = Orchestrator(
            folder, redis_url, validation=validation, rollouts=Rollouts(hand_in_every_seconds=60)
        )
        run.announce(0)
        self.lease = lease = run.lease(run.join())
        data = run.upload(lease)
        part = HandedPart(groups=[0], keep=False)
        notice = SubmissionNotice(
            node=lease.node, lease=lease.lease, size=len(data), sha256=sha(data), groups=1, part=part
        )
        put = run.state.leases.put

        def fails(record: LeaseRecord) -> None:
            if record.status == "submitted":
                raise RedisError("away")
            put(record)

        with monkeypatch.context() as patched:
            patched.setattr(run.state.leases, "put", fails)
            with pytest.raises(RedisError):
                uploads.submit(run.state, notice)
        assert self.status == "open"

    @property
    def status(self) -> str | None:
        record = self.run.state.leases.get(self.lease.lease)
        return record.status if record is not None else None


def test_a_verdict_during_a_repair_leaves_no_job_and_frees_what_it_rejects(
    tmp_path: Path, redis_server: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    parted = Parted(tmp_path, redis_server.url, monkeypatch)
    run, queued = parted.run, recovery._restore_queue
    judging: list[threading.Thread] = []

    def and_judged(state: RunState, waiting: Sequence[recovery.WaitingFile], *, serving: bool = False) -> None:
        queued(state, waiting, serving=serving)
        verdict = verdict_on(run.claimed(), "reject", "format")
        judging.append(threading.Thread(target=run.judge, args=(verdict,)))
        judging[0].start()
        judging[0].join(timeout=0.5)

    monkeypatch.setattr(recovery, "_restore_queue", and_judged)
    recovery.repair(run.state)
    judging[0].join(timeout=10)
    assert run.state.queue.size() == 0
    assert parted.status == "abandoned", "its groups are offered to others"


def test_a_verdict_before_a_repair_frees_what_it_rejects(
    tmp_path: Path, redis_server: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    parted = Parted(tmp_path, redis_server.url, monkeypatch)
    run = parted.run
    other = run.new_state()
    other.ledger.load()
    waiting = [recovery.WaitingFile(info.key, _name(info.key), 0.0) for info in run.store.list(keys.WAITING)]
    recovery._restore_queue(other, waiting)
    verdict = verdict_on(run.claimed(), "reject", "format")
    verdicts.receive(other, sign(verdict, run.role_keys["validator"]))
    assert parted.status == "open"
    recovery.repair(run.state)
    assert parted.status == "abandoned", "its groups are offered to others"


def _name(key: str) -> tuple[str, str]:
    _, _, node, file = key.split("/")
    return node, file.removesuffix(".json")


def test_leases_of_a_closed_step_are_not_brought_back(tmp_path: Path, redis_server: Redis) -> None:
    broken = Broken(tmp_path / "run", redis_server.url)
    run = broken.run
    submit_and_settle(run, broken.node)
    for each in run.state.leases.all():
        run.state.leases.forget(each.lease)
    run.state.doubts.add([LeasesInDoubt(0, broken.node)])
    recovery.repair(run.state)
    assert run.state.leases.all() == []


def test_a_ban_that_stopped_behind_the_ledger_ends(tmp_path: Path, redis_server: Redis) -> None:
    broken = Broken(tmp_path / "run", redis_server.url)
    run = broken.run
    run.lease(broken.node)
    broken.fail_at("redis", 1, "before")
    with pytest.raises(RedisError):
        admin.ban(run.state, broken.node, "it lies")
    broken.is_whole()
    recovery.repair(run.state)
    record = run.state.nodes.get(broken.node)
    assert record is not None
    assert record.state == "Banned"
    assert [each.status for each in run.state.leases.all() if each.lease.node == broken.node] == ["abandoned"]
    with pytest.raises(Refusal, match="is banned"):
        run.beat(broken.node)


def test_a_node_whose_admission_stopped_behind_the_ledger_is_admitted(tmp_path: Path, redis_server: Redis) -> None:
    broken = Broken(tmp_path / "run", redis_server.url)
    run = broken.run
    broken.fail_at("redis", 1, "before")
    node = "c" * 64
    with pytest.raises(RedisError):
        run.beat(node, run.invite(node))
    broken.is_whole()
    recovery.repair(run.state)
    assert run.beat(node) == "Healthy"


def test_a_redis_of_another_process_is_filled_again(tmp_path: Path, redis_server: Redis) -> None:
    """It writes its file once a second: a write of the last second is gone, though it was answered, and everything else is there."""
    run = Orchestrator(tmp_path, redis_server.url)
    run.announce(0)
    lease = run.lease(run.join())
    built = f"{run.state.prefix}:{recovery.BUILT}"
    assert run.redis.get(built) == run.redis.info("server")["run_id"]
    run.redis.delete(f"{run.state.prefix}:leases")
    run.redis.set(built, "the process before")
    assert recovery.is_built(run.state), "requests are answered meanwhile"
    assert recovery.must_rebuild(run.state)
    recovery.rebuild(run.state)
    assert [each.lease for each in run.state.leases.all()] == [lease]
    assert not recovery.must_rebuild(run.state)


def test_a_redis_that_does_not_name_its_process_is_filled_by_what_it_has(
    tmp_path: Path, redis_server: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Orchestrator(tmp_path, redis_server.url)
    monkeypatch.setattr(run.redis, "info", lambda _: {"redis_version": "7"})
    assert not recovery.must_rebuild(run.state)
    run.redis.flushall()
    assert recovery.must_rebuild(run.state)
    recovery.rebuild(run.state)
    assert not recovery.must_rebuild(run.state)


def test_a_proxy_that_answers_from_many_processes_causes_one_rebuild_a_minute(
    tmp_path: Path, redis_server: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Orchestrator(tmp_path, redis_server.url)
    told = iter(range(100))
    monkeypatch.setattr(run.redis, "info", lambda _: {"run_id": f"process {next(told)}"})
    assert recovery.must_rebuild(run.state)
    recovery.rebuild(run.state)
    assert not recovery.must_rebuild(run.state)
    run.clock.now += recovery.PROCESS_SECONDS
    assert recovery.must_rebuild(run.state)
    recovery.rebuild(run.state)
    assert not recovery.must_rebuild(run.state)


@pytest.fixture
def started(tmp_path: Path, redis_server: Redis) -> Iterator[Callable[[], tuple[Broken, background.Background]]]:
    running: list[background.Background] = []

    def start() -> tuple[Broken, background.Background]:
        broken = Broken(tmp_path / "run", redis_server.url)
        signed = SignedClient("http://127.0.0.1:1", broken.run.role_keys["orchestrator"])
        running.append(background.Background(broken.run.state, signed))
        running[0].start()
        return broken, running[0]

    yield start
    for each in running:
        each.stop()


def test_the_background_repairs_what_failed_and_rebuilds_nothing(
    started: Callable[[], tuple[Broken, background.Background]], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken, running = started()
    monkeypatch.setattr(recovery, "rebuild", lambda _: pytest.fail("everything is read again"))
    run = broken.run
    lease = run.lease(broken.node)
    data = run.upload(lease)
    queued = run.state.queue.add

    def fails_once(*_: object) -> None:
        monkeypatch.setattr(run.state.queue, "add", queued)
        raise RedisError("away")

    monkeypatch.setattr(run.state.queue, "add", fails_once)
    with pytest.raises(RedisError):
        run.confirm(lease, data)
    running.wake()
    wait_until("the file to be queued", lambda: run.state.queue.size() == 1)


def test_the_background_removes_what_was_left_of_an_upload_more_than_a_day_ago(
    started: Callable[[], tuple[Broken, background.Background]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SHOAL_HOME", str(tmp_path / "run"))
    monkeypatch.setattr(background, "SWEEP_ROUNDS", 1)
    broken, _ = started()
    folder = broken.run.store.local_path(keys.trainer_state(1) + "state.json").parent
    folder.mkdir(parents=True)
    young, old = folder / "rank-00000.tensors#1", folder / "rank-00001.tensors#1"
    for path, age in ((young, background.UNFINISHED_SECONDS - 60.0), (old, background.UNFINISHED_SECONDS + 60.0)):
        made = folder / "made"
        made.touch()
        os.utime(made, (broken.run.clock.now - age,) * 2)
        made.rename(path)
    wait_until("the old one to be gone", lambda: not old.exists())
    assert young.exists()
