"""Bad days: Redis flushed, the orchestrator killed between any two writes, two orchestrators at once. Nothing is lost or counted twice."""

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
from fastapi.testclient import TestClient
from fragile_store import FragileStore, KilledError

from bad_minutes import store_away
from ledger_samples import altered, fact
from protocol_stack import NEEDED, Node, Stack, ledger, post, verdict_on
from run_states import Orchestrator
from servers import Redis, wait_until
from shoal.contracts import keys
from shoal.contracts.protocol import RunProgress, ValidationJob
from shoal.contracts.run import RunConfig
from shoal.contracts.signed import Signed, sign
from shoal.contracts.steps import StepBatch
from shoal.contracts.validation import Validation
from shoal.contracts.verdicts import Verdict
from shoal.crypto.canonical import document_digest
from shoal.crypto.keys import PrivateKey
from shoal.ledger.chain import BrokenChain
from shoal.ledger.entries import LedgerEntry
from shoal.ledger.writer import LedgerWriter
from shoal.orchestrator import recovery
from shoal.orchestrator.background import Background
from shoal.orchestrator.http.service import make_app
from shoal.orchestrator.progress import run_progress
from shoal.orchestrator.verdicts import verdicts
from shoal.orchestrator.verdicts.verdicts import expire
from shoal.orchestrator.work.open_work import open_step
from shoal.storage import ObjectInfo
from shoal.storage.store import open_folder
from shoal.transport import SignedClient
from shoal.transport.redis_access import RedisNonces, connect_async


@pytest.fixture
def run(tmp_path: Path, redis_server: Redis) -> Orchestrator:
    return Orchestrator(tmp_path, redis_server.url)


def summary(progress: RunProgress) -> dict[str, object]:
    """What must not change when only memory was lost."""
    return progress.model_dump(exclude={"nodes", "trainer_phase"})


def test_the_size_of_the_newest_version_is_told_and_known_again_after_a_restart(
    run: Orchestrator, tmp_path: Path
) -> None:
    assert run_progress(run.state).version_bytes is None
    run.announce(0)
    assert run_progress(run.state).version_bytes == 1
    for before, after in ((None, 1), (7, 7)):
        run.state.version_bytes = before
        if before is not None:
            run.store.put(keys.version_open(0), b"{}")
        recovery.rebuild(run.state)
        assert run_progress(run.state).version_bytes == after


def settled(entries: list[SimpleNamespace]) -> Counter[tuple[str | None, str | None]]:
    return Counter((e.node, e.digest) for e in entries if e.kind in ("accepted", "rejected"))


def test_a_flushed_redis_is_rebuilt_and_everything_goes_on(run: Orchestrator) -> None:
    run.announce(0)
    nodes = [run.join() for _ in range(3)]
    accepted = run.hand_in(nodes[0])
    run.judge(verdict_on(run.claimed()))
    waiting = run.hand_in(nodes[1])
    under_way = run.lease(nodes[2])
    before = summary(run_progress(run.state))

    run.lose_redis()

    assert summary(run_progress(run.state)) == before
    assert {job.record.sha256 for job in run.state.queue.all()} == {waiting}
    assert accepted != waiting
    data = run.upload(under_way)  # the worker never noticed
    assert run.confirm(under_way, data).status == "queued"
    assert run.lease(nodes[0]).submission == 1, "a submission number is never given twice"
    run.judge(verdict_on(run.claimed()))
    assert run.claim() is None, "the step is sealed: the third file came too late"
    assert StepBatch.from_json(run.store.get(keys.step_batch(0))).groups == NEEDED
    progress = run_progress(run.state)
    assert (progress.files_accepted, progress.files_expired, progress.files_pending) == (2, 1, 0)
    assert max(settled(ledger(run.store)).values()) == 1


def test_a_restarted_orchestrator_answers_nothing_before_it_has_read_its_own_state(run: Orchestrator) -> None:
    """Redis still says what the process before built; what that one held in memory is not there yet."""
    run.announce(0)
    late = run.join()
    run.hand_in(late)
    expire(run.state, run.state.queue.all()[0].record, "too late")
    fresh = run.new_state()
    fresh.ledger.load()
    signed = SignedClient("http://127.0.0.1:1", run.role_keys["orchestrator"])
    nonces = RedisNonces(connect_async(run.config.addresses.redis), fresh.prefix)
    # Without its lifespan nothing runs in the background.
    client = TestClient(make_app(fresh, Background(fresh, signed), nonces, run.folder))
    early = client.get("/v1/run")
    assert (early.status_code, early.json()["type"]) == (503, "urn:shoal:problem:state-rebuilding")
    assert client.get("/readyz").status_code == 503
    recovery.rebuild(fresh)
    assert client.get("/v1/run").json()["files_expired"] == 1
    assert client.get("/readyz").status_code == 200


def test_redis_flushed_under_a_running_orchestrator(new_stack: Callable[..., Stack]) -> None:
    stack = new_stack()
    nodes = [Node(stack).join(), Node(stack).join()]
    stack.announce(0)
    nodes[0].hand_in(0)
    stack.client().flushall()
    nodes[1].hand_in(0)
    for _ in range(2):
        job = stack.claim()
        assert job is not None
        stack.client().flushall()
        stack.judge(verdict_on(job))
    wait_until("step 0 to be sealed", lambda: stack.store.exists(keys.step_batch(0)))
    progress = stack.progress()
    assert (progress.files_accepted, progress.files_pending) == (2, 0)


def test_a_killed_orchestrator_goes_on_where_it_was(new_stack: Callable[..., Stack]) -> None:
    stack = new_stack()
    node = Node(stack).join()
    stack.announce(0)
    node.hand_in(0)
    before = summary(stack.progress())
    stack.orchestrator.kill()
    stack.orchestrator.start()
    wait_until("the orchestrator to know its state", lambda: summary(stack.progress()) == before)
    assert stack.progress().nodes == {"Healthy": 1}
    job = stack.claim()
    assert job is not None
    stack.judge(verdict_on(job))
    assert stack.progress().files_accepted == 1


def test_the_store_away_for_some_seconds_only_costs_time(new_stack: Callable[..., Stack]) -> None:
    stack = new_stack()
    node = Node(stack).join()
    stack.announce(0)
    lease = node.lease(0)
    with ThreadPoolExecutor(1) as worker:
        with store_away(stack.folder / "store"):
            handed_in = worker.submit(
                lambda: (post(node.grant(lease, b"rollouts"), b"rollouts"), node.confirm(lease, b"rollouts"))
            )
            wait_until(
                "the orchestrator to notice",
                lambda: b"store away" in (stack.folder / "orchestrator" / "log").read_bytes(),
            )
            assert stack.progress().files_pending == 0, "what needs no store is answered meanwhile"
        uploaded, receipt = handed_in.result(timeout=40)
    assert (uploaded.status_code, receipt.status) == (204, "queued")
    assert stack.progress().files_pending == 1
    log = (stack.folder / "orchestrator" / "log").read_bytes()
    assert log.count(b"rebuilt the state") == 1, "at its start, and not for one request that failed"


def submit_and_settle(
    run: Orchestrator, node: str, verdict_of: Callable[[ValidationJob], Verdict] = verdict_on
) -> None:
    """The writes that matter: a submission, its acceptance, and the seal of the step."""
    run.hand_in(node)
    run.judge(verdict_of(run.claimed()))


def count_writes(tmp_path: Path, redis_url: str) -> int:
    (tmp_path / "count").mkdir()
    run, store, node = almost_full(tmp_path / "count", redis_url)
    before = store.writes
    submit_and_settle(run, node)
    return store.writes - before


def almost_full(folder: Path, redis_url: str) -> tuple[Orchestrator, FragileStore, str]:
    """A run whose step 0 lacks one file, and the node that will hand it in."""
    run = Orchestrator(folder, redis_url)
    first, second = run.join(), run.join()
    run.announce(0)
    run.hand_in(first)
    run.judge(verdict_on(run.claimed()))
    store = FragileStore(folder / "store")
    run.store = store
    run.restarted(store)
    return run, store, second


def test_killed_at_any_write_nothing_is_lost_or_counted_twice(tmp_path: Path, redis_server: Redis) -> None:
    writes = count_writes(tmp_path, redis_server.url)
    assert writes >= 8, "lease, lease's file, submission, verdict, ledger, batch, ledger, staging"
    for number in range(1, writes + 1):
        for moment in ("before", "after"):
            folder = tmp_path / f"{number}-{moment}"
            folder.mkdir()
            run, store, node = almost_full(folder, redis_server.url)
            store.kill_at = (store.writes + number, moment)
            with pytest.raises(KilledError):
                submit_and_settle(run, node)
            if number % 2:
                run.redis.flushall()
            store.kill_at = None
            run.restarted(store)
            finish(run, node)
            check_books(run)


def finish(run: Orchestrator, node: str, verdict_of: Callable[[ValidationJob], Verdict] = verdict_on) -> None:
    """What node and validator do by themselves: hand in again what was not confirmed, and check what waits."""
    if open_step(run.state) == 0:
        open_leases = [record.lease for record in run.state.leases.all() if record.lease.node == node]
        if not open_leases:
            run.hand_in(node)
        elif all(record.status == "open" for record in run.state.leases.all() if record.lease.node == node):
            run.confirm(open_leases[0], run.upload(open_leases[0]))
    while (job := run.claim()) is not None:
        run.judge(verdict_of(job))
    run.clock.now += 2  # a claim of the killed time ends
    while (job := run.claim()) is not None:
        run.judge(verdict_of(job))


def check_books(run: Orchestrator) -> None:
    entries = ledger(run.store)
    assert sorted(settled(entries).values()) == [1, 1]
    assert [entry.step for entry in entries if entry.kind == "batch-sealed"] == [0]
    batch = StepBatch.from_json(run.store.get(keys.step_batch(0)))
    assert (batch.groups, len(batch.files)) == (NEEDED, 2)
    progress = run_progress(run.state)
    assert (progress.files_accepted, progress.files_pending, progress.groups_accepted_total) == (2, 0, 4)
    assert len(run.store.list(keys.UPLOADS)) == 2


def test_a_second_verdict_changes_nothing(run: Orchestrator) -> None:
    run.announce(0)
    run.hand_in(run.join())
    job = run.claimed()
    run.judge(verdict_on(job))
    before = len(ledger(run.store))
    run.judge(verdict_on(job))
    run.judge(verdict_on(job, "reject", "format"))
    assert len(ledger(run.store)) == before
    assert run_progress(run.state).files_accepted == 1


def test_an_accept_that_the_ledger_did_not_take_before_the_seal_has_no_entry_after_it(run: Orchestrator) -> None:
    late, other = run.join(), run.join()
    run.announce(0)
    run.hand_in(late)
    verdict = sign(verdict_on(run.claimed()), run.role_keys["validator"])
    key = keys.verdict(late, verdict.document.sha256)
    run.store.create(key, verdict.to_json())  # and then the store was away
    while not run.state.view.sealed:
        run.hand_in(other)
        run.judge(verdict_on(run.claimed()))
    verdicts.receive(run.state, verdict)
    assert run.state.queue.size() == 0
    run.restarted()
    assert {node for node, _ in settled(ledger(run.store))} == {other}
    assert run_progress(run.state).files_pending == 0


def test_an_evicted_node_stays_evicted_when_redis_is_lost(run: Orchestrator) -> None:
    run.announce(0)
    node = run.join()
    run.hand_in(node)
    run.judge(verdict_on(run.claimed(), "reject", "sampling"))
    run.lose_redis()
    with pytest.raises(Exception, match=r"^evicted: "):
        run.beat(node)
    with pytest.raises(Exception, match=r"^evicted: "):
        run.beat(node, run.invite(node))


def test_evict_is_not_for_files_that_were_rejected_before_it(tmp_path: Path, redis_server: Redis) -> None:
    run = Orchestrator(tmp_path, redis_server.url, validation=Validation(probation_files=0, slashing="Discard"))
    run.announce(0)
    before, after = run.join(), run.join()
    rejected(run, before)
    run.config = with_slashing(run.config, "Evict")
    run.restarted()
    assert run.state.view.evicted == set()
    assert run.beat(before) == "Healthy"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verdicts, "evict", killed)
        with pytest.raises(RuntimeError, match="killed"):
            rejected(run, after)
    for note in run.store.list(keys.WAITING):  # by which the verdict would be concluded
        run.store.delete(note.key)
    run.config = with_slashing(run.config, "Evict", probation_files=5)
    run.restarted()
    assert run.state.view.evicted == {after}, "other terms that say Evict forgive nothing"


def with_slashing(config: RunConfig, slashing: str, **further: int) -> RunConfig:
    validation = config.validation.model_copy(update={"slashing": slashing, **further})
    return config.model_copy(update={"validation": validation})


def rejected(run: Orchestrator, node: str) -> None:
    run.hand_in(node)
    run.judge(verdict_on(run.claimed(), "reject", "reward", evidence="row 0"))


def killed(*_: object) -> None:
    raise RuntimeError("killed")


def test_an_opinion_outlives_redis(run: Orchestrator) -> None:
    run.announce(0)
    run.hand_in(run.join())
    run.judge(verdict_on(run.claimed(), "reject", "computation", evidence="first"))
    run.lose_redis()
    assert [len(job.opinions) for job in run.state.queue.all()] == [1]
    run.judge(verdict_on(run.claimed("validator-1"), "reject", "computation", evidence="second"))
    assert run_progress(run.state).reject_reasons == {"computation": 1}


def test_expired_files_are_counted_again_after_a_restart(run: Orchestrator) -> None:
    run.announce(0)
    run.hand_in(run.join())
    record = run.state.queue.all()[0].record
    verdicts.expire(run.state, record, "too late")
    verdicts.expire(run.state, record, "too late")
    assert run_progress(run.state).files_expired == 1
    assert run_progress(run.restarted()).files_expired == 1


def test_rebuilding_twice_changes_nothing(run: Orchestrator) -> None:
    run.announce(0)
    run.hand_in(run.join())
    before = (summary(run_progress(run.state)), len(ledger(run.store)))
    recovery.rebuild(run.state)
    recovery.rebuild(run.state)
    assert (summary(run_progress(run.state)), len(ledger(run.store))) == before


# The ledger


def writers(tmp_path: Path, count: int) -> list[LedgerWriter]:
    (tmp_path / "ledger").mkdir()
    key = PrivateKey.generate()
    store = open_folder(tmp_path / "ledger", "shoal/tiny", deadline_seconds=5)
    return [LedgerWriter(store, "tiny", key) for _ in range(count)]


def test_racing_writers_make_one_unbroken_chain_and_record_each_fact_once(tmp_path: Path) -> None:
    racing = writers(tmp_path, 4)
    nodes = [PrivateKey.generate().public for _ in range(25)]

    def work(writer: LedgerWriter) -> None:
        for number, node in enumerate(nodes):
            writer.append(fact("accepted", node=node, step=number, submission=0, digest="a" * 64, tokens=1, groups=1))
            writer.append(fact("node-dead", node=node))

    threads = [threading.Thread(target=work, args=(writer,)) for writer in racing]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    reader = writers_reader(racing[0])
    assert reader.view.files_accepted == 25
    assert reader.view.next_number == 25 + 4 * 25
    for writer in racing:
        writer.catch_up()
        assert writer.view.head == reader.view.head


def writers_reader(writer: LedgerWriter) -> LedgerWriter:
    reader = LedgerWriter(writer.store, "tiny", writer.key)
    reader.load()
    return reader


def test_entries_that_a_list_lacks_are_read_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder is listed in no order: what another orchestrator writes meanwhile may be missing before a later entry."""
    writer = writers(tmp_path, 1)[0]
    for step in range(4):
        writer.append(fact("beacon-committed", step=step, digest="b" * 64))
    whole = writer.store.list

    def with_a_gap(prefix: str) -> list[ObjectInfo]:
        return [info for info in whole(prefix) if info.key not in (keys.ledger_entry(0), keys.ledger_entry(2))]

    monkeypatch.setattr(writer.store, "list", with_a_gap)
    reader = LedgerWriter(writer.store, "tiny", writer.key)
    reader.load()
    assert reader.view.head == writer.view.head


def test_a_list_with_what_is_no_entry_is_refused_by_name(tmp_path: Path) -> None:
    writer = writers(tmp_path, 1)[0]
    writer.append(fact("beacon-committed", step=0, digest="b" * 64))
    writer.store.put(f"{keys.LEDGER}1.json", b"{}")
    with pytest.raises(BrokenChain, match=r"ledger/1\.json is no entry of a ledger: move it away"):
        LedgerWriter(writer.store, "tiny", writer.key).load()


def test_a_changed_entry_breaks_the_chain(tmp_path: Path) -> None:
    writer = writers(tmp_path, 1)[0]
    store, key = writer.store, writer.key
    for step in range(3):
        writer.append(fact("beacon-committed", step=step, digest="b" * 64))
    signed = Signed[LedgerEntry].from_json(store.get(keys.ledger_entry(1)))
    assert signed.document.previous == document_digest(
        Signed[LedgerEntry].from_json(store.get(keys.ledger_entry(0))).document
    )
    forged = signed.model_copy(update={"document": altered(signed.document, step=9)})
    store.put(keys.ledger_entry(1), forged.to_json())
    with pytest.raises(BrokenChain, match="ledger entry 1 is not one that this run's orchestrator signed"):
        LedgerWriter(store, "tiny", key).load()
    store.delete(keys.ledger_entry(1))
    with pytest.raises(BrokenChain, match="ledger entry 1 is not there, and later ones are"):
        LedgerWriter(store, "tiny", key).load()
