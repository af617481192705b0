"""Trains tiny models with experts on 1, 2 and 4 processes, loaded and written by each rank, and says how far their curves are apart.

In: names of models (`expert_models.EXPERTS`). Out (printed): JSON. `curves`: by model and ranks losses, norms and balance of a few steps in float64;
`gaps`: by model and ranks the largest relative difference from one rank's, of figures and weights; `written`: by model and ranks whether what was
loaded by rows and written by several ranks is the checkpoint, bit for bit; `other settings`: by model how far gradients are from those where weights
travel, with recomputed activations and in bfloat16; `one-sided`: the same where all tokens choose experts of the first of two ranks. Called by
`test_experts` and by benchmarks, in a process of its own: ranks are forked from it.
"""

import json
import os
import sys
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from expert_models import EXPERTS, Exact, write_model
from forked_ranks import fork_ranks
from safetensors.torch import load_file
from test_batches import groups
from tiny_run import recipe
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM

from shoal.contracts.trainer import TrainerSettings
from shoal.models.places import stacks
from shoal.training.batches import plan_step
from shoal.training.export import Export
from shoal.training.host_copy import HostCopy
from shoal.training.loss import LossWeights
from shoal.training.model import load_policy, policy_to_ask, policy_to_train
from shoal.training.objectives import objective_of
from shoal.training.optimizer import Optimizer
from shoal.training.parallel import Ranks, start_ranks
from shoal.training.stored_weights import BadModel
from shoal.training.update import accumulate, plan_logprobs, train

WEIGHTS, TOKENS = TrainerSettings(), TrainerSettings(expert_parallel="Tokens")


@dataclass(frozen=True)
class World:
    """Ranks, how many of them compute each pack together, and the settings of the trainer."""

    ranks: int
    sharing: int = 1
    settings: TrainerSettings = WEIGHTS


WORLDS = {
    "1": World(1),
    "2": World(2),
    "4": World(4),
    "4, 2 share packs": World(4, 2),
    "2, tokens travel": World(2, settings=TOKENS),
    "4, tokens travel": World(4, settings=TOKENS),
    "4, 2 share packs, tokens travel": World(4, 2, TOKENS),
}
BRIEF = WORLDS.keys() - {"4", "4, tokens travel"}
"""What shows the same with fewer ranks: four of them share packs here too."""
STEPS = 3


def stored(folder: Path) -> dict[str, torch.Tensor]:
    return {name: tensor for path in folder.glob("*.safetensors") for name, tensor in load_file(path).items()}


def written_as_read(base: Path, folder: Path, ranks: Ranks, settings: TrainerSettings) -> bool:
    """Loaded by rows, then written with all ranks as writers."""
    policy = load_policy(base, settings, ranks)
    copy = HostCopy(policy, Optimizer(policy.parameters(), recipe()), ranks)
    copy.take()
    Export(policy, base, ranks, file_bytes=30_000).write(copy.tensors, folder)
    whole = dict(policy.full_weights())
    if not ranks.leader:
        return True
    before, after = stored(base), stored(folder)
    same = all(torch.equal(each, after[name]) and torch.equal(each, whole[name]) for name, each in before.items())
    return same and before.keys() == after.keys() == whole.keys()


def curve(base: Path, ranks: Ranks, settings: TrainerSettings) -> dict[str, Any]:
    """Three steps of two updates in float64, with a KL penalty."""
    chosen = recipe(pack_length=48, warmup_steps=0)
    made = [AutoModelForCausalLM.from_pretrained(base).double() for _ in range(2)]
    policy, reference = policy_to_train(made[0], settings, ranks), policy_to_ask(made[1], settings, ranks)
    optimizer = Optimizer(policy.parameters(), chosen)
    found: dict[str, Any] = {"loss": [], "kl": [], "entropy": [], "norms": [], "balance": []}
    for step in range(STEPS):
        plan = plan_step(groups(), chosen, seed=0, step=step, rank=ranks.data_rank, world=ranks.data_world)
        old = plan_logprobs(policy, plan, lambda: None, begin=1)
        base_logprobs = plan_logprobs(reference, plan, lambda: None)
        updates = train(policy, optimizer, plan, old, base_logprobs, chosen, lambda: None)
        assert updates.experts is not None
        found["norms"] += updates.norms
        for name in ("loss", "kl", "entropy"):
            found[name].append(getattr(updates, name))
        found["balance"] += [updates.experts.largest, updates.experts.entropy, updates.experts.unused]
    whole = [policy._whole(tensor).flatten() for _, tensor in sorted(policy.model.state_dict().items())]
    found["weights"] = torch.cat(whole).tolist()
    return found


def gradients(base: Path, ranks: Ranks, settings: TrainerSettings, stayed: list[bool]) -> list[torch.Tensor]:
    """Of one step's loss, whole, as the trainer computes it: routers and norms in float32. `stayed` is told whether experts are where they were."""
    chosen = recipe(pack_length=48, warmup_steps=0)
    policy = load_policy(base, settings, ranks)
    plan = plan_step(groups(), chosen, seed=0, step=0, rank=ranks.data_rank, world=ranks.data_world)
    old = plan_logprobs(policy, plan, lambda: None)
    weights = LossWeights.of(chosen, 0)
    for module in stacks(policy.model).values():
        module.register_forward_pre_hook(lambda module, _: stayed.append(isinstance(module.gate_up_proj, DTensor)))
    for batch, each in zip(plan.optimizer_batches, old, strict=True):
        accumulate(policy, batch, each, each, None, objective_of(chosen), weights, lambda: None)
    return [
        each.grad.full_tensor() if isinstance(each.grad, DTensor) else each.grad
        for _, each in sorted(policy.named_parameters())
    ]


def other_settings(base: Path, ranks: Ranks) -> dict[str, Any]:
    """`far`: by settings, how far gradients are from those where weights travel, the largest relative distance of a parameter's; `stay`: by what
    travels, whether experts stay at their ranks as they compute."""
    again, halves = {"activation_recomputation": "On"}, {"data_type": "BFloat16"}
    once = {"activation_recomputation": "Off"}
    stayed: dict[str, list[bool]] = {"Weights": [], "Tokens": []}
    far = {}
    for name, changes in {"again": again, "halves": halves, "halves, again": halves | again}.items():
        wanted = gradients(base, ranks, WEIGHTS.model_copy(update=changes | once), stayed["Weights"])
        found = gradients(base, ranks, TOKENS.model_copy(update=changes), stayed["Tokens"])
        far[name] = max(float((a - b).norm() / b.norm()) for a, b in zip(found, wanted, strict=True))
    return {"far": far, "stay": {name: all(each) if name == "Tokens" else any(each) for name, each in stayed.items()}}


def one_sided(folder: Path) -> Path:
    """A model whose balancing biases send each token to the first group of experts, which the first of two ranks has."""
    base = write_model(folder / "written", EXPERTS["glm4_moe"])
    model = AutoModelForCausalLM.from_pretrained(base)
    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            buffer.data = 10.0 * (torch.arange(len(buffer)) < len(buffer) // 2)
    model.save_pretrained(folder / "base")
    return folder / "base"


def without_rows(base: Path, ranks: Ranks) -> dict[str, Any]:
    """`far` as in `other_settings`, with experts at a rank that gets no row; `empty`: whether that rank's experts have gradients of zeros."""
    settings = {"activation_recomputation": "On"}
    wanted = gradients(base, ranks, WEIGHTS.model_copy(update=settings), [])
    found = gradients(base, ranks, TOKENS.model_copy(update=settings), [])
    halves = [each[len(each) // 2 :] for each in found if each.dim() == 3]
    return {
        "far": max(float((a - b).norm() / b.norm()) for a, b in zip(found, wanted, strict=True)),
        "empty": bool(halves) and not any(bool(each.any()) for each in halves),
    }


def run_rank(of: World, names: list[str], folder: Path, key: str, rank: int, port: int) -> None:
    world = of.ranks
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(world)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "SHOAL_BIND": "127.0.0.1"}
    try:
        ranks = start_ranks("cpu", deadline_seconds=200.0, context_parallel=of.sharing)
        found = {}
        for name in names:
            base = folder / name
            same = written_as_read(base, folder / f"{name}-{key}", ranks, of.settings)
            with Exact():
                found[name] = curve(base, ranks, of.settings)
            found[name]["written"] = ranks.all(same, "equal bytes")
            if key == "2, tokens travel":
                found[name]["other settings"] = other_settings(base, ranks)
        if key == "2, tokens travel":
            found["one-sided"] = without_rows(folder / "one-sided" / "base", ranks)
        if ranks.leader:
            (folder / f"{key}.json").write_text(json.dumps(found))
        ranks.close()
    except BaseException:
        sys.excepthook(*sys.exc_info())
        raise


def refused(folder: Path, name: str, rank: int, port: int) -> None:
    """Three ranks cannot have equal shares of eight experts."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "3", "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "3"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "SHOAL_BIND": "127.0.0.1"}
    ranks = start_ranks("cpu", deadline_seconds=200.0)
    try:
        load_policy(folder / name, TrainerSettings(), ranks)
        message = ""
    except BadModel as error:
        message = str(error)
    if ranks.leader:
        (folder / "refused.txt").write_text(message)
    ranks.close()


def gap(found: dict[str, Any], alone: dict[str, Any]) -> float:
    """The largest difference of a figure, or of the weights, by the largest value of what it is in."""
    most = 0.0
    for name in ("loss", "kl", "entropy", "norms", "balance", "weights"):
        ours, theirs = (torch.tensor(each[name], dtype=torch.float64) for each in (found, alone))
        most = max(most, float((ours - theirs).abs().max() / theirs.abs().max().clamp(min=1e-30)))
    return most


def worlds_of(arguments: list[str]) -> tuple[dict[str, World], list[str]]:
    """Worlds, those in `BRIEF` behind `--brief`, and the names of models."""
    brief = arguments[:1] == ["--brief"]
    names = arguments[1:] if brief else arguments
    return {key: of for key, of in WORLDS.items() if not brief or key in BRIEF}, names or list(EXPERTS)


def measure(worlds: dict[str, World], names: list[str]) -> dict[str, Any]:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for name in names:
            write_model(folder / name, EXPERTS[name])
        one_sided(folder / "one-sided")
        curves: dict[str, Any] = {}
        for key, of in worlds.items():
            fork_ranks(of.ranks, partial(run_rank, of, names, folder, key))
            curves[key] = json.loads((folder / f"{key}.json").read_text())
        fork_ranks(3, partial(refused, folder, names[0]))
        message = (folder / "refused.txt").read_text()
    figures = ("loss", "norms", "balance")
    return {
        "curves": {name: {key: {one: curves[key][name][one] for one in figures} for key in worlds} for name in names},
        "gaps": {
            name: {key: gap(curves[key][name], curves["1"][name]) for key in worlds if key != "1"} for name in names
        },
        "written": {name: {key: curves[key][name]["written"] for key in worlds} for name in names},
        "other settings": {name: curves["2, tokens travel"][name]["other settings"]["far"] for name in names},
        "stay": {name: curves["2, tokens travel"][name]["other settings"]["stay"] for name in names},
        "one-sided": curves["2, tokens travel"]["one-sided"],
        "refused": message,
    }


if __name__ == "__main__":
    print(json.dumps(measure(*worlds_of(sys.argv[1:]))))
