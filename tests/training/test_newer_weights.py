"""A stop between a version and its state: training goes on from the version, with the older state, and says so; nothing is made a second time."""

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from structlog.testing import capture_logs
from tiny_run import (
    RUN,
    Orchestrator,
    config,
    fill_step,
    make_store,
    make_trainer,
    publish,
    ranks,
    write_base,
)

from servers import Loopback
from shoal.contracts import keys
from shoal.contracts.steps import StepMetrics
from shoal.contracts.trainer import TrainerSettings
from shoal.planner.memory import state_every
from shoal.storage import Store
from shoal.training.host_copy import HostCopy
from shoal.training.loop import Trainer
from shoal.training.published import NoWeights
from shoal.training.state import States

STEPS, STATE, MADE = 9, 5, 7
"""The run's length; its newest state is of version 5 when a stop finds version 7 in the world."""
EVERY = TrainerSettings(state_every=STATE)


@pytest.fixture(scope="module")
def orchestrator(loopback: Loopback) -> Iterator[Orchestrator]:
    server = Orchestrator(loopback.address())
    server.latest_version = STEPS
    yield server
    server.close()


class Stopped:
    """The store and the pod of a run that was stopped at version 7."""

    def __init__(self, root: Path, base: Path, orchestrator: Orchestrator) -> None:
        self.root, self.base, self.orchestrator = root, base, orchestrator
        self.run = config(orchestrator.url, STEPS, trainer=EVERY)
        self.store: Store = make_store(root / "store")
        for step in range(STEPS):
            fill_step(self.store, step)
        first = self.trainer()
        first.begin()
        while first.version < MADE:
            first.advance()
        first.handed_over()
        first.close()

    def trainer(self) -> Trainer:
        return make_trainer(self.root, self.base, self.store, self.orchestrator, self.run)

    def copied(self, to: Path) -> "Stopped":
        copy = object.__new__(Stopped)
        shutil.copytree(self.root, to)
        copy.__dict__ |= self.__dict__ | {"root": to, "store": make_store(to / "store")}
        return copy

    def publish_all(self) -> None:
        """The publisher brings what waits to the world, and takes it out of the outbox."""
        for folder in sorted((self.root / "outbox").glob("v*")):
            version = keys.parse_version(folder.name)
            assert version is not None
            publish(self.store, self.root / "outbox", self.root / "www", self.run, version)
            shutil.rmtree(folder)

    def weights(self, version: int) -> dict[str, torch.Tensor]:
        return load_file(self.root / "outbox" / keys.version_name(version) / "model.safetensors")

    def report(self, step: int) -> StepMetrics:
        return StepMetrics.from_json(self.store.get(keys.step_metrics(step)))


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory, orchestrator: Orchestrator) -> Stopped:
    root = tmp_path_factory.mktemp("stopped")
    return Stopped(root / "pod", write_base(root / "base"), orchestrator)


def moments(trainer: Trainer) -> dict[str, torch.Tensor]:
    trainer._copy.take()
    return {key: tensor.clone() for key, tensor in trainer._copy.tensors.items() if key.startswith(("exp_avg", "step"))}


def resumed(one: Stopped) -> tuple[Trainer, list[Any]]:
    with capture_logs() as logs:
        trainer = one.trainer()
        trainer.begin()
        trainer.handed_over()
    return trainer, [log for log in logs if log["event"].startswith("resumed")]


@pytest.mark.parametrize("published", [True, False])
def test_training_goes_on_from_the_newest_version_with_the_newest_state(
    tmp_path: Path, stopped: Stopped, published: bool
) -> None:
    one = stopped.copied(tmp_path / "pod")
    made, reports = one.weights(MADE), [one.store.get(keys.step_metrics(step)) for step in range(MADE)]
    if published:
        one.publish_all()
    seals = [info for info in one.store.list(keys.VERSIONS) if info.key.endswith("weights.json")]
    trainer, said = resumed(one)
    assert (trainer.version, trainer._optimizer.updates, len(trainer._history.points)) == (MADE, 2 * MADE, MADE)
    assert [(log["version"], log["state"]) for log in said] == [(MADE, STATE)]
    assert "not bit for bit" in said[0]["event"]
    assert all(torch.equal(made[name], tensor) for name, tensor in trainer._policy.model.state_dict().items())
    kept = HostCopy(trainer._policy, trainer._optimizer, ranks())
    States(one.store, RUN, ranks()).restore(STATE, kept, trainer._liveness)
    wanted = {key: tensor.clone() for key, tensor in kept.tensors.items() if key.startswith(("exp_avg", "step"))}
    trainer, _ = resumed(one)
    found = moments(trainer)
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[key], tensor) for key, tensor in wanted.items())
    trainer.run()
    assert trainer.version == STEPS
    assert [one.report(step).moments_of for step in range(STEPS)] == [None] * MADE + [STATE, None]
    assert one.report(MADE).warnings == [
        f"after a stop, this step began with the published weights of version {MADE} and the optimizer state of version {STATE}"
    ]
    assert [one.store.get(keys.step_metrics(step)) for step in range(MADE)] == reports
    assert [info for info in one.store.list(keys.VERSIONS) if info.key.endswith("weights.json")] == seals
    outbox = {path.name for path in (one.root / "outbox").glob("v*")}
    assert outbox >= {"v000008", "v000009"}
    assert ("v000007" in outbox) != published, "a published version is not handed over again"
    assert States(one.store, RUN, ranks()).sealed()[-1] == STEPS


def test_what_is_made_from_an_older_state_does_not_depend_on_where_the_weights_came_from(
    tmp_path: Path, stopped: Stopped
) -> None:
    made = []
    for name in ("waiting", "published"):
        one = stopped.copied(tmp_path / name)
        if name == "published":
            one.publish_all()
        trainer, _ = resumed(one)
        trainer.advance()
        trainer.handed_over()
        trainer.close()
        made.append((one.root / "outbox" / "v000008" / "model.safetensors").read_bytes())
    assert made[0] == made[1]


def test_an_auditor_repeats_what_was_made_after_a_stop_bit_for_bit(tmp_path: Path, stopped: Stopped) -> None:
    one = stopped.copied(tmp_path / "pod")
    trainer, _ = resumed(one)
    while trainer.version < STEPS:
        trainer.advance()
    trainer.handed_over()
    trainer.close()
    again = stopped.copied(tmp_path / "again")
    again.run = again.run.model_copy(update={"trainer": TrainerSettings(state_every=1)})
    for folder in ("outbox", "store"):
        shutil.rmtree(again.root / folder)
    again.store = make_store(again.root / "store")
    for step in range(STEPS):
        fill_step(again.store, step)
    auditor = again.trainer()
    auditor.begin()
    while auditor.version < STEPS:
        if auditor.version == MADE:
            auditor.go_on_from(again.root / "outbox" / keys.version_name(MADE), STATE)
        auditor.advance()
    auditor.handed_over()
    auditor.close()
    assert all((one.weights(v)[name] == tensor).all() for v in (8, 9) for name, tensor in again.weights(v).items())
    assert again.report(MADE).moments_of == STATE


def test_a_report_that_a_stop_kept_from_being_written_is_written_from_the_note_of_its_version(
    tmp_path: Path, stopped: Stopped
) -> None:
    one = stopped.copied(tmp_path / "pod")
    lost = one.store.get(keys.step_metrics(MADE - 1))
    one.store.delete(keys.step_metrics(MADE - 1))
    trainer, _ = resumed(one)
    trainer.close()
    assert one.store.get(keys.step_metrics(MADE - 1)) == lost


def test_without_any_state_the_optimizer_is_fresh_and_no_version_is_made_again(
    tmp_path: Path, stopped: Stopped
) -> None:
    one = stopped.copied(tmp_path / "pod")
    one.publish_all()
    for info in one.store.list(keys.TRAINER_STATE):
        one.store.delete(info.key)
    trainer, said = resumed(one)
    assert (said[0]["version"], said[0]["state"], trainer._optimizer.updates) == (MADE, None, 2 * MADE)
    assert not trainer._optimizer.adamw.state
    trainer.advance()
    trainer.handed_over()
    trainer.close()
    assert (one.report(MADE).moments_of, trainer.version) == (-1, MADE + 1)


def test_a_damaged_state_costs_moments_and_no_step(tmp_path: Path, stopped: Stopped) -> None:
    one = stopped.copied(tmp_path / "pod")
    one.store.put(keys.trainer_state(STATE) + "rank-00000.json", b"rotten")
    trainer, said = resumed(one)
    trainer.close()
    assert [(log["version"], log["state"]) for log in said] == [(MADE, 0)]


def test_a_version_whose_bytes_are_lost_stops_the_trainer_with_what_to_put_back(
    tmp_path: Path, stopped: Stopped
) -> None:
    one = stopped.copied(tmp_path / "pod")
    one.publish_all()
    one.store.delete(keys.version_shard(MADE, 0))
    with pytest.raises(
        NoWeights, match=r"version 7 was handed over, and no state is as new.*Put versions/v000007/ back"
    ):
        one.trainer().begin()


def test_weights_and_state_of_one_version_go_on_bit_for_bit_and_say_so(tmp_path: Path, stopped: Stopped) -> None:
    one = stopped.copied(tmp_path / "pod")
    for version in (MADE - 1, MADE):  # as if the stop had come before them
        shutil.rmtree(one.root / "outbox" / keys.version_name(version))
    trainer, said = resumed(one)
    assert [log["event"] for log in said] == ["resumed bit for bit: weights and state are of one version"]
    trainer.advance()
    trainer.handed_over()
    trainer.close()
    name = Path("outbox") / keys.version_name(STATE + 1) / "model.safetensors"
    assert (one.root / name).read_bytes() == (stopped.root / name).read_bytes()


def test_states_are_saved_so_seldom_that_it_takes_two_percent_of_the_time_unless_asked() -> None:
    assert [state_every(None, 2_000_000_000), state_every(None, 32_763_876_352), state_every(3, 1)] == [1, 12, 3]
    assert state_every(None, 671 * 10**9) == 20, "at most"
    for trained in (10**6, 3 * 10**9, 7 * 10**9, 32 * 10**9):
        every = state_every(None, trained)
        share = 12 * trained / 1.25e9 / (every * 22 * 60)
        assert share <= 0.02
        assert every == 1 or share > 0.01, "no seldomer than that"


def test_a_version_that_is_lost_with_its_pod_is_made_again_from_the_newest_published_one_and_reported_anew(
    tmp_path: Path, stopped: Stopped
) -> None:
    one = stopped.copied(tmp_path / "pod")
    shutil.rmtree(one.root / "outbox" / keys.version_name(MADE))
    one.publish_all()
    trainer, said = resumed(one)
    assert [(log["version"], log["state"], log["noted"]) for log in said] == [(MADE - 1, STATE, True)]
    assert (trainer._optimizer.updates, len(trainer._history.points)) == (2 * (MADE - 1), MADE - 1)
    lost, before = one.report(MADE - 1), one.store.get(keys.step_metrics(MADE - 2))
    trainer.advance()
    trainer.handed_over()
    trainer.close()
    assert (lost.moments_of, one.report(MADE - 1).moments_of) == (None, STATE), (
        "the report is of the version that is there"
    )
    assert one.store.get(keys.step_metrics(MADE - 2)) == before


def test_a_version_that_the_outbox_loses_while_it_is_read_is_taken_from_where_it_is_published(
    tmp_path: Path, stopped: Stopped
) -> None:
    one = stopped.copied(tmp_path / "pod")
    made = one.weights(MADE)
    (one.root / "outbox" / keys.version_name(MADE) / "model.safetensors").unlink()
    late = threading.Timer(1.5, publish, (one.store, stopped.root / "outbox", one.root / "www", one.run, MADE))
    late.start()
    trainer, said = resumed(one)
    late.join()
    trainer.close()
    assert [(log["version"], log["state"]) for log in said] == [(MADE, STATE)]
    assert all(torch.equal(made[name], tensor) for name, tensor in trainer._policy.model.state_dict().items())
