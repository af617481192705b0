"""State: what comes back is what was saved, to the bit; what is damaged or half written is never taken for whole."""

from pathlib import Path

import pytest
import torch
from tiny_run import make_model, make_store, recipe
from torch import Tensor

from samples import METRICS, RUN
from shoal.contracts import keys
from shoal.storage import Store
from shoal.training.optimizer import Optimizer
from shoal.training.state import KEPT_STATES, BadState, States


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return make_store(tmp_path / "store")


@pytest.fixture
def states(store: Store, tmp_path: Path) -> States:
    return States(store, RUN, tmp_path / "scratch")


def updated(model: torch.nn.Module, optimizer: Optimizer, times: int) -> dict[str, Tensor]:
    """Weights after updates with random gradients: model, moments and random state all matter to the result."""
    for _ in range(times):
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter)
        optimizer.step()
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def test_a_resumed_run_goes_on_bit_for_bit(states: States) -> None:
    model = make_model()
    optimizer = Optimizer(model.parameters(), recipe())
    updated(model, optimizer, 3)
    states.save(3, model, optimizer, METRICS)
    went_on = updated(model, optimizer, 2)

    torch.manual_seed(99)
    fresh = make_model(seed=5)
    other = Optimizer(fresh.parameters(), recipe())
    sealed = states.restore(3, fresh, other)
    assert sealed.metrics == METRICS
    assert other.updates == 3
    resumed = updated(fresh, other, 2)
    assert all(torch.equal(resumed[name], tensor) for name, tensor in went_on.items())


def test_tied_embeddings_stay_tied(states: States) -> None:
    model = make_model(tie_word_embeddings=True)
    optimizer = Optimizer(model.parameters(), recipe())
    updated(model, optimizer, 1)
    states.save(1, model, optimizer, None)
    fresh = make_model(seed=5, tie_word_embeddings=True)
    states.restore(1, fresh, Optimizer(fresh.parameters(), recipe()))
    assert fresh.lm_head.weight is fresh.model.embed_tokens.weight
    assert torch.equal(fresh.lm_head.weight, model.lm_head.weight)


def test_only_the_newest_states_are_kept(states: States, store: Store) -> None:
    model = make_model()
    optimizer = Optimizer(model.parameters(), recipe())
    for version in range(KEPT_STATES + 2):
        states.save(version, model, optimizer, None)
    assert states.sealed() == [2, 3, 4]
    assert not store.list(keys.trainer_state(1))


def test_a_state_without_its_seal_does_not_exist(states: States, store: Store) -> None:
    model = make_model()
    optimizer = Optimizer(model.parameters(), recipe())
    states.save(1, model, optimizer, None)
    states.save(2, model, optimizer, None)
    store.delete(keys.trainer_state(2) + "state.json")
    assert states.sealed() == [1]


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors"])
def test_a_damaged_file_is_refused_and_the_way_out_is_said(states: States, store: Store, name: str) -> None:
    model = make_model()
    optimizer = Optimizer(model.parameters(), recipe())
    states.save(1, model, optimizer, None)
    data = bytearray(store.get(keys.trainer_state(1) + name))
    data[-1] ^= 1
    store.put(keys.trainer_state(1) + name, bytes(data))
    with pytest.raises(BadState, match=rf"v000001/{name} has SHA-256 .*, sealed was .*; delete .*state.json"):
        states.restore(1, model, optimizer)


def test_a_missing_file_is_refused(states: States, store: Store) -> None:
    model = make_model()
    optimizer = Optimizer(model.parameters(), recipe())
    states.save(1, model, optimizer, None)
    store.delete(keys.trainer_state(1) + "optimizer.safetensors")
    with pytest.raises(BadState, match=r"state.json seals optimizer.safetensors, but there is no such object"):
        states.restore(1, model, optimizer)


def test_the_state_of_another_run_is_refused(states: States, store: Store, tmp_path: Path) -> None:
    model = make_model()
    optimizer = Optimizer(model.parameters(), recipe())
    states.save(1, model, optimizer, None)
    with pytest.raises(BadState, match="is of run 'arithmetic' version 1; wanted: 'other'"):
        States(store, "other", tmp_path / "scratch").restore(1, model, optimizer)


def test_the_state_of_another_model_is_refused(states: States) -> None:
    model = make_model()
    states.save(1, model, Optimizer(model.parameters(), recipe()), None)
    wider = make_model(intermediate_size=96)
    with pytest.raises(BadState, match=r"is of another model than models/base/: they differ in \['model.layers.0.mlp"):
        states.restore(1, wider, Optimizer(wider.parameters(), recipe()))
