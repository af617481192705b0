"""The base model on the trainer's disk: whole, copied once, and refused when nobody could serve what is trained from it."""

from pathlib import Path

import pytest
from tiny_run import make_store, prepare, write_base

from shoal import telemetry
from shoal.contracts import keys
from shoal.storage import Store
from shoal.training.base_model import BadBaseModel, fetch_base_model

LIVENESS = telemetry.Liveness(60.0)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = make_store(tmp_path / "store")
    prepare(made, write_base(tmp_path / "base"))
    return made


def test_the_base_model_is_copied_as_it_is(store: Store, tmp_path: Path) -> None:
    folder = fetch_base_model(store, tmp_path / "copy", LIVENESS)
    for path in (tmp_path / "base").iterdir():
        assert (folder / path.name).read_bytes() == path.read_bytes()


def test_a_file_that_a_stop_cut_short_is_copied_again(store: Store, tmp_path: Path) -> None:
    folder = fetch_base_model(store, tmp_path / "copy", LIVENESS)
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[:100])
    fetch_base_model(store, folder, LIVENESS)
    assert (folder / "model.safetensors").read_bytes() == whole


def test_a_base_model_without_a_tokenizer_is_refused_with_what_it_has(store: Store, tmp_path: Path) -> None:
    store.delete(keys.BASE_MODEL + "tokenizer.json")
    with pytest.raises(BadBaseModel, match=r"models/base/ has no tokenizer.*it has config.json, .*model.safetensors"):
        fetch_base_model(store, tmp_path / "copy", LIVENESS)
