"""Memory by cause: of a trainer's rank, a worker's engine, a validator. Bytes, closed form, no torch.

Each cause names the code that makes it so. What is left out: the CUDA context, NCCL's buffers and fragmentation, for which `USABLE` leaves room.
Called by `division` and by whoever explains a manifest.
"""

import math
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
"""From this size on the trainer computes activations again in the backward pass (paper section 3.1.1): memory is what is short. Below, they are a few
megabytes, and a third more computing buys nothing."""
TILE_BYTES = 4 * 4 * (1 << 24)
"""Logits of one tile in float32, with what is made of them (training/logprobs.py)."""
ACCELERATOR_TILE_BYTES = 4 * (5 << 26)
"""The same on an accelerator, alone (training/logprobs.py)."""
TILE_COPIES = 3
"""Of a tile on an accelerator, at once: logits, their exponentials, a product (on a CPU these are blocks of it, and `TILE_BYTES` counts them)."""
KEPT_BYTES = 2.5
"""Of each value that a layer's backward pass reads, in bfloat16: norms keep theirs in float32 too."""
TEMPORARY_BYTES = 0.85
"""Of each such value, in bfloat16: gradients of activations while a layer's backward pass runs, at their peak."""
LORA_SHARE = 0.01 / 16
"""Share of the parameters outside experts that adapters on all linear layers have at most, for each rank: at 16 0.9 % of 1.7B, 0.4 % of 32B."""
SAVED_BYTES_A_STEP = 33e9
"""Of a training state that a step's time may be spent on: 2 % of 22 minutes, the paper's step, at 10 Gb/s to the store."""
MOST_BETWEEN_STATES = 20
"""Versions, a working day of such steps: whoever resumes or rolls back has moments of that day. Reached at 55B."""
EXPERT_MATRICES = {"gate_proj", "up_proj", "down_proj"}
"""Of each expert, as `lora.targetModules` names them; the sides of all three are hidden size and width (training/lora.py)."""


@dataclass(frozen=True)
class MemoryPart:
    """What needs memory, and how many bytes."""

    cause: str
    nbytes: int


def total(parts: Sequence[MemoryPart]) -> int:
    """Bytes of all causes together."""
    return sum(part.nbytes for part in parts)


@dataclass(frozen=True)
class Adapters:
    """Low-rank adapters: their rank, and how many of an expert's three matrices have one (`trainer.settings.lora`)."""

    rank: int = 16
    of_expert: int = 3

    def stacked(self, shape: ModelShape) -> int:
        """Parameters of those of a layer's experts, on average over the layers."""
        return self.rank * self.of_expert * shape.expert_sides


ADAPTERS = Adapters()


def trained_parameters(
    parameters: int, method: Method, adapters: Adapters = ADAPTERS, shape: ModelShape | None = None
) -> int:
    """Of a model, those that the trainer changes: all, or those of its adapters. Without `shape` it is a lower bound, 0 for adapters.

    On attention alone they are a vanishing share of a model whose parameters are in experts.
    """
    if method.startswith("Full"):
        return parameters
    if shape is None:
        return 0
    dense = parameters - shape.layers * shape.expert_parameters
    return round(LORA_SHARE * adapters.rank * dense) + shape.layers * adapters.stacked(shape)


def state_bytes(trained: int, by_muon: int = 0, *, reward_model: bool = False, islands: bool = False) -> int:
    """A training state: what is trained and AdamW's two moments, float32; of the parameters that Muon updates one. With PRIME of two models. Islands
    add what they share, weights and outer momentum (islands/shared.py)."""
    return (12 * (1 + reward_model) + 8 * islands) * trained - 4 * by_muon


def state_every(asked: int | None, trained: int) -> int:
    """Versions from one saved training state to the next: the least with which saving takes 2 % of the time, at most `MOST_BETWEEN_STATES`.

    At 32B a state is 393 GB: at 10 Gb/s to the store, 315 s of twelve steps of 22 minutes, and none of the trainer's time.
    """
    return asked or min(max(1, math.ceil(state_bytes(trained) / SAVED_BYTES_A_STEP)), MOST_BETWEEN_STATES)


def recomputes(shape: ModelShape) -> bool:
    """Whether the trainer computes activations again where its settings say nothing."""
    return shape.parameters >= RECOMPUTE_FROM_PARAMETERS


@dataclass(frozen=True)
class OnHost:
    """What a trainer's ranks keep in their pods' host memory (`trainer.settings.offload`)."""

    reference: bool = False
    optimizer: bool = False
    activations: bool = False


NOTHING_ON_HOST = OnHost()


def trainer_rank(
    shape: ModelShape,
    ranks: int,
    tokens: int,
    method: Method,
    *,
    cpu: bool = False,
    again: bool | None = None,
    reference: bool = True,
    on_host: OnHost = NOTHING_ON_HOST,
    sharing: int = 1,
    muon: bool = False,
    reward_model: bool = False,
    tokens_travel: bool = False,
    adapters: Adapters = ADAPTERS,
) -> list[MemoryPart]:
    """Memory of one of `ranks` trainer processes at the peak of a step, with micro-batches of `tokens` tokens that `sharing` ranks share.

    Weights, gradients and AdamW's two moments, or Muon's one, are float32 and sharded (FSDP2, arXiv:2304.11277); the KL penalty's reference model
    has the type of the forward pass, and is sharded too (training/model.py). A layer is whole in that type while it computes, and so is the next
    on its way. Embedding and head are whole all the time. On a CPU that type is float32, and one process shards nothing. `again`: activations are
    computed again; None: by the model's size. Without a KL penalty there is no `reference`. `muon`: it updates the layers' matrices. PRIME's
    `reward_model` is a second policy with moments of its own; the two learn one after the other, so gradients and activations are there once. While
    it learns, the policy's embedding and head are still whole after its pass for the old log-probabilities.

    With `tokens_travel` no rank gathers experts (training/experts.py). It casts its own to the type of the forward pass. It has a copy of the rows
    that it sends and of those that it gets. An even choice of experts is counted; a rank that gets twice its share has that part twice. A reference
    on the host gathers its experts all the same, which is a moment of its own. `adapters` lie beside the weights, are gathered with their layer, and
    alone have gradients and moments.

    The peak is the largest of the moments: the head's loss; the backward pass of the last layer, when all layers' inputs are still there; that of
    the first, when nearly all gradients are; the sum of the gradients of embedding and head; the update. tests/planner/test_rank_memory.py holds it
    to torch's FSDP2 memory tracker, within a tenth. A part is 0 where it is not there at that moment.
    """
    width, tokens = 4 if cpu else 2, -(-tokens // sharing)
    held = 0 if method.endswith("offloaded") else 1
    whole = not (cpu and ranks == 1)
    trained = trained_parameters(shape.parameters, method, adapters, shape)
    full = method.startswith("Full")
    thin = 0 if full else trained
    recomputed = recomputes(shape) if again is None else again
    inputs = width * shape.hidden_size * tokens
    layer = round((4 if cpu else KEPT_BYTES) * shape.layer_values) * tokens
    layers_kept = layer if recomputed else shape.layers * layer
    of_layer, of_all = 4 * (shape.layer_parameters if full else thin // shape.layers) // ranks, 4 * trained // ranks
    stay = shape.expert_parameters if tokens_travel and ranks > 1 else 0
    stay_thin = adapters.stacked(shape) if stay and thin else 0
    thin_others = thin // shape.layers - stay_thin
    of_others = shape.layer_parameters - stay + thin_others
    stay += stay_thin
    gathered = whole * width * (shape.ends + 2 * of_others)
    states = 2 * inputs
    tile = min(TILE_BYTES if cpu else ACCELERATOR_TILE_BYTES, 4 * shape.vocabulary * tokens)
    head = full * 4 * shape.embedding
    backward = layers_kept + round(TEMPORARY_BYTES * width / 2 * shape.layer_values) * tokens
    if stay:
        backward += 2 * width * shape.expert_values * tokens + (0 if cpu else 2 * width * stay // ranks)
        # Without recomputation the graph keeps the products' copy of every layer's own experts.
        backward += 0 if cpu or recomputed else (shape.layers - 1) * width * stay // ranks
    sent = whole * (width + 4) * (of_others if full else thin_others)
    ends_sent = full * whole * (width + 4) * shape.ends
    head_sent = full * whole * width * shape.embedding
    all_inputs = (1 if on_host.activations else shape.layers) * inputs * recomputed
    largest = 4 * max(shape.embedding, shape.layer_parameters // 3) // ranks
    # Beside its momentum, a rank that updates one matrix has it whole as it is sent, as it came, and before and after a round.
    matrix = 4 * width * (shape.layer_parameters // 3) if muon else 0
    by_muon = shape.matrices if muon else 0
    ends = whole * width * shape.ends
    scored = states + (0 if recomputed else layers_kept)
    first = max(0, shape.layers - 2) * of_layer, recomputed * inputs, backward if recomputed else layer
    # By moment: gradients, what is gathered, layers' inputs, what a layer keeps and makes, the head's tile, communication, moments of the update.
    moments: tuple[tuple[int, ...], ...] = (
        (0, ends, all_inputs, scored, TILE_COPIES * tile + 2 * head, 0, 0),
        (of_layer, gathered, all_inputs, backward, 0, sent + head_sent, 0),
        (first[0], gathered, first[1], first[2], 0, sent + head_sent, 0),
        (0, bool(stay) * on_host.reference * width * (shape.ends + 2 * shape.layer_parameters), 0, backward, 0, 0, 0),
        (of_all, ends, 0, 0, 0, ends_sent, 0),
        (of_all, ends, 0, 0, 0, 0, max(matrix, on_host.optimizer * 2 * largest)),
    )
    gradients, gathered, kept, computed, tiles, communication, update = (
        round(each) for each in max(moments, key=lambda found: held * found[0] + sum(found[1:]))
    )
    return [
        MemoryPart("weights, float32", held * 4 * (shape.parameters + thin) // ranks),
        MemoryPart("gradients, float32", held * gradients),
        MemoryPart(
            "AdamW's and Muon's moments, float32" if muon else "AdamW's moments, float32",
            0 if on_host.optimizer else held * (8 * trained - 4 * by_muon) // ranks,
        ),
        MemoryPart(
            "reference model of the KL penalty",
            0 if on_host.reference or not reference else held * width * shape.parameters // ranks,
        ),
        MemoryPart(
            "PRIME's reward model, its moments, the policy's whole embedding and head",
            reward_model
            * (held * (4 * (shape.parameters + thin) + (not on_host.optimizer) * 8 * trained) // ranks + ends),
        ),
        MemoryPart("gathered layers, embedding and head", gathered),
        MemoryPart(f"layers' inputs, {tokens} tokens", kept),
        MemoryPart(f"activations of {'a layer' if recomputed else 'all layers'}, {tokens} tokens", computed),
        MemoryPart("tiles of logits and the head's gradient", tiles),
        MemoryPart("gradients on their way between ranks", communication),
        MemoryPart("whole matrices of an update" if muon else "moments on their way from host memory", update),
    ]


def offloaded(shape: ModelShape) -> int:
    """Host memory of all ranks together where weights, reference and adapters are offloaded. Adapters are a first manifest's: the defaults."""
    return 6 * shape.parameters + 16 * trained_parameters(shape.parameters, "LoRA", shape=shape)


def engine(
    shape: ModelShape, gpus: int, sequences: int, tokens: int, *, stages: int = 1, cpu: bool = False
) -> list[MemoryPart]:
    """Memory of one worker on each of its GPUs: weights as they are served, and keys and values of `sequences` of `tokens` tokens.

    The engine takes all the memory that it may, and waits with what does not fit: the cache is what lets it decode many at once. With `stages` it is
    that of a stage with an embedding or a head, and one layer more where layers do not divide.
    """
    width, ranks = 4 if cpu else 2, max(1, gpus // stages)
    layers = -(-shape.layers // stages)
    parameters = shape.parameters if stages == 1 else layers * shape.layer_parameters + shape.embedding
    return [
        MemoryPart("weights as served", width * parameters // ranks),
        MemoryPart(
            f"keys and values, {sequences} x {tokens} tokens",
            width * layers * shape.key_values * sequences * tokens // ranks,
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
