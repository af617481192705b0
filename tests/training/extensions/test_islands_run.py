"""Trainers that are islands of one run: they share the rows out, exchange between updates, and end with one result; a restarted one goes on."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from island_reef import membership
from safetensors.torch import load_file
from sft_rows import put_rows, sft_config, sft_rows
from tiny_run import RUN, Orchestrator, make_store, ranks, write_base
from torch import Tensor

from samples import ROLE_KEYS
from servers import Loopback
from shoal import telemetry
from shoal.contracts import keys
from shoal.contracts.final_model import FinalModel
from shoal.contracts.islands import IslandsSettings, IslandTerms
from shoal.contracts.muon import MuonSettings
from shoal.contracts.run import RunConfig
from shoal.contracts.steps import StepMetrics
from shoal.crypto.keys import PrivateKey
from shoal.islands.lighthouse import serve
from shoal.storage import Store
from shoal.storage.store import open_folder
from shoal.training.context import TrainerContext
from shoal.training.extensions.base import Extensions
from shoal.training.extensions.islands.extension import Islands
from shoal.training.extensions.islands.membership import OwnIsland, own_island
from shoal.training.loop import DONE, Trainer
from shoal.training.progress import ProgressReporter
from shoal.training.state import WrongState
from shoal.transport import SignedClient

STEPS = 3
ISLAND_KEYS = {f"island-{index}": PrivateKey.from_seed(bytes([index + 77] * 32)) for index in range(2)}


class Sea:
    """A lighthouse, a store with rows, and trainers as threads of this process."""

    def __init__(self, folder: Path, orchestrator: Orchestrator) -> None:
        self.folder = folder
        self.orchestrator = orchestrator
        self.base = write_base(folder / "base")
        self.store = make_store(folder / "store")
        rows = sft_rows(26)
        put_rows(self.store, rows[:24], rows[24:])
        self.lighthouse = serve("127.0.0.1", 0, 10.0, 20.0)
        self.config = self.configured(self.lighthouse.address().rsplit(":", 1)[1])

    def configured(self, port: str) -> RunConfig:
        terms = IslandTerms(
            peers={name: key.public for name, key in ISLAND_KEYS.items()},
            publisher="island-0",
            lighthouse=f"http://127.0.0.1:{port}",
            settings=IslandsSettings(inner_steps=2, exchange="float32", wait_seconds=10.0),
        )
        return sft_config(self.orchestrator.url, STEPS).model_copy(update={"islands": terms})

    def own_store(self, name: str) -> Store:
        return open_folder(self.folder / "store", f"shoal/{RUN}/{keys.island(name)}", deadline_seconds=5.0)

    def trainer(self, index: int, steps: int = STEPS) -> Trainer:
        name, run = f"island-{index}", self.config.model_copy(update={"steps": steps})
        assert run.islands is not None
        own = OwnIsland(name, ISLAND_KEYS[name], run.islands, self.store if index == 0 else self.own_store(name))
        client = SignedClient(self.orchestrator.url, ROLE_KEYS["trainer"]) if index == 0 else None
        pod = self.folder / name
        context = TrainerContext(
            run, self.store, own.store, self.base, pod / "outbox", pod / "tmp", name,
            ProgressReporter(RUN, client, own.store), telemetry.Liveness(60.0), ranks(),
        )  # fmt: skip
        return Trainer(context, Extensions(Islands(own)))

    def run(self, *trainers: Trainer) -> None:
        """As pods: the publisher comes to its end, and the other stays with what it has until it is asked to stop."""
        errors: list[BaseException] = []
        ended: list[Trainer] = []

        def act(trainer: Trainer) -> None:
            try:
                trainer.live()
                ended.append(trainer)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=act, args=(trainer,), daemon=True) for trainer in trainers]
        for thread in threads:
            thread.start()
        publisher, other = trainers
        until = time.monotonic() + 200
        while not errors and time.monotonic() < until and not (ended and other._progress._note == DONE):
            time.sleep(0.1)
        assert not errors, errors
        assert ended == [publisher], "an island that does not publish stays: its StatefulSet starts again what ends"
        telemetry.STOP.set()
        for thread in threads:
            thread.join(30)
        telemetry.STOP.clear()
        assert [type(error) for error in errors] == [telemetry.Stopped]
        assert not any(thread.is_alive() for thread in threads), "an island does not end"


@pytest.fixture
def sea(tmp_path: Path, loopback: Loopback, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sea]:
    monkeypatch.setenv("SHOAL_BIND", "127.0.0.1")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    monkeypatch.setattr(telemetry, "STOP", threading.Event())
    orchestrator = Orchestrator(loopback.address())
    orchestrator.latest_version = STEPS
    made = Sea(tmp_path, orchestrator)
    yield made
    made.lighthouse.shutdown()
    orchestrator.close()


def weights_of(trainer: Trainer) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in trainer._policy.named_parameters() if value.requires_grad}


def rows_seen(store: Store) -> list[StepMetrics]:
    return [StepMetrics.from_json(store.get(keys.step_metrics(step))) for step in range(STEPS)]


def test_two_islands_share_the_rows_out_and_end_with_the_same_weights_and_one_result(sea: Sea) -> None:
    trainers = [sea.trainer(0), sea.trainer(1)]
    sea.run(*trainers)
    first, second = (weights_of(trainer) for trainer in trainers)
    assert all(torch.equal(first[name], second[name]) for name in first)
    result = load_file(sea.store.local_path(keys.FINAL_MODEL + "model.safetensors"))
    assert all(torch.equal(result[name.removeprefix("model.")], value) for name, value in first.items())
    own = sea.own_store("island-1")
    losses = [report.loss for report in rows_seen(own)]
    assert losses[0] > losses[-1]
    reports = rows_seen(sea.store), rows_seen(own)
    assert [sum(report.rows for report in each) for each in reports] == [24, 24]  # two epochs of twelve rows each
    for report in (report for each in reports for report in each):
        assert report.phase_seconds["exchange"] > 0, "exchanges are waits, and no part of the updates"
        assert sum(report.phase_seconds.values()) <= report.finished_unix - report.started_unix + 0.1
    tokens = sum(report.completion_tokens for each in reports for report in each)
    assert tokens == 2 * sum(len(row.completion_tokens) for row in sft_rows(26)[:24]), (
        "rows were seen twice or not at all"
    )
    assert own.exists(keys.trainer_state(STEPS) + "state.json")
    assert not (sea.folder / "island-1" / "outbox" / "v000003").exists(), "a second publisher"


@pytest.mark.parametrize("muon", [None, MuonSettings()])
def test_an_island_that_comes_back_takes_up_its_state_and_skips_what_the_others_did(
    sea: Sea, muon: MuonSettings | None
) -> None:
    assert sea.config.sft is not None
    sea.config = sea.config.model_copy(update={"sft": sea.config.sft.model_copy(update={"muon": muon})})
    both = [sea.trainer(0, 2), sea.trainer(1, 2)]
    sea.run(*both)
    alone = sea.trainer(0)
    shared = membership(both[0])._island.shared
    alone.resume()
    assert alone.version == 2
    assert membership(alone)._island.shared.digest() == shared.digest(), (
        "the outer state is not part of the training state"
    )
    assert [len(link.signatures) for link in membership(alone)._island.certificate] == [2]
    alone._method.stop()
    membership(alone).close()
    fresh = sea.trainer(1, 6)  # has version 2 of its own; the other is asked to go on to 6
    other = sea.trainer(0, 6)
    sea.orchestrator.latest_version = 6
    sea.run(other, fresh)
    assert all(torch.equal(value, weights_of(other)[name]) for name, value in weights_of(fresh).items())


def test_a_result_of_fewer_steps_is_not_the_result_that_an_island_waits_for(sea: Sea) -> None:
    trainer = sea.trainer(1)
    assert not trainer._result_is_there()
    for version, there in ((STEPS - 1, False), (STEPS, True)):
        sealed = FinalModel(run=RUN, version=version, model_id="tiny", files={"model.safetensors": "0" * 64})
        sea.store.put(keys.FINAL_SEAL, sealed.to_json())
        assert trainer._result_is_there() is there
    trainer._method.stop()
    membership(trainer).close()


def test_a_state_of_another_number_of_ranks_is_refused_in_words(sea: Sea) -> None:
    trainer = sea.trainer(0)
    own = set(trainer._copy.expect(set(membership(trainer).empty())))
    assert own == set(membership(trainer).empty())
    other = {key.replace("of-00001", "of-00002") for key in own}
    with pytest.raises(WrongState, match=r"in parts of \[2\] ranks; this trainer has 1: give every island as many"):
        trainer._copy.expect(other)
    assert not trainer._copy.expect(set()), "a state that has no such part is no state of another number"
    trainer._method.stop()
    membership(trainer).close()


def test_a_key_that_no_island_has_is_refused(sea: Sea, tmp_path: Path) -> None:
    (tmp_path / "island.pem").write_bytes(PrivateKey.from_seed(bytes(32)).to_pem())
    with pytest.raises(ValueError, match="not an island of this run"):
        own_island(sea.config, sea.store, sea.own_store, tmp_path)
    (tmp_path / "island.pem").write_bytes(ISLAND_KEYS["island-1"].to_pem())
    own = own_island(sea.config, sea.store, sea.own_store, tmp_path)
    assert own is not None
    assert (own.name, own.publishes) == ("island-1", False)
