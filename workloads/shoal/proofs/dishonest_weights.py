"""Weights that a dishonest worker might serve in place of the right ones, as controls of a calibration.

In: a model, which is changed in place by `other_weights` and put back. Called by `calibration`. Quantised weights are written back in the model's own
type: what counts is the rounding. An older version is the model one rollout step away: AdamW moves each weight by about the learning rate an update,
here in random directions, which hardly add up and so are harder to tell from honest ones than a real step.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

INT4_GROUP = 32  # weights that share a scale, as in GGUF's Q4_0
FP8_LARGEST = 448.0  # of e4m3 (arXiv:2209.05433, table 1)

Change = Callable[[torch.Tensor, torch.Generator], torch.Tensor]
"""A weight and a source of chance to another weight of the same shape and type."""


def int8(weight: torch.Tensor, chance: torch.Generator) -> torch.Tensor:
    """Round to nearest with a scale for each output (LLM.int8's vector-wise scheme without its outliers, arXiv:2208.07339)."""
    return _rounded(weight, weight.shape[-1], 127)


def int4(weight: torch.Tensor, chance: torch.Generator) -> torch.Tensor:
    """Round to nearest, 4 bits, a scale for 32 weights."""
    return _rounded(weight, INT4_GROUP if weight.shape[-1] % INT4_GROUP == 0 else weight.shape[-1], 7)


def fp8(weight: torch.Tensor, chance: torch.Generator) -> torch.Tensor:
    """e4m3 with a scale for each output."""
    floats = weight.float()
    scale = floats.abs().amax(dim=-1, keepdim=True).clamp_min(1e-12) / FP8_LARGEST
    return ((floats / scale).to(torch.float8_e4m3fn).float() * scale).to(weight.dtype)


def one_step_older(learning_rate: float, updates: int) -> Change:
    """Every weight moved by `learning_rate` up or down, `updates` times."""

    def change(weight: torch.Tensor, chance: torch.Generator) -> torch.Tensor:
        moved = weight.float()
        for _ in range(updates):
            moved = moved + learning_rate * (
                2.0 * torch.randint(0, 2, weight.shape, generator=chance).to(moved.device) - 1.0
            )
        return moved.to(weight.dtype)

    return change


def changes(learning_rate: float, updates: int) -> Mapping[str, Change]:
    """All of them by name."""
    return {"one step older": one_step_older(learning_rate, updates), "int8": int8, "fp8": fp8, "int4": int4}


@contextmanager
def other_weights(model: Any, name: str, change: Change, seed: int) -> Iterator[None]:
    """The model with changed weights, of all parameters for an older version, of the layers' matrices otherwise; the right ones are back after it."""
    chance = torch.Generator().manual_seed(seed)
    kept: dict[str, torch.Tensor] = {}
    try:
        for key, parameter in model.model.named_parameters():
            quantised = parameter.dim() == 2 and "embed" not in key
            if name == "one step older" or quantised:
                kept[key] = parameter.data
                parameter.data = change(parameter.data, chance)
        yield
    finally:
        for key, parameter in model.model.named_parameters():
            if key in kept:
                parameter.data = kept[key]


def _rounded(weight: torch.Tensor, group: int, levels: int) -> torch.Tensor:
    grouped = weight.float().reshape(-1, group)
    scale = grouped.abs().amax(dim=-1, keepdim=True).clamp_min(1e-12) / levels
    return ((grouped / scale).round().clamp(-levels, levels) * scale).reshape(weight.shape).to(weight.dtype)
