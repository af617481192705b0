"""Where each tensor of a checkpoint lies in the model: most by their own name, an expert's matrices as rows of a stack.

A checkpoint has one matrix an expert (`mlp.experts.7.gate_proj.weight`). transformers holds all experts of a layer as two stacks: gate and up
projections one above the other, and down projections. In: a model. Out: a `Place` for each name of the checkpoint. So loading and export go
matrix by matrix, in both directions, and no stack is ever held twice. Pure; called by the trainer's `model` and `export`, and by validators.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

GATE_UP, DOWN = "gate_up_proj", "down_proj"
"""Stacks of shape experts x (2 x width) x hidden and experts x hidden x width, as transformers names them."""
MATRICES = {GATE_UP: ("gate_proj", "up_proj"), DOWN: ("down_proj",)}
"""What a checkpoint calls the matrices of an expert that lie in a stack, from its first rows on, all of one size."""
ADAPTERS = ("lora_a", "lora_b")
"""Parameters that a trainer's adapter adds to a linear layer or to experts; no checkpoint has them."""


def is_stack(module: torch.nn.Module) -> bool:
    """Whether a module holds experts as stacks that a checkpoint has as single matrices."""
    held = [module._parameters.get(name) for name in MATRICES]
    return all(stack is not None and stack.dim() == 3 for stack in held)


def stacks(model: torch.nn.Module) -> dict[str, torch.nn.Module]:
    """The modules of a model that hold experts, by name, in the order of its layers."""
    return {name: module for name, module in model.named_modules() if is_stack(module)}


@dataclass(frozen=True)
class Place:
    """Where a tensor of the checkpoint lies in the model: in which entry of its `state`, and in a stack, in which rows of which expert's matrix."""

    name: str
    state: str
    shape: torch.Size
    expert: int | None = None
    first: int = 0

    @property
    def matrix(self) -> str:
        """Last name of the layer, or of the expert's matrix, that this is a tensor of."""
        return self.name.rpartition(".")[0].rpartition(".")[2]

    def within(self, part: Tensor, first_expert: int = 0) -> Tensor:
        """This tensor's values in `part`: the whole of `state`, or its experts from `first_expert` on. A view."""
        return part if self.expert is None else part[self.expert - first_expert].narrow(0, self.first, self.shape[0])


def places(model: Any) -> dict[str, Place]:
    """Every tensor of a checkpoint of this model once, by its name there, ascending. Tied ones have one name, and adapters none."""
    tied = set(getattr(model, "all_tied_weights_keys", None) or {})
    held = stacks(model)
    found = []
    for name, tensor in model.state_dict().items():
        module, _, last = name.rpartition(".")
        if name in tied or last in ADAPTERS:
            continue
        if module in held and last in MATRICES:
            found += _of_experts(module, last, tensor.shape)
        else:
            found.append(Place(name, name, tensor.shape))
    return {place.name: place for place in sorted(found, key=lambda place: place.name)}


def _of_experts(module: str, stack: str, shape: torch.Size) -> list[Place]:
    experts, rows, columns = shape
    each = torch.Size((rows // len(MATRICES[stack]), columns))
    return [
        Place(f"{module}.{expert}.{matrix}.weight", f"{module}.{stack}", each, expert, number * each[0])
        for expert in range(experts)
        for number, matrix in enumerate(MATRICES[stack])
    ]
