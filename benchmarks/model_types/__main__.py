"""`python -m benchmarks.model_types`: tries a tiny model of every type, and writes benchmarks/results/model_types.json for the page of model types.

In: `tests/training/model_types.py`. With `--serve` a worker's engine samples from what the trainer wrote. Its log-probabilities are compared with
the trainer's, and a validator's forward pass draws its tokens again and checks its proofs. Without, what was found of that before is kept. One engine
after the other: half a minute for each on a quiet core.
"""

import argparse
import base64
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.model_types.judge import judged
from benchmarks.model_types.serve import REQUESTS
from shoal.inference.completions import Completion
from shoal.validation.models import load_model

ROOT = Path(__file__).resolve().parents[2]
TARGET = ROOT / "benchmarks" / "results" / "model_types.json"
SERVED = ("served", "redraw", "proofs")
"""What only an engine's completions say."""
WIDE = {"hidden_size": 128, "vocab_size": 258}
"""Of a model that is served: a proof has 128 dimensions, and the tokenizer 258 tokens."""
EOS = 1
MOST_SERVED_GAP = 1e-3
"""Nats: float32 of two programs that sum in other orders."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--serve", action="store_true", help="let vLLM serve each type, which takes minutes")
    parser.add_argument("--only", nargs="*", help="names of types; all others stay as they were")
    parser.add_argument("--out", type=Path, default=TARGET, help="file to write")
    asked = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.path.insert(0, str(ROOT / "tests"))
    for room in ("training", "inference"):  # the tests' helper modules are imported by their bare names
        sys.path.insert(0, str(ROOT / "tests" / room))
    from model_types import REFUSED, TYPES, published, tried
    from tiny_policy import save_tokenizer

    before: dict[str, Any] = json.loads(asked.out.read_text())["types"] if asked.out.exists() else {}
    types: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as temporary:
        for name, kind in (TYPES | REFUSED).items():
            if asked.only and name not in asked.only and name in before:
                types[name] = before[name]
                continue
            folder = Path(temporary) / name
            types[name] = tried(kind, folder)
            if "reason" not in types[name]:
                found = {key: before.get(name, {}).get(key, "not tried") for key in SERVED}
                if asked.serve:
                    out = published(replace(kind, fields=kind.fields | WIDE), folder / "wide")
                    save_tokenizer(out)
                    found = served(out)
                types[name] |= found
            print(name, json.dumps(types[name]), flush=True)
    asked.out.write_text(json.dumps({**counts(types), "types": types}, indent=2) + "\n")


def counts(types: dict[str, Any]) -> dict[str, int]:
    """Types whose tiny model trains as the float64 reference says and is written as it was read, and those of which the rest holds."""
    trained = sum(each.get("gap_float64", 1.0) <= 1e-6 and each["same_bytes"] for each in types.values())
    rest = {
        f"model_types_{name}": key for name, key in (("served", "served"), ("redrawn", "redraw"), ("proved", "proofs"))
    }
    return {"model_types_trained": trained} | {
        name: sum(each.get(key) == "yes" for each in types.values()) for name, key in rest.items()
    }


def served(folder: Path) -> dict[str, str]:
    """What a worker's engine makes of the written model, by name of `SERVED`: `yes`, or what is wrong."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    command = [sys.executable, "-m", "benchmarks.model_types.serve", str(folder)]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    except subprocess.TimeoutExpired:
        return dict.fromkeys(SERVED, "not known: the engine took more than ten minutes")
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "Error" in line]
        said = (lines or done.stderr.splitlines())[-1].strip()
        return {"served": f"no: {said.partition('. ')[0][:200]}"} | dict.fromkeys(SERVED[1:], "nothing is served")
    made = [
        Completion(row["tokens"], row["logprobs"], "length", base64.b64decode(row["proofs"]))
        for row in json.loads(done.stdout.splitlines()[-1])
    ]
    gap = served_gap(folder, made)
    found = judged(load_model(folder), frozenset({EOS}), REQUESTS, made)
    return {
        "served": "yes" if gap <= MOST_SERVED_GAP else f"no: its log-probabilities differ by {gap:.1e}",
        "redraw": found.redraw,
        "proofs": found.proved,
    }


def served_gap(folder: Path, made: Sequence[Completion]) -> float:
    """Nats between the log-probabilities of the engine and the trainer's: the greatest of all tokens that the engine drew."""
    import numpy as np

    from shoal.training.batches import micro_batch
    from shoal.training.model import load_policy
    from shoal.training.rollouts import Sample

    samples = [
        Sample(
            str(number), np.array([*request.prompt_tokens, *each.tokens]), len(request.prompt_tokens),
            np.ones(len(each.tokens), dtype=np.bool_), np.array(each.logprobs, dtype=np.float32), request.temperature, 0, 1.0, 0.0, 1.0,
        )
        for number, (request, each) in enumerate(zip(REQUESTS, made, strict=True))
    ]  # fmt: skip
    found = load_policy(folder)(micro_batch([(sample, 1.0) for sample in samples]))[1]
    return float(np.abs(found.numpy() - np.concatenate([sample.logprobs for sample in samples])).max())


if __name__ == "__main__":
    main()
