"""Policy versions as Hugging Face checkpoints: the base model's own files, and new weights in the dtype of serving.

In: the base checkpoint's folder, the policy, and host copies of its trained weights. Out: a folder that transformers and vLLM load. Each tensor is
converted where it lies, gathered at the rank that writes it, and written in its place: no second copy of the model is ever in memory, and
nothing here touches what is being trained. The same weights give the same bytes on any number of ranks. Called by `delivery`.
"""

import json
import math
import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, Shard

from shoal.models.places import ADAPTERS, Place, places
from shoal.storage.growing import GrowingWriter, Piece
from shoal.training.host_copy import WEIGHTS, local, own_rows
from shoal.training.lora import adapter_of, merged_weight
from shoal.training.model import Policy, served_dtype
from shoal.training.parallel import Ranks, waiting_for

WEIGHTS_FILE = "model.safetensors"
FILE_BYTES = 5_000_000_000
"""Largest file of weights; a larger checkpoint is cut into several with an index, as transformers does."""
DTYPE_NAMES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}
HEADER_ALIGNMENT = 8
NOT_COPIED = (".bin", ".safetensors", ".pt", ".pth", ".msgpack", ".h5")
"""Weights in any form: the base model's must not lie beside the new ones."""


@dataclass(frozen=True)
class Entry:
    """One tensor of the checkpoint: where its values are. `key` of a host copy, or `frozen`; `adapter` keys with their scale.

    `place` says of which expert it is, if it is of one. `own_dtype`: it is not in the dtype of serving, but in this one.
    """

    name: str
    shape: tuple[int, ...]
    key: str
    frozen: Tensor | None
    adapter: tuple[str, str, float] | None
    place: Place | None = None
    own_dtype: torch.dtype | None = None

    def dtype(self, served: torch.dtype) -> torch.dtype:
        return served if self.own_dtype is None else self.own_dtype

    def nbytes(self, served: torch.dtype) -> int:
        """Of its values, in the checkpoint."""
        return int(math.prod(self.shape) * self.dtype(served).itemsize)


@dataclass(frozen=True)
class Placed:
    """A tensor's place in the checkpoint: its file, where its bytes begin there, and the rank that writes it."""

    entry: Entry
    file: str
    start: int
    writer: int


class Export:
    """Writes versions of one policy. Made once, while nothing runs; frozen weights are read from the policy itself, they never change.

    Every rank of the leader's machine is a writer: each tensor goes to one of them, in the dtype of serving, and they write side by side. At 65.5 GB
    over four pods three quarters pass the leader's network card, 16 s at 25 Gb/s. A writer holds one tensor, 1.5 GB at most of 32B.
    """

    def __init__(self, policy: Policy, base: Path, ranks: Ranks, *, file_bytes: int = FILE_BYTES) -> None:
        self._base = base
        self._ranks = ranks.in_background
        self._dtype = served_dtype(base)
        self._parts = cut(_entries(policy), self._dtype, file_bytes)
        self._placed = placed(self._parts, self._dtype, min(ranks.world, ranks.on_a_machine))

    def write(self, copies: Mapping[str, Tensor], folder: Path, growing: GrowingWriter | None = None) -> None:
        """Write the version whose trained weights are `copies` to the new folder `folder`. All ranks call this. `growing` is told what is there."""
        if self._ranks.leader:
            folder.mkdir(parents=True)
            _copy_companions(self._base, folder)
            self._write_headers(folder)
            if growing is not None:
                growing.begin(Piece(place.file, place.start, place.entry.nbytes(self._dtype)) for place in self._placed)
        self._ranks.all(True, "the files of a version to be begun")
        with ExitStack() as stack:
            files: dict[str, int] = {}
            for number, place in enumerate(self._placed):
                chunks = self._at_writer(copies, place)
                if self._ranks.rank == place.writer:
                    if place.file not in files:
                        files[place.file] = os.open(folder / place.file, os.O_WRONLY)
                        stack.callback(os.close, files[place.file])
                    write_at(files[place.file], place.start, chunks)
                    if growing is not None:
                        growing.wrote(number)
        self._ranks.all(True, "the files of a version to be written")

    def _write_headers(self, folder: Path) -> None:
        for number, part in enumerate(self._parts, 1):
            head = header(part, self._dtype)
            with (folder / file_name(number, len(self._parts))).open("wb") as file:
                file.write(head)
                file.truncate(len(head) + sum(entry.nbytes(self._dtype) for entry in part))
        if len(self._parts) > 1:
            described = index(self._parts, self._dtype)
            (folder / f"{WEIGHTS_FILE}.index.json").write_text(json.dumps(described, indent=2))

    @torch.no_grad()
    def _at_writer(self, copies: Mapping[str, Tensor], place: Placed) -> list[Tensor]:
        """The tensor at its writer, in chunks of rows, in the dtype of serving; nothing elsewhere."""
        entry, ranks = place.entry, self._ranks
        dtype = entry.dtype(self._dtype)
        weight = copies[entry.key] if entry.frozen is None else entry.frozen
        adapter = None
        if entry.adapter is not None:
            lora_a, lora_b, scale = entry.adapter
            adapter = copies[lora_a], copies[lora_b], scale
        if entry.place is not None and entry.place.expert is not None:
            return of_expert(weight, entry.place, ranks, place.writer, dtype, adapter)
        if adapter is None:
            return gathered(weight, ranks, place.writer, dtype)
        # What is merged is rounded once, after.
        wholes = [gathered(each, ranks, place.writer) for each in (weight, *adapter[:2])]
        if ranks.rank != place.writer:
            return []
        whole, first, second = (torch.cat(chunks) for chunks in wholes)
        return [merged_weight(whole, first, second, adapter[2]).to(self._dtype)]


def gathered(tensor: Tensor, ranks: Ranks, writer: int, dtype: torch.dtype | None = None) -> list[Tensor]:
    """A tensor that is sharded by rows at `writer`, in chunks of rows on the host, converted before they travel; nothing at the other ranks.

    Goes through the background's group: `ranks` are those `in_background`. One that is not sharded is at every rank.
    """
    part = local(tensor).cpu()
    part = (part if dtype is None else part.to(dtype)).contiguous()
    if not isinstance(tensor, DTensor) or ranks.world == 1:
        return [part] if ranks.rank == writer else []
    if tuple(tensor.placements) != (Shard(0),):
        raise ValueError(f"a weight is sharded as {tensor.placements}, must be by rows")
    most = -(-tensor.shape[0] // ranks.world)
    # Equally long parts, as bytes: gloo knows no half.
    padded = part if part.shape[0] == most else torch.cat([part, part.new_zeros(most - part.shape[0], *part.shape[1:])])
    sent = padded.reshape(-1).view(torch.uint8)
    found = [torch.empty_like(sent) for _ in range(ranks.world)] if ranks.rank == writer else None
    with waiting_for("a weight at the rank that writes it", ranks.rank):
        dist.gather(sent, found, dst=writer, group=ranks.group)
    if found is None:
        return []
    rows = [max(0, min(most, tensor.shape[0] - rank * most)) for rank in range(ranks.world)]
    return [
        each.view(part.dtype).reshape(most, *part.shape[1:])[:count]
        for each, count in zip(found, rows, strict=True)
        if count
    ]


def of_expert(
    stack: Tensor,
    place: Place,
    ranks: Ranks,
    writer: int,
    dtype: torch.dtype,
    adapter: tuple[Tensor, Tensor, float] | None = None,
) -> list[Tensor]:
    """An expert's matrix at `writer`, on the host, sent by the rank that has the expert; nothing at the other ranks, which do not wait.

    That rank has the expert's rows of its `adapter` too, and merges them before it rounds and sends. All ranks go through the tensors in one order,
    so every send meets its receipt.
    """
    sharded = isinstance(stack, DTensor) and ranks.world > 1
    first, _ = own_rows(stack)
    assert place.expert is not None
    owner = place.expert // -(-stack.shape[0] // ranks.world) if sharded else writer
    if ranks.rank not in (owner, writer):
        return []
    if ranks.rank == owner:
        mine = place.within(local(stack), first).cpu()
        if adapter is not None:
            lora_a, lora_b = (local(each)[place.expert - first].cpu() for each in adapter[:2])
            mine = merged_weight(mine, lora_a, lora_b, adapter[2])
        mine = mine.to(dtype).contiguous()
        if owner == writer:
            return [mine]
        with waiting_for("an expert's matrix to be taken", ranks.rank):
            dist.send(mine.reshape(-1).view(torch.uint8), dst=writer, group=ranks.group)
        return []
    found = torch.empty(place.shape, dtype=dtype)
    with waiting_for("an expert's matrix at the rank that writes it", ranks.rank):
        dist.recv(found.reshape(-1).view(torch.uint8), src=owner, group=ranks.group)
    return [found]


def placed(parts: Sequence[Sequence[Entry]], dtype: torch.dtype, writers: int) -> list[Placed]:
    """Where each tensor goes, in order. The writer is the one with the fewest bytes so far."""
    found, load = [], [0] * writers
    for number, part in enumerate(parts, 1):
        start = len(header(part, dtype))
        for entry in part:
            writer = load.index(min(load))
            found.append(Placed(entry, file_name(number, len(parts)), start, writer))
            size = entry.nbytes(dtype)
            start += size
            load[writer] += size
    return found


def write_at(file: int, start: int, chunks: Sequence[Tensor]) -> None:
    """Write tensors of the host one after the other, from byte `start` on."""
    for chunk in chunks:
        left = memoryview(chunk.contiguous().reshape(-1).view(torch.uint8).numpy())
        while left:
            count = os.pwrite(file, left, start)
            left, start = left[count:], start + count


def cut(entries: Sequence[Entry], dtype: torch.dtype, file_bytes: int) -> list[list[Entry]]:
    """Entries in order, cut into files of at most `file_bytes`; a larger tensor has a file of its own."""
    parts: list[list[Entry]] = [[]]
    room = file_bytes
    for entry in entries:
        size = entry.nbytes(dtype)
        if parts[-1] and size > room:
            parts.append([])
            room = file_bytes
        parts[-1].append(entry)
        room -= size
    return parts


def file_name(number: int, count: int) -> str:
    """As transformers names them."""
    return WEIGHTS_FILE if count == 1 else f"model-{number:05d}-of-{count:05d}.safetensors"


def index(parts: Sequence[Sequence[Entry]], dtype: torch.dtype) -> dict[str, Any]:
    """`model.safetensors.index.json`."""
    names = {entry.name: file_name(number, len(parts)) for number, part in enumerate(parts, 1) for entry in part}
    size = sum(entry.nbytes(dtype) for part in parts for entry in part)
    return {"metadata": {"total_size": size}, "weight_map": names}


def header(entries: Sequence[Entry], dtype: torch.dtype) -> bytes:
    """Length and JSON of a safetensors file whose tensors follow in this order (format of huggingface/safetensors), in `dtype` or their own."""
    described: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    start = 0
    for entry in entries:
        end = start + entry.nbytes(dtype)
        described[entry.name] = {
            "dtype": DTYPE_NAMES[entry.dtype(dtype)], "shape": list(entry.shape), "data_offsets": [start, end],
        }  # fmt: skip
        start = end
    text = json.dumps(described, separators=(",", ":")).encode()
    text += b" " * (-len(text) % HEADER_ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def _entries(policy: Policy) -> list[Entry]:
    """Every tensor of the checkpoint once, by its name there, ascending; tied ones under one name, adapters under their layer's.

    A buffer keeps its type: no gradient changes the bias that balances a router, and a rounded one would choose other experts. Wider types come
    first, as safetensors lays files out: then each value lies at a multiple of its size.
    """
    model = policy.model
    modules, state = dict(model.named_modules()), model.state_dict()
    trained = {name for name, parameter in policy.named_parameters() if parameter.requires_grad}
    buffers = {name for name, _ in model.named_buffers()}
    found = []
    for name, place in places(model).items():
        inner = f"model.{place.state}"
        adapter = None
        if (found_adapter := adapter_of(place, modules)) is not None:
            lora_a, lora_b = (f"{WEIGHTS}/model.{found_adapter[0]}.{each}" for each in ADAPTERS)
            adapter = (lora_a, lora_b, found_adapter[1].scale)
        tensor = state[place.state]
        frozen = None if inner in trained else tensor.detach()
        own = tensor.dtype if place.state in buffers else None
        found.append(Entry(name, tuple(place.shape), f"{WEIGHTS}/{inner}", frozen, adapter, place, own))
    return sorted(found, key=lambda entry: 0 if entry.own_dtype is None else -entry.own_dtype.itemsize)


def _copy_companions(base: Path, folder: Path) -> None:
    """Configuration, tokenizer and what else lies beside the base model's weights."""
    for path in sorted(base.iterdir()):
        if path.is_file() and path.suffix not in NOT_COPIED and not path.name.endswith(".index.json"):
            shutil.copyfile(path, folder / path.name)
