"""Weights that a dishonest worker might generate with, made from the honest ones.

In: checkpoint folders (Hugging Face layout). Out: checkpoint folders with the same files and the same tensors' names, shapes and dtypes,
so that one engine serves them all by swap. Quantised weights are quantised and dequantised again: what is computed with them is what an
engine with such kernels computes, rounding of activations apart, which makes them harder to find and not easier.
"""

import random
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from shoal.environments.arithmetic import Arithmetic, operands
from shoal.environments.prompts import prompt_tokens
from shoal.environments.slips import learners_addition

TENSORS = "model.safetensors"
LINEAR = "_proj.weight"
"""What is quantised in practice: attention and MLP matrices; embeddings, norms and the head stay."""
INT4_GROUP = 32
FIRST_STEP_RATES = (1e-5, 2e-5, 3e-5)
"""Learning rates of the demo's first step (1.5e-4 with 15 updates of warm-up): the smallest step between two versions that a run makes."""
FULL_STEP_RATES = (1.5e-4, 1.5e-4, 1.5e-4)
"""Those of a step after the warm-up."""
OTHER_MODEL_RATES = (3e-3,) * 4
"""As large as the updates of the warm start: another fine-tune of the same base."""
BATCH = 64

Tensors = dict[str, torch.Tensor]


def derive(source: Path, target: Path, change: Callable[[Tensors], Tensors]) -> Path:
    """The checkpoint `source` with changed tensors, in `target`, each in its former dtype."""
    target.mkdir(parents=True)
    for path in source.iterdir():
        if path.name != TENSORS:
            shutil.copy(path, target / path.name)
    held = load_file(source / TENSORS)
    changed = change({name: tensor.clone() for name, tensor in held.items()})
    save_file(
        {name: changed[name].to(tensor.dtype).contiguous() for name, tensor in held.items()},
        target / TENSORS,
        metadata={"format": "pt"},
    )
    return target


def int8(tensors: Tensors) -> Tensors:
    """8 bits with a sign, one scale an output channel."""
    return _linear(tensors, lambda weight: _rounded(weight, weight.abs().amax(dim=1, keepdim=True) / 127))


def fp8(tensors: Tensors) -> Tensors:
    """8 bits of floating point (E4M3), one scale an output channel."""

    def quantise(weight: torch.Tensor) -> torch.Tensor:
        scale = weight.abs().amax(dim=1, keepdim=True) / torch.finfo(torch.float8_e4m3fn).max
        return (weight / scale).to(torch.float8_e4m3fn).float() * scale

    return _linear(tensors, quantise)


def int4(tensors: Tensors) -> Tensors:
    """4 bits with a sign, one scale for 32 weights of an output channel."""

    def quantise(weight: torch.Tensor) -> torch.Tensor:
        groups = weight.reshape(weight.shape[0], -1, INT4_GROUP)
        return _rounded(groups, groups.abs().amax(dim=2, keepdim=True) / 7).reshape(weight.shape)

    return _linear(tensors, quantise)


def bfloat16(tensors: Tensors) -> Tensors:
    """All weights rounded to bfloat16."""
    return {name: tensor.to(torch.bfloat16).float() for name, tensor in tensors.items()}


def shallow(tensors: Tensors) -> Tensors:
    """The model without its last layer, whose two outputs are set to nothing: a third cheaper."""
    last = max(int(name.split(".")[2]) for name in tensors if name.startswith("model.layers."))
    for part in ("self_attn.o_proj", "mlp.down_proj"):
        tensors[f"model.layers.{last}.{part}.weight"].zero_()
    return tensors


def with_tensor_of(source: Path, name: str) -> Callable[[Tensors], Tensors]:
    """All but one tensor: what a weight swap leaves that missed one."""

    def change(tensors: Tensors) -> Tensors:
        return tensors | {name: load_file(source / TENSORS)[name]}

    return change


def train(source: Path, target: Path, rates: Sequence[float], targets: Sequence[int | None], seed: int) -> Path:
    """The checkpoint after one AdamW update on learners' additions for each of `rates`."""
    torch.manual_seed(seed)
    chance, environment = random.Random(seed), Arithmetic()
    tokenizer = AutoTokenizer.from_pretrained(source)
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.0)
    tasks = environment.tasks(BATCH * len(rates), seed)
    for number, rate in enumerate(rates):
        for group in optimizer.param_groups:
            group["lr"] = rate
        lessons = [
            (
                prompt_tokens(tokenizer, environment, task, chance.choice(targets), None),
                tokenizer.encode(learners_addition(*operands(task), chance), add_special_tokens=False),
            )
            for task in tasks[number * BATCH : (number + 1) * BATCH]
        ]
        tokens, labels = _padded(lessons, tokenizer.eos_token_id)
        model(input_ids=tokens, labels=labels, use_cache=False).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()
    trained = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    return derive(source, target, lambda held: {name: trained[name] for name in held})


CHANGES: Mapping[str, Callable[[Tensors], Tensors]] = {
    "int8": int8,
    "fp8": fp8,
    "int4": int4,
    "bfloat16": bfloat16,
    "shallow": shallow,
}


def _linear(tensors: Tensors, quantise: Callable[[torch.Tensor], torch.Tensor]) -> Tensors:
    return {name: quantise(tensor.float()) if name.endswith(LINEAR) else tensor for name, tensor in tensors.items()}


def _padded(lessons: Sequence[tuple[list[int], list[int]]], eos: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and labels [lessons, longest] of prompts and answers; what is no answer has the label that the loss leaves out."""
    width = max(len(prompt) + len(answer) for prompt, answer in lessons) + 1
    tokens = torch.full((len(lessons), width), eos)
    labels = torch.full((len(lessons), width), -100)
    for row, (prompt, answer) in enumerate(lessons):
        end = len(prompt) + len(answer)
        tokens[row, :end] = torch.tensor(prompt + answer)
        labels[row, len(prompt) : end + 1] = tokens[row, len(prompt) : end + 1]
    return tokens, labels


def _rounded(weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    scale = scale.clamp(min=torch.finfo(torch.float32).tiny)
    return (weight / scale).round() * scale
