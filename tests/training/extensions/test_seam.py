"""The seam: hooks are called in one order, an extension's state survives any stop, and the core of the trainer names no extension."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from test_loop import DyingStore, Killed
from tiny_run import Orchestrator, config, fill_step, make_store, make_trainer, recipe, write_base
from torch import Tensor

import shoal.training
from servers import Loopback
from shoal.contracts import keys
from shoal.contracts.failures import RollBack
from shoal.contracts.steps import StepMetrics
from shoal.storage import Store
from shoal.training.batches import StepPlan
from shoal.training.context import TrainerContext
from shoal.training.extensions.base import Extension, Extensions
from shoal.training.host_copy import Learner
from shoal.training.loop import Trainer
from shoal.training.model import Policy
from shoal.training.optimizer import Optimizer
from shoal.training.rollouts import RolloutGroup, StepRows
from shoal.training.update import Beat, LogProbs

CORE = sorted(Path(shoal.training.__file__).parent.glob("*.py")) + [
    file
    for room in ("objectives", "sft")
    for file in sorted((Path(shoal.training.__file__).parent / room).glob("*.py"))
]
NAMES = re.compile(
    r"island|membership|_member\b|\bmember\b|\bprime\b|\bprm|vine|process_rewards|reward_model", re.IGNORECASE
)
ALLOWED = ("extensions.base", "extensions.enabled")
"""The seam itself, and, for the entry point alone, the list of extensions."""


@pytest.mark.parametrize("file", CORE, ids=lambda file: f"{file.parent.name}-{file.stem}")
def test_the_core_names_no_extension(file: Path) -> None:
    text = file.read_text()
    assert not NAMES.findall(text), "an extension is named outside of extensions/"
    imported = set(re.findall(r"shoal\.training\.(extensions[\w.]*)", text))
    assert imported <= ({*ALLOWED} if file.name == "__main__.py" else {ALLOWED[0]})


def test_the_core_is_found() -> None:
    assert {"loop", "reinforcement", "method", "batches", "progress", "rollouts"} <= {file.stem for file in CORE}


class Momentum(torch.nn.Module):
    """A model beside the policy: one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))


class Diary(Extension):
    """Writes down each call, counts updates in a state of its own, and trains a model of one weight."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.count = 0
        self.extra_state = self

    def attach(self, context: TrainerContext, policy: Policy) -> None:
        self.calls.append("attach")
        model = Momentum()
        self.learner = Learner(model, Optimizer(model.parameters(), recipe(warmup_steps=0)))

    def learners(self) -> Mapping[str, Learner]:
        return {"diary": self.learner}

    def before_run(self, version: int) -> int:
        self.calls.append(f"before_run {version}")
        return version

    def before_step(self, step: int) -> None:
        self.calls.append(f"before_step {step}")

    def keep_rows(self, rows: StepRows) -> StepRows:
        self.calls.append("keep_rows")
        return rows

    def before_updates(
        self, groups: Sequence[RolloutGroup], plan: StepPlan, reference: LogProbs, beat: Beat
    ) -> StepPlan:
        self.calls.append("before_updates")
        (self.learner.model.weight - 1.0).square().sum().backward()
        self.learner.optimizer.step()
        return plan

    def after_update(self, step: int) -> None:
        self.calls.append(f"after_update {step}")
        self.count += 1

    def after_updates(self, step: int) -> None:
        self.calls.append(f"after_updates {step}")

    def measured(self, groups: Sequence[RolloutGroup]) -> dict[str, Any]:
        return {"value_by_boundary": [float(self.count), float(self.learner.model.weight.detach())]}

    def after_step(self, version: int) -> int:
        self.calls.append(f"after_step {version}")
        return version

    def after_run(self, result_is_there: Any, waits: Any) -> None:
        self.calls.append("after_run")

    def close(self) -> None:
        self.calls.append("close")

    def tensors(self) -> dict[str, Tensor]:
        return {"diary/count": torch.tensor([self.count])}

    def empty(self) -> dict[str, Tensor]:
        return {"diary/count": torch.zeros(1, dtype=torch.int64)}

    def check(self, keys: Collection[str]) -> None:
        """A state of any trainer will do."""

    def take_up(self, tensors: Mapping[str, Tensor]) -> None:
        self.calls.append("take_up")
        self.count = int(tensors["diary/count"])


@pytest.fixture(scope="module")
def orchestrator(loopback: Loopback) -> Iterator[Orchestrator]:
    server = Orchestrator(loopback.address())
    server.latest_version = 3
    yield server
    server.close()


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_base(tmp_path_factory.mktemp("seam") / "base")


def filled(root: Path, steps: int) -> Store:
    store = make_store(root)
    for step in range(steps):
        fill_step(store, step)
    return store


def trainer(folder: Path, base: Path, store: Any, orchestrator: Orchestrator, diary: Diary, **changes: Any) -> Trainer:
    return make_trainer(folder, base, store, orchestrator, config(orchestrator.url, **changes), Extensions(diary))


def step_calls(step: int) -> list[str]:
    """The calls of a step with two optimizer steps."""
    return [
        f"before_step {step}",
        "keep_rows",
        "before_updates",
        f"after_update {step}",
        f"after_update {step}",
        f"after_updates {step}",
        f"after_step {step + 1}",
    ]


def test_hooks_are_called_in_the_documented_order(tmp_path: Path, base: Path, orchestrator: Orchestrator) -> None:
    store, diary = filled(tmp_path / "store", 2), Diary()
    trainer(tmp_path, base, store, orchestrator, diary, steps=2).run()
    assert diary.calls == ["attach", "before_run 0", *step_calls(0), *step_calls(1), "after_run", "close"]


def test_a_step_with_nothing_to_train_on_ends_its_updates_without_one(
    tmp_path: Path, base: Path, orchestrator: Orchestrator
) -> None:
    class Dropping(Diary):
        def keep_rows(self, rows: StepRows) -> StepRows:
            return StepRows([], rows.left_out + 16, super().keep_rows(rows).problems)

    store, diary = filled(tmp_path / "store", 1), Dropping()
    trainer(tmp_path, base, store, orchestrator, diary, steps=1).run()
    middle = ["before_step 0", "keep_rows", "after_updates 0", "after_step 1"]
    assert diary.calls == ["attach", "before_run 0", *middle, "after_run", "close"]
    assert StepMetrics.from_json(store.get(keys.step_metrics(0))).rows_left_out == 16


def test_a_roll_back_restores_the_state_and_calls_no_hook_of_training(
    tmp_path: Path, base: Path, orchestrator: Orchestrator
) -> None:
    store, diary = filled(tmp_path / "store", 3), Diary()
    back = RollBack(to_version=1, at_step=2)
    trainer(tmp_path, base, store, orchestrator, diary, steps=3, roll_back=back).run()
    assert diary.calls[-4:] == ["take_up", "after_step 3", "after_run", "close"]
    assert diary.count == 2, "that of version 1"


def test_an_extension_whose_state_goes_first_goes_on_after_any_stop_as_if_there_had_been_none(
    tmp_path: Path, base: Path, orchestrator: Orchestrator
) -> None:
    class Careful(Diary):
        state_first = True

    def reports(store: Store) -> list[dict[str, Any]]:
        documents = [StepMetrics.from_json(store.get(keys.step_metrics(step))) for step in range(2)]
        return [one.model_dump(exclude={"started_unix", "finished_unix", "phase_seconds"}) for one in documents]

    undisturbed = filled(tmp_path / "undisturbed" / "store", 2)
    trainer(tmp_path / "undisturbed", base, undisturbed, orchestrator, Diary(), steps=2).run()
    counts, weights = zip(*(one["value_by_boundary"] for one in reports(undisturbed)), strict=True)
    assert counts == (2.0, 4.0)
    assert 0.0 < weights[0] < weights[1]
    store, stops = filled(tmp_path / "stopped" / "store", 2), 0
    while True:
        diary = Careful()
        try:
            trainer(tmp_path / "stopped", base, DyingStore(store, at=2 + stops % 3), orchestrator, diary, steps=2).run()
            break
        except Killed:
            assert diary.calls[-1] == "close", "an extension is closed whatever ends the loop"
            stops += 1
            assert stops < 40
    assert stops >= 2
    assert "take_up" in diary.calls
    assert diary.calls.index("take_up") < diary.calls.index(next(one for one in diary.calls if "before_run" in one))
    assert reports(store) == reports(undisturbed)


def test_extensions_combine_and_none_changes_nothing() -> None:
    class Part(Extension):
        share = (1, 3)
        publishes = False
        weights_owner = "a part"

        def after_step(self, version: int) -> int:
            return version + 1

    none, some = Extensions(), Extensions(Extension(), Part(), Part())
    assert (none.share, none.publishes, none.weights_owner, none.after_step(4)) == ((0, 1), True, "", 4)
    assert (some.share, some.publishes, some.weights_owner, some.after_step(4)) == ((1, 3), False, "a part", 6)
