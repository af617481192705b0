"""Ranks that are killed and come back, one and several: run by `test_restart` as a program of its own, with a folder for stores and results.

The processes are forked after torch and transformers have been imported once. Each rank writes what it saw to `<case>-<rank>.json`.
"""

import hashlib
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from forked_ranks import fork_ranks
from test_batches import groups
from tiny_run import make_store, prepare, recipe, write_base
from torch import Tensor
from torch.distributed.tensor import DTensor

from samples import METRICS, RUN
from shoal.contracts.trainer import TrainerSettings
from shoal.storage import Store
from shoal.telemetry import Liveness
from shoal.training.base_model import base_weights
from shoal.training.batches import plan_step
from shoal.training.host_copy import HostCopy
from shoal.training.model import load_policy
from shoal.training.optimizer import Optimizer
from shoal.training.parallel import Ranks, start_ranks
from shoal.training.stability import History
from shoal.training.state import States
from shoal.training.update import plan_logprobs, train

WORLDS = (1, 2, 4, 1)
LARGE = {
    "hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 6, "num_attention_heads": 8, "num_key_value_heads": 2,
    "head_dim": 64, "vocab_size": 16384, "dtype": "bfloat16",
}  # fmt: skip
"""35 million parameters: 140 MB in float32, a state of 420 MB."""
LIVENESS = Liveness(60.0)
KILLED_AT = 3


class Watched(Store):
    """A folder store that counts bytes of ranges, and may end this process at some request."""

    def __init__(self, root: Path, *, killed_at: int | None = None) -> None:
        plain = make_store(root)
        super().__init__(plain._backend, plain._prefix, root=root, deadline_seconds=5.0)
        self.bytes = 0
        self._requests = 0
        self._killed_at = killed_at

    def get_range(self, key: str, start: int, end: int) -> bytes:
        self._requests += 1
        if self._requests == self._killed_at:
            os.kill(os.getpid(), signal.SIGKILL)
        found = super().get_range(key, start, end)
        self.bytes += len(found)
        return found


class Rank:
    """What a rank trains, in this process."""

    def __init__(self, base: Path, store: Store, ranks: Ranks) -> None:
        self.ranks = ranks
        self.policy = load_policy(base, TrainerSettings(), ranks, weights=base_weights(store))
        self.recipe = recipe(pack_length=48, warmup_steps=0, kl_coefficient=0.0)
        self.optimizer = Optimizer(self.policy.parameters(), self.recipe)
        self.copy = HostCopy(self.policy, self.optimizer, ranks)
        self.states = States(store, RUN, ranks)

    def restore(self, version: int) -> str:
        """Go on from a state; the digest of all that was read, whoever has it."""
        self.optimizer.updates = self.states.restore(version, self.copy, LIVENESS).updates
        return self.digest()

    def digest(self) -> str:
        self.copy.take()
        running = hashlib.sha256()
        for key, tensor in sorted(self.copy.tensors.items()):
            if not key.startswith("random/"):
                running.update(key.encode() + whole(tensor).contiguous().view(-1).view(torch.uint8).numpy().tobytes())
        return running.hexdigest()

    def step(self, step: int) -> float:
        plan = plan_step(groups(), self.recipe, seed=0, step=step, rank=self.ranks.rank, world=self.ranks.world)
        old = plan_logprobs(self.policy, plan, lambda: None, begin=1)
        return float(train(self.policy, self.optimizer, plan, old, None, self.recipe, lambda: None, None).loss)

    def save(self, version: int) -> str:
        found = self.digest()
        self.states.save(version, self.copy.tensors, self.optimizer.updates, METRICS, History())
        return found

    def weights(self) -> list[float]:
        return [float(value) for _, tensor in self.policy.full_weights() for value in tensor.flatten()]


def whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


class Peak:
    """The most memory that this process has while a block runs, above what it had before, in bytes."""

    def __enter__(self) -> "Peak":
        self._before = self._most = resident()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    @property
    def bytes(self) -> int:
        return self._most - self._before

    def _watch(self) -> None:
        while not self._done.wait(0.002):
            self._most = max(self._most, resident())
        self._most = max(self._most, resident())


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def moved(root: Path, step: int, ranks: Ranks) -> dict[str, Any]:
    """Step `step` of a run that had another number of ranks before."""
    rank = Rank(root / "base", make_store(root / "moving"), ranks)
    found: dict[str, Any] = {}
    if step:
        found["restored"] = rank.restore(step)
    found["loss"] = rank.step(step)
    found["saved"] = rank.save(step + 1)
    return found | {"weights": rank.weights()}


def undisturbed(root: Path, ranks: Ranks) -> dict[str, Any]:
    rank = Rank(root / "base", make_store(root / "moving"), ranks)
    return {"loss": [rank.step(step) for step in range(len(WORLDS))], "weights": rank.weights()}


def large(root: Path, save: bool, ranks: Ranks) -> dict[str, Any]:
    """Peaks of memory and bytes read: the base model, then a state, which this world wrote, or another did."""
    store = Watched(root / "large")
    with Peak() as loading:
        rank = Rank(root / "large-base", store, ranks)
    base_bytes, store.bytes = store.bytes, 0
    if save:
        for parameter in rank.policy.parameters():
            parameter.grad = torch.ones_like(parameter)
        rank.optimizer.step()
        rank.copy.take()
        rank.states.save(1, rank.copy.tensors, 1, METRICS, History())
        return {"loading": loading.bytes, "base_bytes": base_bytes}
    with Peak() as restoring:
        rank.states.restore(1, rank.copy, LIVENESS)
    return {
        "loading": loading.bytes,
        "base_bytes": base_bytes,
        "restoring": restoring.bytes,
        "state_bytes": store.bytes,
    }


def killed(root: Path, what: str, ranks: Ranks) -> dict[str, Any]:
    """The last rank is killed while it reads; what the others say, and after how long."""
    mine = KILLED_AT if ranks.rank == ranks.world - 1 else None
    started = time.monotonic()
    try:
        if what == "model":
            Rank(root / "large-base", Watched(root / "large", killed_at=mine), ranks)
        else:
            rank = Rank(root / "large-base", make_store(root / "large"), ranks)
            States(Watched(root / "large", killed_at=mine), RUN, ranks).restore(1, rank.copy, LIVENESS)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}", "seconds": time.monotonic() - started}
    return {"error": ""}


def run_rank(world: int, case: str, root: Path, act: Callable[[Ranks], dict[str, Any]], rank: int, port: int) -> None:
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "SHOAL_BIND": "127.0.0.1"}
    ranks = start_ranks("cpu", deadline_seconds=100.0)
    torch.manual_seed(0)
    try:
        found = act(ranks)
    except BaseException:
        traceback.print_exc()
        raise
    (root / f"{case}-{rank}.json").write_text(json.dumps(found))
    if "error" not in found:
        ranks.close()


def lay_out(root: Path, rank: int, port: int) -> None:
    """The base models and their stores. In a process of its own: the store's threads do not outlive a fork."""
    for name, store, changes in (("base", "moving", {}), ("large-base", "large", LARGE)):
        write_base(root / name, **changes)
        prepare(make_store(root / store), root / name)


def main(root: Path) -> None:
    torch.set_num_threads(1)
    fork_ranks(1, partial(lay_out, root))
    for step, world in enumerate(WORLDS):
        fork_ranks(world, partial(run_rank, world, f"moved{step}", root, partial(moved, root, step)))
    fork_ranks(1, partial(run_rank, 1, "undisturbed", root, partial(undisturbed, root)))
    fork_ranks(4, partial(run_rank, 4, "saving", root, partial(large, root, True)))
    for world in (4, 2):
        fork_ranks(world, partial(run_rank, world, f"reading{world}", root, partial(large, root, False)))
    for what in ("model", "state"):
        try:
            fork_ranks(2, partial(run_rank, 2, f"killed-{what}", root, partial(killed, root, what)))
        except RuntimeError as error:
            (root / f"killed-{what}.txt").write_text(str(error))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
