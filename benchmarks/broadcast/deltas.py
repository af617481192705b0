"""Deltas of real and of simulated training: bytes against full, and the speed of encoding and decoding.

In: nothing but seeds. Out: ratios and GB/s. *Demo*: the example's tiny model, warm-started and trained by the trainer's own functions at the
example's recipe, in the dtype in which the example serves (fp32) and in bf16. *1B*: bf16 weights of two matrices in the shapes of a model of one
billion parameters, scaled as such models are initialised, moved by AdamW (betas 0.9/0.99, 8 updates a step) at lr 3e-7 on Gaussian gradients that are
partly the same from update to update; simulated, because no such model can be had or trained here. Called by `__main__`.
"""

import hashlib
import os
import random
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.contracts.weights import DeltaEncoding
from shoal.storage import delta

SHARD_BYTES = 16 << 20
SHAPES = ((1024, 2048), (1024, 5632))
"""Of a 1B model (as TinyLlama's) half of one attention and of one MLP matrix, 8M parameters: all others are made in the same way here."""
PARAMETERS = 1_100_000_000
"""Of the whole model; its bytes are computed from the ratio of the layer."""
LEARNING_RATE, UPDATES_PER_STEP, BETAS, WARM_UPDATES = 3e-7, 8, (0.9, 0.99), 40
SPEED_SHARDS, SPEED_SHARE, SPEED_CORES = 64, 0.0033, 8
SIGNAL = 0.1
"""Share of a gradient's variance that is the same from one update to the next; the rest is sampling noise."""


@dataclass
class Coded:
    """What the codec did with a series of versions."""

    full_bytes: int = 0
    wire_bytes: int = 0
    changed_values: int = 0
    values: int = 0
    encode_seconds: float = 0.0
    decode_seconds: float = 0.0

    @property
    def ratio(self) -> float:
        return self.full_bytes / max(self.wire_bytes, 1)

    def add(self, old: bytes, new: bytes, item_size: int) -> None:
        """One version against the one before it, shard by shard, as the publisher does; raises when a shard does not come back."""
        width = {2: np.uint16, 4: np.uint32}[item_size]
        whole = len(new) // item_size * item_size
        differ = np.frombuffer(old[:whole], width) != np.frombuffer(new[:whole], width)
        self.changed_values += int(differ.sum())
        self.values += differ.size
        for at in range(0, len(new), SHARD_BYTES):
            before, after = old[at : at + SHARD_BYTES], new[at : at + SHARD_BYTES]
            started = time.process_time()
            packed = delta.encode(after, before, item_size)
            self.encode_seconds += time.process_time() - started
            self.full_bytes += len(after)
            self.wire_bytes += len(after) if packed is None else len(packed[1])
            if packed is not None:
                started = time.process_time()
                found = delta.decode(*packed, before, item_size)
                self.decode_seconds += time.process_time() - started
                if found != after:
                    raise RuntimeError("a delta did not come back as it went in")

    def figures(self) -> dict[str, float]:
        """Speeds are of one thread, in CPU seconds, over assembled bytes."""
        return {
            "ratio": round(self.ratio, 3),
            "changed_values": round(self.changed_values / max(self.values, 1), 4),
            "encode_gbps": round(self.full_bytes / max(self.encode_seconds, 1e-9) / 1e9, 3),
            "decode_gbps": round(self.full_bytes / max(self.decode_seconds, 1e-9) / 1e9, 3),
        }


def speeds() -> dict[str, Any]:
    """GB of weights a CPU second, hashing included, of the publisher's and the client's side, over all cores; memory touched before.

    One value of three hundred changed by one step: what the first update at 3e-7 changes of a real model (`updates`).
    """
    chance = np.random.default_rng(0)
    weights = (chance.standard_normal(SHARD_BYTES // 2, dtype=np.float32) * np.float32(0.02)).view(np.uint32)
    base = np.tile((weights >> np.uint32(16)).astype(np.uint16), SPEED_SHARDS)
    new = base.copy()
    places = np.unique(chance.integers(0, base.size, int(base.size * SPEED_SHARE)))
    new[places] += chance.choice(np.array([1, 0xFFFF], np.uint16), places.size)
    before, after = base.view(np.uint8).data, new.view(np.uint8).data
    parts = [slice(at, at + SHARD_BYTES) for at in range(0, len(after), SHARD_BYTES)]
    cores = len(os.sched_getaffinity(0))

    def pack(part: slice) -> tuple[DeltaEncoding, bytes]:
        hashlib.sha256(after[part])
        made = delta.encode(after[part], before[part], 2)
        if made is None:
            raise RuntimeError("the delta is no smaller")
        return made

    def unpack(part: slice, made: tuple[DeltaEncoding, bytes]) -> memoryview:
        found = delta.decode(*made, before[part], 2)
        hashlib.sha256(found)
        return found

    def check(part: slice, made: tuple[DeltaEncoding, bytes]) -> None:
        if not np.array_equal(np.frombuffer(unpack(part, made), np.uint8), np.frombuffer(after[part], np.uint8)):
            raise RuntimeError("a delta did not come back as it went in")

    with ThreadPoolExecutor(cores) as pool:
        made = list(pool.map(pack, parts))
        list(pool.map(check, parts, made))
        seconds = []
        for call, given in ((pack, (parts,)), (unpack, (parts, made))):
            started, cpu = time.monotonic(), time.process_time()
            for _ in pool.map(call, *given):
                pass
            seconds += [time.process_time() - cpu, time.monotonic() - started]
    gigabytes = len(after) / 1e9
    encode, decode = gigabytes / seconds[0], gigabytes / seconds[2]
    return {
        "delta_encode_gb_a_second_core": round(encode, 3),
        "delta_decode_gb_a_second_core": round(decode, 3),
        "delta_encode_seconds_65gb": round(65.5 / encode / SPEED_CORES, 1),
        "delta_decode_seconds_65gb": round(65.5 / decode / SPEED_CORES, 1),
        "delta_speed_conditions": {
            "gigabytes": round(gigabytes, 2), "codings": sorted({coding for coding, _ in made}), "changed_values": SPEED_SHARE,
            "item": "bfloat16, made up", "included": "SHA-256 of each shard as assembled",
            "seconds_65gb": f"by arithmetic, over {SPEED_CORES} cores", "threads": cores,
            "here_seconds": {"encode": round(seconds[1], 2), "decode": round(seconds[3], 2)},
            "load_1_min": round(os.getloadavg()[0], 1),
        },
    }  # fmt: skip


def demo(cache: Path, steps: int) -> dict[str, dict[str, float]]:
    """The tiny model's training at the example's recipe."""
    coded = {"fp32": Coded(), "bf16": Coded()}
    old: dict[str, bytes] | None = None
    for new in _demo_versions(cache, steps):
        if old is not None:
            coded["fp32"].add(old["fp32"], new["fp32"], 4)
            coded["bf16"].add(old["bf16"], new["bf16"], 2)
        old = new
    return {name: one.figures() for name, one in coded.items()}


def one_billion(steps: int) -> dict[str, float]:
    """Matrices of a simulated 1B model; the whole model's bytes follow from their ratio."""
    coded = Coded()
    old: bytes | None = None
    for new in _simulated_versions(steps):
        if old is not None:
            coded.add(old, new, 2)
        old = new
    gigabytes = 2 * PARAMETERS / 1e9
    return coded.figures() | {"model_gigabytes": gigabytes, "delta_gigabytes": round(gigabytes / coded.ratio, 3)}


def _demo_versions(cache: Path, steps: int) -> Iterator[dict[str, bytes]]:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from benchmarks.reproduce.arms import ARMS
    from benchmarks.reproduce.base import start_of
    from benchmarks.reproduce.ours import Learner
    from benchmarks.reproduce.simulator import Answers, sample_groups

    arm = ARMS["default"]
    start = start_of(arm, 0, cache)
    torch.manual_seed(0)
    learner = Learner(start.folder, arm.full_recipe(), seed=0)
    model = AutoModelForCausalLM.from_pretrained(start.folder, dtype="float32").eval()
    answers = Answers(model, AutoTokenizer.from_pretrained(start.folder), arm)
    versions = deque([learner.weights()], maxlen=arm.async_level + 1)
    chance = random.Random(0)
    for step in range(steps + 1):
        tensors = list(learner.weights().values())
        yield {
            "fp32": b"".join(tensor.float().contiguous().numpy().tobytes() for tensor in tensors),
            "bf16": b"".join(
                tensor.to(torch.bfloat16).contiguous().view(torch.int16).numpy().tobytes() for tensor in tensors
            ),
        }
        if step < steps:
            groups, _ = sample_groups(answers, start, chance, [(step, versions[0])], step)
            learner.learn(groups, step)
            versions.append(learner.weights())


def _simulated_versions(steps: int) -> Iterator[bytes]:
    rng = np.random.default_rng(0)
    parts = [_Moved(rows * columns, 0.02, rng) for rows, columns in SHAPES]
    for part in parts:
        part.update(WARM_UPDATES)
    for step in range(steps + 1):
        yield b"".join(part.bf16() for part in parts)
        for part in parts:
            part.update(UPDATES_PER_STEP if step < steps else 0)


class _Moved:
    """One matrix under AdamW: fp32 master weights, moments, and gradients made of a constant part and noise."""

    def __init__(self, size: int, scale: float, rng: np.random.Generator) -> None:
        self._rng = rng
        self._weights = rng.standard_normal(size, dtype=np.float32) * np.float32(scale)
        self._signal = rng.standard_normal(size, dtype=np.float32) * np.float32(SIGNAL**0.5)
        self._first = np.zeros(size, np.float32)
        self._second = np.zeros(size, np.float32)
        self._count = 0

    def update(self, times: int) -> None:
        low, high = BETAS
        for _ in range(times):
            self._count += 1
            noise = self._rng.standard_normal(self._weights.size, dtype=np.float32)
            gradient = self._signal + noise * np.float32((1 - SIGNAL) ** 0.5)
            self._first += np.float32(1 - low) * (gradient - self._first)
            self._second += np.float32(1 - high) * (gradient * gradient - self._second)
            first = self._first / np.float32(1 - low**self._count)
            second = self._second / np.float32(1 - high**self._count)
            self._weights -= np.float32(LEARNING_RATE) * first / (np.sqrt(second) + np.float32(1e-8))

    def bf16(self) -> bytes:
        """Rounded to nearest even, as a cast does."""
        bits: NDArray[np.uint32] = self._weights.view(np.uint32)
        rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
        return rounded.astype(np.uint16).tobytes()
