"""`python -m benchmarks.model_types.serve FOLDER`: a worker's engine samples from a written model; prints what it made of each request.

In: a checkpoint, and `REQUESTS`. Out: one line of JSON. Called by `benchmarks.model_types`, which judges it in its own process: vLLM replaces classes
of transformers where it takes a model from there, and neither trainer nor validator could load it afterwards.
"""

import base64
import json
import sys
from pathlib import Path

from shoal.inference.completions import Request

REQUESTS = [Request(tuple(range(20, 23 + 2 * number)), 7 + number, 0.9, 40) for number in range(6)]
"""Completions have two proofs each: one of 32 tokens, one of the rest."""


def main() -> None:
    from shoal.inference.checkpoint import read_checkpoint
    from shoal.inference.engine import Engine

    engine = Engine(read_checkpoint(Path(sys.argv[1])), max_sequence_length=128, batch=len(REQUESTS))
    made = engine.generate(REQUESTS, lambda: None)
    engine.close()
    found = [
        {"tokens": each.tokens, "logprobs": each.logprobs, "proofs": base64.b64encode(each.proofs).decode()}
        for each in made
    ]
    print(json.dumps(found))


if __name__ == "__main__":
    main()
