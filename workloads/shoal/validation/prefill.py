"""What a policy makes of given tokens: one forward pass over prompt and completion, without sampling.

In: a loaded model and a row. Out: `Prefill`: for every completion token the last hidden state from which it should
have been drawn (after the final norm, where vLLM's head reads it too) and what the distribution at the row's
temperature says. Rows go one at a time: nothing can leak between strangers' rows, and a row is long where it matters.
Called by `judge` for the rows whose proofs are verified.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from shoal.contracts.rollouts import Rollout

LOW_PROBABILITY = 0.05
"""A sampled token with less is improbable; the token-sampling check counts them."""
SURPRISE_CAP = 7.0
"""Surprise (negative log-probability) is counted up to this many nats, so that one unlikely token cannot decide for a
file.
"""
TILE_ELEMENTS = 1 << 24
"""Logits held at once (64 MiB in float32): 10,000 tokens times 150,000 words would be 6 GB."""

Float32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Prefill:
    """Float32 arrays over the n completion tokens of a row.

    `states` [n, hidden size]; `logprobs` [n] of the chosen tokens, natural logarithms; `eos` [n] probability of
    ending there; `low` [n] sum of all probabilities below LOW_PROBABILITY, that is the chance that an honest sample
    is improbable there; `surprise_mean` and `surprise_variance` [n] of an honest sample's surprise, capped at
    SURPRISE_CAP nats.
    """

    states: Float32
    logprobs: Float32
    eos: Float32
    low: Float32
    surprise_mean: Float32
    surprise_variance: Float32


@torch.inference_mode()
def prefill(model: Any, row: Rollout, eos_token_ids: frozenset[int]) -> Prefill:
    """Run a Hugging Face causal language model over one row."""
    device = next(model.parameters()).device
    tokens = torch.tensor([[*row.prompt_tokens, *row.completion_tokens]], device=device)
    hidden = model.model(input_ids=tokens, use_cache=False).last_hidden_state[0]
    # The state at position p is what token p+1 was drawn from: P-1 .. P+n-2 for n tokens after a prompt of P.
    first, count = len(row.prompt_tokens) - 1, len(row.completion_tokens)
    states = hidden[first : first + count]
    chosen = tokens[0, first + 1 :]
    eos = torch.tensor(sorted(eos_token_ids), device=device)
    tile = max(1, TILE_ELEMENTS // model.config.vocab_size)
    parts = [
        _distribution(model.lm_head(states[start : start + tile]), chosen[start : start + tile], row.temperature, eos)
        for start in range(0, count, tile)
    ]
    columns = [torch.cat(column).float().cpu().numpy() for column in zip(*parts, strict=True)]
    return Prefill(states.float().cpu().numpy(), *columns)


def _distribution(
    logits: torch.Tensor, chosen: torch.Tensor, temperature: float, eos: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """The columns of `Prefill` after `states`, each [n], from logits [n, vocabulary]."""
    logprobs = torch.log_softmax(logits.float() / temperature, dim=-1)
    probabilities = logprobs.exp()
    low = torch.where(probabilities < LOW_PROBABILITY, probabilities, 0.0).sum(dim=-1)
    surprise = (-logprobs).clamp(max=SURPRISE_CAP)
    mean = (probabilities * surprise).sum(dim=-1)
    variance = (probabilities * (surprise - mean[:, None]).square()).sum(dim=-1)
    return logprobs.gather(1, chosen[:, None])[:, 0], probabilities[:, eos].sum(dim=-1), low, mean, variance
