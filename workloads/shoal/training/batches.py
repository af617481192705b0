"""From groups of samples to the tensors of optimizer steps: advantages, shuffling, splitting, packing, dealing out to ranks.

In: the groups of one step. Out: for each optimizer step the micro-batches of this rank, with the number that the loss is divided by. The order
of samples is drawn from (seed, step) alone, and what is packed together does not depend on the ranks. So a resumed step is the same
step on any number of them. Pure; called by `loop`.
"""

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float, Int, Integer
from torch import Tensor

from shoal.contracts.recipe import Recipe
from shoal.contracts.rollouts import sampled_stretches
from shoal.contracts.run import RunConfig
from shoal.training.advantages import group_advantages, turn_advantages
from shoal.training.completions import Packed
from shoal.training.objectives import objective_of, overlong_penalty, source_losses
from shoal.training.packing import cost, deal, density, pack
from shoal.training.rollouts import RolloutGroup, Sample


@dataclass(frozen=True)
class Segments:
    """The samples of a pack: `bounds` has the start of each and the end of the last, in tokens."""

    bounds: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.bounds[0] != 0 or any(end <= start for start, end in zip(self.bounds, self.bounds[1:], strict=False)):
            raise ValueError(f"segment bounds are {list(self.bounds)}; allowed: ascending from 0, no sample empty")

    @cached_property
    def lengths(self) -> list[int]:
        """Tokens of each sample."""
        return [end - start for start, end in zip(self.bounds, self.bounds[1:], strict=False)]

    def on(self, device: torch.device) -> Int[Tensor, " bounds"]:
        """The bounds as int32 on a device, copied there once."""
        if device not in self._copies:
            self._copies[device] = torch.tensor(self.bounds, dtype=torch.int32, device=device)
        return self._copies[device]

    @cached_property
    def _copies(self) -> dict[torch.device, Tensor]:
        return {}


@dataclass(frozen=True)
class MicroBatch:
    """Whole samples laid end to end. `positions` start again at 0 with each sample; `segments` says the same in bounds.

    The flat arrays have one entry for each token that the model itself sampled (tool output is context only):
    `predicted_from` is where in the pack the token was predicted (the position before it), `targets` its id, `policy_versions` the version
    that sampled it; `routes` the experts of that position, where they are recorded; `sources` which of `objectives.source_losses` is its own, where
    the recipe has several: always in host memory, where tiles are told apart without a wait for the device. A filler, for a rank short of work,
    has tokens but none of these entries: it adds nothing to any sum.
    """

    tokens: Int[Tensor, " pack"]
    positions: Int[Tensor, " pack"]
    predicted_from: Int[Tensor, " completion"]
    targets: Int[Tensor, " completion"]
    temperatures: Float[Tensor, " completion"]
    advantages: Float[Tensor, " completion"]
    worker_logprobs: Float[Tensor, " completion"]
    policy_versions: Int[Tensor, " completion"]
    segments: Segments
    routes: Integer[Tensor, "completion layers choices"] | None = None
    sources: Int[Tensor, " completion"] | None = None

    @cached_property
    def completions(self) -> Packed:
        """Which sample each sampled token belongs to; a filler's one sample has none."""
        return Packed.of(self.predicted_from, self.segments.on(self.tokens.device))

    def to(self, device: torch.device) -> "MicroBatch":
        """The same on a device; itself when it lies there already."""
        if self.tokens.device == device:
            return self
        tensors = {
            field.name: value.to(device)
            for field in fields(self)
            if field.name != "sources" and isinstance(value := getattr(self, field.name), Tensor)
        }
        return replace(self, **tensors)


@dataclass(frozen=True)
class OptimizerBatch:
    """The data of one optimizer step: this rank's micro-batches, as many as every other rank has.

    `token_count` is over all ranks, and `divisor` is what the objective divides the sum over tokens by. `versions` has for
    each round the policy versions that sampled any rank's tokens of it, ascending. `numbers` has for each of this rank's micro-batches which samples
    of the step its segments are, counted through the groups (none for a filler); `rows` is how many of all ranks' samples have a sampled token.
    `divisors` and `source_tokens` are the same for each of `objectives.source_losses`, where the recipe has sources: the former as if all rows were
    its own, the latter of its own rows.
    """

    micro_batches: list[MicroBatch]
    token_count: int
    divisor: float
    versions: list[tuple[int, ...]]
    numbers: list[tuple[int, ...]] = field(default_factory=list)
    rows: int = 0
    divisors: tuple[float, ...] = ()
    source_tokens: tuple[int, ...] = ()


@dataclass(frozen=True)
class StepPlan:
    """All optimizer batches of a step; `packing_density` is the share of pack capacity that holds tokens, over all ranks.

    `digest`: SHA-256, in hex, over what is learnt in which order, whatever the ranks: each optimizer step's divisor and packs, each sample's name,
    tokens, mask, temperature, version and advantages; of a recipe with sources also each one's name and divisor.
    """

    optimizer_batches: list[OptimizerBatch]
    packing_density: float
    digest: str

    @property
    def token_count(self) -> int:
        """Completion tokens of the step, over all ranks."""
        return sum(batch.token_count for batch in self.optimizer_batches)


Scored = tuple[Sample, float | Float[np.ndarray, " _"]]
"""A sample with its advantage: one for all of its tokens, or one for each token of the completion."""
AdvantageEstimator = Callable[[Sequence[RolloutGroup], Recipe, int | None], list[Scored]]
"""All samples of a step in their order, each with its advantage. The number is the most tokens that a completion may have."""


def group_relative(groups: Sequence[RolloutGroup], recipe: Recipe, completion_limit: int | None = None) -> list[Scored]:
    """The objective's own advantages: each sample's reward against those of its group."""
    return [pair for group in groups for pair in score(group, recipe, completion_limit)]


def plan_step(
    groups: Sequence[RolloutGroup],
    recipe: Recipe,
    *,
    seed: int,
    step: int,
    completion_limit: int | None = None,
    rank: int = 0,
    world: int = 1,
    advantages: AdvantageEstimator = group_relative,
) -> StepPlan:
    """Advantages, samples shuffled over groups, cut into `optimizer_steps` parts, each packed and dealt out.

    `completion_limit` is the most tokens that a completion may have (`sampling.maxCompletionTokens`). Raises ValueError when the step has
    fewer samples than optimizer steps.
    """
    if recipe.overlong_filter:
        # Before advantages: tokens that nobody learns from are no part of a mean over tokens.
        groups = [
            RolloutGroup([without_overlong(sample, recipe, completion_limit) for sample in group.samples])
            for group in groups
        ]
    scored = advantages(groups, recipe, completion_limit)
    if len(scored) < recipe.optimizer_steps:
        raise ValueError(
            f"step {step} has {len(scored)} samples for {recipe.optimizer_steps} optimizer steps; lower optimizerSteps"
        )
    order = np.random.default_rng([seed, step]).permutation(len(scored))
    capacity = recipe.pack_length or recipe.max_sequence_length
    longest = min(recipe.max_sequence_length, completion_limit or recipe.max_sequence_length)
    losses = source_losses(recipe)
    batches, tokens, bins, running = [], 0, 0, hashlib.sha256()
    for part in np.array_split(order, recipe.optimizer_steps):
        members = [scored[index] for index in part]
        lengths = [len(sample.tokens) for sample, _ in members]
        bins_of_part = pack(lengths, capacity)
        packs = [[members[index] for index in indices] for indices in bins_of_part]
        numbers = [[int(part[index]) for index in indices] for indices in bins_of_part]
        sampled = {
            "tokens": float(sum(int(sample.mask.sum()) for sample, _ in members)),
            "longest_completions": float(len(members) * longest),
            "completions": float(sum(bool(sample.mask.any()) for sample, _ in members)),
        }
        divisors = tuple(sampled[each.objective.divisor] for each in losses)
        named = [each.name for each in losses] if recipe.sources else []
        made = optimizer_batch(packs, rank, world, divisors[0], numbers, named)
        _add_to_digest(running, packs, made.divisor)
        if recipe.sources:
            made = replace(made, divisors=divisors)
            # Not the factor: whoever tunes it in mid-run changes nothing of what is learnt in which order, and the ledger's terms tell it.
            said = [(each.name, divisor) for each, divisor in zip(losses, divisors, strict=True)]
            running.update(f"sources {said!r}\n".encode())
        batches.append(made)
        tokens, bins = tokens + sum(lengths), bins + len(packs)
    return StepPlan(batches, density([tokens], [[0]] * bins, capacity), running.hexdigest())


def plan_of_run(
    config: RunConfig, groups: Sequence[RolloutGroup], step: int, advantages: AdvantageEstimator, rank: int, world: int
) -> StepPlan | None:
    """The plan of a run's step; None when there is nothing to train on. With few samples it makes fewer optimizer steps."""
    samples = sum(len(group.samples) for group in groups)
    if samples == 0:
        return None
    plan = plan_step(
        groups,
        config.recipe.model_copy(update={"optimizer_steps": min(samples, config.recipe.optimizer_steps)}),
        seed=config.seed,
        step=step,
        completion_limit=config.sampling.max_completion_tokens,
        rank=rank,
        world=world,
        advantages=advantages,
    )
    return plan if plan.token_count else None


def _add_to_digest(running: "hashlib._Hash", packs: Sequence[Sequence[Scored]], divisor: float) -> None:
    running.update(f"optimizer step {len(packs)} {divisor!r}\n".encode())
    for members in packs:
        running.update(f"pack {len(members)}\n".encode())
        for sample, given in members:
            advantages = np.asarray(given, dtype=np.float64)
            about = (sample.name, sample.prompt_length, len(sample.tokens), sample.temperature, sample.policy_version)
            running.update(f"{about!r} {advantages.size}\n".encode())
            running.update(repr(sample.segments).encode() if sample.segments else b"")
            for values in (np.asarray(sample.tokens, dtype=np.int64), sample.mask, advantages):
                running.update(values.tobytes())


def score(group: RolloutGroup, recipe: Recipe, completion_limit: int | None = None) -> list[Scored]:
    """Each sample of a group with its advantage under its source's objective, else the recipe's."""
    recipe = recipe.of_source(group.samples[0].task_type) if recipe.sources else recipe
    rewards = shaped_rewards(group, recipe, completion_limit)
    leave_one_out = objective_of(recipe).advantages == "leave_one_out"
    if recipe.credit == "Turn":
        return _by_turn(group, rewards, normalize=recipe.normalizes_advantages, leave_one_out=leave_one_out)
    advantages = group_advantages(rewards, normalize=recipe.normalizes_advantages, leave_one_out=leave_one_out)
    return list(zip(group.samples, advantages.tolist(), strict=True))


def _by_turn(
    group: RolloutGroup, rewards: Float[np.ndarray, " samples"], *, normalize: bool, leave_one_out: bool
) -> list[Scored]:
    """Each sample with one advantage a token, which is its turn's. What an episode's length costs is taken from its last turn."""
    turns = [
        [*sample.turn_rewards[:-1], float(reward) - math.fsum(sample.turn_rewards[:-1])]
        for sample, reward in zip(group.samples, rewards, strict=True)
    ]
    scored: list[Scored] = []
    found = turn_advantages(turns, normalize=normalize, leave_one_out=leave_one_out)
    for sample, advantages in zip(group.samples, found, strict=True):
        values = np.zeros(sample.completion_length)
        if sample.mask.any():  # else nothing of it is learnt: `without_overlong`
            for stretch, advantage in zip(sampled_stretches(sample.mask.tolist()), advantages, strict=True):
                values[stretch] = advantage
        scored.append((sample, values))
    return scored


def shaped_rewards(group: RolloutGroup, recipe: Recipe, completion_limit: int | None) -> Float[np.ndarray, " samples"]:
    """The rewards of a group's samples, overlong completions penalised if the recipe says so. float64."""
    return np.array(
        [
            sample.reward - overlong(sample, sample.completion_length, recipe, completion_limit)
            for sample in group.samples
        ]
    )


def overlong(sample: Sample, length: int, recipe: Recipe, completion_limit: int | None) -> float:
    """The recipe's penalty for an answer of `length` tokens to a sample's prompt near the limit."""
    if recipe.overlong_shaping is None:
        return 0.0
    return overlong_penalty(length, _limit(sample, recipe, completion_limit), recipe.overlong_shaping)


def without_overlong(sample: Sample, recipe: Recipe, completion_limit: int | None) -> Sample:
    """The sample, with nothing to learn if it is as long as allowed: it was cut off. Its reward counts in its group all the same."""
    if sample.completion_length < _limit(sample, recipe, completion_limit):
        return sample
    return replace(sample, mask=np.zeros_like(sample.mask))


def _limit(sample: Sample, recipe: Recipe, completion_limit: int | None) -> int:
    """The most tokens that a completion of the sample's prompt may have."""
    room = recipe.max_sequence_length - sample.prompt_length
    return room if completion_limit is None else min(room, completion_limit)


def optimizer_batch(
    packs: Sequence[Sequence[Scored]],
    rank: int,
    world: int,
    divisor: float | None = None,
    numbers: Sequence[Sequence[int]] | None = None,
    sources: Sequence[str] = (),
) -> OptimizerBatch:
    """Packs dealt out to ranks. Without a `divisor` the loss is divided by the count of completion tokens.

    `numbers` says which samples of the step the packs hold; without it they are counted through the packs. `sources` are those that have a loss of
    their own; the first stands for all others.
    """
    if numbers is None:
        starts = np.cumsum([0, *map(len, packs)]).tolist()
        numbers = [range(start, start + len(members)) for start, members in zip(starts, packs, strict=False)]
    # A pack of tool output only has nothing to learn from, and no gradient.
    kept = [index for index, members in enumerate(packs) if any(sample.mask.any() for sample, _ in members)]
    useful, named = [packs[index] for index in kept], [tuple(numbers[index]) for index in kept]
    dealt = deal([cost([len(sample.tokens) for sample, _ in members]) for members in useful], world)
    tokens = sum(int(sample.mask.sum()) for members in useful for sample, _ in members)
    return OptimizerBatch(
        micro_batches=[
            filler(sources) if index is None else micro_batch(useful[index], sources) for index in dealt[rank]
        ],
        token_count=tokens,
        divisor=float(tokens) if divisor is None else divisor,
        versions=[
            tuple(sorted({version for index in here if index is not None for version in _versions(useful[index])}))
            for here in zip(*dealt, strict=True)
        ],
        numbers=[() if index is None else named[index] for index in dealt[rank]],
        rows=sum(bool(sample.mask.any()) for members in useful for sample, _ in members),
        source_tokens=tuple(
            sum(int(sample.mask.sum()) for members in useful for sample, _ in members if _source(sample, sources) == at)
            for at in range(len(sources))
        ),
    )


def _source(sample: Sample, sources: Sequence[str]) -> int:
    """Which of the sources the sample is of; 0 stands for all that are not named."""
    return sources.index(sample.task_type) if sample.task_type in sources else 0


def _versions(members: Sequence[Scored]) -> set[int]:
    """The versions that sampled tokens of these."""
    return {version for sample, _ in members for version, _ in sample.segments or [(sample.policy_version, 0)]}


def micro_batch(members: Sequence[Scored], sources: Sequence[str] = ()) -> MicroBatch:
    """Lay samples, each with its advantage, end to end. `sources` as in `optimizer_batch`."""
    starts = np.cumsum([0, *(len(sample.tokens) for sample, _ in members)])
    places, repeats = [], []
    for (sample, _), start in zip(members, starts, strict=False):
        kept = np.flatnonzero(sample.mask)
        places.append(start + sample.prompt_length + kept)
        repeats.append(len(kept))
    tokens = np.concatenate([sample.tokens for sample, _ in members])
    at = np.concatenate(places)
    return MicroBatch(
        tokens=torch.from_numpy(tokens),
        positions=torch.from_numpy(np.concatenate([np.arange(len(sample.tokens)) for sample, _ in members])),
        predicted_from=torch.from_numpy(at - 1),
        targets=torch.from_numpy(tokens[at]),
        temperatures=_spread([sample.temperature for sample, _ in members], repeats),
        advantages=_advantages(members),
        worker_logprobs=torch.from_numpy(np.concatenate([sample.logprobs[sample.mask] for sample, _ in members])),
        policy_versions=torch.from_numpy(np.concatenate([sample.token_versions[sample.mask] for sample, _ in members])),
        segments=Segments(tuple(starts.tolist())),
        routes=_routes(members),
        sources=torch.from_numpy(np.repeat([_source(sample, sources) for sample, _ in members], repeats))
        if sources
        else None,
    )


def filler(sources: Sequence[str] = ()) -> MicroBatch:
    """One token of context and nothing to learn: what a rank computes while others work, since every rank meets in every layer.

    A copy of a real micro-batch in its place would count twice.
    """
    whole, real = torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.float32)
    return MicroBatch(
        tokens=torch.zeros(1, dtype=torch.int64),
        positions=torch.zeros(1, dtype=torch.int64),
        predicted_from=whole,
        targets=whole,
        temperatures=real,
        advantages=real,
        worker_logprobs=real,
        policy_versions=whole,
        segments=Segments((0, 1)),
        sources=whole if sources else None,
    )


def _advantages(members: Sequence[Scored]) -> Float[Tensor, " completion"]:
    """One entry for each sampled token."""
    parts = [np.broadcast_to(np.float32(given), sample.mask.shape)[sample.mask] for sample, given in members]
    return torch.from_numpy(np.concatenate(parts))


def _routes(members: Sequence[Scored]) -> Integer[Tensor, "completion layers choices"] | None:
    """Of each sampled token; None unless every sample has them."""
    parts = [sample.routes[sample.mask] for sample, _ in members if sample.routes is not None]
    return torch.from_numpy(np.concatenate(parts)) if len(parts) == len(members) else None


def _spread(values: Sequence[float], repeats: Sequence[int]) -> Float[Tensor, " completion"]:
    """One value a sample, repeated for each of its tokens."""
    return torch.from_numpy(np.repeat(np.array(values, dtype=np.float32), repeats))
