"""What of past steps is deleted, and what never is: a real store, real Redis, and the orchestrator's own work on them."""

from collections.abc import Callable
from pathlib import Path

import pytest
from fragile_store import FragileStore, KilledError

from protocol_stack import verdict_on
from run_states import Orchestrator
from servers import Redis
from shoal.contracts import keys
from shoal.contracts.signed import sign
from shoal.contracts.storage import Retention, StorageSpec
from shoal.orchestrator.progress import run_progress
from shoal.orchestrator.retention import YOUNG_SECONDS, OldObjects
from shoal.orchestrator.verdicts.verdicts import expire, record_verdict

NewRun = Callable[[str], Orchestrator]
AUDITED = (keys.LEDGER, keys.VERDICTS, keys.BEACONS, keys.STEPS, keys.OPINIONS)


@pytest.fixture
def new_run(tmp_path: Path, redis_server: Redis) -> NewRun:
    """A run with steps 0 to 2 sealed and step 3 open, of which step 0 has a late file as well."""

    def made(keep: str) -> Orchestrator:
        storage = StorageSpec(retention=Retention.model_validate({"keep": keep, "steps": 2}))
        run = Orchestrator(tmp_path, redis_server.url, storage=storage, steps=5)
        run.announce(0)
        nodes = [run.join() for _ in range(3)]
        for step in range(3):
            run.hand_in(nodes[0], step)
            run.hand_in(nodes[1], step)
            if step == 0:
                run.lease(nodes[2])
            run.judge(verdict_on(run.claimed()))
            if step == 0:
                late = run.hand_in(nodes[0])
                record = next(job.record for job in run.state.queue.all() if job.record.sha256 == late)
                expire(run.state, record, "too late")
            run.judge(verdict_on(run.claimed()))
            run.announce(step + 1)
        run.hand_in(nodes[2], 3)
        assert sorted(run.state.view.sealed) == [0, 1, 2]
        run.clock.now += YOUNG_SECONDS + 10**8  # the store dates its objects by the machine's clock
        return run

    return made


def collect(run: Orchestrator) -> None:
    old = OldObjects(run.state)
    old.look()
    old.turn()


def names(run: Orchestrator) -> set[str]:
    of_files = (keys.LEASES, keys.LEASE_FILES, keys.UPLOADS, keys.SUBMISSIONS, keys.WAITING, keys.EXPIRED)
    return {info.key for folder in (*of_files, *AUDITED) for info in run.store.list(folder)}


def test_by_default_leases_and_late_files_go_and_all_that_an_audit_reads_stays(new_run: NewRun) -> None:
    run = new_run("Audit")
    before = names(run)
    collect(run)
    gone = before - names(run)
    count = {
        folder: sum(key.startswith(folder) for key in gone) for folder in {key.split("/")[0] + "/" for key in gone}
    }
    assert count == {keys.LEASES: 4, keys.LEASE_FILES: 3, keys.UPLOADS: 1, keys.SUBMISSIONS: 1}
    assert all(key.startswith(f"{keys.LEASES}000000/") for key in gone if key.startswith(keys.LEASES))
    assert all(run.store.exists(keys.upload(*name)) for name in run.state.view.settled)
    progress = run_progress(run.restarted())
    assert (progress.files_accepted, progress.files_expired, progress.files_pending) == (6, 1, 1)
    collect(run)
    assert before - names(run) == gone, "nothing is left to do"


def test_files_go_with_verify_once_no_training_state_needs_them_and_verdicts_stay(new_run: NewRun) -> None:
    run = new_run("Verify")
    before = names(run)
    collect(run)
    assert names(run) == before, "without a training state the trainer may need every step"
    run.store.put(f"{keys.trainer_state(0)}state.json", b"{}")
    collect(run)
    assert names(run) == before, "a trainer that begins at version 0 trains step 0"
    run.store.delete(f"{keys.trainer_state(0)}state.json")
    run.store.put(f"{keys.trainer_state(2)}state.json", b"{}")
    collect(run)
    gone = before - names(run)
    assert sum(key.startswith(keys.UPLOADS) for key in gone) == 3
    assert not [key for key in gone if key.startswith(AUDITED)]


def test_nothing_goes_where_everything_is_to_stay_and_nothing_young(new_run: NewRun) -> None:
    run = new_run("Everything")
    before = names(run)
    collect(run)
    assert names(run) == before


def test_nothing_young_goes_and_a_file_whose_verdict_is_not_concluded_stays(new_run: NewRun) -> None:
    run = new_run("Audit")
    before = names(run)
    [mark] = run.store.list(keys.EXPIRED)
    run.store.delete(mark.key)
    run.store.put(mark.key.replace(keys.EXPIRED, f"{keys.WAITING}000000/"), b"{}")  # the last that is concluded
    now = run.clock.now
    run.clock.now = 0.0
    collect(run)
    assert len(before - names(run)) == 1, "the mark that this test took away"
    run.clock.now = now
    collect(run)
    assert not [key for key in before - names(run) if key.startswith(keys.UPLOADS)]


def test_a_file_that_was_accepted_too_late_is_marked_and_goes_even_where_it_was_not_marked(new_run: NewRun) -> None:
    run = new_run("Audit")
    job = run.claimed()
    name = (job.node, job.sha256)
    before = run.state.files_expired
    run.state.view.sealed[3] = "ab" * 32
    for _ in range(2):
        record_verdict(run.state, sign(verdict_on(job), run.role_keys["validator"]))
    assert run.store.exists(keys.expired(*name))
    assert name not in run.state.view.settled
    assert run.state.files_expired == before + 1
    run.store.delete(keys.expired(*name))  # as orchestrators of before left it
    OldObjects(run.state)._collect(keys.lease(3, job.node, 0))
    assert run.store.exists(keys.expired(*name))
    assert not run.store.exists(keys.upload(*name))


@pytest.mark.parametrize("write", [1, 3, 6])
def test_a_collection_that_was_killed_anywhere_is_finished_by_the_next(
    new_run: NewRun, write: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.orchestrator.retention.in_parallel", lambda do, names: [do(name) for name in names])
    run = new_run("Audit")
    store = FragileStore(run.folder / "store")
    run.state.store = store
    before = names(run)
    store.kill_at = (write, "after")
    with pytest.raises(KilledError):
        collect(run)
    store.kill_at = None
    collect(run)
    gone = before - names(run)
    assert len([key for key in gone if key.startswith(keys.LEASES)]) == 4
    assert len([key for key in gone if key.startswith(keys.UPLOADS)]) == 1
