"""Versions in the memory of one process: loading one, putting another in its place, asking it.

In: checkpoint folders that `storage.versions` has assembled and checked. Out: Hugging Face causal language models. `Models` is one process' part of
what a validator holds: whole models, or under tensor parallelism (`group`) this rank's share of each. Called by `policies`.
"""

import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from transformers import AutoModelForCausalLM
from transformers.distributed.tensor_parallel import apply_tensor_parallelism

from shoal.contracts.pools import Quantization
from shoal.models.head import products
from shoal.models.places import Place, places
from shoal.models.rounded import rounded

Beat = Callable[[], None]
"""Called for each tensor that was put in place, as a sign of life."""


class CannotHold(RuntimeError):
    """A version that this validator's devices cannot hold, or that does not fit the model before it; the message says what to change."""


def no_beat() -> None:
    """For callers whom nobody watches for signs of life."""


def best_device(local_rank: int = 0) -> torch.device:
    """The GPU of this process, or the CPU."""
    return torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")


def load_model(folder: Path, processes: int = 1, quantization: Quantization | None = None, beat: Beat = no_beat) -> Any:
    """The checkpoint in `folder` in its own dtype, on a GPU if there is one; never runs code from the checkpoint.

    Of a run with `quantization` the weights are written again, rounded, as a swap writes them: one pass over the files more, with a `beat` for each.

    With several `processes` of one torch.distributed group, each holds its share, and all must call this. The files are mapped, not read, into the
    host's memory, and each weight goes to its device by itself. Raises CannotHold for a model that cannot be spread.
    """
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype="auto", trust_remote_code=False, use_safetensors=True
    ).eval()
    device = best_device(int(os.environ.get("LOCAL_RANK", "0")))
    if processes > 1:
        if not model.tp_plan:
            raise CannotHold(
                f"transformers has no plan to spread {type(model).__name__} over {processes} GPUs: set gpu.count of the validator to 1"
            )
        model.lm_head.forward = partial(products, model.lm_head)  # with this rank's share, when it is called
        apply_tensor_parallelism(model, init_device_mesh(device.type, (processes,)), model.tp_plan)
    model = model.to(device)
    if quantization is not None:
        overwrite(model, folder, beat, quantization)
    return model


@torch.no_grad()
def overwrite(model: Any, folder: Path, beat: Beat = no_beat, quantization: Quantization | None = None) -> None:
    """Put the weights in `folder` in the place of the model's own, one tensor at a time: no second copy of the model is made.

    Each rank of a spread model reads its own share. Costs one pass over the files: 65 GB are 13 s at 5 GB/s from the page cache. Raises CannotHold
    where names or shapes differ; the model is of no use then, as after any other error. With `quantization` the weights are rounded on the way.
    """
    own, known = model.state_dict(), places(model)
    tied: dict[str, str] = getattr(model, "all_tied_weights_keys", None) or {}
    missing = set(known)
    known |= {name: Place(name, name, own[name].shape) for name in tied if name in own}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            names: list[str] = file.keys()
            for name in names:
                weight = file.get_slice(name)
                if name not in known or tuple(weight.get_shape()) != tuple(known[name].shape):
                    raise CannotHold(
                        f"{folder.name}/{path.name}: {name} of shape {tuple(weight.get_shape())} is not a weight of the version before"
                    )
                if quantization is not None:
                    weight = rounded(
                        name, weight[...], quantization
                    )  # before a rank takes its share: a scale is of a whole row
                for each in (name, *(other for other, source in tied.items() if source == name)):
                    _take(
                        known[each], own[known[each].state], weight
                    )  # tied weights are two where only the head is spread
                missing.discard(name)
                beat()
    if missing:
        raise CannotHold(f"{folder.name} lacks {len(missing)} weights of the version before: {sorted(missing)[0]}")


def _take(place: Place, target: torch.Tensor, weight: Any) -> None:
    """Copy a weight of a file, or this rank's share of it, over its place in `target`."""
    if not isinstance(target, DTensor):
        place.within(target).copy_(weight[...])
        return
    local = target.to_local()
    share = [slice(None)] * local.dim()
    for dimension, placement in enumerate(target.placements):
        if isinstance(placement, Shard):  # evenly, which `check_division` has seen
            first = target.device_mesh.get_local_rank(dimension) * local.shape[placement.dim]
            share[placement.dim] = slice(first, first + local.shape[placement.dim])
    local.copy_(weight[tuple(share)])


def check_division(folder: Path, processes: int) -> None:
    """Raises CannotHold, naming what does not fit, when the model in `folder` cannot be spread over this many GPUs."""
    if processes > 1 and (expert := _an_expert_in(folder)) is not None:
        raise CannotHold(
            f"a validator of {processes} GPUs cannot spread experts: {folder.name} has {expert}; set gpu.count of the validator to 1"
        )
    config = json.loads((folder / "config.json").read_bytes())
    for name in ("num_attention_heads", "num_key_value_heads", "intermediate_size", "vocab_size"):
        if name in config and config[name] % processes:
            raise CannotHold(
                f"a validator of {processes} GPUs cannot spread the model: they do not divide {name}, {config[name]}; set gpu.count of the"
                " validator to a divisor"
            )


def _an_expert_in(folder: Path) -> str | None:
    """The name of some expert's matrix in a checkpoint's folder; None where there are no experts."""
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            names: list[str] = file.keys()
            if found := [name for name in names if ".experts." in name]:
                return min(found)
    return None


def weights_in(folder: Path) -> int:
    """Bytes of the weights in a checkpoint's folder."""
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


class Models:
    """The versions that this process holds, by number."""

    def __init__(self, beat: Beat = no_beat, processes: int = 1) -> None:
        """Each version is spread among `processes`."""
        self._beat = beat
        self.processes = processes
        self._held: dict[int, Any] = {}

    def check(self, folder: Path) -> None:
        """Raises CannotHold for a model that cannot be spread over the processes."""
        check_division(folder, self.processes)

    def load(self, version: int, folder: Path, quantization: Quantization | None = None) -> None:
        """Load a version beside what is held."""
        self._held[version] = load_model(folder, self.processes, quantization, self._beat)
        self._beat()

    def replace(self, old: int, version: int, folder: Path, quantization: Quantization | None = None) -> None:
        """Put a version in the place of one that is held; an error leaves neither."""
        model = self._held.pop(old)
        overwrite(model, folder, self._beat, quantization)
        self._held[version] = model

    def drop(self, version: int) -> None:
        """Let go of a version, if it is held."""
        self._held.pop(version, None)

    def of(self, version: int) -> Any:
        """A version that is held, to be asked as a causal language model of Hugging Face."""
        return self._held[version]

    def end(self) -> None:
        """Let the other processes end; here there are none."""
