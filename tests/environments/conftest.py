"""What tests of prepare share: an empty store, a folder that passes for a checkpoint, and an environment without packages."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from samples import PROOF_PROFILE
from shoal.contracts.model_source import ModelSource
from shoal.environments import load
from shoal.environments.generated_tokenizer import train_tokenizer
from shoal.environments.places import RUN_VARIABLE
from shoal.storage import Store
from shoal.storage.store import open_folder


@pytest.fixture
def store(tmp_path: Path) -> Store:
    (tmp_path / "store").mkdir()
    return open_folder(tmp_path / "store", "shoal/arithmetic", deadline_seconds=5.0)


@pytest.fixture
def base(tmp_path: Path) -> ModelSource:
    """Files that prepare takes for a checkpoint; nobody loads it here."""
    folder = tmp_path / "mounted"
    folder.mkdir()
    train_tokenizer(["12+34="]).save_pretrained(folder)
    (folder / "config.json").write_text('{"hidden_size": 128, "eos_token_id": 0}')
    (folder / "model.safetensors").write_bytes(b"")
    (folder / "proof_profile.json").write_bytes(PROOF_PROFILE.to_json())
    return ModelSource(path=str(folder))


@pytest.fixture
def no_packages(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The test begins and ends without packages of a run."""
    monkeypatch.setenv(RUN_VARIABLE, "")
    load.cache_clear()
    yield
    load.cache_clear()
