"""The updates of one step: log-probabilities of the fixed policies once, then the optimizer steps (paper section 3.4).

In: policy, reference model, optimizer and the plan of a step. Out: the policy changed in place, and what was measured. The old
log-probabilities are the trainer's own, with the weights at the start of the step. The first optimizer step trains with these very weights, so it
finds them itself, and only the later ones need a pass before. Behaviour log-probabilities, where the objective asks for them, are its own too, with
the weights that sampled each row. The workers' are used for the mismatch metric and the mismatch correction. Called by `loop`, on every rank alike.

A token costs 4 forward passes in an update with recomputed activations (forward, again, twice backward). The reference costs 1, where klCoefficient
is above 0. The old policy costs (optimizerSteps - 1) / optimizerSteps.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor

from shoal.contracts.corrections import MismatchCorrection
from shoal.contracts.recipe import Recipe
from shoal.training.batches import OptimizerBatch, StepPlan
from shoal.training.corrections import Correcting
from shoal.training.experts import Balance, balance
from shoal.training.loss import SUMS, LossSums, LossWeights, MicroLoss, Objective, SourceLosses
from shoal.training.model import Policy
from shoal.training.objectives import objective_of, source_losses
from shoal.training.optimizer import Applied, Optimizer
from shoal.training.parallel import waiting_for

Beat = Callable[[], None]
"""Called after every micro-batch: progress was made."""


@dataclass(frozen=True)
class Steps:
    """The optimizer steps that a step of the run made, in order."""

    applied: list[Applied]

    @property
    def norms(self) -> list[float]:
        """Gradient norms before the clip, of the applied steps."""
        return [one.gradient_norm for one in self.applied if one.applied]

    @property
    def skipped(self) -> int:
        return sum(not one.applied for one in self.applied)


@dataclass(frozen=True)
class Updates(Steps):
    """Results of the optimizer steps of a step: means over tokens, and every step's norm and whether it was applied.

    `kl` is None where no reference model was asked; `old` are the log-probabilities with the weights at the start of the step.
    """

    loss: float
    kl: float | None
    entropy: float
    clip_low: float
    clip_high: float
    clip_delta: float
    importance_capped: float
    old: "LogProbs"
    mismatch_truncated: float
    mismatch_masked: float
    completions_masked: float
    experts: Balance | None = None
    """How evenly the router used the experts; None of a model without."""
    router_mismatch: float | None = None
    """Share of (sampled token, layer) pairs whose recorded experts are not those that the trainer's router chooses; None where none are recorded."""
    by_source: dict[str, LossSums] = field(default_factory=dict)
    """Means over the tokens of each source, without its factor, where the recipe has sources; "" has those of all others."""


LogProbs = list[list[Float[Tensor, " _"]]]
"""One tensor a micro-batch of this rank, in the order of the plan, on the policy's device."""


@torch.no_grad()
def plan_logprobs(policy: Policy, plan: StepPlan, beat: Beat, begin: int = 0) -> LogProbs:
    """Log-probabilities of every micro-batch under `policy`, without gradients; from the optimizer batch `begin` on."""
    found: LogProbs = []
    for batch in plan.optimizer_batches[begin:]:
        found.append([])
        for packed in batch.micro_batches:
            found[-1].append(policy(packed.to(policy.device))[1])
            beat()
    return found


def behaviour_versions(plan: StepPlan) -> list[int]:
    """The policy versions that sampled this step's tokens, on any rank, ascending."""
    return sorted({version for batch in plan.optimizer_batches for here in batch.versions for version in here})


@torch.no_grad()
def behaviour_logprobs(version_policy: Callable[[int], Policy], plan: StepPlan, beat: Beat) -> LogProbs:
    """Log-probabilities of every token under the version that sampled it.

    `version_policy` gives a policy with the weights of a version. It is asked once a version, in ascending order, on all ranks alike, and may
    put new weights into the policy that it gave before.
    """
    found: LogProbs = [
        [torch.zeros(len(packed.targets)) for packed in batch.micro_batches] for batch in plan.optimizer_batches
    ]
    for version in behaviour_versions(plan):
        policy = version_policy(version)
        for batch, parts in zip(plan.optimizer_batches, found, strict=True):
            for index, packed in enumerate(batch.micro_batches):
                if version not in batch.versions[index]:
                    continue
                here = packed.to(policy.device)
                sampled = here.policy_versions == version
                parts[index] = torch.where(sampled, policy(here)[1], parts[index].to(policy.device))
                beat()
    return found


def mismatch(plan: StepPlan, old: LogProbs, policy: Policy | None = None) -> float:
    """Mean over completion tokens of all ranks of the worker's log-probability minus the recomputed one (nats)."""
    gaps = [
        (packed.worker_logprobs.to(recomputed.device) - recomputed).double().sum()
        for batch, logprobs in zip(plan.optimizer_batches, old, strict=True)
        for packed, recomputed in zip(batch.micro_batches, logprobs, strict=True)
    ]
    gap = over_packs(torch.stack(gaps).sum()[None], policy, "the mismatch of a step")[0]
    return gap / plan.token_count


def train(
    policy: Policy,
    optimizer: Optimizer,
    plan: StepPlan,
    old: LogProbs,
    reference: LogProbs | None,
    recipe: Recipe,
    beat: Beat,
    behaviour: LogProbs | None = None,
    after_update: Beat = lambda: None,
    step: int = 0,
) -> Updates:
    """Make the optimizer steps of the plan. An update whose gradient norm is not finite is left out and counted.

    `old` are those of the last optimizer batches: of all, or of all but the first. `reference` is needed when the recipe's KL coefficient is above
    0, `behaviour` when `objectives.needs_behaviour(recipe)`. `step` says where in the recipe's schedules this is.
    """
    objective, weights = objective_of(recipe), LossWeights.of(recipe, step)
    sources = None
    if recipe.sources:
        each = source_losses(recipe, step)
        sources = SourceLosses(each, torch.zeros(len(each), len(SUMS), dtype=torch.float64, device=policy.device))
    sums = torch.zeros(len(SUMS), dtype=torch.float64)
    applied: list[Applied] = []
    first: list[list[Float[Tensor, " _"]] | None] = [None] * (len(plan.optimizer_batches) - len(old))
    known = [*first, *old]
    whole: LogProbs = []
    for index, batch in enumerate(plan.optimizer_batches):
        base, sampled = (None if each is None else each[index] for each in (reference, behaviour))
        part, olds = accumulate(
            policy, batch, known[index], base, sampled, objective, weights, beat, recipe.mismatch_correction, sources
        )
        sums += part.cpu()
        whole.append(olds)
        applied.append(optimizer.step())
        after_update()
    totals = over_ranks(sums, policy, "the sums of a step")
    of = LossSums(*(total / plan.token_count for total in totals))
    completions = sum(batch.rows for batch in plan.optimizer_batches)
    return Updates(
        loss=of.loss,
        kl=None if reference is None else of.kl,
        entropy=of.entropy,
        clip_low=of.clip_low,
        clip_high=of.clip_high,
        clip_delta=of.clip_delta,
        importance_capped=of.capped,
        old=whole,
        mismatch_truncated=of.truncated,
        mismatch_masked=of.masked,
        completions_masked=totals[SUMS.index("completions_masked")] / max(1, completions),
        applied=applied,
        experts=expert_balance(policy),
        router_mismatch=router_mismatch(policy),
        by_source={} if sources is None else source_means(sources, plan, policy),
    )


def source_means(sources: SourceLosses, plan: StepPlan, policy: Policy) -> dict[str, LossSums]:
    """Of all ranks' tokens of a step, of each source that had some. All ranks call this."""
    totals = over_ranks(sources.sums.flatten(), policy, "the sums of the sources")
    tokens = [sum(batch.source_tokens[at] for batch in plan.optimizer_batches) for at in range(len(sources.each))]
    return {
        source.name: LossSums(*(total / count for total in totals[at * len(SUMS) : (at + 1) * len(SUMS)]))
        for at, (source, count) in enumerate(zip(sources.each, tokens, strict=True))
        if count
    }


def router_mismatch(policy: Policy) -> float | None:
    """Of all ranks' tokens since the last call; None where no routes were recorded. All ranks call this."""
    if policy.recorded is None:
        return None
    differing, pairs = over_ranks(policy.recorded.take(), policy, "the routes of a step")
    return differing / pairs if pairs else None


def expert_balance(policy: Policy) -> Balance | None:
    """How evenly all ranks' tokens were spread over the experts since the last call. All ranks call this."""
    counts = policy.routed.take()
    if counts is None:
        return None
    whole = over_ranks(counts.double().flatten(), policy, "the tokens of the experts")
    return balance(torch.tensor(whole, dtype=torch.float64).reshape(counts.shape))


def accumulate(
    policy: Policy,
    batch: OptimizerBatch,
    old: list[Float[Tensor, " _"]] | None,
    reference: list[Float[Tensor, " _"]] | None,
    behaviour: list[Float[Tensor, " _"]] | None,
    objective: Objective,
    weights: LossWeights,
    beat: Beat,
    correction: MismatchCorrection | None = None,
    sources: SourceLosses | None = None,
) -> tuple[Float[Tensor, " sums"], list[Float[Tensor, " _"]]]:
    """Add the gradient of an optimizer batch's loss to the policy's parameters. With `sources` each row is learnt from by its own's.

    Gives this rank's `SUMS` over tokens (float64), and the old log-probabilities: `old`, or where that is None the policy's own, found on the way.
    """
    olds: list[Float[Tensor, " _"]] = []
    sums = torch.zeros(len(SUMS), dtype=torch.float64, device=policy.device)
    for index, packed in enumerate(batch.micro_batches):
        here = packed.to(policy.device)
        recomputed = None if behaviour is None else behaviour[index]
        correcting = None
        if correction is not None:
            sampler = here.worker_logprobs if correction.probabilities == "Engine" else recomputed
            assert sampler is not None  # `needs_behaviour` says so
            correcting = Correcting(correction, sampler, here.completions)
        micro = MicroLoss(
            old=None if old is None else old[index],
            reference=None if reference is None else reference[index],
            advantages=here.advantages,
            behaviour=recomputed,
            objective=objective,
            weights=weights,
            divisor=batch.divisor,
            completions=here.completions,
            correction=correcting,
            sources=sources,
            owners=here.sources,
            divisors=batch.divisors,
        )
        loss, found, _ = policy(here, micro, micro.look if micro.needs_look else None)
        loss.backward()
        sums += micro.sums
        olds.append(found if old is None else old[index])
        beat()
    return sums, olds


def over_ranks(values: Float[Tensor, " values"], policy: Policy | None, what: str) -> list[float]:
    """Sums over all ranks, as Python floats."""
    values = values.detach().cpu().clone()
    if policy is not None and policy.ranks is not None and policy.ranks.world > 1:
        with waiting_for(what, policy.ranks.rank):
            dist.all_reduce(values)
    return [float(value) for value in values]


def over_packs(values: Float[Tensor, " values"], policy: Policy | None, what: str) -> list[float]:
    """Sums over all packs, of values that every rank of those that share a pack has found of the whole of it."""
    counted = policy is None or policy.ranks is None or policy.ranks.counts_packs
    return over_ranks(values if counted else torch.zeros_like(values), policy, what)
