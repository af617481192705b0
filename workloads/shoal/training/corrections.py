"""Weights for tokens that engine and trainer give different probabilities (`recipe.mismatchCorrection`). Pure; called by `update`.

With rho = p_old / p_sampler of a token, where p_old is the trainer's at the start of the step:

    truncate   min(rho, cap)                      truncated importance sampling (Ionides 2008; Yao et al. 2025, "Your efficient RL framework ...")
    mask       rho if rho <= cap, else 0          masked importance sampling (TRL's `token_mask`)
    icepop     rho if low <= rho <= high, else 0  (Ring-1T, arXiv:2510.18855)
    sequence   0 for all tokens of a completion whose geometric mean of rho is outside low to high, else the token's weight

A worker's claim moves a token's weight by what validators let pass of it, and to the bound at most. It can drop its own rows, which gains nothing.
"""

from dataclasses import dataclass, fields

import torch
from jaxtyping import Float, Int
from torch import Tensor

from shoal.contracts.corrections import MismatchCorrection, RatioBand
from shoal.training.completions import Packed


@dataclass(frozen=True)
class Corrected:
    """A factor of each token's policy loss. Where it was cut (1 or 0): to the bound, to nothing, and with its completion as 1 / its tokens."""

    weights: Float[Tensor, " tokens"]
    truncated: Float[Tensor, " tokens"]
    masked: Float[Tensor, " tokens"]
    completions_masked: Float[Tensor, " tokens"]

    def part(self, here: slice | Int[Tensor, " chosen"]) -> "Corrected":
        """Those of some tokens."""
        return Corrected(*(getattr(self, field.name)[here] for field in fields(self)))


@dataclass(frozen=True)
class Correcting:
    """A correction of a micro-batch whose old log-probabilities may still be unknown: `all` once they are known, or `tile` by tile."""

    correction: MismatchCorrection
    sampler: Float[Tensor, " tokens"]
    completions: Packed

    @property
    def whole_completions(self) -> bool:
        """Whether a token's factor depends on its completion's other tokens, so that only `all` can give it."""
        return self.correction.sequence is not None

    def all(self, old: Float[Tensor, " tokens"]) -> Corrected:
        """The factors of all tokens."""
        return corrected_weights(old, self.sampler, self.completions, self.correction)

    def tile(self, old: Float[Tensor, " tile"], here: slice) -> Corrected:
        """The factors of the tokens `here`, with their old log-probabilities."""
        assert not self.whole_completions
        return corrected_weights(old, self.sampler[here], self.completions, self.correction)


def corrected_weights(
    old: Float[Tensor, " tokens"],
    sampler: Float[Tensor, " tokens"],
    completions: Packed,
    correction: MismatchCorrection,
) -> Corrected:
    """The factors of a micro-batch's tokens, from log-probabilities (natural, at the row's temperature). No gradient flows through them."""
    gaps = (old - sampler.to(old)).detach()
    ratio, none = torch.exp(gaps), torch.zeros_like(gaps)
    weights, truncated, masked, dropped = torch.ones_like(gaps), none, none, none
    bounds = correction.token
    if bounds is not None:
        high = bounds.high if isinstance(bounds, RatioBand) else bounds.cap
        low = bounds.low if isinstance(bounds, RatioBand) else 0.0
        outside = (ratio < low) | (ratio > high)
        if correction.truncate is not None:
            weights, truncated = ratio.clamp(max=high), outside.to(ratio)
        else:
            weights, masked = torch.where(outside, 0.0, ratio), outside.to(ratio)
    if correction.sequence is not None:
        mean = torch.exp(completions.spread_means(gaps))
        far = (mean < correction.sequence.low) | (mean > correction.sequence.high)
        weights = torch.where(far, 0.0, weights)
        dropped = far / completions.counts().clamp(min=1.0)[completions.owners]
    return Corrected(weights, truncated, masked, dropped.to(ratio))
