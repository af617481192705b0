"""What edits of the run, hostile members and objects that cannot be read do to the evaluation of versions: nothing to the run, little to it."""

import threading
from pathlib import Path

import pytest
from test_evaluation_work import SLICES, answer, asked, found, open_numbers, scored_run, scoring, train_file, train_step

from protocol_stack import sha, verdict_on
from run_states import Orchestrator
from servers import Redis
from shoal.contracts import keys
from shoal.contracts.evaluation import BestVersion
from shoal.contracts.problems import Refusal
from shoal.contracts.protocol import Lease, LeaseReturn, UploadRequest
from shoal.contracts.work import FIRST_SLICE
from shoal.orchestrator import background, progress, recovery
from shoal.orchestrator.completeness import complete
from shoal.orchestrator.evaluation import evaluations
from shoal.orchestrator.evaluation.credit import credit
from shoal.orchestrator.work import handout, uploads
from shoal.orchestrator.work.beacons import drawn_prompts
from shoal.orchestrator.work.lease_returns import take_back
from shoal.orchestrator.work.open_work import openable_steps
from shoal.orchestrator.work.uploads import find_verdict, largest_file
from shoal.storage.store import StoreUnavailable


@pytest.fixture
def rated(tmp_path: Path, redis_server: Redis) -> Orchestrator:
    """A run whose version 0 waits to be scored: one node has filled step 0."""
    return scored_run(tmp_path, redis_server.url)


@pytest.fixture
def first(rated: Orchestrator) -> str:
    node = rated.join()
    rated.announce(0)
    train_step(rated, node, 0)
    return node


def edited(run: Orchestrator, **changes: object) -> None:
    """The manifest is edited: the operator writes another run.json and the orchestrator starts anew."""
    run.config = run.config.model_copy(update=changes)
    run.restarted()


def give_back(run: Orchestrator, lease: Lease) -> None:
    take_back(run.state, LeaseReturn(node=lease.node, lease=lease.lease))


def test_edits_of_the_run_in_the_middle_of_an_evaluation_change_nothing_of_it(rated: Orchestrator, first: str) -> None:
    answer(rated, first, FIRST_SLICE)
    waiting = rated.lease(first, FIRST_SLICE + 1)
    data = rated.upload(waiting)
    assert rated.confirm(waiting, data).status == "queued"
    terms, limit = rated.state.plan.benchmarks, largest_file(rated.config, rated.state.plan.benchmarks)
    edited(
        rated,
        sampling=rated.config.sampling.model_copy(update={"groups_per_submission": 1, "max_completion_tokens": 32}),
        recipe=rated.config.recipe.model_copy(update={"group_size": 1}),
    )
    assert rated.state.plan.benchmarks == terms
    assert largest_file(rated.config, terms) == limit, "a slice's file is as large as before"
    assert rated.state.codec.decode(FIRST_SLICE).shape.max_completion_tokens == 64
    rated.lose_redis()
    rated.judge(scoring(rated.claimed()))
    evaluations.fold(rated.state)
    assert found(rated, 0).complete


def test_raising_the_steps_while_the_last_version_is_scored_stops_neither_restart_nor_judging(
    rated: Orchestrator, first: str
) -> None:
    for step in (1, 2):
        train_step(rated, first, step)
    number = rated.state.codec.numbers(3, "sums")[0]
    rated.hand_in(first, number)
    edited(rated, steps=5)
    assert not rated.state.plan.is_due(3)
    assert number not in open_numbers(rated)
    rated.lose_redis()
    background.settle_late(rated.state)
    rated.judge(scoring(rated.claimed()))
    assert number in rated.state.view.evaluated, "the work is paid"
    rated.lose_redis()
    evaluations.fold(rated.state)
    assert not rated.store.exists(keys.evaluation(3, "sums"))
    assert openable_steps(rated.state) == [3, 4]


def test_files_of_slices_may_be_as_large_as_they_were_after_the_run_s_own_became_smaller(
    rated: Orchestrator, first: str
) -> None:
    limit = largest_file(rated.config, rated.state.plan.benchmarks)
    edited(rated, recipe=rated.config.recipe.model_copy(update={"group_size": 1}))
    lease = rated.lease(first, FIRST_SLICE)
    request = UploadRequest(node=first, lease=lease.lease, size=limit, sha256=sha(b"large"))
    uploads.grant_upload(rated.state, request)
    assert rated.state.leases.require(lease.lease, first).size == limit
    with pytest.raises(Refusal, match="file-too-large"):
        uploads.grant_upload(rated.state, request.model_copy(update={"size": limit + 1}))


@pytest.mark.parametrize("by", ["claim", "settle_late", "verdict"])
def test_a_file_of_a_slice_that_is_not_known_any_more_expires(rated: Orchestrator, first: str, by: str) -> None:
    file = rated.hand_in(first, FIRST_SLICE)
    job = rated.claimed() if by == "verdict" else None
    edited(rated, evaluation=None)
    if by == "claim":
        rated.clock.now += 2
        assert rated.claim() is None
    elif by == "settle_late":
        background.settle_late(rated.state)
    else:
        assert job is not None
        rated.judge(scoring(job))
    verdict = find_verdict(rated.state, first, file)
    assert verdict is not None
    assert verdict.document.evidence == f"{FIRST_SLICE} is not a slice that this run knows"
    rated.restarted()
    assert rated.state.queue.size() == 0


def test_an_accepted_file_of_a_slice_that_is_not_known_any_more_does_not_stop_a_rebuild(
    rated: Orchestrator, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rated.hand_in(first, FIRST_SLICE)
    monkeypatch.setattr(rated.state.ledger, "append", lambda *_, **__: (_ for _ in ()).throw(StoreUnavailable("away")))
    with pytest.raises(StoreUnavailable):
        rated.judge(scoring(rated.claimed()))
    edited(rated, evaluation=None)
    assert FIRST_SLICE in rated.state.view.evaluated, "its node is paid all the same"


def test_asking_for_upload_grants_again_and_again_keeps_no_place(rated: Orchestrator, first: str) -> None:
    lease = rated.lease(first, FIRST_SLICE)
    request = UploadRequest(node=first, lease=lease.lease, size=4 << 10, sha256=sha(b"never uploaded"))
    rated.clock.now = lease.expires_unix - 1
    uploads.grant_upload(rated.state, request)
    held_until = rated.state.leases.require(lease.lease, first).lease.expires_unix
    assert held_until == pytest.approx(rated.clock.now + 60, abs=1), "one upload gets its time"
    for _ in range(3):
        rated.clock.now += 15
        rated.beat(first)
        assert uploads.grant_upload(rated.state, request).expires_unix <= held_until
    assert rated.state.leases.require(lease.lease, first).lease.expires_unix == held_until
    rated.clock.now = held_until + 1
    with pytest.raises(Refusal, match="lease-over"):
        uploads.grant_upload(rated.state, request)


@pytest.mark.parametrize("how", ["returned", "run out", "pushed out", "too old a version"])
def test_a_slice_that_a_node_gave_up_goes_to_another_and_comes_back_when_all_have_tried(
    rated: Orchestrator, first: str, how: str
) -> None:
    second = rated.join()
    train_file(rated, second, 1)
    lease = rated.lease(first, FIRST_SLICE)
    if how == "returned":
        give_back(rated, lease)
    elif how == "run out":
        rated.clock.now = lease.expires_unix + 1
        for node in (first, second):
            rated.beat(node)
    elif how == "pushed out":
        rated.clock.now += 1
        with pytest.raises(Refusal, match="lease-dropped"):
            rated.lease(first, 1)  # one lease more than a key on probation may hold drops the one before
    else:
        rated.confirm(lease, rated.upload(lease))
        rated.judge(verdict_on(rated.claimed(), "expired", evidence="another version"))
    with pytest.raises(Refusal, match="slice-under-way"):
        rated.lease_in_time(first, FIRST_SLICE)
    rated.state.redis.set(f"{rated.state.prefix}:evaluation-credit", "2")
    assert asked(rated, first, 0).step in (1, 2, FIRST_SLICE + 1)
    assert asked(rated, second, 0).step == FIRST_SLICE
    give_back(rated, rated.lease(second, FIRST_SLICE))
    assert rated.lease_in_time(first, FIRST_SLICE).step == FIRST_SLICE


def test_a_newcomer_that_only_heartbeats_keeps_no_slice_from_a_node_in_good_standing(
    rated: Orchestrator, first: str
) -> None:
    newcomer = rated.join()
    lease = rated.lease(first, FIRST_SLICE)
    rated.confirm(lease, rated.upload(lease))
    rated.judge(verdict_on(rated.claimed(), "expired", evidence="another version"))
    rated.beat(newcomer)
    rated.state.redis.set(f"{rated.state.prefix}:evaluation-credit", "2")
    assert asked(rated, first, 0).step == FIRST_SLICE
    assert rated.lease(first, FIRST_SLICE).step == FIRST_SLICE


def test_credit_is_neither_drained_nor_filled_by_taking_leases_and_handing_them_back(
    rated: Orchestrator, first: str
) -> None:
    rated.state.redis.set(f"{rated.state.prefix}:evaluation-credit", "1")
    assert handout.Look(rated.state, first).training_needs_work
    for ending in ("returned", "run out", "returned"):
        lease = rated.lease_in_time(first, FIRST_SLICE)
        assert credit(rated.state) == 0.0
        if ending == "returned":
            give_back(rated, lease)
            give_back(rated, lease)
        else:
            rated.clock.now = lease.expires_unix + 1
            rated.beat(first)
            handout.end_overdue_leases(rated.state)
        assert credit(rated.state) == 1.0, ending
    rated.state.redis.set(f"{rated.state.prefix}:evaluation-credit", "0")
    earned = []
    for _ in range(3):
        give_back(rated, rated.lease_in_time(first, 1))
        earned.append(credit(rated.state))
    assert earned == [1.0, 1.0, 1.0], "the same lease again earns nothing"


def spoilt(run: Orchestrator, number: int) -> None:
    """The verdict on a slice's accepted file is lost from the store."""
    file = run.state.view.evaluated[number]
    run.store.delete(keys.verdict(file.node, file.file))


def test_one_record_that_cannot_be_written_holds_up_neither_later_ones_nor_the_end(
    rated: Orchestrator, first: str
) -> None:
    for place in range(SLICES):
        answer(rated, first, FIRST_SLICE + place)
    spoilt(rated, FIRST_SLICE)
    evaluations.fold(rated.state)
    assert not rated.store.exists(keys.evaluation(0, "sums")), "it is not late yet"
    for step in (1, 2):
        train_step(rated, first, step)
    for number in rated.state.codec.numbers(3, "sums"):
        answer(rated, first, number)
    evaluations.fold(rated.state)
    assert found(rated, 3).complete
    assert (found(rated, 0).scores, found(rated, 0).slices_done) == (None, 0)
    assert BestVersion.from_json(rated.store.get(keys.BEST_VERSION)).version == 3
    assert complete(rated.state)
    assert complete(rated.restarted())


def test_versions_under_way_are_recorded_before_the_last_one_completes_the_run(rated: Orchestrator, first: str) -> None:
    train_step(rated, first, 1)
    answer(rated, first, rated.state.codec.numbers(2, "sums")[0])
    train_step(rated, first, 2)
    for number in rated.state.codec.numbers(3, "sums"):
        answer(rated, first, number)
    evaluations.fold(rated.state)
    assert complete(rated.state)
    assert (found(rated, 2).complete, found(rated, 2).slices_done) == (False, 1)


def test_a_store_that_takes_no_record_keeps_a_run_from_its_end_for_the_final_wait_only(
    rated: Orchestrator, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (1, 2):
        train_step(rated, first, step)

    def away(*_: object) -> bool:
        raise StoreUnavailable("the store did not answer")

    monkeypatch.setattr(rated.state.store, "create", away)
    rated.clock.now += 101
    evaluations.fold(rated.state)
    assert not complete(rated.state), "there is time to write what there is"
    rated.clock.now += 31
    assert progress.run_progress(rated.state).complete


def test_records_are_read_once_several_at_a_time_and_a_broken_one_is_passed_over(
    rated: Orchestrator, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in range(SLICES):
        answer(rated, first, FIRST_SLICE + place)
    evaluations.fold(rated.state)
    for version in range(2, 10, 2):
        made = found(rated, 0).model_copy(update={"version": version})
        rated.store.put(keys.evaluation(version, "sums"), made.to_json())
    rated.store.put(keys.evaluation(10, "sums"), b"{}")
    read, together = rated.store.get, threading.Barrier(4, timeout=20)
    seen: list[str] = []

    def slowly(key: str) -> bytes:
        seen.append(key)
        if key != keys.evaluation(10, "sums"):
            together.wait()  # passes when four are read at the same time
        return read(key)

    monkeypatch.setattr(rated.state.store, "get", slowly)
    evaluations.load(rated.state)
    assert sorted(version for version, _ in rated.state.evaluations) == [0, 2, 4, 6, 8]
    assert keys.evaluation(0, "sums") not in seen, "known already"
    monkeypatch.setattr(rated.state.store, "get", read)
    recovery.rebuild(rated.state)
    assert not hasattr(rated.state.evaluations[0, "sums"], "scores"), "lines of problems are not kept in memory"


def prompts(run: Orchestrator, number: int, node: str, submission: int) -> list[int]:
    return drawn_prompts(run.state, run.state.codec.decode(number), node, submission)


def test_the_draw_of_a_slice_is_the_same_whoever_answers_it(rated: Orchestrator, first: str) -> None:
    other = rated.join()
    assert prompts(rated, FIRST_SLICE, first, 0) == prompts(rated, FIRST_SLICE, other, 4)
    assert any(prompts(rated, 1, first, 0) != prompts(rated, 1, other, n) for n in range(4))
