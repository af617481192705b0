"""Low-rank adapters: linear layers whose weight is frozen and whose change is a product of two thin matrices (arXiv:2106.09685).

In: a model and the `Lora` settings. Out: the same model, its named linear layers replaced by `LoraLinear` and all else frozen. The base weights
keep their names, so a checkpoint is read and written as without adapters: `merged_weight` is what is published. Called by `model`.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import linear

from shoal.contracts.recipe import Lora
from shoal.models.places import stacks

EXPERT_MATRICES = {"gate_proj", "up_proj", "down_proj"}
"""Of an expert; in a model with experts some layers may have linear layers of these names too, and an adapter on those alone is hardly meant."""


class NoSuchLayer(ValueError):
    """A name of `targetModules` fits no linear layer; the message says which there are."""


class LoraLinear(torch.nn.Linear):
    """`x W^T + b + (alpha / rank) x A^T B^T`, with B zero at first, so that training begins with the base model."""

    def __init__(self, base: torch.nn.Linear, rank: int, alpha: float) -> None:
        super().__init__(base.in_features, base.out_features, base.bias is not None, device="meta")
        self.weight, self.bias = base.weight, base.bias
        self.scale = alpha / rank
        # Of a model whose weights are still to be read, adapters are there from the beginning: nobody reads them.
        kind = {"dtype": base.weight.dtype, "device": "cpu" if base.weight.is_meta else base.weight.device}
        self.lora_a = torch.nn.Parameter(torch.empty(rank, base.in_features, **kind))
        self.lora_b = torch.nn.Parameter(torch.zeros(base.out_features, rank, **kind))
        torch.nn.init.kaiming_uniform_(self.lora_a, a=5**0.5)  # as nn.Linear is initialised

    def forward(self, input: Float[Tensor, "*tokens in"]) -> Float[Tensor, "*tokens out"]:
        return linear(input, self.weight, self.bias) + self.scale * linear(linear(input, self.lora_a), self.lora_b)


def add_adapters(model: Any, settings: Lora) -> None:
    """Freeze `model` and put an adapter on every linear layer whose last name is in `target_modules`.

    Adapters are drawn from a fixed seed, alike on every rank, and leave the process's random state as it was. Raises NoSuchLayer.
    """
    stacked = sorted(set(settings.target_modules) & EXPERT_MATRICES) if stacks(model) else []
    if stacked:
        raise NoSuchLayer(
            f"lora.targetModules names {stacked}, which are matrices of experts in this model, and those take no adapters; name layers of its"
            " attention, such as q_proj, or leave out trainer.settings.lora to train all weights"
        )
    model.requires_grad_(False)
    linears = {name: module for name, module in model.named_modules() if type(module) is torch.nn.Linear}
    head = model.get_output_embeddings()
    found: set[str] = set()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for name, module in linears.items():
            parent, _, last = name.rpartition(".")
            if last in settings.target_modules and module is not head:
                setattr(model.get_submodule(parent), last, LoraLinear(module, settings.rank, settings.alpha))
                found.add(last)
    if missing := sorted(set(settings.target_modules) - found):
        there = sorted({name.rpartition(".")[2] for name, module in linears.items() if module is not head})
        raise NoSuchLayer(f"lora.targetModules names {missing}, but this model has no such layers; allowed: {there}")


def merged_weight(
    weight: Float[Tensor, "out in"], lora_a: Float[Tensor, "rank in"], lora_b: Float[Tensor, "out rank"], scale: float
) -> Float[Tensor, "out in"]:
    """The weight that a layer without an adapter needs to compute the same."""
    return torch.addmm(weight, lora_b, lora_a, alpha=scale)
