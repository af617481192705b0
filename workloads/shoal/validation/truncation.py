"""What a truncating sampler (min-p, top-k, top-p) kept of a distribution, by our own numbers and by those of an engine that rounds otherwise.

In: log-probabilities of our own forward pass, and the rule of the benchmark's terms. Out: `Kept`. Called by `prefill`.
"""

import math
from dataclasses import dataclass

import torch

from shoal.contracts.evaluation import Truncation

DOUBT_NATS = {torch.float32: 1e-3, torch.bfloat16: 0.5, torch.float16: 0.075}
"""How far an engine's log-probability and ours may be apart, by the dtype of the weights: well above all that was seen (docs/validation.md)."""


def doubt(dtype: torch.dtype, temperature: float) -> float:
    """The same at a temperature: a low one divides logits, and so their differences."""
    return DOUBT_NATS[dtype] / min(1.0, temperature)


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
        last, next_one = left.topk(rule.top_k + 1, dim=-1).values[:, -2:].unbind(dim=-1)
        # What beats the first that is left out by more than the doubt stays for certain, the last one that is kept among them.
        keep &= left >= (next_one if shift > 0 else last)[:, None] + shift
    if rule.top_p < 1.0:
        ascending, order = logprobs.masked_fill(~keep, -torch.inf).sort(dim=-1)
        below = ascending.softmax(dim=-1).cumsum(dim=-1)
        tail = min(1.0, (1.0 - rule.top_p) * math.exp(shift))
        out = torch.zeros_like(keep).scatter_(1, order, below <= tail)
        keep &= ~out
    return keep | (logprobs == best)
