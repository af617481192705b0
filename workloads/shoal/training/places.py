"""Where each tensor of a checkpoint lies in the model: most by their own name, an expert's matrices as rows of a stack.

A checkpoint has one matrix an expert (`mlp.experts.7.gate_proj.weight`). transformers holds all experts of a layer as two stacks: gate and up
projections one above the other, and down projections. In: a model. Out: a `Place` for each name of the checkpoint. So loading and export go
matrix by matrix, in both directions, and no stack is ever held twice. Pure; called by `model` and `export`.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from shoal.training.experts import DOWN, GATE_UP, stacks
from shoal.training.lora import ADAPTERS


@dataclass(frozen=True)
class Place:
    """A tensor of the checkpoint: which of the model's `state` it is of, and of a stack which rows of which expert's matrix."""

    name: str
    state: str
    shape: torch.Size
    expert: int | None = None
    first: int = 0

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
        if module in held and last in (GATE_UP, DOWN):
            found += _of_experts(module, name, tensor.shape)
        else:
            found.append(Place(name, name, tensor.shape))
    return {place.name: place for place in sorted(found, key=lambda place: place.name)}


def _of_experts(module: str, state: str, shape: torch.Size) -> list[Place]:
    experts, rows, columns = shape
    halves = ("gate_proj", "up_proj") if state.endswith(GATE_UP) else (DOWN,)
    each = torch.Size((rows // len(halves), columns))
    return [
        Place(f"{module}.{expert}.{half}.weight", state, each, expert, number * each[0])
        for expert in range(experts)
        for number, half in enumerate(halves)
    ]
