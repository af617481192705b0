"""TOPLOC proofs on a GPU: the same bytes as on a CPU from equal states, and what making and verifying them costs beside a forward pass.

In: random states, many of them of equal size, in float32 and bfloat16, with and without a mask. Out: how many proofs have the same bytes, and
milliseconds. A worker and a validator reduce chunks on the GPU (`proofs.reduction`); polynomials are the host's. `verify` copies all states
first. The forward pass is that of SmolLM2-135M's shape, and of one layer of a 32B shape times its layers, without embedding and head.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import Qwen3Config, Qwen3Model

from benchmarks.gpu.part import Asked, run_part
from benchmarks.gpu.timing import seconds_of
from shoal.proofs.reduction import points, reduce_on_device
from shoal.toploc import codec
from shoal.toploc.top_points import Bool, top_points

CHUNK = codec.CHUNK_TOKENS
REPEATS = 5


@dataclass(frozen=True)
class Shape:
    """A model's size. `measured`: layers that run; the others are taken to cost the same."""

    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_size: int
    layers: int
    measured: int


SHAPES: Mapping[str, Shape] = {
    "135M": Shape(576, 1536, 9, 3, 64, 30, 30),
    "32B": Shape(5120, 27648, 40, 8, 128, 64, 1),
}
CHUNKS, TOKENS = 256, 8192
"""Proofs of a call; tokens of the forward pass, in sequences of `SEQUENCE`."""
SEQUENCE = 2048


def measure(asked: Asked) -> None:
    shapes = {"tiny": Shape(128, 256, 4, 2, 32, 2, 1)} if asked.tiny else SHAPES
    chunks, tokens = (8, 256) if asked.tiny else (CHUNKS, TOKENS)
    asked.note(chunks=chunks, left_out=[])
    for name, shape in shapes.items():
        if asked.left > 0:
            asked.note(**{f"hidden_{shape.hidden}_{name}": _of_shape(shape, asked.device, chunks, tokens)})
        else:
            asked.note(left_out=[*asked.figures["left_out"], f"{name}: no time"])


def _of_shape(shape: Shape, device: str, chunks: int, tokens: int) -> dict[str, Any]:
    mask = np.zeros(shape.hidden, dtype=np.bool_)
    mask[:: max(1, shape.hidden // 16)] = True
    found: dict[str, Any] = {"proofs_equal": {}, "proofs_compared": chunks}
    generator = torch.Generator(device=device).manual_seed(1)
    wide = torch.randn(chunks, CHUNK * shape.hidden, generator=generator, device=device)
    for name, dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16)):
        states = wide.to(dtype)
        for masked, kind in ((None, ""), (mask, "_masked")):
            found["proofs_equal"][name + kind] = _equal(states, masked)
    states = wide.to(torch.bfloat16)
    reduced = seconds_of(lambda: reduce_on_device(states, mask), device, REPEATS)
    indices, bits = (each.cpu().numpy() for each in reduce_on_device(states, mask))
    small = bits.astype(np.uint16)
    proved = seconds_of(lambda: codec.prove(indices, small), "cpu", REPEATS)
    copied = seconds_of(lambda: states.float().cpu(), device, REPEATS)
    proofs = codec.parse(codec.prove(indices, small), chunks * CHUNK, shape.hidden)
    host = states.float().cpu().numpy().reshape(chunks * CHUNK, shape.hidden)
    verified = seconds_of(lambda: codec.error_table(proofs, host, mask), "cpu", REPEATS)
    on_device = seconds_of(lambda: _verified_on_device(proofs, states, mask), device, REPEATS)
    forward = _forward_seconds(shape, device, tokens) * shape.layers / shape.measured * chunks * CHUNK / tokens
    build, verify = reduced + proved, copied + verified
    figures = {
        "reduce_on_device": reduced,
        "polynomials_on_host": proved,
        "build": build,
        "copy_states_to_host": copied,
        "compare_on_host": verified,
        "verify": verify,
        "verify_reduced_on_device": on_device,
        "forward_pass_of_the_same_tokens": forward,
    }
    return found | {
        "layers_measured": shape.measured,
        "milliseconds": {name: each * 1e3 for name, each in figures.items()},
        "milliseconds_a_chunk": {name: each * 1e3 / chunks for name, each in figures.items()},
        "build_share_of_forward_pass": build / forward,
        "verify_share_of_forward_pass": verify / forward,
        "verify_reduced_on_device_share_of_forward_pass": on_device / forward,
    }


def _equal(states: torch.Tensor, masked: Bool | None) -> int:
    """Proofs with the same bytes: reduced on the device, and chosen on the host from the same values."""
    indices, bits = (each.cpu().numpy() for each in reduce_on_device(states, masked))
    ours = codec.prove(indices, bits.astype(np.uint16))
    theirs = codec.prove(*top_points(states.float().cpu().numpy(), masked))
    size = codec.PROOF_BYTES
    return sum(ours[start : start + size] == theirs[start : start + size] for start in range(0, len(ours), size))


def _verified_on_device(proofs: codec.Proofs, states: torch.Tensor, masked: Bool) -> codec.ErrorTable:
    """What a validator does."""
    return codec.compare_points(proofs, *points(states.reshape(-1, len(masked)), masked))


@torch.inference_mode()
def _forward_seconds(shape: Shape, device: str, tokens: int) -> float:
    """One pass of the measured layers over that many tokens, in bfloat16."""
    config = Qwen3Config(
        vocab_size=256,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.measured,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_size,
        max_position_embeddings=SEQUENCE,
    )
    with torch.device(device):
        model: Any = Qwen3Model(config).to(torch.bfloat16).eval()
    length = min(SEQUENCE, tokens)
    read = torch.randint(0, 256, (tokens // length, length), device=device)
    return seconds_of(lambda: model(input_ids=read, use_cache=False), device, REPEATS)


if __name__ == "__main__":
    run_part(measure)
