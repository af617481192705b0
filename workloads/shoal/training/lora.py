"""Low-rank adapters: matrices whose weight is frozen and whose change is a product of two thin matrices (arXiv:2106.09685).

In: a model and the `Lora` settings. Out: the same model, adapters on its named linear layers and experts, and all else frozen. The base weights
keep their names, so a checkpoint is read and written as without adapters: `merged_weight` is what is published. Called by `model`.
"""

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import linear

from shoal.contracts.trainer import Lora
from shoal.models.places import MATRICES, Place, stacks
from shoal.training.host_copy import local, own_rows

OF_EXPERTS = "adapters"
"""Name of the modules that hold the adapters of a layer's experts, by matrix, within the module that holds the experts."""


class NoSuchLayer(ValueError):
    """A name of `targetModules` fits no linear layer and no matrix of experts; the message says which there are."""


class LoraLinear(torch.nn.Linear):
    """`x W^T + b + (alpha / rank) x A^T B^T`, with B zero at first, so that training begins with the base model."""

    def __init__(self, base: torch.nn.Linear, rank: int, alpha: float) -> None:
        super().__init__(base.in_features, base.out_features, base.bias is not None, device="meta")
        self.weight, self.bias = base.weight, base.bias
        self.scale = alpha / rank
        kind = {"dtype": base.weight.dtype, "device": base.weight.device}
        self.lora_a = torch.nn.Parameter(torch.empty(rank, base.in_features, **kind))
        self.lora_b = torch.nn.Parameter(torch.empty(base.out_features, rank, **kind))

    def forward(self, input: Float[Tensor, "*tokens in"]) -> Float[Tensor, "*tokens out"]:
        return linear(input, self.weight, self.bias) + self.scale * linear(linear(input, self.lora_a), self.lora_b)


class ExpertAdapters(torch.nn.Module):
    """Adapters of one matrix of each expert of a layer, as two thin stacks that lie as the stack of experts does. `experts` computes with them.

    At rank 16 an expert of Qwen3-30B-A3B has 135,168 parameters in its three matrices' adapters, and 4.7 million without.
    """

    def __init__(self, experts: int, rows: int, columns: int, settings: Lora, like: Tensor) -> None:
        super().__init__()
        self.scale = settings.alpha / settings.rank
        kind = {"dtype": like.dtype, "device": like.device}
        self.lora_a = torch.nn.Parameter(torch.empty(experts, settings.rank, columns, **kind))
        self.lora_b = torch.nn.Parameter(torch.empty(experts, rows, settings.rank, **kind))


Adapter = LoraLinear | ExpertAdapters


def add_adapters(model: Any, settings: Lora) -> None:
    """Freeze `model`, and put an adapter on every linear layer and every expert's matrix whose last name is in `target_modules`.

    They have no values yet, and no memory in a model that has none: `draw_adapters` gives them. Raises NoSuchLayer.
    """
    model.requires_grad_(False)
    linears = {name: module for name, module in model.named_modules() if type(module) is torch.nn.Linear}
    head, asked = model.get_output_embeddings(), set(settings.target_modules)
    there = {name.rpartition(".")[2] for name, module in linears.items() if module is not head}
    held = list(stacks(model).values())
    if held:
        there |= {matrix for matrices in MATRICES.values() for matrix in matrices}
    if missing := sorted(asked - there):
        raise NoSuchLayer(
            f"lora.targetModules names {missing}, but this model has no such layers; allowed: {sorted(there)}"
        )
    for name, module in linears.items():
        parent, _, last = name.rpartition(".")
        if last in asked and module is not head:
            setattr(model.get_submodule(parent), last, LoraLinear(module, settings.rank, settings.alpha))
    for module in held:
        made = torch.nn.ModuleDict()
        for stack, matrices in MATRICES.items():
            whole = module.get_parameter(stack)
            experts, rows, columns = whole.shape
            # In one order on every rank: FSDP2 gathers parameters by their order, and a set's differs by process.
            for matrix in matrices:
                if matrix in asked:
                    made[matrix] = ExpertAdapters(experts, rows // len(matrices), columns, settings, whole)
        if made:
            module.add_module(OF_EXPERTS, made)


@torch.no_grad()
def draw_adapters(model: torch.nn.Module) -> None:
    """Give all adapters their first values, each rank its own rows, as nn.Linear is initialised.

    They come from a fixed seed, alike on any number of ranks, and leave the process's random state as it was. One of them is whole at a time: 17 MB
    of Qwen3-30B-A3B at rank 16. Each rank draws all: 3 s there, and half a minute of DeepSeek-V3.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for module in model.modules():
            if isinstance(module, Adapter):
                whole = torch.empty(module.lora_a.shape, dtype=module.lora_a.dtype)
                torch.nn.init.kaiming_uniform_(whole.flatten(0, -2), a=5**0.5)
                first, count = own_rows(module.lora_a)
                local(module.lora_a).copy_(whole[first : first + count])
                local(module.lora_b).zero_()


def adapter_of(place: Place, modules: Mapping[str, torch.nn.Module]) -> tuple[str, Adapter] | None:
    """Name and module of the adapter that changes this tensor of a checkpoint; None where there is none. `modules`: of the model, by name."""
    name, _, last = place.state.rpartition(".")
    if place.expert is not None:
        name = f"{name}.{OF_EXPERTS}.{place.matrix}"
    elif last != "weight":
        return None
    found = modules.get(name)
    return (name, found) if isinstance(found, Adapter) else None


def merged_weight(
    weight: Float[Tensor, "out in"], lora_a: Float[Tensor, "rank in"], lora_b: Float[Tensor, "out rank"], scale: float
) -> Float[Tensor, "out in"]:
    """The weight that a layer without an adapter needs to compute the same."""
    return torch.addmm(weight, lora_b, lora_a, alpha=scale)
