"""A lease hands in one file, whoever asks and whatever died in between: the store decides which."""

from pathlib import Path

import pytest
from fragile_store import FragileStore, KilledError

from protocol_stack import GROUPS, ledger, sha, verdict_on
from run_states import Orchestrator
from servers import Redis
from shoal.contracts import keys
from shoal.contracts.problems import Refusal
from shoal.contracts.protocol import SubmissionNotice, UploadRequest
from shoal.orchestrator.work import uploads


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
    store.kill_at = (store.writes + 4, "before")  # the file's final name, its note, the lease, the submission
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
