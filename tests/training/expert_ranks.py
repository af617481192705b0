"""Trains tiny models with experts on 1, 2 and 4 processes, loaded and written by each rank, and says how far their curves are apart.

In: names of models (`expert_models.EXPERTS`). Out (printed): JSON. `curves`: by model and ranks losses, norms and balance of a few steps in float64;
`gaps`: by model and ranks the largest relative difference from one rank's, of figures and weights; `written`: by model and ranks whether what was
loaded by rows and written by several ranks is the checkpoint, bit for bit. Called by `test_experts` and by benchmarks, in a process of its own: ranks
are forked from it.
"""

import json
import os
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import torch
from expert_models import EXPERTS, Exact, write_model
from forked_ranks import fork_ranks
from safetensors.torch import load_file
from test_batches import groups
from tiny_run import recipe
from transformers import AutoModelForCausalLM

from shoal.contracts.recipe import TrainerSettings
from shoal.training.batches import plan_step
from shoal.training.export import Export
from shoal.training.host_copy import HostCopy
from shoal.training.model import BadModel, load_policy, policy_to_ask, policy_to_train
from shoal.training.optimizer import Optimizer
from shoal.training.parallel import Ranks, start_ranks
from shoal.training.update import plan_logprobs, train

WORLDS = {"1": (1, 1), "2": (2, 1), "4": (4, 1), "4, 2 share packs": (4, 2)}
"""Ranks, and how many of them compute each pack together."""
STEPS = 3


def stored(folder: Path) -> dict[str, torch.Tensor]:
    return {name: tensor for path in folder.glob("*.safetensors") for name, tensor in load_file(path).items()}


def written_as_read(base: Path, folder: Path, ranks: Ranks) -> bool:
    """Loaded by rows, then written with all ranks as writers."""
    policy = load_policy(base, TrainerSettings(), ranks)
    copy = HostCopy(policy, Optimizer(policy.parameters(), recipe()), ranks)
    copy.take()
    Export(policy, base, ranks, file_bytes=30_000).write(copy.tensors, folder)
    whole = dict(policy.full_weights())
    if not ranks.leader:
        return True
    before, after = stored(base), stored(folder)
    same = all(torch.equal(each, after[name]) and torch.equal(each, whole[name]) for name, each in before.items())
    return same and before.keys() == after.keys() == whole.keys()


def curve(base: Path, ranks: Ranks) -> dict[str, Any]:
    """Three steps of two updates in float64, with a KL penalty."""
    chosen = recipe(pack_length=48, warmup_steps=0)
    made = [AutoModelForCausalLM.from_pretrained(base).double() for _ in range(2)]
    policy, reference = (
        policy_to_train(made[0], TrainerSettings(), ranks),
        policy_to_ask(made[1], TrainerSettings(), ranks),
    )
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


def run_rank(ranks_of: tuple[int, int], names: list[str], folder: Path, key: str, rank: int, port: int) -> None:
    world, sharing = ranks_of
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(world)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "SHOAL_BIND": "127.0.0.1"}
    try:
        ranks = start_ranks("cpu", deadline_seconds=200.0, context_parallel=sharing)
        found = {}
        for name in names:
            base = folder / name
            same = written_as_read(base, folder / f"{name}-{key}", ranks)
            with Exact():
                found[name] = curve(base, ranks)
            found[name]["written"] = ranks.all(same, "equal bytes")
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


def measure(names: list[str]) -> dict[str, Any]:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for name in names:
            write_model(folder / name, EXPERTS[name])
        curves: dict[str, Any] = {}
        for key, of in WORLDS.items():
            fork_ranks(of[0], partial(run_rank, of, names, folder, key))
            curves[key] = json.loads((folder / f"{key}.json").read_text())
        fork_ranks(3, partial(refused, folder, names[0]))
        message = (folder / "refused.txt").read_text()
    figures = ("loss", "norms", "balance")
    return {
        "curves": {name: {key: {one: curves[key][name][one] for one in figures} for key in WORLDS} for name in names},
        "gaps": {
            name: {key: gap(curves[key][name], curves["1"][name]) for key in WORLDS if key != "1"} for name in names
        },
        "written": {name: {key: curves[key][name]["written"] for key in WORLDS} for name in names},
        "refused": message,
    }


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1:] or list(EXPERTS))))
