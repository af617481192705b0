"""Peak memory on a GPU of a whole training step, against what the planner says (`shoal.planner.memory`, ADR 0086).

Weights, gradients, AdamW's moments, activations, a reference where there is one: the second step of each case, when moments exist. Counted are bytes
that torch's allocator hands out at the peak, above those before the model was made. `reserved` is what it took from the device for that.
"""

import gc
import time
from typing import Any

import torch
from transformers import AutoModelForCausalLM, Qwen3Config

from benchmarks.gpu.part import Asked, run_part
from benchmarks.trainer.rank_memory import SMALL, Case, full_step, one_pack
from shoal.contracts.recipe import Recipe
from shoal.contracts.trainer import Offload
from shoal.planner.memory import total
from shoal.training.model import policy_to_ask, policy_to_train
from shoal.training.optimizer import Optimizer
from shoal.training.parallel import Ranks, start_ranks

WIDE = {"vocab_size": 151_936, "num_key_value_heads": 2, "max_position_embeddings": 40_960, "tie_word_embeddings": True}
HALF = WIDE | {
    "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14, "head_dim": 64,
}  # fmt: skip
ONE = WIDE | {
    "hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28, "num_attention_heads": 12, "head_dim": 128,
}  # fmt: skip
THREE = WIDE | {
    "hidden_size": 2048, "intermediate_size": 11_008, "num_hidden_layers": 36, "num_attention_heads": 16, "head_dim": 128,
}  # fmt: skip
TINY = SMALL | {"num_hidden_layers": 2}
CASES = {
    "1.5B, 16k tokens": Case(ONE, 1, 16_384),
    "0.5B, 16k tokens": Case(HALF, 1, 16_384),
    "3B, 16k tokens": Case(THREE, 1, 16_384),
    "1.5B, 32k tokens": Case(ONE, 1, 32_768),
    "1.5B, 32k tokens, activations in host memory": Case(ONE, 1, 32_768, offload=Offload(activations=True)),
    "1.5B, 16k tokens, a reference": Case(ONE, 1, 16_384, reference=True),
    "1.5B, 16k tokens, a reference in host memory": Case(
        ONE, 1, 16_384, reference=True, offload=Offload(reference=True)
    ),
    "1.5B, 16k tokens, moments in host memory": Case(ONE, 1, 16_384, offload=Offload(optimizer=True)),
    "0.5B, 8k tokens, nothing again": Case(HALF, 1, 8192, recomputed=False),
}
TINY_CASES = {
    "tiny": Case(TINY, 1, 256, reference=True),
    "tiny, all in host memory": Case(
        TINY, 1, 256, reference=True, offload=Offload(reference=True, optimizer=True, activations=True)
    ),
}


def measure(asked: Asked) -> None:
    ranks = start_ranks(asked.device, environment={})
    rows: list[dict[str, Any]] = []
    slowest = 0.0
    for name, case in (TINY_CASES if asked.tiny else CASES).items():
        before = asked.left
        if before < slowest:
            rows.append({"case": name, "left_out": "no time was left"})
        else:
            try:
                rows.append({"case": name} | _one(case, ranks))
            except torch.OutOfMemoryError as error:
                rows.append({"case": name, "planned": total(case.planned()), "left_out": str(error)[:200]})
        _free(ranks)
        slowest = max(slowest, before - asked.left)
        errors = [row["error"] for row in rows if row.get("error") is not None]
        asked.note(memory_model_error_gpu=max(errors, default=None), rows=rows)


def _one(case: Case, ranks: Ranks) -> dict[str, Any]:
    cuda = ranks.device.type == "cuda"
    before = torch.cuda.memory_allocated() if cuda else 0
    config, settings = Qwen3Config(**case.config), case.settings

    def made() -> Any:
        with torch.device(ranks.device):
            return AutoModelForCausalLM.from_config(config, dtype=torch.float32)

    reference = (
        policy_to_ask(_placed(made(), settings.offloaded.reference), settings, ranks) if case.reference else None
    )
    policy = policy_to_train(made(), settings, ranks)
    optimizer = Optimizer(policy.parameters(), Recipe(), on_host=settings.offloaded.optimizer)
    batch = one_pack(case.tokens).to(ranks.device)
    seconds = 0.0
    for _ in range(2):
        if cuda:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        if reference is not None:
            reference(batch)
        started = time.perf_counter()
        full_step(policy, optimizer, batch)
        if cuda:
            torch.cuda.synchronize()
        seconds = time.perf_counter() - started
    planned = total(case.planned())
    if not cuda:
        return {"planned": planned, "bytes": None, "error": None}
    found = torch.cuda.max_memory_allocated() - before
    return {
        "planned": planned,
        "bytes": found,
        "error": abs(planned / found - 1),
        "planned_over_bytes": planned / found,
        "reserved": torch.cuda.max_memory_reserved(),
        "step_seconds": seconds,
        "of_the_plan": {part.cause: part.nbytes for part in case.planned() if part.nbytes},
    }


def _placed(model: Any, on_host: bool) -> Any:
    """What FSDP2 is to keep in host memory must lie there."""
    return model.cpu() if on_host else model


def _free(ranks: Ranks) -> None:
    gc.collect()
    if ranks.device.type == "cuda":
        torch.cuda.empty_cache()


if __name__ == "__main__":
    run_part(measure)
