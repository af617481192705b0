"""Facts about a checkpoint folder (Hugging Face layout) that the worker needs before vLLM reads it.

In: a folder such as `weights/v000007`. Out: `Checkpoint`, or BadCheckpointError. Reads JSON files and the headers of
safetensors files, never the tensors. Called by `worker` and `engine`.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.environments.tokens import eos_token_ids

MAX_HEADER_BYTES = 100_000_000
"""Largest header that the safetensors format allows."""


class BadCheckpointError(ValueError):
    """The folder is not a checkpoint that can be served; the message names the file."""


@dataclass(frozen=True)
class Checkpoint:
    """`layout` maps tensor names to dtype and shape; `dtype` is torch's name of the dtype to serve in."""

    folder: Path
    config: dict[str, Any]
    dtype: str
    eos_token_ids: frozenset[int]
    max_positions: int
    layout: dict[str, tuple[str, tuple[int, ...]]]


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
    return Checkpoint(folder, config, dtype, eos, positions, layout)


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
                raise BadCheckpointError(f"{path}: header of {size} bytes, allowed are {MAX_HEADER_BYTES}")
            header = json.loads(file.read(size))
    except (OSError, ValueError) as error:
        raise BadCheckpointError(f"{path}: {error}") from error
    header.pop("__metadata__", None)
    return {name: (entry["dtype"], tuple(entry["shape"])) for name, entry in header.items()}
