"""Context parallelism: the ranks of a group share each pack, so that one of them holds 1 / ranks of its activations (ADR 0094).

In: a pack, and this rank's place in its context group. Out: the part that it computes, attention over the whole pack, log-probabilities of the whole
pack. Everything but attention is done token by token, on equal parts of the pack laid end to end. Around attention heads are exchanged for tokens
(DeepSpeed-Ulysses, arXiv:2309.14509): each rank attends over the whole pack with its share of the heads, by the code that one rank runs. So
bounds of samples, sliding windows and kernels stay as they are. What is outside of `Policy` sees whole packs. Called by `model` and `attention`.

In a layer each of the rank's tokens sends 2 queries + 2 keys, of all heads; the backward pass sends as much again. For 32B at 131,072 tokens over
8 ranks that is 0.5 GB a rank: about 2 ms of NVLink by its data sheet, beside about 130 ms of computing.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad

from shoal.planner.model_shape import shares_heads
from shoal.training.batches import MicroBatch, Segments
from shoal.training.logprobs import Look, TileLoss
from shoal.training.parallel import ContextGroup, waiting_for

LENGTH_DEPENDENT_ROPE = ("dynamic", "longrope")
"""Rotary embeddings that transformers makes from the largest position that it sees: each part of a pack would have its own."""


@dataclass(frozen=True)
class PackPart:
    """What one rank computes of a pack: its tokens, and the sampled tokens that it predicts from them, `completions` of the pack's.

    `segments` are those of the whole pack: attention sees it whole. `predicted_from` counts from the part's first token. `own` tokens are the pack's,
    and the others, at the end, fill the part up.
    """

    tokens: Int[Tensor, " part"]
    positions: Int[Tensor, " part"]
    segments: Segments
    predicted_from: Int[Tensor, " mine"]
    completions: slice
    own: int
    group: ContextGroup | None = None

    def loss(self, loss: TileLoss) -> TileLoss:
        """A loss that knows the whole pack's tokens, asked about the part's."""
        first = self.completions.start
        return lambda here, logprobs, entropy: loss(slice(here.start + first, here.stop + first), logprobs, entropy)

    def look(self, look: Look | None, count: int) -> Look | None:
        """A look at the `count` log-probabilities of the whole pack, given the part's. Every rank of the group has one or none has."""
        return None if look is None else lambda logprobs: look(self.gather(count, logprobs)[0])

    def gather(self, count: int, *values: Float[Tensor, " mine"]) -> tuple[Float[Tensor, " completion"], ...]:
        """Values of the whole pack's `count` sampled tokens, on every rank of the group, each from the rank that computed it."""
        if self.group is None or count == 0:
            return values
        whole = values[0].new_zeros(len(values), count)
        whole[:, self.completions] = torch.stack([value.detach() for value in values])
        with waiting_for("the log-probabilities of a pack", self.group.rank):
            dist.all_reduce(whole, group=self.group.group)  # adds zeros only, so it changes no bit
        return tuple(whole)


def part_of(batch: MicroBatch, group: ContextGroup | None) -> PackPart:
    """This rank's part of a pack, which is filled up to equal parts by a sample without anything to learn. Without a group it is all of it."""
    if group is None:
        return PackPart(
            batch.tokens,
            batch.positions,
            batch.segments,
            batch.predicted_from,
            slice(0, len(batch.targets)),
            len(batch.tokens),
        )
    length = len(batch.tokens)
    added = -length % group.size
    each = (length + added) // group.size
    first = group.rank * each
    filling = torch.arange(added, device=batch.positions.device)
    mine = completions_within(batch.predicted_from, first, first + each)
    return PackPart(
        tokens=pad(batch.tokens, (0, added))[first : first + each],
        positions=torch.cat([batch.positions, filling])[first : first + each],
        segments=Segments((*batch.segments.bounds, length + added)) if added else batch.segments,
        predicted_from=batch.predicted_from[mine] - first,
        completions=mine,
        own=max(0, min(each, length - first)),
        group=group,
    )


def completions_within(predicted_from: Int[Tensor, " completion"], first: int, end: int) -> slice:
    """The sampled tokens that are predicted from positions `first` to `end` of the pack; they are in its order."""
    start, stop = torch.searchsorted(predicted_from, predicted_from.new_tensor([first, end])).tolist()
    return slice(start, stop)


def heads_of_pack(
    query: Float[Tensor, "1 heads part width"],
    key: Float[Tensor, "1 key_heads part width"],
    value: Float[Tensor, "1 key_heads part value_width"],
    group: ContextGroup,
) -> tuple[Tensor, Tensor, Tensor]:
    """Of the whole pack this rank's share of the heads, from the part's tokens of all heads. Fewer key heads than ranks are repeated."""
    again = max(1, group.size // key.shape[1])
    if again > 1:
        key, value = (each.repeat_interleave(again, dim=1) for each in (key, value))
    query, key, value = (_resplit(each, group) for each in (query, key, value))
    return query, key, value


def tokens_of_part(attended: Float[Tensor, "1 pack share width"], group: ContextGroup) -> Tensor:
    """The way back: all heads of the part's tokens."""
    return _resplit(attended, group)


def _resplit(values: Float[Tensor, "1 whole share width"], group: ContextGroup) -> Tensor:
    """From a share of the third dimension and the whole of the second, to a part of the second and the whole of the third."""
    _, whole, share, width = values.shape
    parts = values.reshape(group.size, whole // group.size, share, width)
    received: Tensor = _Exchange.apply(parts, group)
    return received.transpose(0, 1).reshape(1, whole // group.size, group.size * share, width)


def undividable(config: Any, size: int) -> list[str]:
    """Why a model's packs cannot be shared by `size` ranks, by its configuration: nothing where they can."""
    heads = config.num_attention_heads
    shared = getattr(config, "num_key_value_heads", None) or heads
    problems = []
    if not shares_heads(heads, shared, size):
        allowed = ", ".join(str(each) for each in range(1, heads + 1) if shares_heads(heads, shared, each))
        problems.append(
            f"its {heads} query and {shared} key heads cannot be shared by trainer.settings.contextParallel {size} ranks;"
            f" allowed: {allowed}"
        )
    given = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    layers = [given, *(each for each in given.values() if isinstance(each, dict))]
    kinds = {each.get("rope_type", each.get("type")) for each in layers}
    if odd := [kind for kind in LENGTH_DEPENDENT_ROPE if kind in kinds]:
        problems.append(
            f"its rotary embedding ({odd[0]}) depends on the longest sample of a pack, which no part knows;"
            " set trainer.settings.contextParallel to 1"
        )
    return problems


class _Exchange(torch.autograd.Function):
    """Part j of rank i becomes part i of rank j. The gradient goes the same way."""

    @staticmethod
    def forward(ctx: Any, parts: Tensor, group: ContextGroup) -> Tensor:
        ctx.group = group
        return _exchanged(parts, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _exchanged(gradients[0], ctx.group), None


def _exchanged(parts: Tensor, group: ContextGroup) -> Tensor:
    parts = parts.contiguous()
    received = torch.empty_like(parts)
    with waiting_for("the heads of a pack's attention", group.rank):
        dist.all_to_all_single(received, parts, group=group.group)
    return received
