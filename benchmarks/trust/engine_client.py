"""A handle on `engine_server`: a real vLLM engine in a process of its own.

In: checkpoint folders and requests. Out: completions as the worker's engine gives them. One engine at a time: it takes a gigabyte.
"""

import base64
import json
import os
import selectors
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from shoal.contracts.pools import EngineSettings
from shoal.inference.completions import Completion, Request

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 240.0
"""vLLM's import alone takes a minute on a busy core."""
ANSWER_SECONDS = 1200.0
STOP_SECONDS = 3.0
"""It has nothing to save."""


class EngineFailed(RuntimeError):
    """The process ended or did not answer; the message holds the end of its log."""


@dataclass(frozen=True)
class Generated:
    """Completions in the order of the requests, and what they took (seconds). `preemptions` are counted since the engine's start."""

    completions: list[Completion]
    cpu_seconds: float
    wall_seconds: float
    preemptions: int


class EngineProcess:
    """Starts at once; the first command waits for it. Use as a context manager, or `close` it."""

    def __init__(
        self,
        folder: Path,
        *,
        max_sequence_length: int,
        batch: int,
        settings: EngineSettings | None = None,
    ) -> None:
        """Serve the checkpoint in `folder` for sequences of up to `max_sequence_length` tokens, `batch` of which are wanted together."""
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  it lives as long as the process
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.trust.engine_server"],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": f"{ROOT}/workloads:{ROOT}/operator", "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
        )
        self._folder: Path | None = folder
        self._pending = b""
        self._ready = False
        chosen = (settings or EngineSettings()).model_dump(mode="json", by_alias=True)
        self._send(
            {
                "do": "start", "folder": str(folder), "batch": batch, "settings": chosen,
                "max_sequence_length": max_sequence_length,
            }
        )  # fmt: skip

    def __enter__(self) -> "EngineProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def generate(self, folder: Path, requests: Sequence[Request]) -> Generated:
        """Complete `requests` with the weights in `folder`; raises `EngineFailed`."""
        self.wait_until_ready()
        if folder != self._folder:
            self._send({"do": "swap", "folder": str(folder)})
            self._receive("a swap", START_SECONDS)
            self._folder = folder
        plain = [asdict(request) | {"prompt_tokens": list(request.prompt_tokens)} for request in requests]
        self._send({"do": "generate", "requests": plain})
        answer = self._receive(f"{len(requests)} completions", ANSWER_SECONDS)
        completions = [
            Completion(**(item | {"proofs": base64.b64decode(item["proofs"])})) for item in answer["completions"]
        ]
        return Generated(completions, answer["cpu_seconds"], answer["wall_seconds"], answer["preemptions"])

    def wait_until_ready(self) -> None:
        """Wait for the start; raises `EngineFailed`."""
        if not self._ready:
            self._receive("the engine's start", START_SECONDS)
            self._ready = True

    def close(self) -> None:
        """End the process, in order if it goes."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.close()
            self._process.wait(STOP_SECONDS)
        except (subprocess.TimeoutExpired, BrokenPipeError):
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._log.close()

    def _send(self, command: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(command).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise EngineFailed(f"the engine ended before {command['do']}:\n{self._tail()}") from error

    def _receive(self, what: str, seconds: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._pending:
                if not selector.select(seconds):
                    raise EngineFailed(f"waited {seconds:.0f} s for {what}:\n{self._tail()}")
                data = os.read(self._process.stdout.fileno(), 1 << 20)
                if not data:
                    raise EngineFailed(f"the engine ended before {what}:\n{self._tail()}")
                self._pending += data
        line, _, self._pending = self._pending.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _tail(self) -> str:
        self._log.seek(0)
        return self._log.read().decode(errors="replace")[-4000:]
