"""Steps that are not like the others: going back to an earlier version, pausing, leaving out what is bad, weighing by the sampling version."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from structlog.testing import capture_logs
from test_loop import DyingStore, Killed
from tiny_run import (
    Orchestrator,
    accept,
    accept_bytes,
    batch_of,
    config,
    fill_step,
    make_store,
    make_trainer,
    publish,
    recipe,
    rows_of,
    write_base,
)

from servers import Loopback
from shoal import telemetry
from shoal.contracts import keys
from shoal.contracts.failures import FailurePolicy, RollBack, Stability
from shoal.contracts.run import RunConfig
from shoal.contracts.steps import StepMetrics
from shoal.contracts.trainer import Lora, TrainerSettings
from shoal.storage import Store
from shoal.training import stability
from shoal.training.batches import group_relative, plan_of_run
from shoal.training.loop import Trainer
from shoal.training.retention import delete_shards
from shoal.training.rollouts import BadBatch
from shoal.training.stability import History, Incident
from shoal.training.state import BadState, SealedState

STEPS = 4


@pytest.fixture(scope="module")
def orchestrator(loopback: Loopback) -> Iterator[Orchestrator]:
    server = Orchestrator(loopback.address())
    server.latest_version = STEPS
    yield server
    server.close()


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return write_base(tmp_path / "base")


class Pod:
    """A pod's folders, its run, and a store with every batch in it."""

    def __init__(self, root: Path, base: Path, orchestrator: Orchestrator, **changes: Any) -> None:
        self.root, self.base, self.orchestrator = root, base, orchestrator
        self.run = config(orchestrator.url, STEPS, **changes)
        self.store = make_store(root / "store")
        for step in range(STEPS):
            fill_step(self.store, step)

    def trainer(self, store: Any = None, run: RunConfig | None = None) -> Trainer:
        return make_trainer(self.root, self.base, store or self.store, self.orchestrator, run or self.run)

    def weights(self, version: int) -> dict[str, torch.Tensor]:
        return load_file(self.root / "outbox" / keys.version_name(version) / "model.safetensors")

    def report(self, step: int) -> StepMetrics:
        return StepMetrics.from_json(self.store.get(keys.step_metrics(step)))

    def sealed(self, version: int) -> SealedState:
        return SealedState.from_json(self.store.get(keys.trainer_state(version) + "state.json"))


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(one[name], tensor) for name, tensor in other.items())


def test_a_step_that_rolls_back_publishes_the_earlier_version_under_the_next_number(
    tmp_path: Path, base: Path, orchestrator: Orchestrator
) -> None:
    pod = Pod(tmp_path, base, orchestrator, roll_back=RollBack(to_version=1, at_step=2))
    pod.trainer().run()
    assert same(pod.weights(3), pod.weights(1))
    assert not same(pod.weights(2), pod.weights(1))
    assert not same(pod.weights(4), pod.weights(3))
    report = pod.report(2)
    assert (report.rolled_back_to, report.rows, report.policy_version) == (1, 0, 3)
    assert report.warnings == ["spec.rollBack asks for version 1"]
    assert (pod.sealed(2).updates, pod.sealed(3).updates, pod.sealed(4).updates) == (4, 2, 4)
    assert pod.report(3).rolled_back_to is None


def test_a_roll_back_that_is_killed_again_and_again_goes_back_to_the_same_weights(
    tmp_path: Path, base: Path, orchestrator: Orchestrator
) -> None:
    pod = Pod(tmp_path, base, orchestrator, roll_back=RollBack(to_version=1, at_step=2))
    stops, handed_over = 0, dict[str, bytes]()
    while True:
        attempt = pod.trainer(DyingStore(pod.store, at=2 + stops % 4))
        try:
            attempt.run()
            break
        except Killed:
            stops += 1
            assert stops < 40
        finally:
            for background in (attempt._handover, attempt._saving):
                assert background.settle(30)  # threads do not die with an attempt in this process
            found = {path.parent.name: path.read_bytes() for path in pod.root.glob("outbox/v*/model.safetensors")}
            assert handed_over.items() <= found.items()
            handed_over = found
    assert stops >= 4
    assert same(pod.weights(3), pod.weights(1))
    assert [pod.report(step).rolled_back_to for step in range(STEPS)] == [None, None, 1, None]


def test_a_roll_back_to_a_version_without_a_state_takes_its_published_weights_and_an_older_state(
    tmp_path: Path, base: Path, orchestrator: Orchestrator
) -> None:
    asked = RollBack(to_version=1, at_step=2)
    pod = Pod(tmp_path, base, orchestrator, roll_back=asked, trainer=TrainerSettings(state_every=4))
    pod.trainer().run()
    assert same(pod.weights(3), pod.weights(1))
    assert (pod.report(2).rolled_back_to, pod.report(3).moments_of) == (1, 0)
    assert (pod.sealed(4).updates, len(pod.sealed(4).history.points)) == (4, 2), "counted on from version 1"


def test_a_roll_back_to_a_version_of_which_nothing_is_kept_says_so(
    tmp_path: Path, base: Path, orchestrator: Orchestrator
) -> None:
    asked = RollBack(to_version=1, at_step=2)
    pod = Pod(tmp_path, base, orchestrator, roll_back=asked, trainer=TrainerSettings(state_every=4))
    trainer = pod.trainer()
    trainer.resume()
    trainer.train_step(0)
    trainer.train_step(1)
    trainer._waits.idle()
    publish(pod.store, pod.root / "outbox", tmp_path / "www", pod.run, 1)
    (pod.root / "outbox" / "v000001").rename(tmp_path / "published")
    delete_shards(pod.store, 1)
    with pytest.raises(
        BadState, match=r"sealed states: \[0\]. Nor are the published weights of version 1 in the store"
    ):
        trainer.next_step()


def test_a_roll_back_to_a_version_without_a_state_says_which_there_are(
    tmp_path: Path, base: Path, orchestrator: Orchestrator
) -> None:
    pod = Pod(tmp_path, base, orchestrator, roll_back=RollBack(to_version=3, at_step=2))
    with pytest.raises(BadState, match=r"there is no trainer/state/v000003/state.json; sealed states: \[0, 1, 2\]"):
        pod.trainer().run()


def test_a_roll_back_whose_step_is_trained_already_is_warned_of_and_one_that_was_done_is_not(
    tmp_path: Path, base: Path, orchestrator: Orchestrator
) -> None:
    pod = Pod(tmp_path, base, orchestrator, roll_back=RollBack(to_version=1, at_step=2))
    pod.trainer().run()
    for at_step, late in ((2, False), (1, True)):
        asked = pod.run.model_copy(update={"roll_back": RollBack(to_version=1, at_step=at_step)})
        with capture_logs() as logs:
            resumed = pod.trainer(run=asked)
            resumed.resume()
            resumed._waits.idle()
        assert any("ignoring spec.rollBack" in log["event"] for log in logs) == late


def unstable(pod: Pod, action: str, **changes: Any) -> Trainer:
    """A trainer at version 2 whose history has an open incident that began after version 1."""
    trainer = pod.trainer(run=pod.run.model_copy(update={"stability": Stability(action=action, **changes)}))
    trainer.resume()
    trainer.train_step(0)
    trainer.train_step(1)
    trainer._history = trainer._history.model_copy(
        update={"warned_from": 2, "incident": Incident(version=2, calm_version=1)}
    )
    return trainer


def test_a_large_clip_ratio_is_told_and_acted_upon_by_default(
    tmp_path: Path, base: Path, orchestrator: Orchestrator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stability, "MAX_CLIP_RATIO", 1e-9)  # what clips in so small a run
    pod = Pod(tmp_path, base, orchestrator)
    trainer = pod.trainer(run=pod.run.model_copy(update={"stability": Stability(action="RollBack")}))
    trainer.resume()
    for step in range(3):
        trainer.train_step(step)
    trainer.next_step()
    trainer._waits.idle()
    assert pod.report(1).warnings == []
    assert any("the clip ratio is" in warning for warning in pod.report(2).warnings)
    assert pod.report(3).rolled_back_to == 2


def test_signs_of_instability_roll_back_once(tmp_path: Path, base: Path, orchestrator: Orchestrator) -> None:
    pod = Pod(tmp_path, base, orchestrator)
    trainer = unstable(pod, "RollBack")
    trainer.next_step()
    trainer.next_step()
    trainer._waits.idle()
    assert same(pod.weights(3), pod.weights(1))
    assert pod.report(2).rolled_back_to == 1
    assert pod.report(3).rolled_back_to is None
    incident = pod.sealed(4).history.incident
    assert incident is not None
    assert incident.settled


def test_a_roll_back_passes_over_a_damaged_state(tmp_path: Path, base: Path, orchestrator: Orchestrator) -> None:
    pod = Pod(tmp_path, base, orchestrator)
    trainer = unstable(pod, "RollBack")
    trainer._waits.idle()
    pod.store.put(keys.trainer_state(1) + "rank-00000.json", b"rotten")
    trainer.next_step()
    trainer._waits.idle()
    assert same(pod.weights(3), pod.weights(0))
    assert pod.report(2).rolled_back_to == 0


def test_a_pause_says_why_and_ends_with_the_process_and_the_next_one_goes_on_when_it_is_acknowledged(
    tmp_path: Path, base: Path, orchestrator: Orchestrator, monkeypatch: pytest.MonkeyPatch
) -> None:
    pod = Pod(tmp_path, base, orchestrator)
    trainer = unstable(pod, "Pause")
    telemetry.STOP.set()
    try:
        with pytest.raises(telemetry.Stopped, match="waiting for a person to acknowledge the signs of instability"):
            trainer.next_step()
    finally:
        telemetry.STOP.clear()
    told = orchestrator.told[-1]
    assert told.phase == "paused"
    assert "set stability.acknowledgedVersion to 2 to continue" in told.note
    assert trainer.version == 2
    trainer._stability = Stability(action="Pause", acknowledged_version=2)
    trainer.next_step()
    assert trainer.version == 3
    trainer._waits.idle()


def test_the_history_is_part_of_the_state(tmp_path: Path, base: Path, orchestrator: Orchestrator) -> None:
    pod = Pod(tmp_path, base, orchestrator)
    pod.trainer().run()
    points = pod.sealed(STEPS).history.points
    assert [point.version for point in points] == [1, 2, 3, 4]
    assert points[2].entropy == pod.report(2).entropy
    resumed = pod.trainer()
    resumed.resume()
    resumed._waits.idle()
    assert resumed._history == pod.sealed(STEPS).history != History()
    assert resumed._progress.last == pod.sealed(STEPS).metrics is not None, "what its last step told is told again"


def test_bad_rows_are_left_out_of_a_step_counted_and_logged(
    tmp_path: Path, base: Path, orchestrator: Orchestrator
) -> None:
    pod = Pod(tmp_path, base, orchestrator)
    rows = rows_of(0)
    other = [row.__class__(**{**row.__dict__, "submission": 3}) for row in rows[8:]]
    pod.store.put(
        keys.step_batch(0),
        batch_of(0, [accept(pod.store, rows[:8]), accept_bytes(pod.store, b"PAR1", other)]).to_json(),
    )
    trainer = pod.trainer()
    trainer.resume()
    with capture_logs() as logs:
        trainer.train_step(0)
    trainer._waits.idle()
    assert (pod.report(0).rows, pod.report(0).rows_left_out) == (8, 8)
    assert any("not a readable Parquet file" in str(log.get("reason")) for log in logs)


def test_a_step_of_which_nothing_is_left_publishes_the_same_weights_under_the_next_number(
    tmp_path: Path, base: Path, orchestrator: Orchestrator
) -> None:
    pod = Pod(tmp_path, base, orchestrator)
    pod.store.put(keys.step_batch(1), batch_of(1, [accept_bytes(pod.store, b"PAR1", rows_of(1))]).to_json())
    pod.trainer().run()
    assert same(pod.weights(2), pod.weights(1))
    assert not same(pod.weights(3), pod.weights(2))
    report = pod.report(1)
    assert (report.rows, report.rows_left_out) == (0, 16)
    assert report.warnings == ["no row of the batch could be trained on; version 2 has the weights of version 1"]


def test_fewer_rows_than_optimizer_steps_make_fewer_steps(
    tmp_path: Path, base: Path, orchestrator: Orchestrator
) -> None:
    pod = Pod(tmp_path, base, orchestrator, recipe=recipe(optimizer_steps=8))
    rows = rows_of(0, groups=1)
    pod.store.put(keys.step_batch(0), batch_of(0, [accept(pod.store, rows)]).to_json())
    trainer = pod.trainer()
    trainer.resume()
    trainer.train_step(0)
    assert trainer._optimizer.updates == 4
    trainer._waits.idle()


def test_bad_rows_stop_the_run_if_it_says_so_and_lose_nothing(
    tmp_path: Path, base: Path, orchestrator: Orchestrator
) -> None:
    pod = Pod(tmp_path, base, orchestrator, failure_policy=FailurePolicy(bad_data="Stop"))
    good = pod.store.get(keys.step_batch(1))
    pod.store.put(keys.step_batch(1), batch_of(1, [accept_bytes(pod.store, b"PAR1", rows_of(1))]).to_json())
    with pytest.raises(BadBatch, match="not a readable Parquet file"):
        pod.trainer().run()
    pod.store.put(keys.step_batch(1), good)
    resumed = pod.trainer()
    resumed.run()
    assert resumed.version == STEPS


def weighed(pod: Pod) -> Trainer:
    trainer = pod.trainer()
    trainer.resume()
    return trainer


def test_log_probabilities_of_the_sampling_version_are_the_same_before_and_after_a_restart(
    tmp_path: Path, base: Path, orchestrator: Orchestrator
) -> None:
    pod = Pod(tmp_path, base, orchestrator, recipe=recipe(algorithm={"two_sided_grpo": {"importance_cap": 2.0}}))
    first = weighed(pod)
    for step in range(3):
        first.train_step(step)
    first._waits.idle()
    store: Store = pod.store
    rows = first._method._read(batch := first._method._wait_for_batch(3))
    plan = plan_of_run(pod.run, rows.groups, 3, group_relative, 0, 1)
    assert plan is not None
    assert {file.policy_version for file in batch.files} == {2}
    before = first._policy.state_dict()
    kept = {name: tensor.clone() for name, tensor in before.items()}
    asked = first._method.behaviour_logprobs(plan)
    assert asked is not None
    assert same(first._policy.state_dict(), kept)  # the policy has its own weights again

    second = weighed(pod)  # it has version 3 only: version 2 comes from its state
    again = second._method.behaviour_logprobs(plan)
    second._waits.idle()
    publish(store, pod.root / "outbox", tmp_path / "www", pod.run, 2)
    store.delete(keys.trainer_state(2) + "state.json")
    third = weighed(pod)  # and here from what was published
    published = third._method.behaviour_logprobs(plan)
    third._waits.idle()
    assert again is not None
    assert published is not None
    for one, two, three in zip(asked, again, published, strict=True):
        for index, logprobs in enumerate(one):
            assert torch.equal(logprobs, two[index])
            assert torch.equal(logprobs, three[index])
    assert np.isfinite(pod.report(1).importance_capped)


def test_a_version_that_was_made_again_is_not_published_again(
    tmp_path: Path, base: Path, orchestrator: Orchestrator
) -> None:
    # Adapters cannot be told from published weights: the step of a state that is damaged is trained again.
    pod = Pod(tmp_path, base, orchestrator, trainer=TrainerSettings(lora=Lora(rank=2, target_modules=["q_proj"])))
    first = pod.trainer()
    first.resume()
    first.train_step(0)
    first.train_step(1)
    first._waits.idle()
    publish(pod.store, pod.root / "outbox", tmp_path / "www", pod.run, 2)
    seal = pod.store.get(keys.version_weights(2))
    (pod.root / "outbox" / "v000002").rename(tmp_path / "published")
    pod.store.put(keys.trainer_state(2) + "rank-00000.json", b"rotten")
    with capture_logs() as logs:
        second = pod.trainer()
        second.resume()
        assert second.version == 1
        second.train_step(1)
        second._waits.idle()
    assert any(log["event"] == "made a version again, with the published bytes" for log in logs)
    assert pod.store.get(keys.version_weights(2)) == seal
    assert not (pod.root / "outbox" / "v000002").exists()
    second.close()
    for version in (0, 1, 2):
        pod.store.put(keys.trainer_state(version) + "rank-00000.json", b"rotten")
    with pytest.raises(BadState, match=r"none of the states \[0, 1, 2\] is intact.*or start a new run"):
        pod.trainer().resume()
    for info in pod.store.list(keys.TRAINER_STATE):
        pod.store.delete(info.key)
    with pytest.raises(BadState, match=r"version 2 was handed over, and there is no training state.*start a new run"):
        pod.trainer().resume()
