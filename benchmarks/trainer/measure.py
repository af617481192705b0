"""One trainer in one fresh process: time and peak memory of forward, loss and backward of one optimizer batch.

    python -m benchmarks.trainer.measure ours FOLDER RESULT.json          in our environment
    $(tools/oracle.sh) -m benchmarks.trainer.measure trl FOLDER RESULT.json      TRL as it ships
    $(tools/oracle.sh) -m benchmarks.trainer.measure trl-fair FOLDER RESULT.json TRL with its completion-only head

Prints nothing; writes seconds (wall and CPU), bytes, the loss, and the gradients beside them. Called by `__main__`.
"""

import gc
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from benchmarks.trainer.memory import peak_bytes, set_peak_back
from benchmarks.trainer.workload import DELTA, ENTROPY, EPSILON, KL, Batch, Shape, read_workload


def main(side: str, folder: Path, target: Path) -> None:
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    shape, batch = read_workload(folder)
    first = Batch(
        prompts=batch.prompts[:1],
        completions=[batch.completions[0][:8]],
        advantages=batch.advantages[:1],
        old=[batch.old[0][:8]],
        reference=[batch.reference[0][:8]],
    )
    trainer = _ours(folder, shape, batch) if side == "ours" else _trl(folder, shape, batch, fair=side == "trl-fair")
    trainer.take(first)
    trainer.step()  # what is loaded once, at the first use, is not the batch's memory
    trainer.policy.zero_grad(set_to_none=True)
    trainer.take(batch)
    gc.collect()
    before = set_peak_back()
    wall, cpu = time.perf_counter(), time.process_time()
    loss = trainer.step()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    peak = peak_bytes() - before
    save_file(
        {name: tensor.contiguous() for name, tensor in trainer.gradients().items()}, target.with_suffix(".safetensors")
    )
    result = {
        "side": side,
        "loss": loss,
        "wall_seconds": wall,
        "cpu_seconds": cpu,
        "peak_bytes": peak,
        "loaded_bytes": before,
    }
    target.write_text(json.dumps(result))


class _Trl:
    """TRL's trainer with the interface of `OurTrainer`."""

    def __init__(self, folder: Path, shape: Shape, batch: Batch, fair: bool) -> None:
        from transformers import AutoModelForCausalLM

        from benchmarks.trainer.trl_side import force_completion_only_head, make_trainer

        if fair:
            force_completion_only_head()
        self._trainer: Any = make_trainer(
            AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32, attn_implementation="sdpa"),
            rows=shape.rows,
            group_size=shape.rows,
            loss_type="dapo",
            epsilon=EPSILON,
            delta=DELTA,
            beta=KL,
            entropy_coef=ENTROPY,
            use_bias_correction_kl=False,
        )
        self.policy = self._trainer.model
        self.take(batch)

    def take(self, batch: Batch) -> None:
        from benchmarks.trainer.trl_side import padded_batch

        self._batch = padded_batch(batch.prompts, batch.completions, batch.advantages, batch.old, batch.reference)

    def step(self) -> float:
        loss = self._trainer.compute_loss(self.policy, self._batch)
        loss.backward()
        return float(loss.detach())

    def gradients(self) -> dict[str, torch.Tensor]:
        return {
            name: parameter.grad for name, parameter in self.policy.named_parameters() if parameter.grad is not None
        }


def _ours(folder: Path, shape: Shape, batch: Batch) -> Any:
    from benchmarks.trainer.our_side import OurTrainer
    from shoal.contracts.trainer import TrainerSettings
    from shoal.training.model import load_policy

    # TRL runs without recomputation too: the same computing on both sides.
    policy = load_policy(folder / "model", TrainerSettings(activation_recomputation="Off"))
    return OurTrainer(policy, shape, batch)


def _trl(folder: Path, shape: Shape, batch: Batch, *, fair: bool) -> Any:
    return _Trl(folder, shape, batch, fair)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
