"""Trains adapters of experts on 1, 2 and 4 processes: one curve, one checkpoint, one state, whatever travels between ranks.

In: names of models (`expert_models.EXPERTS`). Out (printed): JSON, by model and ranks. `gaps`: the largest relative difference from one rank's, of
figures and weights after six updates in float64. `written`: whether several ranks write W + scale B A of each expert, to the bit. `resumed`: whether
a state goes on to the bit. `taken`: whether the state that one rank saved is read whole on these. Called by `test_expert_adapters` and by benchmarks,
in a process of its own: ranks are forked from it.
"""

import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from expert_adapters import LORA, set_apart
from expert_models import EXPERTS, Exact, write_model
from expert_ranks import World, curve, gap, stored, worlds_of
from forked_ranks import fork_ranks
from test_batches import groups
from tiny_run import make_store, recipe
from torch.distributed.tensor import DTensor

from samples import METRICS, RUN
from shoal.contracts.trainer import TrainerSettings
from shoal.models.places import places
from shoal.telemetry import Liveness
from shoal.training.batches import plan_step
from shoal.training.export import Export
from shoal.training.host_copy import HostCopy
from shoal.training.lora import adapter_of, merged_weight
from shoal.training.model import Policy, load_policy
from shoal.training.optimizer import Optimizer
from shoal.training.parallel import Ranks, start_ranks
from shoal.training.stability import History
from shoal.training.state import States
from shoal.training.update import plan_logprobs, train

LIVENESS = Liveness(60.0)
ALONE = "1"
WHOLE_RUNS = (ALONE, "2", "4, 2 share packs, tokens travel")
"""Where versions are written and runs are resumed too."""


def whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().full_tensor() if isinstance(tensor, DTensor) else tensor.detach()


def written_merged(base: Path, folder: Path, ranks: Ranks, settings: TrainerSettings) -> bool:
    """A version with all ranks as writers, and the weights that `full_weights` gives, against each matrix merged by itself."""
    policy = load_policy(base, settings, ranks)
    set_apart(policy)
    copy = HostCopy(policy, Optimizer(policy.parameters(), recipe()), ranks)
    copy.take()
    Export(policy, base, ranks, file_bytes=30_000).write(copy.tensors, folder)
    given = dict(policy.full_weights())
    modules, wanted = dict(policy.model.named_modules()), stored(base)
    for name, place in places(policy.model).items():
        if (adapter := adapter_of(place, modules)) is not None:
            lora_a, lora_b = whole(adapter[1].lora_a), whole(adapter[1].lora_b)
            if place.expert is not None:
                lora_a, lora_b = lora_a[place.expert], lora_b[place.expert]
            wanted[name] = merged_weight(wanted[name], lora_a, lora_b, adapter[1].scale)
    if not ranks.leader:
        return True
    found, before = stored(folder), stored(base)
    changed = {name for name in before if not torch.equal(found[name], before[name])}
    of_experts = {name for name in before if ".experts." in name}
    same = all(torch.equal(each, found[name]) and torch.equal(each, given[name]) for name, each in wanted.items())
    return same and of_experts <= changed and before.keys() == found.keys() == given.keys()


class Learner:
    """Adapters that are trained on these ranks, with their state."""

    def __init__(self, base: Path, folder: Path, ranks: Ranks, settings: TrainerSettings) -> None:
        self.ranks, self.recipe = ranks, recipe(pack_length=48, warmup_steps=0, kl_coefficient=0.0)
        self.policy: Policy = load_policy(base, settings, ranks)
        self.optimizer = Optimizer(self.policy.parameters(), self.recipe)
        self.copy = HostCopy(self.policy, self.optimizer, ranks)
        self.states = States(make_store(folder / "store"), RUN, ranks)

    def step(self, step: int) -> None:
        data = self.ranks.data_rank, self.ranks.data_world
        plan = plan_step(groups(), self.recipe, seed=0, step=step, rank=data[0], world=data[1])
        old = plan_logprobs(self.policy, plan, lambda: None, begin=1)
        train(self.policy, self.optimizer, plan, old, None, self.recipe, lambda: None, None)

    def save(self) -> None:
        self.copy.take()
        self.states.save(1, self.copy.tensors, self.optimizer.updates, METRICS, History())

    def restore(self) -> None:
        self.optimizer.updates = self.states.restore(1, self.copy, LIVENESS).updates

    def digest(self) -> str:
        """Of adapters and moments, whole."""
        self.copy.take()
        running = hashlib.sha256()
        for key, tensor in sorted(self.copy.tensors.items()):
            if not key.startswith("random/"):
                running.update(key.encode() + whole(tensor).contiguous().view(-1).view(torch.uint8).numpy().tobytes())
        return running.hexdigest()


def resumed(base: Path, folder: Path, ranks: Ranks, settings: TrainerSettings) -> bool:
    """Another process's adapters after a state is read and a step is trained: those of the run that went on, to the bit."""
    first, other = (Learner(base, folder, ranks, settings) for _ in range(2))
    first.step(0)
    first.save()
    first.step(1)
    other.restore()
    other.step(1)
    return first.digest() == other.digest()


def run_rank(of: World, names: Iterable[str], folder: Path, key: str, rank: int, port: int) -> None:
    os.environ |= {
        "RANK": str(rank),
        "WORLD_SIZE": str(of.ranks),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(of.ranks),
    }
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "SHOAL_BIND": "127.0.0.1"}
    try:
        ranks = start_ranks("cpu", deadline_seconds=200.0, context_parallel=of.sharing)
        found = {}
        for name in names:
            base, shared = folder / name, folder / f"{name}-shared"
            checks: dict[str, bool] = {}
            if key in WHOLE_RUNS:
                same = written_merged(base, folder / f"{name}-{key}", ranks, of.settings)
                went_on = resumed(base, folder / f"{name}-{key}-run", ranks, of.settings)
                checks = {"written": ranks.all(same, "equal bytes"), "resumed": ranks.all(went_on, "equal runs")}
            one = Learner(base, shared, ranks, of.settings)
            if key == ALONE:
                one.step(0)
                one.save()
            else:
                one.restore()
            digest = one.digest()
            with Exact():
                found[name] = curve(base, ranks, of.settings)
            found[name] |= {"digest": digest} | checks
        if ranks.leader:
            (folder / f"{key}.json").write_text(json.dumps(found))
        ranks.close()
    except BaseException:
        sys.excepthook(*sys.exc_info())
        raise


def measure(worlds: dict[str, World], names: list[str]) -> dict[str, Any]:
    torch.set_num_threads(1)
    made: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for name in names:
            write_model(folder / name, EXPERTS[name])
        for key, plain in worlds.items():
            of = replace(plain, settings=plain.settings.model_copy(update={"lora": LORA}))
            fork_ranks(of.ranks, partial(run_rank, of, names, folder, key))
            made[key] = json.loads((folder / f"{key}.json").read_text())
    others = [key for key in worlds if key != ALONE]
    alone = made[ALONE]
    return {
        "losses": {name: alone[name]["loss"] for name in names},
        "gaps": {name: {key: gap(made[key][name], alone[name]) for key in others} for name in names},
        "written": {name: {key: made[key][name]["written"] for key in WHOLE_RUNS} for name in names},
        "resumed": {name: {key: made[key][name]["resumed"] for key in WHOLE_RUNS} for name in names},
        "taken": {name: {key: made[key][name]["digest"] == alone[name]["digest"] for key in others} for name in names},
    }


if __name__ == "__main__":
    print(json.dumps(measure(*worlds_of(sys.argv[1:]))))
