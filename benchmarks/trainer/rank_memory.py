"""Peak memory of one of many trainer ranks, without their machines: the trainer's own modules on fake tensors, over a group of fake processes.

In: the `config.json` of a model, settings, ranks, tokens. Out: bytes at the peak of a step, as torch's FSDP2 memory tracker counts them. Every
storage that FSDP2, autograd, the head and AdamW make is counted, and none has memory: widths of 32B need a minute of one core. To torch the ranks are
CPUs, since it has no streams of a GPU here, so kernels are the CPU's. Called by `__main__` and tests, in a process of its own.

    python -m benchmarks.trainer.rank_memory [CASE ...]
"""

import json
import sys
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker, _FSDPRefType
from torch.distributed.device_mesh import init_device_mesh
from torch.overrides import TorchFunctionMode
from torch.testing._internal.distributed.fake_pg import FakeStore

from shoal.contracts.algorithm import Prime
from shoal.contracts.muon import MuonSettings
from shoal.contracts.recipe import Recipe
from shoal.contracts.trainer import Offload, TrainerSettings
from shoal.planner.memory import MemoryPart, OnHost, total, trainer_rank
from shoal.planner.model_shape import shape_of_config
from shoal.training.batches import MicroBatch, OptimizerBatch, Segments, StepPlan
from shoal.training.extensions.prime.reward_model import Outcomes, RewardModel
from shoal.training.host_copy import local
from shoal.training.logprobs import ACCELERATOR_TILE_ELEMENTS
from shoal.training.loss import LossWeights, MicroLoss
from shoal.training.model import Policy, policy_to_ask, policy_to_train, prefetch_layers
from shoal.training.objectives import OBJECTIVES
from shoal.training.optimizer import Optimizer
from shoal.training.parallel import SHARD_DIMENSION, ContextGroup, Ranks
from shoal.training.update import plan_logprobs


class TypicalValues(TorchFunctionMode):
    """Values that a fake tensor has not: conditions hold, and numbers are 1."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.__bool__:
            return True
        if func in (torch.Tensor.__float__, torch.Tensor.item):
            return 1.0
        return func(*args, **(kwargs or {}))


def fake_ranks(world: int, sharing: int) -> Ranks:
    """Rank 0 of `world`, whose collectives do nothing. It computes each pack with `sharing` - 1 others."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=world)
    mesh = init_device_mesh("cpu", (world,), mesh_dim_names=(SHARD_DIMENSION,))
    group = mesh.get_group()
    found = Ranks(0, world, 0, torch.device("cpu"), mesh, group, mesh, group)
    if sharing == 1:
        return found
    return replace(found, context_group=ContextGroup(0, sharing, dist.new_group(list(range(sharing)))))


def measure(
    config: Any,
    settings: TrainerSettings,
    world: int,
    tokens: int,
    *,
    reference: bool,
    muon: bool = False,
    reward_model: bool = False,
) -> dict[str, Any]:
    """Bytes at the peak of the second step, when moments exist, by torch's classes, and `total`.

    With PRIME's `reward_model` the peak is in its update. The tracker follows that one, and what the policy holds all the time is added.
    """
    from transformers import AutoModelForCausalLM

    ranks = fake_ranks(world, settings.sharing)
    recipe = Recipe(muon=MuonSettings() if muon else None)
    with (
        FakeTensorMode(allow_non_fake_inputs=True),
        TypicalValues(),
        patch("shoal.training.muon.working_type", lambda *_: torch.bfloat16),
    ):
        policy = policy_to_train(AutoModelForCausalLM.from_config(config, dtype=torch.float32), settings, ranks)
        base = second = None
        if reference:
            base = policy_to_ask(AutoModelForCausalLM.from_config(config, dtype=torch.float32), settings, ranks)
        prefetch_layers(policy)  # as on GPUs
        optimizer = Optimizer(policy.parameters(), recipe, matrices=policy.hidden_matrices)
        make_moments(policy, optimizer)
        batch = one_pack(tokens)
        policy.tile_elements = ACCELERATOR_TILE_ELEMENTS
        followed, follows, beside = policy, optimizer, 0
        if reward_model:
            moments = (state[name] for state in optimizer.adamw.state.values() for name in ("exp_avg", "exp_avg_sq"))
            beside = sum(local(tensor).nbytes for tensor in (*policy.parameters(), *moments))
            followed = policy_to_train(AutoModelForCausalLM.from_config(config, dtype=torch.float32), settings, ranks)
            prefetch_layers(followed)
            followed.tile_elements = ACCELERATOR_TILE_ELEMENTS
            second = RewardModel(followed, recipe, Prime())
            follows = second.learner.optimizer
            make_moments(followed, follows)
        tracker = Tracker(followed, follows)
        tracker.track_inputs((batch.tokens, batch.targets))
        with (
            tracker,
            patch("shoal.training.model.save_on_cpu", _elsewhere),
            patch("shoal.training.context_parallel.completions_within", lambda _, first, end: slice(first, end)),
            patch("shoal.training.logprobs.BLOCK_ELEMENTS", ACCELERATOR_TILE_ELEMENTS),
        ):
            if second is None:
                full_step(policy, optimizer, batch)
            else:
                reward_model_step(policy, second, batch)
        peak = tracker.get_tracker_snapshot("peak")[torch.device("cpu")]
    found = {str(getattr(name, "value", name)): int(size) for name, size in peak.items()}
    whole = found.pop("Total")
    if base is not None and not settings.offloaded.reference:
        found["Reference"] = sum(local(parameter).nbytes for parameter in base.parameters())
        whole += found["Reference"]
    if second is not None:
        found["Policy"] = beside
        whole += beside
    dist.destroy_process_group()
    return {"total": whole, "by_class": found}


class Tracker(FSDPMemTracker):
    """The tracker of one optimizer, for ours, which may be two."""

    def __init__(self, policy: Policy, optimizer: Optimizer) -> None:
        super().__init__(policy, optimizer.adamw)
        self._muon = optimizer.muon

    def _instrument_optimizer(self) -> None:
        super()._instrument_optimizer()
        if self._muon is not None:
            self._track_optimizer_states(_FSDPRefType.OPT, self._muon)


def make_moments(policy: Policy, optimizer: Optimizer) -> None:
    """As the first update does."""
    for parameter in policy.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()


def _elsewhere(*, pin_memory: bool) -> AbstractContextManager[object]:
    """As `save_on_cpu` on a GPU: a saved tensor is gone until the backward pass makes it again."""

    def pack(saved: torch.Tensor) -> tuple[torch.Size, torch.dtype]:
        return saved.shape, saved.dtype

    def unpack(kept: tuple[torch.Size, torch.dtype]) -> torch.Tensor:
        return torch.zeros(kept[0], dtype=kept[1])

    hooks: AbstractContextManager[object] = saved_tensors_hooks(pack, unpack)
    return hooks


def one_pack(tokens: int) -> MicroBatch:
    """One pack with one row; all but its first token are learnt from."""
    places = torch.arange(tokens)
    learnt = tokens - 1
    return MicroBatch(
        tokens=torch.zeros(tokens, dtype=torch.int64),
        positions=places,
        segments=Segments((0, tokens)),
        predicted_from=places[:learnt],
        targets=torch.zeros(learnt, dtype=torch.int64),
        temperatures=torch.ones(learnt),
        advantages=torch.ones(learnt),
        worker_logprobs=torch.zeros(learnt),
        policy_versions=torch.zeros(learnt, dtype=torch.int64),
    )


def full_step(policy: Policy, optimizer: Optimizer, batch: MicroBatch) -> None:
    """What `update` does with one pack after the reference's pass, whose memory is free again: forward, backward, and an optimizer step."""
    micro = MicroLoss(
        old=None, reference=None, advantages=batch.advantages, behaviour=None, objective=OBJECTIVES["two_sided_grpo"],
        weights=LossWeights(0.2, 4.0, 0.0, 1e-4), divisor=float(len(batch.targets)),
    )  # fmt: skip
    loss, _, _ = policy(batch, micro)
    assert loss is not None
    loss.backward()
    optimizer.step()


def reward_model_step(policy: Policy, reward_model: RewardModel, batch: MicroBatch) -> None:
    """What a step of PRIME does before the policy's updates: its old log-probabilities, then the reward model's update. The tracker takes one pass of
    the reward model, so the one for rewards is left out: it has no gradients, and needs what the update needs."""
    count = len(batch.targets)
    one = OptimizerBatch([batch], count, float(count), [(0,)], [(0,)], 1)
    plan = StepPlan([one], 1.0, "")
    outcomes = Outcomes(torch.zeros(1, dtype=torch.int64), torch.ones(1, dtype=torch.float64))
    reward_model.learn(plan, plan_logprobs(policy, plan, lambda: None), outcomes, lambda: None)


SMALL = {
    "vocab_size": 1000, "hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 6, "num_attention_heads": 8,
    "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 40_960, "tie_word_embeddings": False,
}  # fmt: skip
QWEN3_32B = {
    "vocab_size": 151_936, "hidden_size": 5120, "intermediate_size": 25_600, "num_hidden_layers": 64, "num_attention_heads": 64,
    "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 40_960, "tie_word_embeddings": False,
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A model on some ranks, with packs of some tokens."""

    config: dict[str, Any]
    world: int
    tokens: int
    reference: bool = False
    offload: Offload | None = None
    recomputed: bool = True
    sharing: int = 1
    muon: bool = False
    reward_model: bool = False

    @property
    def settings(self) -> TrainerSettings:
        """As on GPUs: passes in bfloat16."""
        again = "On" if self.recomputed else "Off"
        return TrainerSettings(
            data_type="BFloat16",
            activation_recomputation=again,
            offload=self.offload,
            context_parallel=self.sharing,
        )

    def planned(self) -> list[MemoryPart]:
        """Bytes by cause that `shoal plan` would say."""
        given = self.settings.offloaded
        host = OnHost(given.reference, given.optimizer, given.activations)
        shape = shape_of_config(self.config | {"model_type": "qwen3"})
        return trainer_rank(
            shape,
            self.world,
            self.tokens,
            "Full",
            again=self.recomputed,
            reference=self.reference,
            on_host=host,
            sharing=self.sharing,
            muon=self.muon,
            reward_model=self.reward_model,
        )


CASES = {
    "small, two ranks": Case(SMALL, 2, 1024),
    "small, four ranks, a reference": Case(SMALL, 4, 2048, reference=True),
    "small, inputs in host memory": Case(SMALL | {"num_hidden_layers": 16}, 8, 4096, offload=Offload(activations=True)),
    "small, inputs on the device": Case(SMALL | {"num_hidden_layers": 16}, 8, 4096),
    "small, a large vocabulary": Case(SMALL | {"vocab_size": 50_000}, 2, 1024),
    "small, nothing again": Case(SMALL, 2, 1024, recomputed=False),
    "small, four of eight share": Case(SMALL | {"num_hidden_layers": 16}, 8, 16_384, sharing=4),
    "small, Muon": Case(SMALL, 2, 1024, muon=True),
    "small, Muon on more ranks": Case(SMALL | {"num_hidden_layers": 16}, 8, 256, muon=True),
    "small, PRIME": Case(SMALL, 4, 2048, reference=True, reward_model=True),
    "8 layers of Qwen3-32B, 16 ranks": Case(QWEN3_32B | {"num_hidden_layers": 8}, 16, 32_768),
    "8 layers of Qwen3-32B, eight of 16 share": Case(QWEN3_32B | {"num_hidden_layers": 8}, 16, 131_072, sharing=8),
    "Qwen3-32B, 16 ranks": Case(QWEN3_32B, 16, 32_768),
}


def compare(names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Measured and planned bytes by case, and how far the plan is off."""
    from transformers import Qwen3Config

    found = {}
    for name in names:
        case = CASES[name]
        measured = measure(
            Qwen3Config(**case.config), case.settings, case.world, case.tokens,
            reference=case.reference, muon=case.muon, reward_model=case.reward_model,
        )  # fmt: skip
        planned = total(case.planned())
        found[name] = {
            "bytes": measured["total"],
            "planned": planned,
            "error": abs(planned / measured["total"] - 1),
        } | measured
    return found


if __name__ == "__main__":
    print(json.dumps(compare(sys.argv[1:] or CASES)))
