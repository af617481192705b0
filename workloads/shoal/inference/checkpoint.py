"""Facts about a checkpoint folder (Hugging Face layout) that the worker needs before vLLM reads it.

In: a folder such as `weights/v000007`. Out: `Checkpoint`, or BadCheckpointError. Reads JSON files and the headers of
safetensors files, never the tensors. Called by `worker` and `engine`.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.contracts.proof_profile import WrongProfile, read_profile
from shoal.environments.tokens import eos_token_ids

MAX_HEADER_BYTES = 100_000_000
"""Largest header that the safetensors format allows."""


class BadCheckpointError(ValueError):
    """The folder is not a checkpoint that can be served; the message names the file."""


@dataclass(frozen=True)
class Checkpoint:
    """`layout` maps tensor names to dtype and shape; `dtype` is torch's name of the dtype to serve in; `masked_dimensions` are those of its proof
    profile, which proofs leave to the last.
    """

    folder: Path
    config: dict[str, Any]
    dtype: str
    eos_token_ids: frozenset[int]
    max_positions: int
    layout: dict[str, tuple[str, tuple[int, ...]]]
    masked_dimensions: tuple[int, ...] = ()


def read_checkpoint(folder: Path) -> Checkpoint:
    """Read `config.json`, `generation_config.json` if there is one, and the headers of all `*.safetensors`."""
    config = _read_json(folder / "config.json")
    dtype = config.get("dtype", config.get("torch_dtype"))
    if dtype not in ("float32", "bfloat16", "float16"):
        raise BadCheckpointError(f"{folder}/config.json: dtype is {dtype!r}; allowed: float32, bfloat16, float16")
    try:
        eos = eos_token_ids(folder)
    except (OSError, ValueError) as error:
        raise BadCheckpointError(str(error)) from error
    layout: dict[str, tuple[str, tuple[int, ...]]] = {}
    for path in sorted(folder.glob("*.safetensors")):
        layout |= _read_layout(path)
    if not layout:
        raise BadCheckpointError(f"{folder}: no tensors in any *.safetensors file")
    positions = config.get("max_position_embeddings")
    if not isinstance(positions, int) or positions < 1:
        raise BadCheckpointError(f"{folder}/config.json: max_position_embeddings is {positions!r}")
    return Checkpoint(folder, config, dtype, eos, positions, layout, _masked_dimensions(folder, config))


def check_tensor_parallel(checkpoint: Checkpoint, size: int) -> None:
    """Raises BadCheckpointError, naming the number that does not fit, when the model cannot be spread over `size` GPUs.

    Query heads and the feed-forward layer are split evenly; key-value heads are split, or each is copied to as many.
    """
    config, where = checkpoint.config, f"{checkpoint.folder}/config.json: engine.tensorParallelSize is {size}"
    for name in ("num_attention_heads", "intermediate_size"):
        if name in config and config[name] % size:
            raise BadCheckpointError(f"{where}, which does not divide {name}, {config[name]}")
    heads = config.get("num_key_value_heads") or size
    if heads % size and size % heads:
        raise BadCheckpointError(f"{where}, which neither divides nor is a multiple of num_key_value_heads, {heads}")


def check_stages(checkpoint: Checkpoint, stages: int) -> None:
    """Raises BadCheckpointError when the model has fewer layers than the engine has stages: each has one at least."""
    layers = checkpoint.config.get("num_hidden_layers", stages)
    if layers < stages:
        raise BadCheckpointError(
            f"{checkpoint.folder}/config.json: engine.pipelineParallelSize is {stages}, more than num_hidden_layers, {layers}:"
            f" set at most {layers}, and spread the rest by engine.tensorParallelSize"
        )


def _masked_dimensions(folder: Path, config: dict[str, Any]) -> tuple[int, ...]:
    size = config.get("hidden_size")
    if not isinstance(size, int) or size < 1:
        raise BadCheckpointError(f"{folder}/config.json: hidden_size is {size!r}")
    try:
        profile = read_profile(folder, size)
    except (OSError, WrongProfile) as error:
        raise BadCheckpointError(str(error)) from error
    return tuple(profile.masked_dimensions) if profile is not None else ()


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise BadCheckpointError(f"{path}: {error}") from error
    if not isinstance(value, dict):
        raise BadCheckpointError(f"{path}: not a JSON object")
    return value


def _read_layout(path: Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    """The header of a safetensors file: 8 bytes of little-endian length, then JSON."""
    try:
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            if size > MAX_HEADER_BYTES:
                raise BadCheckpointError(f"{path}: header of {size} bytes; at most {MAX_HEADER_BYTES} are allowed")
            header = json.loads(file.read(size))
    except (OSError, ValueError) as error:
        raise BadCheckpointError(f"{path}: {error}") from error
    header.pop("__metadata__", None)
    return {name: (entry["dtype"], tuple(entry["shape"])) for name, entry in header.items()}
