"""A model over the GPUs of one process, layer after layer, for models that one GPU cannot hold.

In: a causal language model in the host's memory, and devices with their bytes. Out: the same, each layer on its device; what a layer is given is
moved there first. Layers are spread evenly, so that each GPU has the same room for keys, values and activations. One GPU works at a time:
calibration is a few minutes of a run of days. Called by `environments.proof_calibration`.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from shoal.proofs import CannotCalibrate

SHARE = 0.8
"""Of a GPU's memory for weights, at most; the rest is for keys and values of a batch of sequences."""
ALONE_SHARE = 0.4
"""Of a GPU's memory: up to here a model stays on one GPU, where others would only make it slower."""


def gpus() -> list[tuple[torch.device, int]]:
    """The GPUs of this process with their bytes; none without any."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    devices = [torch.device("cuda", number) for number in range(count)]
    return [(device, torch.cuda.get_device_properties(device).total_memory) for device in devices]


def divided(sizes: Sequence[int], rooms: Sequence[int]) -> list[int]:
    """For each layer, of `sizes` bytes, the number of its device, ascending; `rooms` are bytes, and the smallest share of them that does is used.

    Raises CannotCalibrate when they do not fit.
    """
    for percent in range(1, 101):
        found = _filled(sizes, [room * percent // 100 for room in rooms])
        if found is not None:
            return found
    raise CannotCalibrate(
        f"{sum(sizes) / 1e9:.1f} GB of weights do not fit {len(rooms)} GPUs, of which {sum(rooms) / 1e9:.1f} GB are for weights: give"
        " prepare more GPUs (spec.prepare.gpu)"
    )


def _filled(sizes: Sequence[int], rooms: Sequence[int]) -> list[int] | None:
    """Devices filled one after the other; None where they are too small."""
    found: list[int] = []
    at, taken = 0, 0
    for size in sizes:
        while at < len(rooms) and taken + size > rooms[at]:
            at, taken = at + 1, 0
        if at == len(rooms):
            return None
        found.append(at)
        taken += size
    return found


@contextmanager
def enough_memory() -> Iterator[None]:
    """Raises CannotCalibrate, with what to do, where a GPU has no memory left."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise CannotCalibrate(
            f"a GPU has no memory left ({str(error).partition('. ')[0]}): give prepare more or larger GPUs (spec.prepare.gpu)"
        ) from error


class Placement:
    """Where the parts of a model belong. `apply` puts them there, also after the model was moved away."""

    def __init__(self, model: Any, devices: Sequence[tuple[torch.device, int]]) -> None:
        """`devices` with the bytes that each has in all; without any the model stays on the CPU."""
        self._parts: list[tuple[torch.nn.Module, torch.device]] = []
        if not devices:
            return
        if _bytes(model) <= (ALONE_SHARE if len(devices) > 1 else SHARE) * devices[0][1]:
            self._parts = [(model, devices[0][0])]
            return
        body = model.model
        layers = [body.embed_tokens, *body.layers, body.norm]
        tied = model.lm_head.weight is body.embed_tokens.weight
        ends = [] if tied else [_bytes(model.lm_head)]
        sizes = [*map(_bytes, layers), *ends]
        places = divided(sizes, [int(SHARE * room) for _, room in devices])
        where = [devices[place][0] for place in places]
        self._parts = list(zip(layers, where, strict=False))
        self._parts.append((model.lm_head, where[0] if tied else where[-1]))
        self._parts += [(part, where[0]) for part in body.children() if not list(part.parameters())]  # rotary tables
        for part, device in self._parts:
            part.register_forward_pre_hook(_mover(device), with_kwargs=True)

    @enough_memory()
    def apply(self) -> None:
        """Move every part to its device."""
        for part, device in self._parts:
            part.to(device)


def _bytes(part: torch.nn.Module) -> int:
    return sum(parameter.numel() * parameter.element_size() for parameter in part.parameters())


def _mover(device: torch.device) -> Any:
    def moved(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.to(device)
        return tuple(moved(each) for each in value) if type(value) is tuple else value

    def hook(part: torch.nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        return moved(arguments), {name: moved(value) for name, value in named.items()}

    return hook
