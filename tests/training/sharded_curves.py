"""Trains a tiny model for a few steps on 1, 2 and 4 processes and writes what came of it: run by `test_sharding` as a program of its own.

The processes are forked after torch and transformers have been imported once, which is most of what they would cost. Called with a base
checkpoint and a file for the result, JSON: world -> case -> losses, KL, norms, applied, weights' digest and values.
"""

import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch
from forked_ranks import fork_ranks
from sft_rows import sample, sft_rows, sft_settings
from test_batches import groups
from tiny_run import recipe
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from shoal.contracts.algorithm import Prime
from shoal.contracts.muon import MuonSettings
from shoal.contracts.trainer import Lora, Offload, TrainerSettings
from shoal.training.batches import plan_step
from shoal.training.extensions.prime.extension import outcome_advantages
from shoal.training.extensions.prime.reward_model import RewardModel, outcomes_of
from shoal.training.host_copy import local
from shoal.training.model import load_policy, load_reference, prefetch_layers
from shoal.training.muon import Muon
from shoal.training.optimizer import Optimizer
from shoal.training.parallel import Ranks, start_ranks
from shoal.training.sft.method import batch_of, held_out_loss, learn
from shoal.training.sft.order import SftSchedule
from shoal.training.update import behaviour_logprobs, mismatch, plan_logprobs, train

CASES = {
    "plain": TrainerSettings(),
    "recomputed and offloaded": TrainerSettings(activation_recomputation="On", cpu_offload=True),
    "in host memory": TrainerSettings(
        activation_recomputation="On", offload=Offload(reference=True, optimizer=True, activations=True)
    ),
    "bfloat16": TrainerSettings(data_type="BFloat16"),
    "adapters": TrainerSettings(lora=Lora(rank=4)),
    "Muon": TrainerSettings(),
    "Muon, all offloaded": TrainerSettings(cpu_offload=True),
}
MATRICES = [(7, 5), (3, 8), (6, 6), (1, 4), (5, 12), (12, 5)]
"""Of rows that two and four ranks share unequally, and more than there are ranks."""
STEPS = 3
POISONED = 1
"""In this step one rank's gradient is not finite."""


def run_case(base: Path, settings: TrainerSettings, ranks: Ranks, muon: MuonSettings | None) -> dict[str, Any]:
    torch.manual_seed(0)
    # A pack of 48 tokens holds so few samples that every rank gets several, and some a filler.
    chosen = recipe(pack_length=48, algorithm={"decoupled_ppo": {"importance_cap": 2.0}}, warmup_steps=0, muon=muon)
    policy, reference = load_policy(base, settings, ranks), load_reference(base, settings, ranks)
    optimizer = Optimizer(
        policy.parameters(), chosen, matrices=policy.hidden_matrices, on_host=settings.offloaded.optimizer
    )
    found: dict[str, Any] = {
        "loss": [],
        "kl": [],
        "entropy": [],
        "clipped": [],
        "mismatch": [],
        "norms": [],
        "applied": [],
    }
    for step in range(STEPS):
        plan = plan_step(groups(), chosen, seed=0, step=step, rank=ranks.rank, world=ranks.world)
        old = plan_logprobs(policy, plan, lambda: None, begin=1)
        behaviour = behaviour_logprobs(lambda version: reference, plan, lambda: None)
        if step == POISONED and ranks.rank == ranks.world - 1:
            plan.optimizer_batches[0].micro_batches[0].advantages.fill_(torch.nan)
        updates = train(policy, optimizer, plan, old, behaviour, chosen, lambda: None, behaviour)
        found["mismatch"].append(mismatch(plan, updates.old, policy))
        found["norms"] += updates.norms
        found["applied"] += [one.applied for one in updates.applied]
        if step != POISONED:
            found["loss"].append(updates.loss)
            found["kl"].append(updates.kl)
            found["entropy"].append(updates.entropy)
            found["clipped"].append(updates.clip_low + updates.clip_high + updates.importance_capped)
    state = [value for each in policy.parameters() for value in optimizer.state(each).values()]
    found["finite"] = ranks.all(
        all(bool(torch.isfinite(getattr(value, "_local_tensor", value)).all()) for value in state), "finite moments"
    )
    found["weights"] = torch.cat([tensor.flatten() for _, tensor in policy.full_weights()]).tolist()
    return found


def run_supervised(base: Path, ranks: Ranks) -> dict[str, Any]:
    """Two epochs of a data set, three rows an update: fewer packs than ranks now and then."""
    settings = sft_settings(batch_rows=3, pack_length=48)
    policy = load_policy(base, TrainerSettings(), ranks)
    optimizer = Optimizer(policy.parameters(), settings)
    rows = [sample(row) for row in sft_rows(10)]
    schedule = SftSchedule(settings, len(rows), steps=1, seed=0)
    batches = [
        batch_of([rows[index] for index in schedule.rows_of(update)], 48, ranks.rank, ranks.world)
        for update in schedule.of_step(0)
    ]
    learnt = learn(policy, optimizer, batches, 48, lambda: None)
    return {
        "loss": learnt.loss,
        "entropy": learnt.entropy,
        "tokens": learnt.completion_tokens,
        "norms": learnt.norms,
        "held_out": held_out_loss(policy, batch_of(rows, 48, ranks.rank, ranks.world), lambda: None),
        "weights": torch.cat([tensor.flatten() for _, tensor in policy.full_weights()]).tolist(),
    }


def run_prime(base: Path, ranks: Ranks) -> dict[str, Any]:
    """Three steps with a reward model: groups are spread over ranks, and their baselines and the whitening are not."""
    settings = Prime(beta=0.3, learning_rate=1e-3)
    chosen = recipe(pack_length=48, algorithm={"prime": settings})
    policy, reference, prm = (
        load_policy(base, None, ranks),
        load_reference(base, None, ranks),
        load_policy(base, None, ranks),
    )
    process, optimizer = RewardModel(prm, chosen, settings), Optimizer(policy.parameters(), chosen)
    given = groups()
    found: dict[str, Any] = {"loss": [], "prm_loss": [], "accuracy": [], "norms": []}
    for step in range(STEPS):
        plan = plan_step(
            given, chosen, seed=0, step=step, rank=ranks.rank, world=ranks.world, advantages=outcome_advantages
        )
        old = plan_logprobs(policy, plan, lambda: None, begin=1)
        base_logprobs = plan_logprobs(reference, plan, lambda: None)
        plan = process.complete(plan, base_logprobs, outcomes_of(given), lambda: None)
        learnt = process.learn(plan, base_logprobs, outcomes_of(given), lambda: None)
        updates = train(policy, optimizer, plan, old, base_logprobs, chosen, lambda: None)
        found["loss"].append(updates.loss)
        found["prm_loss"].append(learnt.loss)
        found["accuracy"].append(learnt.accuracy)
        found["norms"] += [*updates.norms, *learnt.norms]
    found["weights"] = torch.cat(
        [tensor.flatten() for one in (policy, prm) for _, tensor in one.full_weights()]
    ).tolist()
    return found


def run_muon(ranks: Ranks) -> list[list[str]]:
    """The same matrices and gradients, their rows sharded over the ranks: the bits of each after three updates."""
    chance = torch.Generator().manual_seed(7)

    def drawn(shape: tuple[int, int]) -> torch.Tensor:
        whole = torch.randn(shape, generator=chance)
        return whole if ranks.world == 1 else distribute_tensor(whole, ranks.mesh, [Shard(0)])

    matrices = [torch.nn.Parameter(drawn(shape)) for shape in MATRICES]
    optimizer = Muon(matrices, lr=1e-2, momentum=0.95, weight_decay=0.1)
    for _ in range(STEPS):
        for matrix in matrices:
            matrix.grad = drawn(tuple(matrix.shape))
        optimizer.step()
    whole = [matrix.full_tensor() if isinstance(matrix, DTensor) else matrix for matrix in matrices]
    return [[value.hex() for value in matrix.flatten().tolist()] for matrix in whole]


def run_prefetch(base: Path, ranks: Ranks) -> dict[str, Any]:
    """Whose weights each part of a sharded policy asks for ahead, by name, and whether that changes a log-probability or a gradient."""
    plan = plan_step(groups(), recipe(pack_length=48), seed=0, step=0, rank=ranks.rank, world=ranks.world)
    found: dict[str, Any] = {"forward": {}, "backward": {}}
    bits = []
    for ahead in (False, True):
        policy = load_policy(base, TrainerSettings(activation_recomputation="On"), ranks)
        if ahead:
            prefetch_layers(policy)
        for packed in plan.optimizer_batches[0].micro_batches:
            loss, *_ = policy(packed, lambda here, logprobs, entropy: (logprobs.exp() + 0.1 * entropy).sum())
            loss.backward()
        bits.append([local(parameter.grad) for parameter in policy.parameters()])
    names = {module: name or "root" for name, module in policy.named_modules() if isinstance(module, FSDPModule)}
    by_state = {id(module._get_fsdp_state()): name for module, name in names.items()}
    for module, name in names.items():
        state = module._get_fsdp_state()
        found["forward"][name] = [by_state[id(other)] for other in state._states_to_forward_prefetch]
        found["backward"][name] = [by_state[id(other)] for other in state._states_to_backward_prefetch]
    same = all(torch.equal(one, other) for one, other in zip(*bits, strict=True))
    return found | {"same": ranks.all(same, "equal gradients")}


def run_rank(world: int, base: Path, result: Path, rank: int, port: int) -> None:
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "SHOAL_BIND": "127.0.0.1"}
    ranks = start_ranks("cpu", deadline_seconds=200.0)
    found: dict[str, Any] = {
        name: run_case(base, settings, ranks, MuonSettings() if "Muon" in name else None)
        for name, settings in CASES.items()
    }
    found["muon"] = run_muon(ranks)
    found["prefetch"] = run_prefetch(base, ranks)
    found["supervised"] = run_supervised(base, ranks)
    found["prime"] = run_prime(base, ranks)
    if ranks.leader:
        result.write_text(json.dumps(found))
    ranks.close()


if __name__ == "__main__":
    torch.set_num_threads(1)
    for size in (1, 2, 4):
        fork_ranks(size, partial(run_rank, size, Path(sys.argv[1]), Path(sys.argv[2]) / f"{size}.json"))
