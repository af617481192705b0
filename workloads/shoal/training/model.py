"""Policies as Hugging Face checkpoints: loading one to train, and writing one to serve.

In: a checkpoint folder. Out: a causal language model in float32 (weights are trained in float32 whatever they are served in),
or a folder with the base model's own files and new weights in the dtype of serving. Called by `loop` and `outbox`.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

RECOMPUTE_FROM_PARAMETERS = 50_000_000
"""From this size on activations are computed again in the backward pass (paper section 3.1.1): memory is what is short. Below,
they are a few megabytes, and a third more computing buys nothing.
"""
WEIGHTS_FILE = "model.safetensors"
SERVED_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class BadModel(ValueError):
    """The base checkpoint cannot be trained; the message says which file and why."""


def load_policy(folder: Path) -> Any:
    """The checkpoint as a float32 model, ready to train; dropout, where a model has any, is off."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa")
    model.config.use_cache = False
    if model.num_parameters() >= RECOMPUTE_FROM_PARAMETERS:
        # Recomputation is only active in training mode.
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        model.train()
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
    else:
        model.eval()
    return model


def load_reference(folder: Path) -> Any:
    """The checkpoint as a model that is only asked for log-probabilities: the base model of the KL penalty."""
    return (
        AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa")
        .requires_grad_(False)
        .eval()
    )


def write_checkpoint(model: Any, base: Path, folder: Path) -> None:
    """Write `model` to the new folder `folder`: files of `base` (configuration, tokenizer) and the weights.

    The same weights give the same bytes. Raises BadModel when `base` does not say in which dtype it is served.
    """
    dtype = served_dtype(base)
    folder.mkdir(parents=True)
    for path in sorted(base.iterdir()):
        if path.is_file() and ".safetensors" not in path.suffixes and path.suffix not in (".bin", ".index"):
            shutil.copyfile(path, folder / path.name)
    save_file(named_weights(model, dtype), folder / WEIGHTS_FILE, metadata={"format": "pt"})


def named_weights(model: Any, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Tensors by name in the given dtype; a tensor that is tied to another one is given once, as a checkpoint has it."""
    tied = set(getattr(model, "all_tied_weights_keys", None) or {})
    return {
        name: tensor.detach().to("cpu", dtype).contiguous()
        for name, tensor in sorted(model.state_dict().items())
        if name not in tied
    }


def served_dtype(base: Path) -> torch.dtype:
    """The dtype in `config.json` of the base checkpoint."""
    path = base / "config.json"
    try:
        config = json.loads(path.read_bytes())
        name = config.get("dtype", config.get("torch_dtype"))
    except (OSError, ValueError, AttributeError) as error:
        raise BadModel(f"{path}: {error}") from error
    if name not in SERVED_DTYPES:
        raise BadModel(f"{path}: dtype is {name!r}; allowed: {', '.join(SERVED_DTYPES)}")
    return SERVED_DTYPES[name]
