"""Memory by cause: of a trainer's rank, a worker's engine, a validator. Bytes, closed form, no torch.

Each cause names the code that makes it so. What is left out: the CUDA context, NCCL's buffers and fragmentation, for which `USABLE` leaves room.
Called by `division` and by whoever explains a manifest.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from shoal.planner.model_shape import ModelShape

Method = Literal["Full", "Full, offloaded", "LoRA", "LoRA, offloaded"]
"""All weights, or low-rank adapters; with weights on the device or in the host's memory (`trainer.settings`)."""

USABLE = 0.9
"""Share of a GPU's memory that is planned with; vLLM's own default for the same reason (`engine.gpuMemoryUtilization`)."""
JUDGED_SHARE = 0.85
"""Of the GPUs' memory, that a validator fills with weights where its settings say nothing (validation/memory.py)."""
RECOMPUTE_FROM_PARAMETERS = 50_000_000
"""From here on the trainer computes activations again (training/model.py)."""
TILE_BYTES = 4 * 4 * (1 << 24)
"""Logits of one tile in float32, with what is made of them (training/logprobs.py)."""
LORA_SHARE = 0.01
"""Share of a dense model's parameters that adapters of rank 16 on all linear layers have at most: 0.9 % of 1.7B, 0.4 % of 32B."""


@dataclass(frozen=True)
class MemoryPart:
    """What needs memory, and how many bytes."""

    cause: str
    nbytes: int


def total(parts: Sequence[MemoryPart]) -> int:
    """Bytes of all causes together."""
    return sum(part.nbytes for part in parts)


def trained_parameters(parameters: int, method: Method) -> int:
    """Of a model, those that the trainer changes: all, or those of its adapters."""
    return parameters if method.startswith("Full") else round(LORA_SHARE * parameters)


def state_bytes(parameters: int, method: Method) -> int:
    """A training state: what is trained and AdamW's two moments, float32."""
    return 12 * trained_parameters(parameters, method)


def recomputes(shape: ModelShape) -> bool:
    """Whether the trainer computes activations again where its settings say nothing."""
    return shape.parameters >= RECOMPUTE_FROM_PARAMETERS


def trainer_rank(
    shape: ModelShape,
    ranks: int,
    tokens: int,
    method: Method,
    *,
    cpu: bool = False,
    again: bool | None = None,
    reference: bool = True,
) -> list[MemoryPart]:
    """Memory of one of `ranks` trainer processes, with micro-batches of `tokens` tokens.

    Weights, gradients and AdamW's two moments are float32 and sharded (FSDP2, arXiv:2304.11277); the KL penalty's reference model is another float32
    copy, sharded too (training/model.py). One layer at a time, and embedding with head all the time, are whole in the type of the forward pass.
    On a CPU that is float32, and one process shards nothing. `again`: activations are computed again; None: by the model's size. Without a KL
    penalty there is no `reference`.
    """
    width = 4 if cpu else 2
    trained = trained_parameters(shape.parameters, method)
    held = 0 if method.endswith("offloaded") else 1
    gathered = 0 if cpu and ranks == 1 else width * (shape.ends + 2 * shape.layer_parameters)
    recomputed = recomputes(shape) if again is None else again
    kept = shape.layers * shape.hidden_size + shape.layer_values if recomputed else shape.layers * shape.layer_values
    return [
        MemoryPart("weights, float32", held * 4 * shape.parameters // ranks),
        MemoryPart("gradients, float32", held * 4 * trained // ranks),
        MemoryPart("AdamW's moments, float32", held * 8 * trained // ranks),
        MemoryPart("reference model of the KL penalty, float32", reference * held * 4 * shape.parameters // ranks),
        MemoryPart("gathered layers, embedding and head", gathered),
        MemoryPart(f"activations of {tokens} tokens", width * kept * tokens),
        MemoryPart("tiles of logits", TILE_BYTES),
    ]


def offloaded(shape: ModelShape) -> int:
    """Host memory of all ranks together where weights, reference and adapters are offloaded."""
    return 8 * shape.parameters + round(16 * LORA_SHARE * shape.parameters)


def engine(shape: ModelShape, gpus: int, sequences: int, tokens: int, *, cpu: bool = False) -> list[MemoryPart]:
    """Memory of one worker on each of its GPUs: weights as they are served, and keys and values of `sequences` of `tokens` tokens.

    The engine takes all the memory that it may, and waits with what does not fit: the cache is what lets it decode many at once.
    """
    width = 4 if cpu else 2
    return [
        MemoryPart("weights as served", width * shape.parameters // gpus),
        MemoryPart(
            f"keys and values, {sequences} x {tokens} tokens",
            width * shape.layers * shape.key_values * sequences * tokens // gpus,
        ),
    ]


def validator(shape: ModelShape, tokens: int, gpus: int = 1, *, cpu: bool = False) -> list[MemoryPart]:
    """Memory of a validator on each of its GPUs, which share every weight (validation/group.py), with one row of `tokens` tokens at a time.

    What a pass leaves on each GPU is counted whole: the hidden states are, and the rest is small beside weights.
    """
    width = 4 if cpu else 2
    return [
        MemoryPart("weights as served", width * shape.parameters // max(1, gpus)),
        MemoryPart(f"a forward pass of {tokens} tokens", width * shape.layer_values * tokens + TILE_BYTES),
    ]
