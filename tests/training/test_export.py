"""Export: what is handed over is a checkpoint that others load, in the dtype of serving, from copies made earlier, one file or many."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_run import VOCABULARY, make_model, ranks, recipe
from transformers import AutoModelForCausalLM

from shoal.contracts.trainer import Lora, TrainerSettings
from shoal.storage.growing import Growing, GrowingWriter, Unfinished, partial_folder
from shoal.training.batches import Segments
from shoal.training.delivery import Outbox
from shoal.training.export import Entry, Export, cut
from shoal.training.host_copy import HostCopy
from shoal.training.model import Policy, load_policy
from shoal.training.optimizer import Optimizer
from shoal.training.stored_weights import BadModel

TOKENS = torch.arange(2, 12)[None] % VOCABULARY


def write_base(folder: Path, dtype: str = "float32", **changes: Any) -> Path:
    make_model(**changes).to(getattr(torch, dtype)).save_pretrained(folder, max_shard_size="40KB")
    (folder / "tokenizer.json").write_text("{}")
    return folder


def changed(base: Path, lora: bool = False) -> tuple[Policy, HostCopy]:
    """A policy that was trained a little, and its host copy."""
    settings = TrainerSettings(lora=Lora(rank=2, target_modules=["q_proj", "down_proj"]) if lora else None)
    policy = load_policy(base, settings, ranks())
    copy = HostCopy(policy, Optimizer(policy.parameters(), recipe()), ranks())
    with torch.no_grad():
        for parameter in policy.parameters():
            if parameter.requires_grad:
                parameter.add_(0.05 * torch.randn_like(parameter))
    copy.take()
    return policy, copy


@pytest.mark.parametrize("file_bytes", [10**9, 20_000])
@pytest.mark.parametrize("changes", [{}, {"tie_word_embeddings": True}, {"lora": True}])
def test_transformers_loads_the_policy_from_it(tmp_path: Path, changes: dict[str, Any], file_bytes: int) -> None:
    base = write_base(tmp_path / "base", **{name: value for name, value in changes.items() if name != "lora"})
    policy, copy = changed(base, lora="lora" in changes)
    Export(policy, base, ranks(), file_bytes=file_bytes).write(copy.tensors, tmp_path / "out")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    with torch.no_grad():
        hidden = policy.model.model(input_ids=TOKENS, attention_mask=None, segments=Segments((0, TOKENS.shape[1])))
        wanted = policy.model.lm_head(hidden.last_hidden_state)
        torch.testing.assert_close(loaded(TOKENS).logits, wanted, rtol=1e-4, atol=1e-4)
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"config.json", "tokenizer.json"} <= names
    assert ("model.safetensors" in names) == (file_bytes > 20_000)
    assert ("model.safetensors.index.json" in names) == (file_bytes == 20_000)


def test_no_weights_of_the_base_model_lie_beside_the_new_ones(tmp_path: Path) -> None:
    base = write_base(tmp_path / "base")
    assert len(list(base.glob("model-*.safetensors"))) > 1  # with an index, which would name files that are not there
    policy, copy = changed(base)
    Export(policy, base, ranks()).write(copy.tensors, tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").glob("*safetensors*")) == ["model.safetensors"]


def test_weights_are_served_in_the_base_models_dtype_rounded_once(tmp_path: Path) -> None:
    base = write_base(tmp_path / "base", "bfloat16")
    policy, copy = changed(base)
    Export(policy, base, ranks()).write(copy.tensors, tmp_path / "out")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert loaded.dtype == torch.bfloat16
    for name, tensor in policy.model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor.to(torch.bfloat16))


def test_it_is_the_copy_that_is_written_however_the_policy_goes_on(tmp_path: Path) -> None:
    base = write_base(tmp_path / "base")
    policy, copy = changed(base)
    export = Export(policy, base, ranks())
    export.write(copy.tensors, tmp_path / "before")
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.mul_(2)
    export.write(copy.tensors, tmp_path / "after")
    before, after = (tmp_path / name / "model.safetensors" for name in ("before", "after"))
    assert before.read_bytes() == after.read_bytes()


def test_a_tensor_larger_than_a_file_has_one_of_its_own() -> None:
    entries = [Entry(name, (size,), name, None, None) for name, size in (("a", 3), ("b", 50), ("c", 4), ("d", 5))]
    assert [[entry.name for entry in part] for part in cut(entries, torch.bfloat16, 20)] == [["a"], ["b"], ["c", "d"]]


def test_a_base_that_does_not_say_how_it_is_served_is_refused(tmp_path: Path) -> None:
    base = write_base(tmp_path / "base")
    policy, _ = changed(base)
    config = json.loads((base / "config.json").read_text())
    config["dtype"] = "int3"
    (base / "config.json").write_text(json.dumps(config))
    with pytest.raises(BadModel, match=r"dtype is 'int3'; allowed: float32, bfloat16, float16"):
        Export(policy, base, ranks())


def test_what_an_attempt_that_ended_was_writing_goes_and_its_reader_is_told(tmp_path: Path) -> None:
    """No later attempt may ever write these numbers again, and 65 GB of each would stay."""
    outbox = tmp_path / "outbox"
    for version in (3, 7):
        folder = partial_folder(outbox, version)
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")
        GrowingWriter(folder).begin([])
    (outbox / "partial-v000009.plan").write_text("[]")  # of one that was handed over just before the end
    kept = [outbox / "v000002" / "config.json", outbox / ".base" / "v000001" / "config.json"]
    for path in kept:
        path.parent.mkdir(parents=True)
        path.write_text("{}")
    here = ranks()
    with Growing(outbox, 7, lambda: None, lambda: False) as reader:
        Outbox(outbox, Export(load_policy(write_base(tmp_path / "base")), tmp_path / "base", here), here)
        with pytest.raises(Unfinished, match="version 7 was given up"):
            reader.handed_over()
    assert sorted(path.name for path in outbox.iterdir()) == [".base", "v000002"]
    assert all(path.read_text() == "{}" for path in kept)
