"""Quantised rollouts: the one rule by which workers and validators round the weights of linear layers (ADR 0116).

In: tensors of a checkpoint, by their names there. Out: the same tensors, of which those of linear layers hold values of e4m3 (arXiv:2209.05433) times
a scale for each output. Embeddings, heads, norms, biases and routers of experts stay. Whoever rounds does it to whole matrices of a file, before they
are cut among GPUs or laid together. So engine and validator have equal weights, bit for bit, whatever their devices.

Each step is exact or rounds once, to nearest even: magnitude and scale in float32, one division, e4m3, one product, then the tensor's own type.
0.19 billion weights a second and core, measured: 31 billion (65 GB) take 165 s on one core, at each load and swap.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from shoal.models.places import places

LARGEST = 448.0
"""Of e4m3 (arXiv:2209.05433, table 1)."""
LEAST_MAGNITUDE = 1e-12
"""A row of smaller weights gets the scale of this one, so that a row of zeros stays one."""
PIECE = 1 << 16
"""Weights that are rounded together: their floats stay in a core's cache, which is twice as fast as 1 << 22."""
MATRICES = re.compile(r"\.layers\.\d+\..*\.weight$")
ROUTERS = re.compile(r"\.(gate|router)\.weight$")
"""Of experts: `mlp.gate.weight`, which is no `gate_proj`. They decide which experts run, and are small."""


def is_rounded(name: str, shape: Sequence[int]) -> bool:
    """Whether the rule rounds this tensor of a checkpoint: a matrix of a layer, but no router."""
    return len(shape) == 2 and MATRICES.search(name) is not None and ROUTERS.search(name) is None


def fp8(weight: torch.Tensor) -> torch.Tensor:
    """A matrix [outputs, inputs] rounded to e4m3 with a scale for each output, in its own type. The given one is left as it is."""
    rounded = torch.empty_like(weight, memory_format=torch.contiguous_format)
    rows = max(1, PIECE // max(1, weight.shape[-1]))
    for old, new in zip(weight.split(rows), rounded.split(rows), strict=True):
        floats = old.float()
        scale = floats.abs().amax(dim=-1, keepdim=True).clamp_min(LEAST_MAGNITUDE) / LARGEST
        new.copy_((floats / scale).to(torch.float8_e4m3fn).float() * scale)
    return rounded


RULES: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {"fp8": fp8}
"""By the name that a run's terms have (`contracts.pools.Quantization`)."""


def rounded(name: str, weight: torch.Tensor, quantization: str | None) -> torch.Tensor:
    """A tensor of a checkpoint as a run of this term samples with it; None: as it is published."""
    return RULES[quantization](weight) if quantization is not None and is_rounded(name, weight.shape) else weight


@torch.no_grad()
def round_in_place(model: Any, quantization: str) -> None:
    """Round the weights of a whole model in memory, as a run of this term samples with it."""
    state = model.state_dict()
    for place in places(model).values():
        weight = place.within(state[place.state])
        if is_rounded(place.name, weight.shape):
            weight.copy_(rounded(place.name, weight, quantization))


@torch.no_grad()
def restore(model: Any, folder: Path) -> None:
    """Put back what `round_in_place` changed, from the checkpoint's folder: no second copy is kept meanwhile."""
    state, known = model.state_dict(), places(model)
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            names: list[str] = file.keys()
            for name in names:
                if name in known and is_rounded(name, known[name].shape):
                    known[name].within(state[known[name].state]).copy_(file.get_tensor(name))
