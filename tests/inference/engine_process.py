"""A real vLLM engine that does a list of commands: `engine_process.py FOLDER` reads commands.json there and writes
results.json.

Started by `tiny_policy.run_engine`. Commands: start (folder), generate (requests, stop_after decoding steps), swap
(folder).
"""

import base64
import json
import sys
from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import Any

from shoal.inference.checkpoint import read_checkpoint
from shoal.inference.completions import Completion, Request
from shoal.inference.engine import Engine, GenerationStoppedError


def completion_json(completion: Completion) -> dict[str, Any]:
    return asdict(completion) | {"proofs": base64.b64encode(completion.proofs).decode()}


def generate(engine: Engine, command: dict[str, Any]) -> Any:
    steps = count()
    limit = command.get("stop_after", float("inf"))
    requests = [Request(**request) for request in command["requests"]]
    try:
        return [completion_json(made) for made in engine.generate(requests, lambda: next(steps) >= limit)]
    except GenerationStoppedError as stopped:
        return str(stopped)


def main(folder: Path) -> None:
    results: list[Any] = []
    for command in json.loads((folder / "commands.json").read_text()):
        match command["do"]:
            case "start":
                engine = Engine(read_checkpoint(Path(command["folder"])), max_sequence_length=128, batch=16)
                results.append(None)
            case "generate":
                results.append(generate(engine, command))
            case "swap":
                try:
                    engine.swap(read_checkpoint(Path(command["folder"])))
                    results.append(None)
                except ValueError as refused:
                    results.append(str(refused))
    (folder / "results.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
