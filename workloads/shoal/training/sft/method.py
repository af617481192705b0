"""Learning from a data set: take the step's rows, make its updates, measure the loss on rows that are held out.

In: the rows that prepare has made of the data set (`rows`), the settings. Out: policy and optimizer after the step, and its report. The position in
the data is the version itself: step `s` makes version `s + 1` and which rows it has is a function of `s` (`order`). A `method` of the loop.

Each completion token has the same weight. Per optimizer batch

    loss = -sum over completion tokens of log p(token | what comes before it) / count of these tokens over all packs and ranks

so that neither packing nor the number of ranks changes it. Every rank makes the updates alike.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from shoal import telemetry
from shoal.contracts.sft import SftSettings
from shoal.contracts.steps import StepMetrics
from shoal.training.batches import OptimizerBatch, optimizer_batch
from shoal.training.context import TrainerContext
from shoal.training.extensions.base import Extensions
from shoal.training.method import Report, StepTools, Untrained
from shoal.training.metrics import bare_metrics, finite
from shoal.training.model import Policy
from shoal.training.optimizer import Applied, Optimizer, cosine_rate
from shoal.training.packing import pack
from shoal.training.rollouts import Sample
from shoal.training.sft.order import SftSchedule
from shoal.training.sft.rows import SftRowLimits, TokenRows, fetch_rows, read_manifest
from shoal.training.update import Beat, Steps, over_packs, over_ranks


@dataclass(frozen=True)
class SftBatch:
    """The rows of one update, or a part of the held-out rows: this rank's packs, and how many packs all ranks have."""

    packed: OptimizerBatch
    packs: int
    tokens: int


@dataclass(frozen=True)
class Learnt(Steps):
    """Results of the updates of a step. Loss and entropy are means over completion tokens (nats), before each update."""

    loss: float
    entropy: float
    completion_tokens: int
    packing_density: float


def batch_of(samples: Sequence[Sample], capacity: int, rank: int = 0, world: int = 1) -> SftBatch:
    """Rows packed into micro-batches of at most `capacity` tokens, and dealt out to ranks."""
    lengths = [len(sample.tokens) for sample in samples]
    packs = [[(samples[index], 0.0) for index in indices] for indices in pack(lengths, capacity)]
    return SftBatch(optimizer_batch(packs, rank, world), len(packs), sum(lengths))


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
    batches: Iterable[SftBatch],
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
def held_out_loss(policy: Policy, batch: SftBatch, beat: Beat) -> float:
    """Mean loss over the completion tokens of rows that are not learnt (nats)."""
    total = torch.zeros(1, dtype=torch.float64)
    for packed in batch.packed.micro_batches:
        total -= policy(packed.to(policy.device))[1].double().sum().cpu()
        beat()
    return over_packs(total, policy, "the held-out loss")[0] / batch.packed.token_count


class SupervisedFineTuning:
    """The method of `mode: SFT`."""

    def __init__(self, context: TrainerContext, policy: Policy, extensions: Extensions) -> None:
        self._context, self._policy, self._extensions = context, policy, extensions
        config, ranks = context.config, context.ranks
        if config.sft is None:
            raise ValueError("run.json has mode SFT and no sft; the operator's builders write both")
        settings: SftSettings = config.sft
        self._capacity = settings.pack_length or settings.max_sequence_length
        manifest = read_manifest(context.store, config.run)
        self.data: str | None = manifest.digest
        limits = SftRowLimits(policy.vocabulary, settings.max_sequence_length)
        learnt, held_out = (
            fetch_rows(
                context.store, manifest, context.scratch / "rows", limits, ranks, context.liveness, held_out=which
            )
            for which in (False, True)
        )
        self._rows: TokenRows = learnt
        self._held_out: SftBatch | None = self._batch(held_out, np.arange(len(held_out))) if len(held_out) else None
        # Trainers of one run share the rows out: the same number each, so that all have the same updates.
        self._first, self._stride = extensions.share
        self._schedule = SftSchedule(settings, len(learnt) // self._stride, config.steps, config.seed)
        total = self._schedule.updates
        cosine = settings.schedule == "Cosine"
        self.optimizer = Optimizer(
            policy.parameters(),
            settings,
            (lambda updates: cosine_rate(settings, updates, total)) if cosine else None,
            matrices=policy.hidden_matrices,
            on_host=config.trainer.offloaded.optimizer,
        )
        telemetry.get_logger().info(
            "data set read", rows=len(learnt), held_out=len(held_out), updates=total, data=manifest.digest
        )

    def begin(self, tools: StepTools) -> None:
        self._beat = tools.waits.beat

    def train(self, step: int) -> Report | Untrained:
        context, extensions, progress = self._context, self._extensions, self._context.progress
        chosen = [self._schedule.rows_of(update) for update in self._schedule.of_step(step)]
        if extensions.weights_owner:
            # Steps that others made without this trainer count for the learning rate.
            self.optimizer.updates = max(self.optimizer.updates, self._schedule.of_step(step).start)
        with progress.phase("update"):
            batches = (self._batch(self._rows, indices * self._stride + self._first) for indices in chosen)
            learnt = learn(
                self._policy, self.optimizer, batches, self._capacity, self._beat, lambda: extensions.after_update(step)
            )
        extensions.after_updates(step)
        loss = None
        if self._held_out is not None:
            with progress.phase("held_out"):
                loss = held_out_loss(self._policy, self._held_out, self._beat)
        epoch = self._schedule.of_step(step).stop / self._schedule.per_epoch
        rows = sum(len(indices) for indices in chosen)
        return lambda times: report(
            learnt,
            rows=rows,
            epoch=epoch,
            held_out_loss=loss,
            run=context.config.run,
            step=step,
            attempt=context.attempt,
            times=times,
        )

    def keep(self, version: int) -> None:
        """Nothing here asks for an older version."""

    def stop(self) -> None:
        """Nothing runs beside the loop."""

    def _batch(self, rows: TokenRows, indices: Int[np.ndarray, " some"]) -> SftBatch:
        ranks = self._context.ranks
        return batch_of(rows.samples(indices), self._capacity, ranks.data_rank, ranks.data_world)


def report(learnt: Learnt, *, rows: int, epoch: float, held_out_loss: float | None, **step: Any) -> StepMetrics:
    """The report of a step. With every update skipped the gradient norm is 0, and `skipped_updates` says so."""
    norms = learnt.norms or [0.0]
    return bare_metrics(
        **step,
        epoch=epoch,
        loss=finite(learnt.loss),
        held_out_loss=held_out_loss if held_out_loss is None else finite(held_out_loss),
        gradient_norm=float(np.mean(norms)),
        gradient_norm_max=float(np.max(norms)),
        skipped_updates=learnt.skipped,
        entropy=finite(learnt.entropy),
        rows=rows,
        completion_tokens=learnt.completion_tokens,
        completion_length_mean=learnt.completion_tokens / rows,
        packing_density=learnt.packing_density,
        learning_rate=learnt.applied[-1].learning_rate,
    )
