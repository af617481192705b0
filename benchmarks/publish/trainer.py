"""What the trainer's ranks do of a publish, each in a process of its own, which imports this module: write a version, send a part of a tensor."""

import multiprocessing
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist

from shoal.contracts import keys
from shoal.storage.growing import GrowingWriter, Piece, partial_folder
from shoal.training.export import Entry, header, write_at

COLUMNS = 8192
TENSOR_BYTES = 256 << 20
GATHER_ROUNDS = 8


def write_growing(outbox: Path, version: int, size: int, at: "multiprocessing.Queue[float]") -> None:
    """What the writers of a trainer do: round float32, write in place, tell; then flush and rename."""
    torch.set_num_threads(1)
    rows = TENSOR_BYTES // 2 // COLUMNS
    entries = [Entry(f"w{number:04d}", (rows, COLUMNS), "weight", None, None) for number in range(size // TENSOR_BYTES)]
    weights = torch.randn(rows, COLUMNS)
    folder, head = partial_folder(outbox, version), header(entries, torch.bfloat16)
    folder.mkdir()
    path = folder / "model.safetensors"
    pieces = [Piece(path.name, len(head) + number * TENSOR_BYTES, TENSOR_BYTES) for number in range(len(entries))]
    with path.open("wb") as file:
        file.write(head)
        file.truncate(len(head) + len(entries) * TENSOR_BYTES)
        file.flush()
        growing = GrowingWriter(folder)
        started = time.monotonic()
        growing.begin(pieces)
        for number, piece in enumerate(pieces):
            write_at(file.fileno(), piece.start, [weights.to(torch.bfloat16)])
            growing.wrote(number)
        os.fsync(file.fileno())
    folder.rename(outbox / keys.version_name(version))
    growing.end()
    at.put(started)
    at.put(time.monotonic())


def gather(rank: int, meeting: str, found: "multiprocessing.Queue[float]") -> None:
    """A tensor's part to the rank that writes it, as `export.gathered` sends it."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    part = torch.ones(TENSOR_BYTES, dtype=torch.uint8)
    parts = [torch.empty_like(part) for _ in range(2)] if rank == 0 else None
    dist.gather(part, parts, dst=0)
    started = time.monotonic()
    for _ in range(GATHER_ROUNDS):
        dist.gather(part, parts, dst=0)
    dist.barrier()
    if rank == 0:
        found.put(GATHER_ROUNDS * TENSOR_BYTES / (time.monotonic() - started))
    dist.destroy_process_group()
