"""The routers of a loaded mixture of experts: what they choose, and how to make them use recorded routes instead (arXiv:2510.11370).

In: a model of transformers, recorded experts of some of its tokens. Out: which of these tokens the routers would have given to other experts, and how
far those lie behind; with `follows` the experts are the recorded ones, and their weights are computed from the router's own logits, so that gradients
reach it. Called by the trainer's `model` and by the validators' `prefill`: both know the same routers.

Costs one softmax or sigmoid more of tokens x experts a layer, and with routes of 30,720 tokens of Qwen3-30B-A3B 12 MB on the device.
"""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Bool, Float, Int, Integer
from torch import Tensor

from shoal.contracts.routes import NoRoutes, RouteShape
from shoal.models.places import stacks

SOFTMAX, SIGMOID = "Qwen3MoeTopKRouter", ("DeepseekV3TopkRouter", "Glm4MoeTopkRouter")
"""Classes of transformers whose choice is known here: the largest logits, or the largest sigmoids with a bias, of groups that are chosen first."""

Seen = Callable[
    [int, Any, Float[Tensor, "tokens experts"], Int[Tensor, "tokens choices"], Int[Tensor, "tokens choices"]], None
]
"""Told the layer (counted among those with experts), its router, the logits of the tokens that have routes, its own choice and the recorded one."""


class Routers:
    """The routers of one model, with hooks on each. `follows`: they use recorded routes."""

    def __init__(self, model: torch.nn.Module, shape: RouteShape, *, follows: bool, seen: Seen) -> None:
        """Raises NoRoutes for a model whose routers are not known here, or are not of this shape."""
        self._follows, self._seen = follows, seen
        self._routes: Integer[Tensor, "tokens layers choices"] | None = None
        self._at: Int[Tensor, " tokens"] | None = None
        found = [model.get_submodule(name.rpartition(".")[0]) for name in stacks(model)]
        routers: list[Any] = [getattr(block, "gate", None) for block in found]
        for router in routers:
            if _kind(router) not in (SOFTMAX, *SIGMOID):
                raise NoRoutes(
                    f"a router of class {_kind(router)} is not known here; known: {', '.join((SOFTMAX, *SIGMOID))}"
                )
        has = (len(routers), *((routers[0].top_k, routers[0].num_experts) if routers else (0, 0)))
        if has != (shape.layers, shape.choices, shape.experts):
            raise NoRoutes(
                f"the model has {has[0]} layers with {has[1]} of {has[2]} experts a token;"
                f" routes are of {shape.layers} layers with {shape.choices} of {shape.experts}"
            )
        self._hooks = [
            router.register_forward_hook(torch.compiler.disable(self._hook(layer)))
            for layer, router in enumerate(routers)
        ]

    def close(self) -> None:
        """Leave the model as it was."""
        for hook in self._hooks:
            hook.remove()

    def give(self, routes: Integer[Tensor, "tokens layers choices"] | None, at: Int[Tensor, " tokens"] | None) -> None:
        """From now on the tokens at these positions of a forward pass have these routes, ascending; None: none have. Positions count through the
        batch. They stay for a backward pass, which may compute layers again."""
        self._routes, self._at = (None, None) if routes is None or not len(routes) else (routes, at)

    def _hook(self, layer: int) -> Any:
        def route(
            router: Any, given: Any, output: tuple[Tensor, Tensor, Tensor]
        ) -> tuple[Tensor, Tensor, Tensor] | None:
            if self._routes is None or self._at is None:
                return None
            logits, _, chosen = output
            own, recorded = chosen[self._at], self._routes[:, layer].to(chosen.dtype)
            self._seen(layer, router, logits[self._at], own, recorded)
            if not self._follows:
                return None
            # The router's own order where the experts are its own: sums then have the same bits as without routes.
            used = torch.where(differs(own, recorded)[:, None], recorded, own)
            chosen = chosen.index_copy(0, self._at, used)
            return logits, _weights(router, logits, chosen), chosen

        return route


def differs(own: Int[Tensor, "tokens choices"], recorded: Int[Tensor, "tokens choices"]) -> Bool[Tensor, " tokens"]:
    """Whether two choices are not the same experts, in whichever order; `recorded` is ascending."""
    return (own.sort(dim=-1).values != recorded).any(dim=-1)


def surplus(
    router: Any, logits: Float[Tensor, "tokens experts"], recorded: Int[Tensor, "tokens choices"]
) -> Float[Tensor, " tokens"]:
    """By how much the best expert that was left out is ahead of the worst recorded one; 0 where none is ahead. In standard deviations of the token's
    scores over the experts.

    A near tie gives next to nothing, an expert at random about 2. Where groups are chosen first, the groups' scores are compared in the same way, and
    the greater of the two counts.
    """
    scores = _scores(router, logits.float())
    taken = torch.zeros_like(scores, dtype=torch.bool).scatter_(1, recorded, True)
    groups, behind = int(getattr(router, "num_group", 1)), scores.new_zeros(len(scores))
    allowed = torch.ones_like(taken)
    if _kind(router) in SIGMOID and groups > 1:
        by_group = scores.view(len(scores), groups, -1)
        of_group = by_group.topk(min(2, by_group.shape[-1]), dim=-1).values.sum(dim=-1)
        used = taken.view_as(by_group).any(dim=-1)
        # Groups without a recorded expert were chosen too where fewer are used than a router chooses: then they are the best of the others.
        ranked = of_group.masked_fill(used, torch.inf).topk(router.topk_group, dim=-1).indices
        chosen = torch.zeros_like(used).scatter_(1, ranked, True)
        behind = _ahead(of_group, chosen, ~chosen) / _spread(of_group)
        allowed = chosen.repeat_interleave(by_group.shape[-1], dim=1)
    return torch.maximum(behind, _ahead(scores, taken, allowed & ~taken) / _spread(scores))


def _ahead(scores: Tensor, taken: Tensor, left: Tensor) -> Tensor:
    """By how much the best of `left` is ahead of the worst of `taken`; 0 where it is not."""
    best = scores.masked_fill(~left, -torch.inf).amax(dim=-1)
    return (best - scores.masked_fill(~taken, torch.inf).amin(dim=-1)).clamp(min=0.0)


def _spread(scores: Tensor) -> Tensor:
    return scores.std(dim=-1, correction=0).clamp(min=1e-6)


def _kind(router: Any) -> str:
    """The class of transformers; FSDP2 makes a subclass of it."""
    names = [kind.__name__ for kind in type(router).__mro__]
    return next((name for name in names if name in (SOFTMAX, *SIGMOID)), names[0])


def _scores(router: Any, logits: Tensor) -> Tensor:
    """What the router takes the largest of."""
    return logits if _kind(router) == SOFTMAX else logits.sigmoid() + router.e_score_correction_bias


def _weights(router: Any, logits: Tensor, chosen: Tensor) -> Tensor:
    """The weights of these experts, as the router computes those of its own: with the same bits where they are its own."""
    if _kind(router) == SOFTMAX:
        found = torch.nn.functional.softmax(logits, dtype=torch.float, dim=-1).gather(1, chosen)
        if router.norm_topk_prob:
            found = found / found.sum(dim=-1, keepdim=True)
        return found.to(logits.dtype)
    found = logits.sigmoid().gather(1, chosen)
    if router.norm_topk_prob:
        found = found / (found.sum(dim=-1, keepdim=True) + 1e-20)
    return found * router.routed_scaling_factor
