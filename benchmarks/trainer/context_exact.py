"""Context parallelism against one rank: the same loss and gradients in float64, whatever is shared how (`context_parallel_exact`).

In: nothing. Out (printed): JSON, by layout and case, the largest relative difference. Ranks are processes that meet by gloo; they
are forked once torch is imported, which is most of what they would cost. One rank computes first, without sharding, what the others are held to.

    python -m benchmarks.trainer.context_exact [LAYOUT ...]
"""

import json
import os
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [each for each in (str(ROOT / "tests"), str(ROOT / "tests" / "training")) if each not in sys.path]

from forked_ranks import fork_ranks
from test_batches import groups, mixed
from tiny_run import make_model, recipe

from shoal.contracts.algorithm import Prime
from shoal.contracts.trainer import Lora, Offload, TrainerSettings
from shoal.training.batches import plan_step
from shoal.training.extensions.prime.extension import outcome_advantages
from shoal.training.extensions.prime.reward_model import RewardModel, outcomes_of
from shoal.training.loss import SUMS, LossWeights, SourceLosses
from shoal.training.model import Policy, policy_to_ask, policy_to_train
from shoal.training.objectives import objective_of, source_losses
from shoal.training.parallel import Ranks, start_ranks
from shoal.training.sft.method import accumulate as accumulate_supervised
from shoal.training.sft.method import batch_of, held_out_loss
from shoal.training.update import accumulate, mismatch, over_ranks, plan_logprobs

LAYOUTS = {
    "2 ranks": (2, 1),
    "4 ranks": (4, 1),
    "2 ranks share": (2, 2),
    "4 ranks, 2 share": (4, 2),
    "4 ranks share": (4, 4),
}
"""Ranks, and how many of them share each pack. With four, the model's two key heads are repeated."""
TOLERANCE = 1e-10


@dataclass(frozen=True)
class Case:
    """What is trained how. `model`: changes of the tiny model, which has a layer of sliding windows and one without."""

    recipe: dict[str, Any] = field(default_factory=dict)
    settings: TrainerSettings = field(default_factory=TrainerSettings)
    model: dict[str, Any] = field(default_factory=dict)


CASES = {
    "two-sided, KL": Case(),
    "capped importance": Case({"algorithm": {"decoupled_ppo": {"importance_cap": 2.0}}}),
    "whole completions": Case({"algorithm": {"gspo": {}}}),
    "correction of whole completions": Case(
        {"optimizer_steps": 1, "mismatch_correction": {"truncate": {}, "sequence": {}}}
    ),
    "sources of a mixture": Case(
        {
            "sources": [
                {"name": "code", "algorithm": {"gspo": {"clip_epsilon": 0.2}}, "loss_weight": 2.0},
                {"name": "sums", "algorithm": {"dr_grpo": {}}},
                {"name": "proofs", "loss_weight": 0.5},
            ]
        }
    ),
    "adapters": Case(settings=TrainerSettings(lora=Lora(rank=4))),
    "tied, recomputed, in host memory": Case(
        settings=TrainerSettings(
            activation_recomputation="On", offload=Offload(reference=True, optimizer=True, activations=True)
        ),
        model={"tie_word_embeddings": True},
    ),
}
GPTS = {
    "num_attention_heads": 4, "num_key_value_heads": 2, "use_sliding_window": True, "sliding_window": 6,
    "layer_types": ["sliding_attention", "full_attention"],
}  # fmt: skip


def found_by(ranks: Ranks) -> dict[str, dict[str, Tensor]]:
    """What each case comes to on these ranks, by name, whole."""
    found = {name: _reinforced(case, ranks) for name, case in CASES.items()}
    found["supervised"] = _supervised(ranks)
    found["PRIME"] = _prime(ranks)
    return found


def _model(seed: int = 0, **changes: Any) -> Any:
    return make_model(seed, **(GPTS | changes)).double()


def _reinforced(case: Case, ranks: Ranks) -> dict[str, Tensor]:
    """All optimizer batches of a step, their gradients added up."""
    torch.manual_seed(1)
    chosen = recipe(**({"pack_length": 48} | case.recipe))
    policy = policy_to_train(_model(**case.model), case.settings, ranks)
    reference = policy_to_ask(_model(1, **case.model), case.settings, ranks)
    given = mixed() if chosen.sources else groups()
    plan = plan_step(given, chosen, seed=0, step=0, rank=ranks.data_rank, world=ranks.data_world)
    asked = plan_logprobs(reference, plan, lambda: None)
    sums, olds = torch.zeros(0), []
    each = source_losses(chosen)
    sources = SourceLosses(each, torch.zeros(len(each), len(SUMS), dtype=torch.float64)) if chosen.sources else None
    for index, batch in enumerate(plan.optimizer_batches):
        # The first is its own old policy; the next has the reference for one, so that ratios are not 1.
        part, old = accumulate(
            policy, batch, None if index == 0 else asked[index], asked[index], asked[index], objective_of(chosen),
            LossWeights.of(chosen), lambda: None, chosen.mismatch_correction, sources,
        )  # fmt: skip
        sums = torch.cat([sums, part])
        olds.append(old)
    if sources is not None:
        sums = torch.cat([sums, sources.sums.flatten()])
    return {
        "sums": torch.tensor(over_ranks(sums, policy, "the sums"), dtype=torch.float64),
        "mismatch": torch.tensor([mismatch(plan, olds, policy)], dtype=torch.float64),
    } | _gradients(policy)


def _supervised(ranks: Ranks) -> dict[str, Tensor]:
    policy = policy_to_train(_model(), TrainerSettings(), ranks)
    samples = [sample for group in groups() for sample in group.samples]
    batch = batch_of(samples, 48, ranks.data_rank, ranks.data_world)
    sums = accumulate_supervised(policy, batch.packed, lambda: None)
    found = _gradients(policy)  # before the next pass, which leaves embedding and head whole
    return found | {
        "sums": torch.tensor(over_ranks(sums, policy, "the sums"), dtype=torch.float64),
        "held out": torch.tensor([held_out_loss(policy, batch, lambda: None)], dtype=torch.float64),
    }


def _prime(ranks: Ranks) -> dict[str, Tensor]:
    """The reward model after its updates; the policy's gradients under its advantages."""
    settings = Prime(beta=0.3, learning_rate=1e-3)
    chosen = recipe(pack_length=48, algorithm={"prime": settings})
    policy, reward = (policy_to_train(_model(seed), TrainerSettings(), ranks) for seed in (0, 2))
    reference = policy_to_ask(_model(1), TrainerSettings(), ranks)
    process, given = RewardModel(reward, chosen, settings), groups()
    plan = plan_step(
        given, chosen, seed=0, step=0, rank=ranks.data_rank, world=ranks.data_world, advantages=outcome_advantages
    )
    base = plan_logprobs(reference, plan, lambda: None)
    plan = process.complete(plan, base, outcomes_of(given), lambda: None)
    learnt = process.learn(plan, base, outcomes_of(given), lambda: None)
    sums = [
        accumulate(
            policy, batch, None, asked, None, objective_of(chosen), LossWeights.of(chosen), lambda: None
        )[0]
        for batch, asked in zip(plan.optimizer_batches, base, strict=True)
    ]  # fmt: skip
    trained = {f"reward {name}": _whole(value).clone() for name, value in reward.model.named_parameters()}
    return (
        {
            "sums": torch.tensor(over_ranks(torch.cat(sums), policy, "the sums"), dtype=torch.float64),
            "reward": torch.tensor([learnt.loss, learnt.accuracy, *learnt.norms], dtype=torch.float64),
        }
        | trained
        | _gradients(policy)
    )


def _gradients(policy: Policy) -> dict[str, Tensor]:
    return {
        name: _whole(parameter.grad)
        for name, parameter in policy.model.named_parameters()
        if parameter.grad is not None
    }


def _whole(value: Tensor) -> Tensor:
    value = value.detach()
    return value.full_tensor() if isinstance(value, DTensor) else value


def differences(wanted: dict[str, dict[str, Tensor]], found: dict[str, dict[str, Tensor]]) -> dict[str, float]:
    """By case the largest difference, relative to the largest value of what it is in. Other names raise ValueError."""
    for case, values in wanted.items():
        if other := sorted(values.keys() ^ found[case].keys()):
            raise ValueError(f"{case}: one rank and several have found other values: {other[:3]}")
    return {
        case: max(
            float((found[case][name] - value).abs().max() / value.abs().max().clamp(min=1e-30))
            for name, value in values.items()
        )
        for case, values in wanted.items()
    }


def measure(layouts: Iterable[str]) -> dict[str, dict[str, float]]:
    """By layout and case how far the ranks' results are from one rank's."""
    torch.set_num_threads(1)
    measured = {}
    with tempfile.TemporaryDirectory(prefix="context-exact-") as name:
        folder = Path(name)
        fork_ranks(1, partial(_run_rank, 1, 1, folder))
        wanted = torch.load(folder / "1-1.pt")
        for layout in layouts:
            world, sharing = LAYOUTS[layout]
            fork_ranks(world, partial(_run_rank, world, sharing, folder))
            measured[layout] = differences(wanted, torch.load(folder / f"{world}-{sharing}.pt"))
    return measured


def _run_rank(world: int, sharing: int, folder: Path, rank: int, port: int) -> None:
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "SHOAL_BIND": "127.0.0.1"}
    try:
        ranks = start_ranks("cpu", deadline_seconds=200.0, context_parallel=sharing)
        found = found_by(ranks)
        if ranks.leader:
            torch.save(found, folder / f"{world}-{sharing}.pt")
        ranks.close()
    except BaseException:
        sys.excepthook(*sys.exc_info())
        raise


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1:] or LAYOUTS)))
