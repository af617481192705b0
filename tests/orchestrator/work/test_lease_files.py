"""A lease hands in one file, whoever asks and whatever died in between: the store decides which."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from fragile_store import FragileStore, KilledError

from protocol_stack import GROUPS, ledger, sha, verdict_on
from run_states import Orchestrator
from servers import Redis
from shoal.contracts import keys
from shoal.contracts.problems import ProblemCode, Refusal
from shoal.contracts.protocol import Lease, LeaseReturn, SubmissionNotice, UploadRequest
from shoal.contracts.storage import Retention
from shoal.contracts.validation import Validation
from shoal.orchestrator import recovery
from shoal.orchestrator.retention import OldObjects
from shoal.orchestrator.verdicts.verdicts import expire
from shoal.orchestrator.work import uploads
from shoal.orchestrator.work.lease_returns import take_back


@pytest.mark.parametrize("at", [keys.LEASE_FILES, keys.SUBMISSIONS])
def test_two_orchestrators_that_are_given_two_files_of_one_lease_take_one(
    tmp_path: Path, redis_server: Redis, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    """The second file is handed in whole, elsewhere, while the first is about to be noted: at either of the two writes that do it."""
    run = Orchestrator(tmp_path, redis_server.url)
    run.announce(0)
    node = run.join()
    other = run.new_state()
    other.ledger.load()
    lease = run.lease(node)
    unbound = run.state.leases.require(lease.lease, node)
    first, second = run.upload(lease), b"other rollouts of the same prompts"
    notice = SubmissionNotice(node=node, lease=lease.lease, size=len(second), sha256=sha(second), groups=GROUPS)
    create, refusals = run.store.create, []

    def interrupted(key: str, data: bytes) -> bool:
        if not key.startswith(at):
            return create(key, data)
        monkeypatch.undo()
        other.leases.put(unbound)  # read before the first was written: no lock of one process holds in the other
        run.store.put(keys.staging(node, lease.lease), second)
        try:
            assert uploads.submit(other, notice).status == "queued"
        except Refusal as problem:
            refusals.append(problem)
        return create(key, data)

    monkeypatch.setattr(run.store, "create", interrupted)
    if at == keys.LEASE_FILES:
        with pytest.raises(Refusal, match=r"lease-for-another-file: .* one lease is good for one file"):
            run.confirm(lease, first)
        assert refusals == []
        taken = sha(second)
    else:
        assert run.confirm(lease, first).status == "queued"
        assert [refusal.code for refusal in refusals] == ["lease-for-another-file"]
        taken = sha(first)
    assert [info.key for info in run.store.list(keys.SUBMISSIONS)] == [keys.submission(node, taken)]
    job = run.claimed()
    assert job.sha256 == taken
    assert run.claim() is None
    run.judge(verdict_on(job))
    assert [entry.digest for entry in ledger(run.store) if entry.kind == "accepted"] == [taken]


@pytest.fixture
def of_two_leases(
    tmp_path: Path, redis_server: Redis, monkeypatch: pytest.MonkeyPatch
) -> tuple[Orchestrator, Lease, Lease, str]:
    """A node handed in the same bytes for leases of steps 0 and 1 at once, and step 1 took them; and their digest."""
    run = Orchestrator(tmp_path, redis_server.url, validation=Validation(claim_seconds=60, probation_files=0))
    run.announce(0)
    node = run.join()
    old, young = run.lease(node, 0), run.lease(node, 1)
    data = run.upload(young)
    request = UploadRequest(node=node, lease=old.lease, size=len(data), sha256=sha(data))
    uploads.grant_upload(run.state, request)
    run.store.put(keys.staging(node, old.lease), data)
    other, create = run.new_state(), run.store.create
    other.ledger.load()

    def interrupted(key: str, written: bytes) -> bool:
        if key.startswith(keys.SUBMISSIONS):
            monkeypatch.undo()
            assert run.confirm(young, data, other).status == "queued"
        return create(key, written)

    monkeypatch.setattr(run.store, "create", interrupted)
    with pytest.raises(Refusal, match=f"submitted-before: .* lease {young.lease}"):
        run.confirm(old, data)
    return run, old, young, sha(data)


def test_bytes_that_two_leases_brought_at_once_are_kept_with_the_one_that_they_count_for(
    of_two_leases: tuple[Orchestrator, Lease, Lease, str],
) -> None:
    run, old, young, file = of_two_leases
    run.judge(verdict_on(run.claimed()))
    assert [info.key for info in run.store.list(keys.WAITING)] == [keys.waiting(0, old.node, file)]
    recovery.rebuild(run.state)
    assert run.store.list(keys.WAITING) == [], "the note of the refused lease went too"
    collector = OldObjects(run.state)
    collector._policy = Retention(keep="Verify")
    collector._collect(keys.lease(0, old.node, old.submission))
    kept = [keys.upload(young.node, file), keys.submission(young.node, file), keys.lease_file(young.lease)]
    assert [run.store.exists(key) for key in [*kept, keys.lease_file(old.lease)]] == [True, True, True, False]
    collector._collect(keys.lease(1, young.node, young.submission))
    assert [run.store.exists(key) for key in kept] == [False, False, False]


def test_bytes_of_a_late_file_that_is_gone_are_not_taken_for_another_lease(tmp_path: Path, redis_server: Redis) -> None:
    run = Orchestrator(tmp_path, redis_server.url, validation=Validation(claim_seconds=60, probation_files=0))
    run.announce(0)
    node = run.join()
    late, lease = run.lease(node, 0), run.lease(node, 1)
    data = run.upload(late)
    run.confirm(late, data)
    expire(run.state, run.state.queue.all()[0].record, "too late")
    OldObjects(run.state)._collect(keys.lease(0, node, 0))
    assert not run.store.exists(keys.submission(node, sha(data)))
    uploads.grant_upload(run.state, UploadRequest(node=node, lease=lease.lease, size=len(data), sha256=sha(data)))
    run.store.put(keys.staging(node, lease.lease), data)
    with pytest.raises(Refusal, match=f"submitted-before: .* lease {late.lease}"):
        run.confirm(lease, data)
    assert run.store.list(keys.UPLOADS) == []
    assert run.claim() is None


def test_a_lease_that_was_bound_by_an_orchestrator_that_died_then_is_not_stuck(
    tmp_path: Path, redis_server: Redis
) -> None:
    """The worker does not come back with its file: it makes others for the same prompts."""
    run = Orchestrator(tmp_path, redis_server.url)
    run.announce(0)
    node = run.join()
    store = FragileStore(tmp_path / "store")
    run.store = store
    run.restarted(store)
    lease = run.lease(node)
    data = run.upload(lease)
    store.kill_at = (
        store.writes + 5,
        "before",
    )  # its note, the file's final name, the note again, the lease, the submission
    with pytest.raises(KilledError):
        run.confirm(lease, data)
    store.kill_at = None
    assert store.exists(keys.lease_file(lease.lease))
    run.redis.flushall()
    run.restarted(store)
    assert run.claimed().sha256 == sha(data), "what was begun is finished"
    other = b"other rollouts"
    with pytest.raises(Refusal, match="already-submitted"):
        uploads.grant_upload(run.state, UploadRequest(node=node, lease=lease.lease, size=len(other), sha256=sha(other)))
    assert run.lease_in_time(node).submission == 1


@pytest.fixture
def run(tmp_path: Path, redis_server: Redis) -> Orchestrator:
    """No key is on probation, so that each may hold two leases."""
    made = Orchestrator(tmp_path, redis_server.url, validation=Validation(claim_seconds=60, probation_files=0))
    made.announce(0)
    return made


def test_a_file_keeps_its_note_when_the_same_bytes_are_refused_for_another_lease(
    run: Orchestrator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both leases are of one step, so that their notes have one key."""
    node = run.join()
    given_back, taken = run.lease(node), run.lease(node)
    data = run.upload(taken)
    uploads.grant_upload(run.state, UploadRequest(node=node, lease=given_back.lease, size=len(data), sha256=sha(data)))
    run.store.put(keys.staging(node, given_back.lease), data)
    promote = run.store.copy_if_absent

    def interrupted(source: str, target: str) -> bool:
        """The other lease is refused between the note of this one and its promotion."""
        monkeypatch.undo()
        monkeypatch.setattr(run.store, "sha256", handed_back)
        with pytest.raises(Refusal, match="lease-over"):
            run.confirm(given_back, data)
        return promote(source, target)

    def handed_back(key: str) -> tuple[str, int]:
        monkeypatch.undo()
        take_back(run.state, LeaseReturn(node=node, lease=given_back.lease))
        return run.store.sha256(key)

    monkeypatch.setattr(run.store, "copy_if_absent", interrupted)
    assert run.confirm(taken, data).status == "queued"
    assert [info.key for info in run.store.list(keys.WAITING)] == [keys.waiting(0, node, sha(data))]
    run.redis.flushall()
    run.restarted()
    assert run.claimed().sha256 == sha(data)


def test_a_confirmation_of_nothing_writes_nothing_and_nobody_waits_for_it(
    run: Orchestrator, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = run.lease(run.join())
    store, asked = run.store, list[str]()

    def counted(name: str) -> None:
        real = getattr(store, name)

        def call(*arguments: object) -> object:
            asked.append(name)
            assert not run.state.lease_lock.locked()
            return real(*arguments)

        monkeypatch.setattr(store, name, call)

    for name in ("create", "put", "delete", "copy_if_absent", "sha256", "size"):
        counted(name)
    with pytest.raises(Refusal, match="nothing-uploaded"):
        run.confirm(lease, b"never uploaded")
    assert asked == ["size", "size"], "two looks, at staging and at the file"


def test_other_nodes_do_not_wait_while_refused_bytes_are_deleted_and_each_counts(
    run: Orchestrator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "FILES_AN_HOUR", 2)
    node = run.join()
    lease = run.lease(node)
    data = run.upload(lease)
    run.store.put(keys.staging(node, lease.lease), bytes(len(data)))
    delete, locked = run.store.delete, list[bool]()

    def looked_at(key: str) -> None:
        locked.append(run.state.lease_lock.locked())
        delete(key)

    monkeypatch.setattr(run.store, "delete", looked_at)
    with pytest.raises(Refusal, match="wrong-digest"):
        run.confirm(lease, data)
    assert locked == [False, False, False]
    assert run.store.list(keys.WAITING) == run.store.list(keys.UPLOADS) == []
    with pytest.raises(Refusal, match="quota-leased"):
        run.lease(node)


def test_of_forty_confirmations_of_one_upload_one_hashes_it(run: Orchestrator, monkeypatch: pytest.MonkeyPatch) -> None:
    lease = run.lease(run.join())
    data = run.upload(lease)
    hashed, hashes, told = run.store.sha256, list[str](), list[Refusal]()
    begun, go_on = threading.Event(), threading.Event()

    def slow(key: str) -> tuple[str, int]:
        hashes.append(key)
        begun.set()
        assert go_on.wait(30)
        return hashed(key)

    monkeypatch.setattr(run.store, "sha256", slow)
    with ThreadPoolExecutor(1) as thread:
        first = thread.submit(run.confirm, lease, data)
        assert begun.wait(30)
        for _ in range(39):
            with pytest.raises(Refusal) as refused:
                run.confirm(lease, data)
            told.append(refused.value)
        go_on.set()
        assert first.result(30).status == "queued"
    assert len(hashes) == 1
    assert {(each.code, each.retry_after_seconds) for each in told} == {(ProblemCode.RECORD_BUSY, 1)}
    assert run.confirm(lease, data).status == "queued", "who comes again has the receipt"


def test_beyond_its_files_of_an_hour_a_node_has_no_bytes_looked_at(
    run: Orchestrator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "FILES_AN_HOUR", 3)
    node = run.join()
    lease = run.lease(node)
    data = run.upload(lease)
    for _ in range(3):
        run.store.put(keys.staging(node, lease.lease), bytes(len(data)))
        with pytest.raises(Refusal, match="wrong-digest"):
            run.confirm(lease, data)
    run.store.put(keys.staging(node, lease.lease), data)
    monkeypatch.setattr(run.store, "sha256", lambda key: pytest.fail("it is hashed"))
    with pytest.raises(Refusal, match="quota-used"):
        run.confirm(lease, data)
