"""One side of the trainers' comparison on a CUDA device: shapes of 0.5B, 1.5B and 7B with random weights, in bfloat16, ours and TRL's.

In: one GPU. Out: tokens a second, MFU, peak memory, or the longest sequence that fits, as JSON. Each measurement is a process of its own. Called by
`benchmarks.gpu.trainer`:

    python -m benchmarks.trainer.accelerator {ours,trl} SHAPE {speed,longest} DEVICE SECONDS RESULT.json

On a CUDA device TRL as it ships scores completion tokens only, so there is no other side with a fair head. Weights are drawn on the device: a
checkpoint of 7B would take minutes to write and read.
"""

import gc
import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from benchmarks.trainer.workload import DELTA, ENTROPY, EPSILON, KL, Batch, Shape, draw_batch

SHAPES = {
    # Qwen2.5's sizes; 7B's optimizer state does not fit beside it on 80 GB, and none is made here: what is measured is loss and gradient.
    "0.5B": Shape(
        "0.5B", 151_936, 896, 4864, 24, 14, 2, rows=16, prompt=512, longest=4096, pack_length=16_384, tied=True
    ),
    "1.5B": Shape(
        "1.5B", 151_936, 1536, 8960, 28, 12, 2, rows=16, prompt=512, longest=4096, pack_length=16_384, tied=True
    ),
    "7B": Shape("7B", 152_064, 3584, 18_944, 28, 28, 4, rows=8, prompt=512, longest=4096, pack_length=16_384),
    "tiny": Shape("tiny", 512, 64, 128, 2, 2, 1, rows=4, prompt=8, longest=48, pack_length=128),
}
WARM_UP, TIMED = 2, 5
DENSE_BFLOAT16_FLOPS = {"H200": 989e12, "H100": 989e12, "A100": 312e12, "L40S": 362e12, "4090": 165e12}
"""Without sparsity, from the makers' data sheets; MFU is left out for a card that is not here."""
LONGEST_TRIED = 1 << 20
BFLOAT16_LOSS_TOLERANCE = 0.05
"""Relative: log-probabilities of bfloat16 states err by 1e-2 each, their mean over thousands of tokens by much less."""
LONGER_TAKES = 3.0
"""Seconds for twice the length over seconds for the length: attention grows with its square. No length is begun that would outlast the time."""


def check_losses(rows: list[dict[str, Any]]) -> None:
    """Losses of one shape's rows agree, as far as bfloat16 can tell. Raises Disagreement."""
    from benchmarks.trainer.__main__ import Disagreement

    for row in rows[1:]:
        # Written so that a NaN on either side is a disagreement.
        if not abs(row["loss"] - rows[0]["loss"]) <= BFLOAT16_LOSS_TOLERANCE * abs(rows[0]["loss"]):
            raise Disagreement(f"{row['side']} has loss {row['loss']}, {rows[0]['side']} {rows[0]['loss']}: no figures")


def one(side: str, shape: Shape, question: str, device: torch.device, seconds: float) -> dict[str, Any]:
    """Tokens a second, MFU and peak memory; or the longest sequence of one row that fits, as far as `seconds` go."""
    ends = time.monotonic() + seconds
    torch.manual_seed(0)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(shape.config(), dtype=torch.float32, attn_implementation="sdpa")
    batch = draw_batch(shape)
    trainer = _ours(model, shape, batch, device) if side == "ours" else _Trl(model, shape, batch, device)
    row = {"side": side, "shape": shape.name, "question": question}
    measured = (
        _speed(trainer, batch, shape, device, ends) if question == "speed" else _longest(trainer, shape, device, ends)
    )
    return row | measured


def _speed(trainer: Any, batch: Batch, shape: Shape, device: torch.device, ends: float) -> dict[str, Any]:
    tokens = batch.tokens + sum(map(len, batch.prompts))
    times = []
    for round_number in range(WARM_UP + TIMED):
        trainer.policy.zero_grad(set_to_none=True)
        _synchronize(device)
        if round_number == WARM_UP and device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        started = time.perf_counter()
        loss = trainer.step()
        _synchronize(device)
        times.append(time.perf_counter() - started)
        if round_number >= WARM_UP and time.monotonic() + times[-1] > ends:
            break
    seconds = median(times[WARM_UP:])
    flops = training_flops(
        shape, [len(p) + len(c) for p, c in zip(batch.prompts, batch.completions, strict=True)], batch.tokens
    )
    peak = next((value for name, value in DENSE_BFLOAT16_FLOPS.items() if name in _device_name(device)), None)
    return {
        "loss": loss,
        "real_tokens_per_second": tokens / seconds,
        "seconds": seconds,
        "repetitions": len(times) - WARM_UP,
        "mfu": None if peak is None else flops / seconds / peak,
        "peak_bytes": torch.cuda.max_memory_allocated() if device.type == "cuda" else None,
    }


def training_flops(shape: Shape, lengths: list[int], scored: int) -> float:
    """Operations that the batch needs, forward and backward, without recomputation and without padding.

    6 a weight and token in the layers (2 forward, 4 backward), 6 a head weight and scored token, causal attention 6 h L^2 a layer.
    """
    head_width = shape.hidden // shape.heads
    projections = (
        shape.hidden * (shape.heads + 2 * shape.key_heads) * head_width + shape.heads * head_width * shape.hidden
    )
    layer = projections + 3 * shape.hidden * shape.intermediate
    attention = sum(6 * shape.heads * head_width * length**2 for length in lengths)
    return (
        6.0 * layer * shape.layers * sum(lengths)
        + shape.layers * attention
        + 6.0 * shape.vocabulary * shape.hidden * scored
    )


def _longest(trainer: Any, shape: Shape, device: torch.device, ends: float) -> dict[str, Any]:
    """Doubling until memory or time is short: the last length of a single row (prompt of 16 tokens) that went through, in tokens."""
    fits, length, stopped = 0, 1024, "memory is short"
    while True:
        # The rows beside the longest one are what `real_share` asks for; here there is one row, and no other.
        alone = draw_batch(replace(shape, rows=2, prompt=16, longest=length))
        batch = Batch(
            *(getattr(alone, name)[1:] for name in ("prompts", "completions", "advantages", "old", "reference"))
        )
        started = time.monotonic()
        try:
            trainer.policy.zero_grad(set_to_none=True)
            trainer.take(batch, pack_length=length + 16)
            trainer.step()
            _synchronize(device)
        except torch.OutOfMemoryError:
            break
        fits, length = length, 2 * length
        gc.collect()
        if length > (LONGEST_TRIED if device.type == "cuda" else 2048):
            stopped = "longer ones were not tried"
            break
        if time.monotonic() + LONGER_TAKES * (time.monotonic() - started) > ends:
            stopped = "time is short"
            break
    return {"longest_sequence": fits, "stopped": stopped}


def _ours(model: Any, shape: Shape, batch: Batch, device: torch.device) -> Any:
    from benchmarks.trainer.our_side import OurTrainer
    from shoal.contracts.trainer import TrainerSettings
    from shoal.training.model import policy_to_train
    from shoal.training.parallel import start_ranks

    ranks = start_ranks(device.type)
    return OurTrainer(policy_to_train(model, TrainerSettings(activation_recomputation="On"), ranks), shape, batch)


class _Trl:
    """TRL in bfloat16 with recomputation, one micro-batch as wide as ours is long, so that neither is held back by the other's shape.

    Weights are float32, as ours, and all of the loss is computed under autocast.
    """

    def __init__(self, model: Any, shape: Shape, batch: Batch, device: torch.device) -> None:
        from benchmarks.trainer.trl_side import make_trainer

        self._device = device
        self._trainer = make_trainer(
            model, rows=shape.rows, group_size=shape.rows, loss_type="dapo", epsilon=EPSILON, delta=DELTA,
            beta=KL, entropy_coef=ENTROPY, use_bias_correction_kl=False, bf16=device.type == "cuda", gradient_checkpointing=True,
        )  # fmt: skip
        self.policy = self._trainer.model
        if not self.policy.is_gradient_checkpointing:
            self.policy.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        self.take(batch)

    def take(self, batch: Batch, pack_length: int | None = None) -> None:
        from benchmarks.trainer.trl_side import padded_batch

        fields = (batch.prompts, batch.completions, batch.advantages, batch.old, batch.reference)
        self._batch = {name: tensor.to(self._device) for name, tensor in padded_batch(*fields).items()}

    def step(self) -> float:
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._device.type == "cuda"):
            loss = self._trainer.compute_loss(self.policy, self._batch)
        loss.backward()
        return float(loss.detach())


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name() if device.type == "cuda" else "CPU"


def main(side: str, shape: str, question: str, device: str, seconds: float, target: Path) -> None:
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    target.write_text(json.dumps(one(side, SHAPES[shape], question, torch.device(device), seconds)))


if __name__ == "__main__":
    side, shape, question, device, seconds, target = sys.argv[1:]
    main(side, shape, question, device, float(seconds), Path(target))
