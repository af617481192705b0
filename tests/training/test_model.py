"""Checkpoints for serving: the base model's own files with new weights, in the dtype of serving, whole or not there at all."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tiny_run import make_model, write_base
from transformers import AutoModelForCausalLM

from shoal.training.model import BadModel, load_policy, write_checkpoint
from shoal.training.outbox import Outbox


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return write_base(tmp_path / "base")


def set_config(base: Path, **values: Any) -> None:
    path = base / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_a_checkpoint_has_the_bases_files_and_loads_as_the_same_model(base: Path, tmp_path: Path) -> None:
    model = make_model(seed=3)
    write_checkpoint(model, base, tmp_path / "new")
    assert {path.name for path in (tmp_path / "new").iterdir()} == {path.name for path in base.iterdir()}
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "new")
    assert all(torch.equal(tensor, loaded.state_dict()[name]) for name, tensor in model.state_dict().items())


def test_the_same_weights_give_the_same_bytes(base: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_checkpoint(make_model(seed=3), base, tmp_path / name)
    one, two = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("one", "two"))
    assert one == two


def test_weights_are_trained_in_float32_and_served_in_the_bases_dtype(base: Path, tmp_path: Path) -> None:
    set_config(base, dtype="bfloat16")
    policy = load_policy(base)
    assert {parameter.dtype for parameter in policy.parameters()} == {torch.float32}
    write_checkpoint(policy, base, tmp_path / "new")
    assert {tensor.dtype for tensor in load_file(tmp_path / "new" / "model.safetensors").values()} == {torch.bfloat16}


def test_tied_weights_are_written_once(tmp_path: Path) -> None:
    base = write_base(tmp_path / "base", tie_word_embeddings=True)
    write_checkpoint(load_policy(base), base, tmp_path / "new")
    assert "lm_head.weight" not in load_file(tmp_path / "new" / "model.safetensors")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "new")
    assert torch.equal(loaded.lm_head.weight, load_policy(base).lm_head.weight)


def test_a_dtype_that_nobody_serves_is_refused(base: Path, tmp_path: Path) -> None:
    set_config(base, dtype="float64")
    with pytest.raises(BadModel, match=r"config.json: dtype is 'float64'; allowed: float32, bfloat16, float16"):
        write_checkpoint(make_model(), base, tmp_path / "new")


def test_a_version_appears_in_the_outbox_whole_and_keeps_its_bytes(base: Path, tmp_path: Path) -> None:
    outbox = Outbox(tmp_path / "outbox", base)
    half_written = tmp_path / "outbox" / "partial-v000004"
    half_written.mkdir()
    (half_written / "model.safetensors").write_bytes(b"half")
    outbox.put(make_model(seed=3), 4)
    outbox.put(make_model(seed=4), 4)
    assert [path.name for path in (tmp_path / "outbox").iterdir()] == ["v000004"]
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "outbox" / "v000004")
    assert torch.equal(loaded.lm_head.weight, make_model(seed=3).lm_head.weight)
