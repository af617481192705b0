"""Our trainer on the benchmark's batch: the one place here that knows how `shoal.training` is called.

In: a policy, a batch. Out: a function that adds the gradient of the batch's loss to the policy and gives the loss. Called by `measure` and
`accelerator`.
"""

import numpy as np
import torch

from benchmarks.trainer.workload import DELTA, ENTROPY, EPSILON, KL, Batch, Shape
from shoal.training.batches import MicroBatch, OptimizerBatch, micro_batch
from shoal.training.loss import LossWeights
from shoal.training.model import Policy
from shoal.training.objectives import OBJECTIVES
from shoal.training.packing import density, pack
from shoal.training.rollouts import Sample
from shoal.training.update import accumulate

OBJECTIVE = OBJECTIVES["two_sided_grpo"]
WEIGHTS = LossWeights(epsilon=EPSILON, delta=DELTA, kl=KL, entropy=ENTROPY)


class OurTrainer:
    """`step()` is forward, loss and backward of the whole optimizer batch; gradients are left in the policy."""

    def __init__(self, policy: Policy, shape: Shape, batch: Batch) -> None:
        self.policy = policy
        self._shape = shape
        self.take(batch)

    def take(self, batch: Batch, pack_length: int | None = None) -> None:
        """Pack another batch."""
        packed = optimizer_batch(batch, pack_length or self._shape.pack_length, self.policy.device)
        self._batch, self._old, self._reference = packed

    def step(self) -> float:
        sums, _ = accumulate(
            self.policy, self._batch, self._old, self._reference, None, OBJECTIVE, WEIGHTS, lambda: None
        )
        return float(sums[0]) / self._batch.token_count

    def gradients(self) -> dict[str, torch.Tensor]:
        """By parameter name, whole, on the host."""
        found = {}
        for name, parameter in self.policy.model.named_parameters():
            gradient = parameter.grad
            if gradient is not None:
                gradient = gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient
                found[name] = gradient.detach().cpu()
        return found


def optimizer_batch(
    batch: Batch, pack_length: int, device: torch.device
) -> tuple[OptimizerBatch, list[torch.Tensor], list[torch.Tensor]]:
    """Packs of whole rows, and the log-probabilities that go with each."""
    rows = [_sample(number, batch) for number in range(len(batch.prompts))]
    bins = pack([len(row.tokens) for row in rows], pack_length)
    micro: list[MicroBatch] = [
        micro_batch([(rows[index], batch.advantages[index]) for index in found]) for found in bins
    ]

    def laid(values: list[list[float]]) -> list[torch.Tensor]:
        return [torch.tensor([value for index in found for value in values[index]], device=device) for found in bins]

    whole = OptimizerBatch(micro, batch.tokens, float(batch.tokens), [(0,)] * len(micro))
    return whole, laid(batch.old), laid(batch.reference)


def packing_density(lengths: list[int], capacity: int) -> float:
    """Share of the packs' capacity that holds tokens."""
    return density(lengths, pack(lengths, capacity), capacity)


def _sample(number: int, batch: Batch) -> Sample:
    count = len(batch.completions[number])
    return Sample(
        name=f"row {number}",
        tokens=np.array([*batch.prompts[number], *batch.completions[number]], dtype=np.int64),
        prompt_length=len(batch.prompts[number]),
        mask=np.ones(count, dtype=np.bool_),
        logprobs=np.zeros(count, dtype=np.float32),
        temperature=1.0,
        policy_version=0,
        task_reward=0.0,
        length_penalty=0.0,
        reward=0.0,
    )
