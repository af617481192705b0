"""Policy versions as Hugging Face checkpoints: the base model's own files, and new weights in the dtype of serving.

In: the base checkpoint's folder, the policy, and host copies of its trained weights. Out: a folder that transformers and vLLM load. Tensors
are gathered from the ranks, merged with their adapters, converted and written one after the other: no second copy of the model is ever in
memory, and nothing here touches what is being trained. The same weights give the same bytes on any number of ranks. Called by `delivery`.
"""

import json
import math
import shutil
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from shoal.training.host_copy import WEIGHTS, local
from shoal.training.lora import ADAPTERS, LoraLinear, merged_weight
from shoal.training.model import Policy, served_dtype
from shoal.training.parallel import Ranks

WEIGHTS_FILE = "model.safetensors"
FILE_BYTES = 5_000_000_000
"""Largest file of weights; a larger checkpoint is cut into several with an index, as transformers does."""
DTYPE_NAMES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}
HEADER_ALIGNMENT = 8
NOT_COPIED = (".bin", ".safetensors", ".pt", ".pth", ".msgpack", ".h5")
"""Weights in any form: the base model's must not lie beside the new ones."""


@dataclass(frozen=True)
class Entry:
    """One tensor of the checkpoint: where its values are. `key` of a host copy, or `frozen`; `adapter` keys with their scale."""

    name: str
    shape: tuple[int, ...]
    key: str
    frozen: Tensor | None
    adapter: tuple[str, str, float] | None


class Export:
    """Writes versions of one policy. Made once, while nothing runs; frozen weights are read from the policy itself, they never change."""

    def __init__(self, policy: Policy, base: Path, ranks: Ranks, *, file_bytes: int = FILE_BYTES) -> None:
        self._base = base
        self._file_bytes = file_bytes
        self._ranks = ranks
        self._dtype = served_dtype(base)
        self._entries = _entries(policy)

    def write(self, copies: Mapping[str, Tensor], folder: Path) -> None:
        """Write the version whose trained weights are `copies` to the new folder `folder`. All ranks call this; the leader writes."""
        if self._ranks.leader:
            folder.mkdir(parents=True)
            _copy_companions(self._base, folder)
        parts = cut(self._entries, self._dtype.itemsize, self._file_bytes)
        for number, part in enumerate(parts, 1):
            self._write_file(copies, part, folder / file_name(number, len(parts)))
        if self._ranks.leader and len(parts) > 1:
            (folder / f"{WEIGHTS_FILE}.index.json").write_text(json.dumps(index(parts, self._dtype.itemsize), indent=2))

    @torch.no_grad()
    def _write_file(self, copies: Mapping[str, Tensor], entries: Sequence[Entry], path: Path) -> None:
        with path.open("wb") if self._ranks.leader else nullcontext() as file:
            if file is not None:
                file.write(header(entries, self._dtype))
            for entry in entries:
                tensor = self._whole(copies, entry)
                if file is not None:
                    served = tensor.to(self._dtype).contiguous()
                    file.write(memoryview(served.reshape(-1).view(torch.uint8).numpy()))

    def _whole(self, copies: Mapping[str, Tensor], entry: Entry) -> Tensor:
        """The tensor, whole, on the host of every rank."""
        weight = gathered(copies[entry.key] if entry.frozen is None else entry.frozen, self._ranks)
        if entry.adapter is None:
            return weight
        lora_a, lora_b, scale = entry.adapter
        return merged_weight(
            weight, gathered(copies[lora_a], self._ranks), gathered(copies[lora_b], self._ranks), scale
        )


def gathered(tensor: Tensor, ranks: Ranks) -> Tensor:
    """The whole of a sharded tensor, through the background's group on the host; one that is not sharded as it is."""
    part = local(tensor)
    if not isinstance(tensor, DTensor):
        return part.cpu()
    if ranks.world == 1:
        return part.cpu()
    on_host = DTensor.from_local(
        part.cpu(),
        ranks.background_mesh,
        tensor.placements,
        run_check=False,
        shape=tensor.shape,
        stride=tensor.stride(),
    )
    return on_host.full_tensor()


def cut(entries: Sequence[Entry], item_bytes: int, file_bytes: int) -> list[list[Entry]]:
    """Entries in order, cut into files of at most `file_bytes`; a larger tensor has a file of its own."""
    parts: list[list[Entry]] = [[]]
    room = file_bytes
    for entry in entries:
        size = math.prod(entry.shape) * item_bytes
        if parts[-1] and size > room:
            parts.append([])
            room = file_bytes
        parts[-1].append(entry)
        room -= size
    return parts


def file_name(number: int, count: int) -> str:
    """As transformers names them."""
    return WEIGHTS_FILE if count == 1 else f"model-{number:05d}-of-{count:05d}.safetensors"


def index(parts: Sequence[Sequence[Entry]], item_bytes: int) -> dict[str, Any]:
    """`model.safetensors.index.json`."""
    names = {entry.name: file_name(number, len(parts)) for number, part in enumerate(parts, 1) for entry in part}
    size = sum(math.prod(entry.shape) for part in parts for entry in part) * item_bytes
    return {"metadata": {"total_size": size}, "weight_map": names}


def header(entries: Sequence[Entry], dtype: torch.dtype) -> bytes:
    """Length and JSON of a safetensors file whose tensors follow in this order (format of huggingface/safetensors)."""
    described: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    start = 0
    for entry in entries:
        end = start + math.prod(entry.shape) * dtype.itemsize
        described[entry.name] = {
            "dtype": DTYPE_NAMES[dtype], "shape": list(entry.shape), "data_offsets": [start, end],
        }  # fmt: skip
        start = end
    text = json.dumps(described, separators=(",", ":")).encode()
    text += b" " * (-len(text) % HEADER_ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def _entries(policy: Policy) -> list[Entry]:
    """Every tensor of the checkpoint once, by its name there, ascending; tied ones under one name, adapters under their layer's."""
    model = policy.model
    owners = dict(model.named_modules())
    tied = set(getattr(model, "all_tied_weights_keys", None) or {})
    trained = {name for name, parameter in policy.named_parameters() if parameter.requires_grad}
    found = []
    for name, tensor in sorted(model.state_dict().items()):
        module, _, last = name.rpartition(".")
        if name in tied or last in ADAPTERS:
            continue
        inner = f"model.{name}"
        owner = owners[module]
        adapter = None
        if isinstance(owner, LoraLinear) and last == "weight":
            lora_a, lora_b = (f"{WEIGHTS}/model.{module}.{adapter}" for adapter in ADAPTERS)
            adapter = (lora_a, lora_b, owner.scale)
        frozen = None if inner in trained else tensor.detach()
        found.append(Entry(name, tuple(tensor.shape), f"{WEIGHTS}/{inner}", frozen, adapter))
    return found


def _copy_companions(base: Path, folder: Path) -> None:
    """Configuration, tokenizer and what else lies beside the base model's weights."""
    for path in sorted(base.iterdir()):
        if path.is_file() and path.suffix not in NOT_COPIED and not path.name.endswith(".index.json"):
            shutil.copyfile(path, folder / path.name)
