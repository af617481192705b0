"""The loop: every step once, in order; no stop, not even kill -9, changes what was handed over; no wait without a word."""

import hashlib
import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tiny_run import Home, Orchestrator, config, fill_step, kill_all, make_store, make_trainer, write_base

from bad_minutes import store_away
from changed_keys import RunKeys
from samples import ROLE_KEYS, RUN, RUN_KEY
from servers import Loopback
from shoal.contracts import keys
from shoal.contracts.signed import Signed, sign
from shoal.contracts.steps import StepMetrics
from shoal.contracts.trust import KeysNotice
from shoal.contracts.verdicts import Verdict
from shoal.storage import Store
from shoal.training.loop import Trainer
from shoal.training.state import MadeVersion

STEPS = 3
WRITES = ("put", "put_file", "create")


class Killed(BaseException):
    """As kill -9: nothing of the trainer runs after it."""


class DyingStore:
    """A real store whose `at`-th write, and all later ones, kill the trainer before they happen."""

    def __init__(self, store: Store, at: int) -> None:
        self._store = store
        self._left = at

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if name not in WRITES:
            return found

        def write(*arguments: Any) -> Any:
            if self._left == 0:
                raise Killed
            self._left -= 1
            return found(*arguments)

        return write


@pytest.fixture(scope="module")
def orchestrator(loopback: Loopback) -> Iterator[Orchestrator]:
    server = Orchestrator(loopback.address())
    yield server
    server.close()


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return write_base(tmp_path / "base")


def full_store(root: Path) -> Store:
    store = make_store(root)
    for step in range(STEPS):
        fill_step(store, step)
    return store


def trainer(folder: Path, base: Path, store: Any, orchestrator: Orchestrator) -> Trainer:
    orchestrator.latest_version = STEPS
    return make_trainer(folder, base, store, orchestrator, config(orchestrator.url, STEPS))


def outcome(store: Store, outbox: Path) -> dict[str, Any]:
    """What a run leaves, without its clock times: digests of the last state, weights in the outbox, the reports."""
    found: dict[str, Any] = {
        path.parent.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(outbox.glob("v*/model.safetensors"))
    }
    if store.exists(state := keys.trainer_state(STEPS) + "rank-00000.tensors"):
        found["state"] = hashlib.sha256(store.get(state)).hexdigest()
    for step in range(STEPS):
        report = StepMetrics.from_json(store.get(keys.step_metrics(step)))
        found[f"step {step}"] = report.model_dump(exclude={"started_unix", "finished_unix", "phase_seconds"})
    return found


@pytest.fixture
def undisturbed(tmp_path: Path, base: Path, orchestrator: Orchestrator) -> dict[str, Any]:
    store = full_store(tmp_path / "undisturbed" / "store")
    trainer(tmp_path / "undisturbed", base, store, orchestrator).run()
    return outcome(store, tmp_path / "undisturbed" / "outbox")


def test_each_step_makes_a_version_a_state_and_a_report(
    tmp_path: Path, base: Path, orchestrator: Orchestrator, undisturbed: dict[str, Any]
) -> None:
    assert {f"v{version:06d}" for version in range(STEPS + 1)} <= undisturbed.keys()
    assert len({undisturbed[f"v{version:06d}"] for version in range(STEPS + 1)}) == STEPS + 1
    report = undisturbed["step 2"]
    assert report["policy_version"] == 3
    assert report["rows"] == 16
    assert report["task_reward"] == 0.5
    assert report["reward"] == pytest.approx(report["task_reward"] - report["length_penalty"])
    assert report["policy_lag_mean"] == report["policy_lag_max"] == 1
    assert report["skipped_updates"] == 0
    assert report["gradient_norm_max"] >= report["gradient_norm"] > 0
    assert report["kl"] > 0
    assert 0 < report["packing_density"] <= 1
    phases = [said.phase for said in orchestrator.told if said.step == 2]
    assert {"wait", "read", "old_logprobs", "reference_logprobs", "update", "save"} <= set(phases)
    assert orchestrator.told[-1].metrics is not None
    assert orchestrator.told[-1].metrics.step == 2


def in_the_world(store: Store, outbox: Path) -> dict[str, bytes]:
    """What no later attempt may change: weights that were handed over, reports that were written."""
    found = {path.parent.name: path.read_bytes() for path in outbox.glob("v*/model.safetensors")}
    return found | {
        f"step {step}": store.get(key) for step in range(STEPS) if store.exists(key := keys.step_metrics(step))
    }


def require_nothing_trained_twice(store: Store, outbox: Path, undisturbed: dict[str, Any]) -> None:
    """Every version and report is there; up to the first resume with an older state they are those of an undisturbed run, bit for bit."""
    found, exact = outcome(store, outbox), True
    for step in range(STEPS):
        report = StepMetrics.from_json(store.get(keys.step_metrics(step)))
        exact = exact and report.moments_of is None
        assert (report.policy_version, report.rows) == (step + 1, 16)
        assert report.moments_of is None or report.moments_of < step
        if exact:
            assert found[f"step {step}"] == undisturbed[f"step {step}"]
            assert found[keys.version_name(step + 1)] == undisturbed[keys.version_name(step + 1)]
    assert found.keys() | {"state"} == undisturbed.keys()
    note = MadeVersion.from_json(store.get(keys.made_version(STEPS)))
    assert note.updates == 2 * STEPS, "warm-up counts the updates of every step once"
    assert [point.version for point in note.history.points] == list(range(1, STEPS + 1))


def test_a_stop_before_any_write_makes_no_version_a_second_time(
    tmp_path: Path, base: Path, orchestrator: Orchestrator, undisturbed: dict[str, Any]
) -> None:
    store, stops, before = full_store(tmp_path / "store"), 0, dict[str, bytes]()
    while True:  # each attempt gets two writes further than nothing at all, and a new process's memory
        attempt = trainer(tmp_path, base, DyingStore(store, at=2 + stops % 4), orchestrator)
        try:
            attempt.run()
            break
        except Killed:
            stops += 1
            assert stops < 40
        finally:
            for background in (attempt._handover, attempt._saving):
                assert background.settle(30)  # threads do not die with an attempt in this process
            after = in_the_world(store, tmp_path / "outbox")
            assert before.items() <= after.items()
            before = after
    assert stops >= 5
    require_nothing_trained_twice(store, tmp_path / "outbox", undisturbed)


def test_a_run_that_is_trained_already_only_waits_for_its_last_version(
    tmp_path: Path, base: Path, orchestrator: Orchestrator
) -> None:
    store = full_store(tmp_path / "store")
    trainer(tmp_path, base, store, orchestrator).run()
    before = [(info.key, info.modified_unix) for info in store.list("trainer/")]
    trainer(tmp_path, base, store, orchestrator).run()
    assert [(info.key, info.modified_unix) for info in store.list("trainer/")] == before


def test_a_version_that_is_sealed_in_the_store_is_not_handed_over_again(
    tmp_path: Path, base: Path, orchestrator: Orchestrator
) -> None:
    store = full_store(tmp_path / "store")
    store.put(keys.version_weights(0), b"{}")
    trainer(tmp_path, base, store, orchestrator).run()
    assert not (tmp_path / "outbox" / "v000000").exists()
    assert (tmp_path / "outbox" / "v000001").is_dir()


def test_a_missing_batch_is_waited_for_and_so_is_a_store_that_went_away(
    tmp_path: Path, base: Path, orchestrator: Orchestrator, deadline: Callable[..., object]
) -> None:
    root = tmp_path / "store"
    store = make_store(root)
    fill_step(store, 0)
    running = trainer(tmp_path, base, store, orchestrator)
    thread = threading.Thread(target=running.run)
    thread.start()
    deadline("step 0 to be trained", lambda: running.version == 1, seconds=60)
    with store_away(root):
        orchestrator.told.clear()
        assert thread.is_alive()
    fill_step(store, 1)
    fill_step(store, 2)
    thread.join(timeout=60)
    assert not thread.is_alive()
    assert running.version == STEPS


def test_an_orchestrator_that_is_away_does_not_hold_up_training(
    tmp_path: Path, base: Path, loopback: Loopback, monkeypatch: pytest.MonkeyPatch
) -> None:
    from shoal.training import progress

    monkeypatch.setattr(progress, "TELL_DEADLINE_SECONDS", 0.01)
    gone = Orchestrator(loopback.address())
    gone.close()
    store = full_store(tmp_path / "store")
    running = trainer(tmp_path, base, store, gone)
    running.resume()
    running.train_step(0)
    assert running.version == 1


@pytest.mark.timeout(900)  # of waits on a busy machine; half a minute of work
def test_a_process_killed_at_random_moments_and_started_again_makes_every_version_once(
    tmp_path: Path,
    base: Path,
    loopback: Loopback,
    orchestrator: Orchestrator,
    deadline: Callable[..., object],
    undisturbed: dict[str, Any],
) -> None:
    home = Home(tmp_path / "home", base, loopback.address(), orchestrator.url, STEPS)
    for step in range(STEPS):
        fill_step(home.store, step)
    orchestrator.latest_version = STEPS
    seed = random.randrange(1 << 30)
    chance = random.Random(seed)
    moments: list[tuple[str, Callable[[], bool]]] = [
        ("the first state being uploaded", lambda: any(home.store.local_path(keys.trainer_state(0)[:-1]).glob("*"))),
        ("state 1 being uploaded", lambda: bool(home.store.list(keys.trainer_state(1)))),
        ("version 2 to be handed over, which is before its state", lambda: (home.outbox / "v000002").is_dir()),
    ]
    in_the_way = home.store.local_path(keys.trainer_state(2).rstrip("/"))
    before = dict[str, bytes]()
    for what, there in moments:
        resumes = home.log.read_text().count("resumed") if home.log.exists() else 0
        process = home.start()
        try:
            if "version 2" in what:
                deadline("a resume", lambda there=resumes: home.log.read_text().count("resumed") > there, seconds=120)
                in_the_way.write_bytes(b"")  # the store takes no state 2: no object can be put below a file
            deadline(what, lambda there=there: there() or process.poll() is not None, seconds=120, interval=0.001)
            time.sleep(chance.random() * 0.03)
        finally:
            kill_all(process)
        after = in_the_world(home.store, home.outbox)
        assert before.items() <= after.items()
        before = after
    in_the_way.unlink()
    last = home.start()
    try:
        assert last.wait(timeout=150) == 0, home.log.read_text()[-4000:]
    finally:
        kill_all(last)
    assert before.items() <= in_the_world(home.store, home.outbox).items(), f"seed {seed}"
    require_nothing_trained_twice(home.store, home.outbox, undisturbed)
    report = StepMetrics.from_json(home.store.get(keys.step_metrics(2)))
    assert report.moments_of in (0, 1), "the last step began with version 2 and an older state"
    assert "resumed from published weights with an older state" in home.log.read_text()


def test_verdicts_of_a_key_that_the_trainer_does_not_know_yet_are_no_bad_data(
    tmp_path: Path, base: Path, loopback: Loopback
) -> None:
    server = Orchestrator(loopback.address())
    home = Home(tmp_path / "home", base, loopback.address(), server.url, 1)
    batch = fill_step(home.store, 0)
    changed = RunKeys(RUN, RUN_KEY, dict(ROLE_KEYS))
    server.notice = KeysNotice(roster=changed.change("validator", time.time()))
    server.latest_version = 1
    for file in batch.files:  # sealed before the trainer asks for the first time
        place = keys.verdict(file.node, file.sha256)
        verdict = Signed[Verdict].from_json(home.store.get(place)).document
        home.store.put(place, sign(verdict, changed.roles["validator"]).to_json())
    process = home.start()
    try:
        assert process.wait(timeout=150) == 0, home.log.read_text()[-4000:]
    finally:
        kill_all(process)
        server.close()
    report = StepMetrics.from_json(home.store.get(keys.step_metrics(0)))
    assert (report.rows_left_out, report.rows) == (0, sum(file.rows for file in batch.files))
