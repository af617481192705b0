"""Trains a tiny model for a few steps on 1, 2 and 4 processes and writes what came of it: run by `test_sharding` as a program of its own.

The processes are forked after torch and transformers have been imported once, which is most of what they would cost. Called with a base
checkpoint and a file for the result, JSON: world -> case -> losses, KL, norms, applied, weights' digest and values.
"""

import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

import torch
from sft_rows import sample, sft_rows, sft_settings
from test_batches import groups
from tiny_run import recipe

from shoal.contracts.algorithm import Prime
from shoal.contracts.recipe import Lora, TrainerSettings
from shoal.training.batches import plan_step
from shoal.training.extensions.prime.extension import outcome_advantages
from shoal.training.extensions.prime.reward_model import RewardModel, outcomes_of
from shoal.training.model import load_policy, load_reference
from shoal.training.optimizer import Optimizer
from shoal.training.parallel import Ranks, start_ranks
from shoal.training.sft.method import batch_of, held_out_loss, learn
from shoal.training.sft.order import SftSchedule
from shoal.training.update import behaviour_logprobs, mismatch, plan_logprobs, train

CASES = {
    "plain": TrainerSettings(),
    "recomputed and offloaded": TrainerSettings(activation_recomputation="On", cpu_offload=True),
    "bfloat16": TrainerSettings(data_type="BFloat16"),
    "adapters": TrainerSettings(lora=Lora(rank=4)),
}
STEPS = 3
POISONED = 1
"""In this step one rank's gradient is not finite."""


def run_case(base: Path, settings: TrainerSettings, ranks: Ranks) -> dict[str, Any]:
    torch.manual_seed(0)
    # A pack of 48 tokens holds so few samples that every rank gets several, and some a filler.
    chosen = recipe(pack_length=48, algorithm={"decoupled_ppo": {"importance_cap": 2.0}}, warmup_steps=0)
    policy, reference = load_policy(base, settings, ranks), load_reference(base, settings, ranks)
    optimizer = Optimizer(policy.parameters(), chosen)
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
    state = [value for moments in optimizer.adamw.state.values() for value in moments.values()]
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


def run_rank(rank: int, world: int, port: int, base: Path, result: Path) -> None:
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "SHOAL_BIND": "127.0.0.1"}
    ranks = start_ranks("cpu", deadline_seconds=200.0)
    found = {name: run_case(base, settings, ranks) for name, settings in CASES.items()}
    found["supervised"] = run_supervised(base, ranks)
    found["prime"] = run_prime(base, ranks)
    if ranks.leader:
        result.write_text(json.dumps(found))
    ranks.close()


def run_world(world: int, base: Path, result: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    children = []
    for rank in range(world):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                run_rank(rank, world, port, base, result)
                status = 0
            finally:
                os._exit(status)
        children.append(child)
    if failed := [rank for rank, child in enumerate(children) if os.waitpid(child, 0)[1] != 0]:
        sys.exit(f"of {world} ranks these failed: {failed}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    for size in (1, 2, 4):
        run_world(size, Path(sys.argv[1]), Path(sys.argv[2]) / f"{size}.json")
