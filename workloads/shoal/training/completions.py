"""Which completion each sampled token of a pack belongs to, and sums over completions. Pure; called by `loss` and by extensions."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True)
class Packed:
    """Which sample of a pack each sampled token belongs to, 0 to `samples` - 1, ascending; a sample may have no such token."""

    owners: Int[Tensor, " tokens"]
    samples: int

    @classmethod
    def of(cls, predicted_from: Int[Tensor, " tokens"], bounds: Int[Tensor, " bounds"]) -> "Packed":
        """From where in the pack each token was predicted, and the samples' bounds: a token follows a position of its own sample."""
        owners = torch.bucketize(predicted_from, bounds.to(predicted_from.dtype), right=True) - 1
        return cls(owners, len(bounds) - 1)

    def sums(self, values: Float[Tensor, " tokens"]) -> Float[Tensor, " samples"]:
        """Sum of each sample's values, float64."""
        whole = torch.zeros(self.samples, dtype=torch.float64, device=values.device)
        return whole.index_add_(0, self.owners, values.double())

    def counts(self) -> Float[Tensor, " samples"]:
        """Sampled tokens of each sample."""
        return self.sums(torch.ones_like(self.owners, dtype=torch.float64))

    def spread_means(self, values: Float[Tensor, " tokens"]) -> Float[Tensor, " tokens"]:
        """The mean of its own sample's values at each token, in the dtype given."""
        means = self.sums(values) / self.counts().clamp(min=1.0)
        return means[self.owners].to(values.dtype)
