"""Log-probabilities and entropies of completion tokens from a packed forward pass, in float32, a tile of tokens at a time.

In: a Hugging Face causal language model and a `MicroBatch`. Out: log-probability and entropy of each completion token at its
row's sampling temperature. Logits of tokens x vocabulary are never held whole (10,000 tokens x 150,000 words are 6 GB): the
head runs over tiles, and in training a tile's logits are computed again in the backward pass. Called by `update`.
"""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from shoal.training.batches import MicroBatch

TILE_ELEMENTS = 1 << 24
"""Logits held at once: 64 MiB in float32."""


def token_logprobs(
    model: Any, batch: MicroBatch, *, tile_elements: int = TILE_ELEMENTS
) -> tuple[Float[Tensor, " completion"], Float[Tensor, " completion"]]:
    """Log-probability and entropy (nats, float32) of every completion token of the pack.

    Samples are kept apart by position ids that start again at 0; that works with no attention mask and no cache only.
    """
    hidden = model.get_decoder()(
        input_ids=batch.tokens[None], position_ids=batch.positions[None], attention_mask=None, use_cache=False
    ).last_hidden_state[0]
    states = hidden[batch.predicted_from]
    head = model.get_output_embeddings()
    tile = max(1, tile_elements // head.weight.shape[0])
    parts = []
    for start in range(0, len(batch.targets), tile):
        here = slice(start, start + tile)
        arguments = (head, states[here], batch.targets[here], batch.temperatures[here])
        if torch.is_grad_enabled() and tile < len(batch.targets):
            parts.append(checkpoint(_tile, *arguments, use_reentrant=False))
        else:
            parts.append(_tile(*arguments))
    logprobs, entropies = zip(*parts, strict=True)
    return torch.cat(logprobs), torch.cat(entropies)


def _tile(
    head: Any,
    states: Float[Tensor, "tile hidden"],
    targets: Int[Tensor, " tile"],
    temperatures: Float[Tensor, " tile"],
) -> tuple[Float[Tensor, " tile"], Float[Tensor, " tile"]]:
    """Float32 whatever the head's dtype: log-probabilities rounded to bfloat16 err by 1.6e-2."""
    logits = head(states).float() / temperatures[:, None]
    log_softmax = torch.log_softmax(logits, dim=-1)
    entropy = -(log_softmax.exp() * log_softmax).sum(dim=-1)
    return log_softmax.gather(1, targets[:, None])[:, 0], entropy
