"""The base model: its files on the trainer's disk, its weights read where they lie, and refused when nobody could serve what is trained from it."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tiny_run import make_store, prepare, write_base

from shoal import telemetry
from shoal.contracts import keys
from shoal.storage import Store
from shoal.training.base_model import BadBaseModel, base_weights, fetch_base_model
from shoal.training.model import load_policy
from shoal.training.stored_weights import BadModel

LIVENESS = telemetry.Liveness(60.0)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = make_store(tmp_path / "store")
    prepare(made, write_base(tmp_path / "base"))
    return made


def test_all_but_the_weights_is_copied_as_it_is(store: Store, tmp_path: Path) -> None:
    folder = fetch_base_model(store, tmp_path / "copy", LIVENESS)
    for path in (tmp_path / "base").iterdir():
        if path.suffix == ".safetensors":
            assert not (folder / path.name).exists()
        else:
            assert (folder / path.name).read_bytes() == path.read_bytes()


def test_weights_are_read_in_the_store_by_rows(store: Store, tmp_path: Path) -> None:
    folder = fetch_base_model(store, tmp_path / "copy", LIVENESS)
    weights = base_weights(store)
    wanted = load_file(tmp_path / "base" / "model.safetensors")
    assert weights.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert torch.equal(weights[name].rows(1, tensor.shape[0] - 1), tensor[1:])
    from_store, from_folder = load_policy(folder, weights=weights), load_policy(tmp_path / "base")
    for (name, found), (_, loaded) in zip(from_store.full_weights(), from_folder.full_weights(), strict=True):
        assert torch.equal(found, loaded), name


def test_weights_that_are_cut_short_in_the_store_are_refused(store: Store, tmp_path: Path) -> None:
    key = keys.BASE_MODEL + "model.safetensors"
    store.put(key, store.get(key)[:-4])
    with pytest.raises(
        BadModel, match=r"models/base/model.safetensors is cut short: it has \d+ bytes, and \S+ would end"
    ):
        base_weights(store)


def test_weights_that_are_gone_while_they_are_read_are_said(store: Store, tmp_path: Path) -> None:
    weights = base_weights(store)
    key = keys.BASE_MODEL + "model.safetensors"
    store.put(key, store.get(key)[: weights["lm_head.weight"].start + 100])
    with pytest.raises(BadModel, match=r"model.safetensors ends within lm_head.weight: 100 of \d+ bytes at \d+"):
        weights["lm_head.weight"].rows(0, 64)


def test_a_file_that_a_stop_cut_short_is_copied_again(store: Store, tmp_path: Path) -> None:
    folder = fetch_base_model(store, tmp_path / "copy", LIVENESS)
    whole = (folder / "config.json").read_bytes()
    (folder / "config.json").write_bytes(whole[:100])
    fetch_base_model(store, folder, LIVENESS)
    assert (folder / "config.json").read_bytes() == whole


def test_a_base_model_without_a_tokenizer_is_refused_with_what_it_has(store: Store, tmp_path: Path) -> None:
    store.delete(keys.BASE_MODEL + "tokenizer.json")
    with pytest.raises(BadBaseModel, match=r"models/base/ has no tokenizer.*it has config.json, .*model.safetensors"):
        fetch_base_model(store, tmp_path / "copy", LIVENESS)
