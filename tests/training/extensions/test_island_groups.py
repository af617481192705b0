"""Runs of reinforcement learning that are islands of a group: each makes its own steps, and what they share is in the versions that follow."""

import hashlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from island_reef import membership
from safetensors.torch import load_file
from tiny_run import Orchestrator, config, fill_step, make_store, ranks, recipe, rows_of, write_base

from samples import ROLE_KEYS, RUN
from servers import Loopback
from shoal import telemetry
from shoal.contracts import keys
from shoal.contracts.islands import IslandsSettings, IslandTerms
from shoal.contracts.steps import StepMetrics
from shoal.contracts.trainer import Lora, TrainerSettings
from shoal.crypto.keys import PrivateKey
from shoal.islands.lighthouse import serve
from shoal.storage import Store
from shoal.training.context import TrainerContext
from shoal.training.extensions.base import Extensions
from shoal.training.extensions.islands import membership as islands
from shoal.training.extensions.islands.extension import Islands, sampled_after
from shoal.training.extensions.islands.membership import OwnIsland, frozen_digest
from shoal.training.loop import Trainer
from shoal.training.model import load_policy
from shoal.training.progress import ProgressReporter
from shoal.training.rollouts import RolloutGroup, Sample, StepRows
from shoal.transport import SignedClient

RUN_KEYS = {name: PrivateKey.from_seed(bytes([index + 55] * 32)) for index, name in enumerate(("north", "south"))}


class Archipelago:
    """A lighthouse, and trainers of two runs as threads of this process, each with a store of its own."""

    def __init__(self, folder: Path, loopback: Loopback) -> None:
        self.folder = folder
        self.base = write_base(folder / "base")
        self.lighthouse = serve("127.0.0.1", 0, 20.0, 20.0)
        self.orchestrators = {name: Orchestrator(loopback.address()) for name in RUN_KEYS}
        self.stores: dict[str, Store] = {name: make_store(folder / name / "store") for name in RUN_KEYS}
        self.threads: list[threading.Thread] = []
        self.errors: list[BaseException] = []

    def trainer(self, name: str, steps: int, inner_steps: int) -> Trainer:
        terms = IslandTerms(
            peers={each: key.public for each, key in RUN_KEYS.items()},
            publisher=name,
            lighthouse=f"http://127.0.0.1:{self.lighthouse.address().rsplit(':', 1)[1]}",
            settings=IslandsSettings(inner_steps=inner_steps, exchange="float32", wait_seconds=20.0),
            group="both",
        )
        orchestrator, store = self.orchestrators[name], self.stores[name]
        orchestrator.latest_version = steps
        run = config(orchestrator.url, steps, islands=terms, recipe=recipe(optimizer_steps=2))
        client = SignedClient(orchestrator.url, ROLE_KEYS["trainer"])
        context = TrainerContext(
            run, store, store, self.base, self.folder / name / "outbox", self.folder / name / "tmp", name,
            ProgressReporter(RUN, client, store), telemetry.Liveness(60.0), ranks(),
        )  # fmt: skip
        return Trainer(context, Extensions(Islands(OwnIsland(name, RUN_KEYS[name], terms, store))))

    def start(self, trainer: Trainer) -> None:
        def act() -> None:
            try:
                trainer.live()
            except BaseException as error:
                self.errors.append(error)

        self.threads.append(threading.Thread(target=act, daemon=True))
        self.threads[-1].start()

    def until(self, what: str, done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 120
        while not done():
            assert not self.errors, self.errors
            assert time.monotonic() < deadline, f"not within 120 s: {what}"
            time.sleep(0.05)

    def stop(self) -> None:
        """As SIGTERM does."""
        telemetry.STOP.set()
        self.until_quiet()
        assert all(isinstance(error, telemetry.Stopped) for error in self.errors), self.errors
        self.threads.clear()
        self.errors.clear()
        telemetry.STOP.clear()

    def until_quiet(self) -> None:
        for thread in self.threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in self.threads), "a trainer does not stop"

    def ended(self) -> None:
        self.until("the runs end", lambda: not any(thread.is_alive() for thread in self.threads))
        assert not self.errors, self.errors

    def same(self, north: int, south: int) -> bool:
        """Whether a version of one run has the weights of a version of the other, bit for bit."""
        found = [
            load_file(self.folder / name / "outbox" / keys.version_name(version) / "model.safetensors")
            for name, version in (("north", north), ("south", south))
        ]
        return all(bool((value == found[1][name]).all()) for name, value in found[0].items())

    def reports(self, name: str, steps: int) -> list[StepMetrics]:
        return [StepMetrics.from_json(self.stores[name].get(keys.step_metrics(step))) for step in range(steps)]


@pytest.fixture
def archipelago(tmp_path: Path, loopback: Loopback, monkeypatch: pytest.MonkeyPatch) -> Iterator[Archipelago]:
    monkeypatch.setenv("SHOAL_BIND", "127.0.0.1")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    monkeypatch.setattr(telemetry, "STOP", threading.Event())
    made = Archipelago(tmp_path, loopback)
    yield made
    telemetry.STOP.set()
    for thread in made.threads:
        thread.join(20)
    made.lighthouse.shutdown()
    for orchestrator in made.orchestrators.values():
        orchestrator.close()


def test_runs_of_a_group_exchange_after_a_step_and_their_versions_hold_what_came_of_it(
    archipelago: Archipelago,
) -> None:
    for name, first in (("north", 0), ("south", 40)):  # other rollouts, or nothing would have to be shared
        for step in range(3):
            fill_step(archipelago.stores[name], step, first + step)
        archipelago.start(archipelago.trainer(name, steps=3, inner_steps=3))
    archipelago.ended()
    assert [archipelago.same(version, version) for version in range(4)] == [True, False, True, True]
    for name in RUN_KEYS:
        reports = archipelago.reports(name, 3)
        assert [report.rows for report in reports] == [16, 16, 16], (
            "every step is the run's own, and trains on its batch"
        )
        assert ["exchange" in report.phase_seconds for report in reports] == [False, True, True]
        assert archipelago.stores[name].exists(keys.trainer_state(3) + "state.json")
        said = archipelago.orchestrators[name].told[-1].islands
        assert said is not None, "its orchestrator does not learn of exchanges"
        assert (said.round, said.members, said.missed, said.differing) == (2, ["north", "south"], 0, [])


def test_a_run_that_comes_late_copies_the_weights_and_begins_with_its_own_first_step(
    archipelago: Archipelago, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(islands, "GATHER_SECONDS", 0.5)
    north, south = archipelago.stores["north"], archipelago.stores["south"]
    for step in range(2):
        fill_step(north, step)
    for step in range(3):
        fill_step(south, step, 40 + step)
    archipelago.start(archipelago.trainer("north", steps=4, inner_steps=2))
    archipelago.until("one run trains alone", lambda: north.exists(keys.step_metrics(1)))
    late = archipelago.trainer("south", steps=3, inner_steps=2)
    archipelago.start(late)
    archipelago.until(
        "the other joins", lambda: late._progress._phase == "join" and membership(late)._island._members.heard
    )
    for step in (2, 3):
        fill_step(north, step)
    archipelago.ended()
    reports = archipelago.reports("south", 3)
    assert [(report.rows, report.rows_left_out) for report in reports] == [(0, 16), (0, 16), (16, 0)], (
        "rows of before the copy say nothing about the weights that were copied"
    )
    assert archipelago.same(3, 1), "the version after the copy has other weights than were copied"
    assert archipelago.same(3, 2)
    assert archipelago.same(4, 3), "the last exchange of both did not come about"


def test_rows_of_before_a_copy_are_left_out_after_a_restart_too(
    archipelago: Archipelago, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(islands, "GATHER_SECONDS", 0.5)
    north, south = archipelago.stores["north"], archipelago.stores["south"]
    for step in range(2):
        fill_step(north, step)
    fill_step(south, 0, 40)
    archipelago.start(archipelago.trainer("north", steps=6, inner_steps=2))
    archipelago.until("one run trains alone", lambda: north.exists(keys.step_metrics(1)))
    late = archipelago.trainer("south", steps=3, inner_steps=2)
    archipelago.start(late)
    archipelago.until(
        "the other joins", lambda: late._progress._phase == "join" and membership(late)._island._members.heard
    )
    fill_step(north, 2)
    archipelago.until("both have made their steps", lambda: _saved(south, 1) and _saved(north, 3))
    archipelago.stop()
    for name, steps in (("north", 6), ("south", 3)):
        archipelago.start(archipelago.trainer(name, steps=steps, inner_steps=2))
    fill_step(south, 1, 41)  # sampled by version 0, the base model
    archipelago.until("the next step is made", lambda: south.exists(keys.step_metrics(1)))
    assert [(report.rows, report.rows_left_out) for report in archipelago.reports("south", 2)] == [(0, 16), (0, 16)]


def _saved(store: Store, version: int) -> bool:
    return store.exists(keys.trainer_state(version) + "state.json")


def test_with_adapters_the_frozen_base_model_is_part_of_what_islands_must_have_alike(tmp_path: Path) -> None:
    adapters = TrainerSettings(lora=Lora(rank=2))
    first, same, other = (
        load_policy(write_base(tmp_path / name, seed=seed), adapters, ranks(), lambda: None)
        for name, seed in (("first", 0), ("same", 0), ("other", 1))
    )
    assert frozen_digest(first) == frozen_digest(same) != frozen_digest(other)
    whole = load_policy(tmp_path / "other", TrainerSettings(), ranks(), lambda: None)
    assert frozen_digest(whole) == hashlib.sha256().hexdigest(), "nothing of it is frozen"


def test_groups_that_an_older_version_had_a_hand_in_are_left_out_and_counted() -> None:
    def group(*versions: int) -> RolloutGroup:
        tokens = np.asarray(rows_of(0)[0].prompt_tokens)
        mask, logprobs = np.ones(len(tokens) - 1, dtype=np.bool_), np.zeros(len(tokens) - 1)
        made = [
            Sample(f"row {version}", tokens, 1, mask, logprobs, 1.0, version, 0.0, 0.0, 0.0) for version in versions
        ]
        return RolloutGroup(made)

    rows = StepRows([group(3, 4), group(4, 4), group(5, 5)], 1, ["a row is cut"])
    left = sampled_after(rows, 3)
    assert left.groups == rows.groups[1:]
    assert left.left_out == 3
    assert left.problems == [
        "a row is cut",
        "2 rows are of version 3 or older, before the weights of other islands were copied",
    ]
    assert sampled_after(rows, -1) is rows
