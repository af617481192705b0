"""The updates of supervised fine-tuning: cross-entropy of completion tokens, each with the same weight.

In: policy, optimizer, packs of rows. Out: the policy changed in place, and what was measured. Per optimizer batch

    loss = -sum over completion tokens of log p(token | what comes before it) / count of these tokens over all packs and ranks

so that neither packing nor the number of ranks changes it. Called by `method`, on every rank alike.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from shoal.training.batches import OptimizerBatch, optimizer_batch
from shoal.training.model import Policy
from shoal.training.optimizer import Applied, Optimizer
from shoal.training.packing import pack
from shoal.training.rollouts import Sample
from shoal.training.update import Beat, Steps, over_ranks


@dataclass(frozen=True)
class Batch:
    """What one update trains on, or a part of the rows held out: this rank's packs, and how many packs all ranks have."""

    packed: OptimizerBatch
    packs: int
    tokens: int


@dataclass(frozen=True)
class Learnt(Steps):
    """What the updates of a step did. Loss and entropy are means over completion tokens (nats), before each update."""

    loss: float
    entropy: float
    completion_tokens: int
    packing_density: float


def batch_of(samples: Sequence[Sample], capacity: int, rank: int = 0, world: int = 1) -> Batch:
    """Rows packed into micro-batches of at most `capacity` tokens, and dealt out to ranks."""
    lengths = [len(sample.tokens) for sample in samples]
    packs = [[(samples[index], 0.0) for index in indices] for indices in pack(lengths, capacity)]
    return Batch(optimizer_batch(packs, rank, world), len(packs), sum(lengths))


class CompletionLoss:
    """The loss of one micro-batch, asked for tile by tile (`logprobs.head_loss`); `sums` has loss and entropy over its tokens (float64)."""

    def __init__(self, divisor: float, device: torch.device) -> None:
        if divisor <= 0:
            raise ValueError(f"the divisor of the update is {divisor}; it has no completion tokens to train on")
        self._divisor = divisor
        self.sums = torch.zeros(2, dtype=torch.float64, device=device)

    def __call__(
        self, here: slice, logprobs: Float[Tensor, " tile"], entropy: Float[Tensor, " tile"]
    ) -> Float[Tensor, ""]:
        loss = -logprobs.sum()
        self.sums += torch.stack([-logprobs.detach().double().sum(), entropy.detach().double().sum()])
        return loss / self._divisor


def accumulate(policy: Policy, batch: OptimizerBatch, beat: Beat) -> Float[Tensor, "2"]:
    """Add the gradient of a batch's loss to the policy's parameters; gives this rank's sums of loss and entropy over tokens."""
    sums = torch.zeros(2, dtype=torch.float64, device=policy.device)
    for packed in batch.micro_batches:
        micro = CompletionLoss(batch.divisor, policy.device)
        loss, _, _ = policy(packed.to(policy.device), micro)
        loss.backward()
        sums += micro.sums
        beat()
    return sums


def learn(
    policy: Policy,
    optimizer: Optimizer,
    batches: Iterable[Batch],
    capacity: int,
    beat: Beat,
    after_update: Beat = lambda: None,
) -> Learnt:
    """Make an update from each batch; one batch is held at a time. An update whose gradient norm is not finite is left out and counted."""
    sums = torch.zeros(2, dtype=torch.float64)
    applied: list[Applied] = []
    completion_tokens = tokens = packs = 0
    for batch in batches:
        sums += accumulate(policy, batch.packed, beat).cpu()
        applied.append(optimizer.step())
        after_update()
        completion_tokens += batch.packed.token_count
        tokens, packs = tokens + batch.tokens, packs + batch.packs
    loss, entropy = (total / completion_tokens for total in over_ranks(sums, policy, "the sums of a step"))
    return Learnt(applied, loss, entropy, completion_tokens, tokens / (capacity * packs))


@torch.no_grad()
def held_out_loss(policy: Policy, batch: Batch, beat: Beat) -> float:
    """Mean loss over the completion tokens of rows that are not learnt (nats)."""
    total = torch.zeros(1, dtype=torch.float64)
    for packed in batch.packed.micro_batches:
        total -= policy(packed.to(policy.device))[1].double().sum().cpu()
        beat()
    return over_ranks(total, policy, "the held-out loss")[0] / batch.packed.token_count
