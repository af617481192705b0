"""Adapters of experts against their definition in float64: transformers' own loop over experts, with weights that are W + scale B A.

In: a checkpoint of `expert_models`. Out: the greatest relative difference. Called by `test_expert_adapters`, `expert_adapter_ranks` and benchmarks.
"""

from pathlib import Path
from typing import Any

import torch
from expert_models import ROUNDED, Exact
from test_logprobs import PACK, plain, wavy
from torch import Tensor
from torch.func import functional_call
from transformers import AutoModelForCausalLM

from shoal.contracts.trainer import Lora, TrainerSettings
from shoal.training.host_copy import local, own_rows
from shoal.training.lora import Adapter
from shoal.training.model import Policy, load_policy

LORA = Lora(rank=3, alpha=6.0, target_modules=["o_proj", "gate_proj", "up_proj", "down_proj"])
"""Of attention what all have, and of feed-forward parts all: experts, shared ones, and those of layers without experts."""


class Alone(torch.nn.Module):
    """Each sample by itself: log-probabilities and entropies, one after the other."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self) -> list[Tensor]:
        return [torch.cat(part) for part in zip(*(plain(self.model, one) for one in ROUNDED), strict=True)]


@torch.no_grad()
def set_apart(policy: Policy) -> None:
    """Give the second factors of all adapters values, alike on any number of ranks: at first they are zero, and the first has no gradient."""
    chance = torch.Generator().manual_seed(3)
    for module in policy.modules():
        if isinstance(module, Adapter):
            whole = 0.3 * torch.randn(module.lora_b.shape, generator=chance, dtype=torch.float64)
            first, count = own_rows(module.lora_b)
            local(module.lora_b).copy_(whole[first : first + count])


def merged(weights: dict[str, Tensor], adapters: dict[str, Tensor], scale: float) -> dict[str, Tensor]:
    """All weights of a transformers model, adapters merged, by the definition: product by product of an expert."""
    found = dict(weights)

    def change(name: str) -> Tensor:
        return scale * torch.einsum("...or,...ri->...oi", adapters[f"{name}.lora_b"], adapters[f"{name}.lora_a"])

    for name in {name.rpartition(".")[0] for name in adapters}:
        layer, _, matrix = name.rpartition(".adapters.")
        if not layer:
            found[f"{name}.weight"] = weights[f"{name}.weight"] + change(name)
        elif matrix == "down_proj":
            found[f"{layer}.down_proj"] = weights[f"{layer}.down_proj"] + change(name)
    for name, stack in weights.items():
        if name.endswith(".gate_up_proj") and stack.dim() == 3:
            of_layer = f"{name.removesuffix('.gate_up_proj')}.adapters"
            zeros = torch.zeros_like(stack.chunk(2, dim=1)[0])
            halves = [f"{of_layer}.{half}" for half in ("gate_proj", "up_proj")]
            found[name] = stack + torch.cat(
                [change(half) if f"{half}.lora_a" in adapters else zeros for half in halves], dim=1
            )
    return found


def gap(base: Path, settings: Lora = LORA) -> float:
    """Of loss, log-probabilities, entropies and the gradients of all adapters. Raises ValueError where a frozen weight has a gradient."""
    model = AutoModelForCausalLM.from_pretrained(base, attn_implementation="eager", experts_implementation="eager")
    model = model.double().eval()
    policy = load_policy(base, TrainerSettings(activation_recomputation="Off", lora=settings)).double()
    set_apart(policy)
    trained = {name: each for name, each in policy.model.named_parameters() if each.requires_grad}
    leaves = {name: each.detach().clone().requires_grad_() for name, each in trained.items()}
    with Exact():
        weights = merged(
            {name: each.detach() for name, each in model.state_dict().items()}, leaves, settings.alpha / settings.rank
        )
        alone = functional_call(Alone(model), {f"model.{name}": each for name, each in weights.items()}, ())
        wanted = wavy(*alone, slice(None))
        wanted.backward()
        loss, *found = policy(PACK, lambda here, logprobs, entropy: wavy(logprobs, entropy, here))
        loss.backward()
    if frozen := [
        name for name, each in policy.model.named_parameters() if name not in trained and each.grad is not None
    ]:
        raise ValueError(f"frozen weights have gradients: {frozen[:3]}")
    pairs = [(loss, wanted), *zip(found, alone, strict=True)]
    pairs += [(trained[name].grad, leaf.grad) for name, leaf in leaves.items()]
    return max(float((ours - theirs).detach().norm() / theirs.detach().norm()) for ours, theirs in pairs)
