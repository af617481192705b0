"""AdamW's speed on a GPU, copies between host and device, and loading: figures that the planner and the decision records assume.

An update reads weights, gradients and both moments, and writes all but the gradients: 28 bytes a parameter in float32. The trainer's `Optimizer`
clips before, which reads gradients once and scales them: 12 more.
"""

import gc
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from transformers import AutoModelForCausalLM, Qwen3Config

from benchmarks.gpu.memory import ONE, TINY
from benchmarks.gpu.part import Asked, run_part
from benchmarks.trainer.accelerator import SHAPES
from benchmarks.trainer.workload import Shape, make_checkpoint
from shoal.contracts.recipe import Recipe
from shoal.training.host_copy import HostCopy
from shoal.training.model import load_policy
from shoal.training.optimizer import Optimizer
from shoal.training.parallel import start_ranks

ON_HOST = "the trainer's, moments on the host"
TORCHS: dict[str, dict[str, Any]] = {
    "fused": {"fused": True},
    "foreach": {"foreach": True},
    "one by one": {"foreach": False},
}
KINDS = ("the trainer's", *TORCHS, ON_HOST)
UPDATE_BYTES, CLIP_BYTES = 28, 12
ROUNDS = 5
COPIED_BYTES = 1 << 30


def measure(asked: Asked) -> None:
    device = torch.device(asked.device)
    asked.note(copies=_copies(device, COPIED_BYTES >> (10 if asked.tiny else 0)))
    shapes = _shapes(TINY if asked.tiny else ONE)
    rows: list[dict[str, Any]] = []
    asked.note(parameters=sum(shape.numel() for shape in shapes))
    for kind in KINDS:
        if asked.left > 0 and not (kind == "fused" and device.type == "cpu"):
            rows.append({"adamw": kind} | _update(kind, shapes, device))
            asked.note(rows=rows)
            gc.collect()
            if device.type == "cuda":
                torch.cuda.empty_cache()
    if asked.left > 0:
        asked.note(loading=_loading(device, SHAPES["tiny" if asked.tiny else "0.5B"]))


def _shapes(config: dict[str, Any]) -> list[torch.Size]:
    """Of every parameter of a model."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(Qwen3Config(**config), dtype=torch.float32)
    return [parameter.shape for parameter in model.parameters()]


def _timed(device: torch.device, work: Callable[[], object]) -> float:
    """Median seconds of some rounds, after one that warms up."""
    times = []
    for _ in range(ROUNDS + 1):
        _synchronize(device)
        started = time.perf_counter()
        work()
        _synchronize(device)
        times.append(time.perf_counter() - started)
    return median(times[1:])


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def _update(kind: str, shapes: list[torch.Size], device: torch.device) -> dict[str, Any]:
    """Seconds of one update in float32, and the bandwidth that they are of the bytes that it has to move."""
    parameters = [torch.nn.Parameter(torch.zeros(shape, device=device)) for shape in shapes]
    count = sum(parameter.numel() for parameter in parameters)
    gradients = [torch.full_like(parameter, 1e-3) for parameter in parameters]
    given = torch.optim.AdamW(parameters, **TORCHS[kind]) if kind in TORCHS else None
    ours = Optimizer(parameters, Recipe(), on_host=kind == ON_HOST)

    def update() -> None:
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        (given or ours).step()

    seconds = _timed(device, update)
    [*_, state] = (given or ours.adamw).state.values()
    needed = UPDATE_BYTES + (0 if given else CLIP_BYTES)
    return {
        "seconds": seconds,
        "gigabytes_per_second": needed * count / seconds / 1e9,
        "state": ", ".join(f"{name} {value.dtype} on {value.device.type}" for name, value in state.items()),
    }


def _copies(device: torch.device, nbytes: int) -> dict[str, float]:
    """GB/s, from pinned and from ordinary host memory, each way alone; and within the device, bytes read and written."""
    on_device = torch.zeros(nbytes, dtype=torch.uint8, device=device)
    other = torch.zeros_like(on_device)
    found = {"within_the_device_gb_s": 2 * nbytes / _timed(device, lambda: other.copy_(on_device)) / 1e9}
    for name in ("pinned", "ordinary"):
        host = torch.zeros(nbytes, dtype=torch.uint8, pin_memory=name == "pinned" and device.type == "cuda")
        to_device = _timed(device, partial(on_device.copy_, host, non_blocking=True))
        to_host = _timed(device, partial(host.copy_, on_device, non_blocking=True))
        found |= {f"{name}_to_device_gb_s": nbytes / to_device / 1e9, f"{name}_to_host_gb_s": nbytes / to_host / 1e9}
    return found


def _loading(device: torch.device, shape: Shape) -> dict[str, float]:
    """Seconds to load a checkpoint as a policy, to give all weights away as a publication does, to take them over, to copy a state."""
    ranks = start_ranks(device.type, environment={})
    found: dict[str, float] = {}

    def measured(name: str, work: Callable[[], Any]) -> Any:
        started = time.perf_counter()
        answer = work()
        _synchronize(device)
        found[f"{name}_seconds"] = time.perf_counter() - started
        return answer

    with tempfile.TemporaryDirectory(prefix="checkpoint-") as folder:
        make_checkpoint(shape, Path(folder))
        policy = measured("load_policy", lambda: load_policy(Path(folder), None, ranks))
    optimizer = Optimizer(policy.parameters(), Recipe())
    for parameter in policy.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    weights = measured("full_weights", lambda: list(policy.full_weights()))
    measured("load_weights", lambda: policy.load_weights(weights))
    copy = HostCopy(policy, optimizer, ranks)
    measured("first_copy_of_a_state", copy.take)
    measured("next_copy_of_a_state", copy.take)
    return found | {"checkpoint_gigabytes": sum(tensor.nbytes for _, tensor in weights) / 1e9}


if __name__ == "__main__":
    run_part(measure)
