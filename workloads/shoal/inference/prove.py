"""`python -m shoal.inference.prove FOLDER REQUEST OUTPUT`: honest proofs of the workers' own engine, for calibration.

In: a checkpoint's folder and `REQUEST`, JSON with `prompts` (token ids), `max_tokens`, `max_length`, `dtype`, `masked` (dimensions that proofs leave
out), `seed`, `seconds` and `quantization` (or null). Out: `OUTPUT`, JSON: for each prompt that was begun in time its tokens, its proofs in hex and
the seed that drew them. A process of its own, because vLLM changes the one that it runs in. Started by `shoal calibrate --engine`.
"""

import json
import sys
import time
from dataclasses import replace
from pathlib import Path

from shoal.inference.checkpoint import BadCheckpointError, read_checkpoint
from shoal.inference.completions import Completion, Request
from shoal.inference.process_settings import set_engine_variables

BATCH = 64
PORTION = 256
"""Prompts handed to the engine together; the clock is looked at between portions."""


def main(folder: Path, request: Path, output: Path) -> None:
    """Serve the prompts; leaves with one line for a folder that cannot be served."""
    set_engine_variables()
    wanted = json.loads(request.read_bytes())
    try:
        checkpoint = read_checkpoint(folder)
    except BadCheckpointError as error:
        sys.exit(str(error))
    checkpoint = replace(checkpoint, dtype=wanted["dtype"], masked_dimensions=tuple(wanted["masked"]))
    from shoal.inference.engine import Engine  # imports vLLM, which reads the environment and takes seconds

    engine = Engine(
        checkpoint, max_sequence_length=wanted["max_length"], batch=BATCH, quantization=wanted["quantization"]
    )
    requests = [
        Request(prompt, wanted["seed"] + number, 1.0, wanted["max_tokens"])
        for number, prompt in enumerate(wanted["prompts"])
    ]
    made: list[Completion] = []
    end = time.monotonic() + wanted["seconds"]
    for start in range(0, len(requests), PORTION):
        if made and time.monotonic() >= end:
            break
        made += engine.generate(requests[start : start + PORTION], lambda: None)
    part = output.with_suffix(".part")
    part.write_text(
        json.dumps([[each.tokens, each.proofs.hex(), asked.seed] for asked, each in zip(requests, made, strict=False)])
    )
    part.replace(output)


if __name__ == "__main__":
    main(*(Path(argument) for argument in sys.argv[1:4]))
