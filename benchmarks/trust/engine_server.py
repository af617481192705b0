"""A real vLLM engine that does what it is told: one JSON command a line on standard input, one JSON answer a line on standard output.

Commands: `start` (folder, max_sequence_length, batch, settings), `swap` (folder), `generate` (requests). Started by `engine_client`:
vLLM changes the process that it runs in, and CPU seconds of generation are to be told from those of everything else.
"""

import base64
import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.contracts.pools import EngineSettings
from shoal.inference.checkpoint import read_checkpoint
from shoal.inference.completions import Request
from shoal.inference.process_settings import set_engine_variables

if TYPE_CHECKING:
    from shoal.inference.engine import Engine

preemptions = 0


def serve() -> None:
    """Answer until standard input ends."""
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)  # vLLM prints what it likes
        engine: Engine | None = None
        for line in sys.stdin:
            command = json.loads(line)
            answer: dict[str, Any] = {}
            if command["do"] == "start":
                engine = start(command)
            elif command["do"] == "swap":
                assert engine is not None, "start comes first"
                engine.swap(read_checkpoint(Path(command["folder"])))
            else:
                assert engine is not None, "start comes first"
                answer = generate(engine, command["requests"])
            answers.write(json.dumps(answer) + "\n")
            answers.flush()
        if engine is not None:
            engine.close()


def start(command: dict[str, Any]) -> "Engine":
    """The engine. vLLM is loaded only now, since what it reads from the environment depends on the settings."""
    settings = EngineSettings.model_validate(command["settings"])
    set_engine_variables(settings.compiled)
    from shoal.inference.engine import Engine

    count_preemptions()
    return Engine(
        read_checkpoint(Path(command["folder"])),
        max_sequence_length=command["max_sequence_length"],
        batch=command["batch"],
        settings=settings,
    )


def count_preemptions() -> None:
    """Have vLLM's scheduler count how often it throws a running sequence out; it says so nowhere that can be asked."""
    from vllm.v1.core.sched.scheduler import Scheduler

    preempt = Scheduler._preempt_request

    def counted(*args: Any, **named: Any) -> Any:
        global preemptions
        preemptions += 1
        return preempt(*args, **named)

    Scheduler._preempt_request = counted


def generate(engine: "Engine", requests: list[dict[str, Any]]) -> dict[str, Any]:
    """Completions, and what they took: seconds of CPU of this whole process, and of the clock; preemptions since the start."""
    cpu, wall = time.process_time(), time.monotonic()
    made = engine.generate([Request(**request) for request in requests], lambda: None)
    cpu, wall = time.process_time() - cpu, time.monotonic() - wall
    completions = [asdict(each) | {"proofs": base64.b64encode(each.proofs).decode()} for each in made]
    return {"completions": completions, "cpu_seconds": cpu, "wall_seconds": wall, "preemptions": preemptions}


if __name__ == "__main__":
    serve()
