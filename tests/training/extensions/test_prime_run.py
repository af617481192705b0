"""A run with algorithm `prime`: its reward model is part of every state, so that no stop changes anything, and its report says how it does."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from test_loop import DyingStore, Killed
from tiny_run import Orchestrator, config, fill_step, make_store, make_trainer, recipe, write_base

from servers import Loopback
from shoal.contracts import keys
from shoal.contracts.failures import RollBack
from shoal.contracts.run import RunConfig
from shoal.contracts.steps import StepMetrics
from shoal.contracts.trainer import Offload, TrainerSettings
from shoal.planner.memory import state_bytes
from shoal.storage import Store
from shoal.training.extensions.prime.extension import PrimeExtension
from shoal.training.state import BadState, WrongState

STEPS = 2
RECIPE = recipe(algorithm={"prime": {"beta": 0.5, "learning_rate": 2e-3}})


@pytest.fixture(scope="module")
def orchestrator(loopback: Loopback) -> Iterator[Orchestrator]:
    server = Orchestrator(loopback.address())
    server.latest_version = STEPS
    yield server
    server.close()


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_base(tmp_path_factory.mktemp("prime") / "base")


def run_of(orchestrator: Orchestrator, **changes: Any) -> RunConfig:
    return config(orchestrator.url, **({"steps": STEPS, "recipe": RECIPE} | changes))


def filled(root: Path, steps: int = STEPS) -> Store:
    store = make_store(root)
    for step in range(steps):
        fill_step(store, step)
    return store


def report(store: Store, step: int) -> StepMetrics:
    return StepMetrics.from_json(store.get(keys.step_metrics(step)))


def left(store: Store, outbox: Path) -> dict[str, Any]:
    """Digests of the last state and of every version, and the reports without their clock times."""
    found: dict[str, Any] = {
        path.parent.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(outbox.glob("v*/model.safetensors"))
    }
    if store.exists(state := keys.trainer_state(STEPS) + "rank-00000.tensors"):
        found["state"] = hashlib.sha256(store.get(state)).hexdigest()
    for step in range(STEPS):
        found[f"step {step}"] = report(store, step).model_dump(
            exclude={"started_unix", "finished_unix", "phase_seconds"}
        )
    return found


def test_the_report_says_how_the_reward_model_does_and_a_stop_at_any_write_makes_no_version_twice(
    tmp_path: Path, base: Path, orchestrator: Orchestrator
) -> None:
    undisturbed = filled(tmp_path / "undisturbed" / "store")
    make_trainer(tmp_path / "undisturbed", base, undisturbed, orchestrator, run_of(orchestrator)).run()
    first, second = report(undisturbed, 0), report(undisturbed, 1)
    assert first.prm_loss is not None
    assert second.prm_loss is not None
    assert 0.3 < first.prm_loss < 1.5
    assert second.prm_loss != first.prm_loss
    assert 0.0 <= (first.prm_accuracy or 0.0) <= 1.0
    assert (first.prm_gradient_norm or 0.0) > 0.0
    assert first.prm_skipped_updates == 0
    assert {"process_rewards", "reward_model"} <= first.phase_seconds.keys()

    store, stops = filled(tmp_path / "stopped" / "store"), 0
    while True:  # each attempt gets a few writes further, with a new process's memory
        dying = DyingStore(store, at=2 + stops % 3)
        try:
            make_trainer(tmp_path / "stopped", base, dying, orchestrator, run_of(orchestrator)).run()
            break
        except Killed:
            stops += 1
            assert stops < 40
    assert stops >= 3
    found = left(store, tmp_path / "stopped" / "outbox")
    wanted = left(undisturbed, tmp_path / "undisturbed" / "outbox")
    assert found.keys() | {"state"} == wanted.keys()
    if all(
        report(store, step).moments_of is None for step in range(STEPS)
    ):  # else a stop came between a version and its state
        assert found | {"state": wanted["state"]} == wanted


def reward_model(trainer: Any) -> torch.Tensor:
    """All weights of a trainer's reward model."""
    learner = trainer._extensions.learners()["beside"]
    return torch.cat([parameter.detach().flatten() for parameter in learner.model.parameters()])


def test_going_back_takes_the_reward_model_back_too(tmp_path: Path, base: Path, orchestrator: Orchestrator) -> None:
    store = filled(tmp_path / "store", 3)
    run = run_of(orchestrator, steps=3, roll_back=RollBack(to_version=1, at_step=2))
    going = make_trainer(tmp_path, base, store, orchestrator, run)
    going.resume()
    going.next_step()
    earlier = reward_model(going).clone()
    going.next_step()
    assert not torch.equal(reward_model(going), earlier)
    going.next_step()
    assert going._handover.settle(60.0)
    assert report(store, 2).rolled_back_to == 1
    assert torch.equal(reward_model(going), earlier)
    with pytest.raises(BadState, match="models trained beside the policy started afresh in another process"):
        going.go_on_from(tmp_path / "outbox" / "v000003", -1)


def test_a_state_without_a_reward_model_is_of_another_run(
    tmp_path: Path, base: Path, orchestrator: Orchestrator
) -> None:
    store = filled(tmp_path / "store")
    make_trainer(tmp_path, base, store, orchestrator, run_of(orchestrator, recipe=recipe())).run()
    assert report(store, 0).prm_loss is None
    with pytest.raises(WrongState, match=r"recipe\.algorithm say"):
        make_trainer(tmp_path, base, store, orchestrator, run_of(orchestrator)).resume()


def test_the_reward_model_s_moments_lie_in_host_memory_where_the_policy_s_do(
    tmp_path: Path, base: Path, orchestrator: Orchestrator
) -> None:
    """Moments that rest on the host are brought for one parameter at a time: AdamW is called once for each."""
    settings = TrainerSettings(offload=Offload(optimizer=True))
    trainer = make_trainer(
        tmp_path, base, filled(tmp_path / "store", 1), orchestrator, run_of(orchestrator, steps=1, trainer=settings)
    )
    [prime] = [each for each in trainer._extensions if isinstance(each, PrimeExtension)]
    adamw = prime.reward_model.learner.optimizer.adamw
    calls: list[int] = []
    adamw.register_step_pre_hook(lambda optimizer, *_: calls.append(len(optimizer.param_groups[0]["params"])))
    trainer.run()
    assert calls == [1] * (2 * len(list(prime.reward_model.learner.model.parameters())))
    parameters = list(prime.reward_model.learner.model.parameters())
    held = [*parameters, *(each[name] for each in adamw.state.values() for name in ("exp_avg", "exp_avg_sq"))]
    count = sum(each.numel() for each in parameters)
    planned = state_bytes(count, reward_model=True) - state_bytes(count)
    assert sum(each.nbytes for each in held) == planned  # a state has all of it
