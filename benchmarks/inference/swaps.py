"""How long an engine of several tensor-parallel ranks takes to put another version in place, and to read a file of as many bytes.

    python -m benchmarks.inference.swaps RANKS FOLDER RESULT.json

The wide model (`engine.SHAPES`) on one, two or four ranks, each a process that reads its part of the version's file; the file is in the page cache,
as it is when it was just downloaded. Each swap is followed by a completion, which must be the version's own. Started by `__main__`.
"""

import json
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path

from benchmarks.inference.engine import SHAPES, make_checkpoint
from shoal.contracts.pools import EngineSettings
from shoal.inference.checkpoint import read_checkpoint
from shoal.inference.completions import Request
from shoal.inference.engine import Engine

SWAPS = 8


def main(ranks: int, folder: Path, result: Path) -> None:
    shape = SHAPES["wide"]
    versions = [folder / f"v{number}" for number in range(2)]
    for seed, version in enumerate(versions):
        make_checkpoint(version, shape, seed)
    endless = replace(read_checkpoint(versions[0]), eos_token_ids=frozenset())
    settings = EngineSettings(tensor_parallel_size=ranks)
    engine = Engine(endless, max_sequence_length=64, batch=4, settings=settings)
    seconds, tokens = [], []
    for version in (versions[1], versions[0]) * (SWAPS // 2):
        began = time.perf_counter()
        engine.swap(read_checkpoint(version))
        seconds.append(time.perf_counter() - began)
        (made,) = engine.generate([Request((2, 3, 4), 7, 1.0, 8)], lambda: None)
        tokens.append(tuple(made.tokens))
    engine.close()
    if len(set(tokens)) != 2 or tokens[0] != tokens[2]:
        sys.exit(f"the two versions should each draw tokens of their own, the same each time: {tokens}")
    file = versions[0] / "model.safetensors"
    began = time.perf_counter()
    size = len(file.read_bytes())
    reading = time.perf_counter() - began
    result.write_text(
        json.dumps({"seconds": round(statistics.median(seconds), 4), "bytes": size, "read_seconds": round(reading, 4)})
    )


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]))
