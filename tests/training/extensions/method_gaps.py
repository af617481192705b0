"""How far supervised fine-tuning, PRIME and VinePPO are from `reference_methods`, by ranks: losses, gradients, weights after updates.

In: names of methods. Out (printed): JSON. `gaps`: by method, layout of ranks and case the largest difference, relative to the largest value of what
it is in; where passes are in bfloat16 it is that of whole vectors, in norm. `reference`: by method the plain formulas' figures. Groups are odd on
purpose: with tool output, equal rewards, one answer, nothing sampled, an answer of one token; packs are few enough for ranks without tokens. Called
by `test_method_gaps` and by benchmarks, in a process of its own: ranks are forked from it. Its path has tests, tests/training and this folder.

    python tests/training/extensions/method_gaps.py [--brief] METHOD...
"""

import json
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import reference_prime
import reference_vineppo
import torch
from forked_ranks import fork_ranks
from golden_model import golden_model, tokens, wave
from reference_methods import (
    Answer,
    PlainAdamW,
    PlainModel,
    completion_loss,
    outcome_loss,
    parts,
    policy_loss,
)
from sft_rows import sample as row_sample
from sft_rows import sft_settings
from tiny_run import recipe
from torch import Tensor
from torch.distributed.tensor import DTensor

from shoal.contracts.algorithm import Prime, VinePpo
from shoal.contracts.recipe import Recipe
from shoal.contracts.sft_data import SftRow
from shoal.contracts.trainer import Lora, Offload, TrainerSettings
from shoal.training.batches import StepPlan, plan_step
from shoal.training.extensions.prime.extension import outcome_advantages
from shoal.training.extensions.prime.reward_model import RewardModel, outcomes_of
from shoal.training.extensions.vine.extension import value_advantages
from shoal.training.lora import LoraLinear, add_adapters, draw_adapters
from shoal.training.loss import LossWeights
from shoal.training.model import Policy, policy_to_ask, policy_to_train
from shoal.training.objectives import objective_of
from shoal.training.optimizer import Optimizer
from shoal.training.parallel import Ranks, start_ranks
from shoal.training.rollouts import ContinuationReward, RolloutGroup, Sample
from shoal.training.sft.method import batch_of, held_out_loss, learn
from shoal.training.update import accumulate, plan_logprobs

LAYOUTS = {"1 rank": (1, 1), "2 ranks": (2, 1), "4 ranks": (4, 1), "4 ranks, 2 share packs": (4, 2)}
"""Ranks, and how many of them compute each pack together."""
ADAPTERS = Lora(rank=4, alpha=8.0)


@dataclass(frozen=True)
class Case:
    """Settings of the trainer, and the length of a pack: of 48 tokens all ranks have several packs and a filler, of 400 one rank has all."""

    settings: TrainerSettings = field(default_factory=TrainerSettings)
    pack_length: int = 48

    @property
    def halves(self) -> bool:
        return self.settings.data_type == "BFloat16"


CASES = {
    "uneven packs": Case(),
    "one pack": Case(pack_length=400),
    "adapters": Case(TrainerSettings(lora=ADAPTERS)),
    "recomputed, in host memory": Case(
        TrainerSettings(
            activation_recomputation="On", offload=Offload(reference=True, optimizer=True, activations=True)
        )
    ),
    "bfloat16": Case(TrainerSettings(data_type="BFloat16")),
}
BRIEF = ("uneven packs", "one pack", "adapters", "bfloat16")
"""Cases of the normal suite."""
REWARD_MODEL = "prime's reward model"
Found = dict[str, Tensor]

GROUPS: tuple[tuple[tuple[float, ...], tuple[int, ...]], ...] = (
    ((1, 0, 1, 0), (5, 17, 1, 9)),
    ((1, 1, 1, 1), (8, 3, 12, 2)),
    ((1,), (6,)),
    ((0, 1, 1), (4, 20, 7)),
    ((0, 1), (3, 11)),
    ((0.25, 1, 0.5), (10, 2, 15)),
)
"""Outcomes and lengths of completions."""
EQUAL, ALONE, HALF_SAMPLED, NOTHING_SAMPLED = 1, 2, 3, 4
"""Groups in which rewards are equal, a completion is alone, one completion has no sampled token, and none has."""
VINE = VinePpo(segments=3, continuations=2)
PRIME = Prime(beta=0.3, learning_rate=1e-3, outcome_weight=2.0, process_weight=0.5)
PLAIN: dict[str, Any] = {"kl_coefficient": 0.0, "entropy_coefficient": 0.0, "max_grad_norm": 0.5}
SEED, STEP = 3, 7


def crowd(*, alone: bool) -> list[RolloutGroup]:
    """The groups; a completion by itself only where the method takes one."""
    found = []
    for number, (outcomes, lengths) in enumerate(GROUPS):
        prompt = tokens(3 + 2 * number, 100 + number)
        samples = []
        for place, (outcome, length) in enumerate(zip(outcomes, lengths, strict=True)):
            mask = np.ones(length, dtype=np.bool_)
            mask[: length // 2] = (number + place) % 3 != 0
            if number == NOTHING_SAMPLED or (number, place) == (HALF_SAMPLED, 1):
                mask[:] = False
            penalty = 0.0 if number == EQUAL else 0.01 * length
            samples.append(
                Sample(
                    f"{number}-{place}", np.array(prompt + tokens(length, 200 + 10 * number + place)), len(prompt), mask,
                    np.zeros(length, np.float32), (1.0, 0.875)[number % 2], 0, float(outcome), penalty, float(outcome) - penalty,
                )
            )  # fmt: skip
        if alone or number != ALONE:
            found.append(RolloutGroup(samples))
    return found


def continued(groups: Sequence[RolloutGroup]) -> list[RolloutGroup]:
    """Each completion with continuations, a few of which nobody could score."""
    found, number = [], 0
    for group in groups:
        samples = []
        for sample in group.samples:
            given = []
            for boundary, position in enumerate(VINE.positions(sample.completion_length), 1):
                for again in range(VINE.continuations):
                    number += 1
                    reward = (float(wave(1, 500 + number)[0]) + 1) / 2
                    if not (number % 7 == 0 or (sample.name == "0-1" and boundary == 2)):
                        given.append(ContinuationReward(boundary, position, reward, position + 1 + again))
            samples.append(replace(sample, estimates=tuple(given)))
        found.append(RolloutGroup(samples))
    return found


def supervised_rows() -> list[list[Sample]]:
    """Of three updates, with nine rows, one, and four; and of the held-out loss."""
    flat = [
        row_sample(
            SftRow(
                f"row {number}",
                tokens(2 + number % 5, 300 + number),
                [*tokens(1 + 5 * number % 17, 400 + number), 1],
            )
        )
        for number in range(19)
    ]
    return [flat[:9], flat[9:10], flat[10:14], flat[14:]]


def model(number: int) -> Any:
    """One of several models of one shape, made without a random generator."""
    made = golden_model()
    with torch.no_grad():
        for place, (_, parameter) in enumerate(sorted(made.named_parameters())):
            values = wave(parameter.numel(), 1000 * number + place).reshape(parameter.shape)
            parameter += (0.08 if number else 0.0) * torch.from_numpy(values).float()
    return made


def answer(sample: Sample) -> Answer:
    """As the reference takes it."""
    places = (np.flatnonzero(sample.mask) + sample.prompt_length).tolist()
    return Answer(sample.tokens.tolist(), places, sample.temperature)


def plain(case: Case, number: int) -> PlainModel:
    """The reference's model. Adapters begin as the trainer's do, which are drawn from a fixed seed."""
    if case.settings.lora is None:
        return PlainModel(model(number))
    drawn = model(number).double()
    add_adapters(drawn, case.settings.lora)
    draw_adapters(drawn)
    pairs = {
        name: (module.lora_a, module.lora_b) for name, module in drawn.named_modules() if isinstance(module, LoraLinear)
    }
    return PlainModel(model(number), pairs, ADAPTERS.alpha / ADAPTERS.rank)


def trained(case: Case, number: int, ranks: Ranks) -> Policy:
    made = model(number)
    return policy_to_train(made if case.halves else made.double(), case.settings, ranks)


def asked(case: Case, number: int, ranks: Ranks) -> Policy:
    made = model(number)
    return policy_to_ask(made if case.halves else made.double(), case.settings, ranks)


# ---- supervised fine-tuning

SFT = sft_settings(learning_rate=1e-2, warmup_steps=2, weight_decay=0.1, max_grad_norm=0.5)


def supervised(case: Case, ranks: Ranks) -> Found:
    """Three updates of unequal size, and the held-out loss after them."""
    policy = trained(case, 0, ranks)
    optimizer = Optimizer(policy.parameters(), SFT, on_host=case.settings.offloaded.optimizer)
    *learnt, held_out = (
        batch_of(rows, case.pack_length, ranks.data_rank, ranks.data_world) for rows in supervised_rows()
    )
    made = learn(policy, optimizer, learnt, case.pack_length, nothing)
    weights = values(policy)  # before the next pass, which leaves embedding and head whole
    means = [made.loss, made.entropy, held_out_loss(policy, held_out, nothing)]
    return {"means": real(means), "norms": real(made.norms)} | weights


def supervised_reference(case: Case) -> Found:
    made = plain(case, 0)
    optimizer = PlainAdamW(made, SFT.max_grad_norm, SFT.adam_beta1, SFT.adam_beta2, SFT.weight_decay)
    *batches, held_out = ([answer(row) for row in rows] for rows in supervised_rows())
    norms, sums = [], np.zeros(2)
    for number, batch in enumerate(batches):
        loss, entropy = completion_loss(made, batch)
        count = sum(len(each.places) for each in batch)
        sums += count * np.array([float(loss.detach()), entropy])
        rate = SFT.learning_rate * min(1.0, (number + 1) / SFT.warmup_steps)
        norms.append(optimizer.step(made.gradients(loss), rate))
    means = sums / sum(len(each.places) for batch in batches for each in batch)
    held = float(completion_loss(made, held_out)[0].detach())
    return {"means": real([*means, held]), "norms": real(norms)} | after(made)


# ---- PRIME


def prime(case: Case, ranks: Ranks) -> Found:
    """The reward model after an update for each optimizer batch; the policy's gradient under the advantages that it gives."""
    chosen = recipe(**PLAIN, pack_length=case.pack_length, algorithm={"prime": PRIME})
    policy, second, base = trained(case, 0, ranks), trained(case, 2, ranks), asked(case, 1, ranks)
    reward_model = RewardModel(second, chosen, PRIME, on_host=case.settings.offloaded.optimizer)
    given = crowd(alone=True)
    plan = planned(given, chosen, ranks, outcome_advantages)
    reference = plan_logprobs(base, plan, nothing)
    plan = reward_model.complete(plan, reference, outcomes_of(given), nothing)
    learnt = reward_model.learn(plan, reference, outcomes_of(given), nothing)
    found = {"means": real([learnt.loss, learnt.accuracy]), "norms": real(learnt.norms)}
    return found | values(second, "reward model's ") | policy_gradient(policy, plan, chosen)


def prime_reference(case: Case) -> Found:
    given = [sample for group in crowd(alone=True) for sample in group.samples]
    numbers = [number for number, group in enumerate(crowd(alone=True)) for _ in group.samples]
    answers, outcomes = [answer(sample) for sample in given], [sample.task_reward for sample in given]
    policy, second, base = plain(case, 0), plain(case, 2), PlainModel(model(1))
    rewards, bases = ([each.logprobs(one).detach() for one in answers] for each in (second, base))
    told = [
        reference_prime.Completion(number, sample.task_reward, sample.reward, ours.tolist(), theirs.tolist())
        for number, sample, ours, theirs in zip(numbers, given, rewards, bases, strict=True)
    ]
    advantages = reference_prime.whitened(
        reference_prime.mixed(told, PRIME.beta, PRIME.outcome_weight, PRIME.process_weight)
    )
    batches, chosen = parts(len(given), SEED, STEP, 2), recipe()
    optimizer = PlainAdamW(
        second, PRIME.max_grad_norm, chosen.adam_beta1, chosen.adam_beta2, chosen.weight_decay
    )  # fmt: skip
    lost, right, rows, norms = 0.0, 0, 0, []
    for batch in batches:
        sampled = [number for number in batch if answers[number].places]
        loss, judged = outcome_loss(second, lambda number: bases[number], answers, outcomes, sampled, PRIME.beta)
        lost, right, rows = lost + len(sampled) * float(loss.detach()), right + judged, rows + len(sampled)
        norms.append(optimizer.step(second.gradients(loss), PRIME.learning_rate))
    gradients = policy.gradients(policy_loss(policy, answers, advantages, batches))
    found = {"means": real([lost / rows, right / rows]), "norms": real(norms)}
    return found | after(second, "reward model's ") | named(gradients)


# ---- VinePPO


def vineppo(case: Case, ranks: Ranks) -> Found:
    """The policy's gradient under advantages from values."""
    chosen = recipe(**PLAIN, pack_length=case.pack_length, algorithm={"vineppo": VINE})
    plan = planned(continued(crowd(alone=False)), chosen, ranks, value_advantages)
    return policy_gradient(trained(case, 0, ranks), plan, chosen)


def vineppo_reference(case: Case) -> Found:
    groups = continued(crowd(alone=False))
    given = [sample for group in groups for sample in group.samples]
    told = []
    for number, group in enumerate(groups):
        for sample in group.samples:
            rollouts: dict[int, list[float]] = {}
            for each in sample.estimates:
                rollouts.setdefault(each.position, []).append(each.reward)
            told.append(reference_vineppo.Rolled(number, sample.completion_length, sample.reward, rollouts))
    masks = [sample.mask.tolist() for sample in given]
    whole = reference_vineppo.whitened(reference_vineppo.advantages(told), masks)
    advantages = [
        [value for value, sampled in zip(row, mask, strict=True) if sampled]
        for row, mask in zip(whole, masks, strict=True)
    ]
    made = plain(case, 0)
    batches = parts(len(given), SEED, STEP, 2)
    return named(made.gradients(policy_loss(made, [answer(sample) for sample in given], advantages, batches)))


# ---- both sides


def nothing() -> None:
    """Nobody watches."""


def planned(groups: list[RolloutGroup], chosen: Recipe, ranks: Ranks, advantages: Any) -> StepPlan:
    return plan_step(
        groups, chosen, seed=SEED, step=STEP, rank=ranks.data_rank, world=ranks.data_world, advantages=advantages
    )


def policy_gradient(policy: Policy, plan: StepPlan, chosen: Recipe) -> Found:
    """Of all optimizer batches, added up."""
    objective, weights = objective_of(chosen), LossWeights.of(chosen)
    for batch in plan.optimizer_batches:
        accumulate(policy, batch, None, None, None, objective, weights, nothing)
    return named(
        {
            name: whole(torch.zeros_like(parameter) if parameter.grad is None else parameter.grad)
            for name, parameter in policy.model.named_parameters()
            if parameter.requires_grad
        }
    )


def named(gradients: Found) -> Found:
    return {f"gradient {name}": value for name, value in gradients.items()}


def real(numbers: Sequence[float]) -> Tensor:
    return torch.tensor(list(map(float, numbers)), dtype=torch.float64)


def values(policy: Policy, whose: str = "") -> Found:
    """What training changed, whole."""
    return {
        f"{whose}weights {name}": whole(parameter).clone()
        for name, parameter in policy.model.named_parameters()
        if parameter.requires_grad
    }


def after(made: PlainModel, whose: str = "") -> Found:
    return {f"{whose}weights {name}": leaf.detach() for name, leaf in made.leaves.items()}


def whole(tensor: Tensor) -> Tensor:
    tensor = tensor.detach()
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


METHODS: dict[str, tuple[Callable[[Case, Ranks], Found], Callable[[Case], Found]]] = {
    "sft": (supervised, supervised_reference),
    "prime": (prime, prime_reference),
    "vineppo": (vineppo, vineppo_reference),
}


def gaps(method: str, case: Case, wanted: Found, found: Found) -> dict[str, float]:
    """See the module; of PRIME those of the policy and of the reward model. Raises ValueError where the two sides have other values."""
    if other := sorted(wanted.keys() ^ found.keys()):
        raise ValueError(f"the reference and the trainer have found other values: {other[:3]}")
    if method != "prime":
        return {method: gap(case, wanted, found, list(wanted))}
    policy = [name for name in wanted if name.startswith("gradient ")]
    return {
        method: gap(case, wanted, found, policy),
        REWARD_MODEL: gap(case, wanted, found, [name for name in wanted if name not in policy]),
    }


def gap(case: Case, wanted: Found, found: Found, names: Sequence[str]) -> float:
    """In bfloat16 AdamW's first updates have the sign of gradients near 0, so weights are not compared."""
    if case.halves:
        kept = [name for name in names if "weights" not in name]
        joined = [torch.cat([side[name].double().flatten() for name in kept]) for side in (wanted, found)]
        return float((joined[1] - joined[0]).norm() / joined[0].norm())
    return max(
        float((found[name] - wanted[name]).abs().max() / wanted[name].abs().max().clamp(min=1e-30)) for name in names
    )


def measure(methods: Sequence[str], cases: Sequence[str]) -> dict[str, Any]:
    """Gaps of these methods on every layout, and the reference's figures."""
    torch.set_num_threads(1)
    found: dict[str, Any] = {"gaps": {}, "reference": {}}
    with tempfile.TemporaryDirectory(prefix="method-gaps-") as name:
        folder = Path(name)
        for world, sharing in LAYOUTS.values():
            fork_ranks(world, partial(run_rank, world, sharing, methods, cases, folder))
        # The reference comes last: ranks are forked from a process whose autograd has done nothing yet.
        for method in methods:
            wanted = {case: METHODS[method][1](CASES[case]) for case in cases}
            for layout, (world, sharing) in LAYOUTS.items():
                for case in cases:
                    ours = torch.load(folder / f"{world}-{sharing}-{method}-{case}.pt")
                    for whose, value in gaps(method, CASES[case], wanted[case], ours).items():
                        found["gaps"].setdefault(whose, {}).setdefault(layout, {})[case] = value
            found["reference"][method] = figures(wanted[cases[0]])
    return found


def figures(wanted: Found) -> dict[str, list[float]]:
    """Numbers that stand for all of it: means, norms of gradients before the clip, and the norm of everything else."""
    rest = torch.cat([value.flatten() for name, value in wanted.items() if name not in ("means", "norms")])
    return {name: wanted[name].tolist() for name in ("means", "norms") if name in wanted} | {
        "rest": [float(rest.norm())]
    }


def run_rank(
    world: int, sharing: int, methods: Sequence[str], cases: Sequence[str], folder: Path, rank: int, port: int
) -> None:
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "SHOAL_BIND": "127.0.0.1"}
    try:
        ranks = start_ranks("cpu", deadline_seconds=200.0, context_parallel=sharing)
        for method in methods:
            for case in cases:
                found = METHODS[method][0](CASES[case], ranks)
                if ranks.leader:
                    torch.save(found, folder / f"{world}-{sharing}-{method}-{case}.pt")
        ranks.close()
    except BaseException:
        sys.excepthook(*sys.exc_info())
        raise


if __name__ == "__main__":
    asked_for = [each for each in sys.argv[1:] if each != "--brief"] or list(METHODS)
    print(json.dumps(measure(asked_for, BRIEF if "--brief" in sys.argv else list(CASES))))
