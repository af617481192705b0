"""A program to be judged and what came of it, as they travel between a validator or worker and a runner pod (`POST /v1/programs`).

Bounded on both sides. Bytes are base64; the arguments of a call are JSON text, so that numbers arrive as they were sent. `rewards.sandbox.documents`
writes and reads these, `rewards.runner` answers them.
"""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from shoal.contracts.base import Contract

MAX_PROGRAM_BYTES = 48 << 20
"""Greatest body of a request: the inputs of some contest problems have tens of megabytes."""
MAX_OUTCOME_BYTES = 16 << 20
"""Greatest body of an answer: 4 MiB of output in base64, and room."""

ProgramBytes = Annotated[bytes, Field(max_length=MAX_PROGRAM_BYTES)]


class _WithBytes(Contract):
    model_config = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")


class ProgramLimits(Contract):
    """As `sandbox.Limits`; the runner's own bounds are these."""

    cpu_seconds: int = Field(ge=1, le=600)
    wall_seconds: float = Field(gt=0.0, le=600.0)
    memory_bytes: int = Field(ge=1 << 20, le=4 << 30)
    output_bytes: int = Field(ge=0, le=8 << 20)
    threads: int = Field(ge=1, le=1024)
    open_files: int = Field(ge=8, le=1024)


class ProgramCall(Contract):
    """A function of the program, `name` or `Class.method`, and its arguments as the text of a JSON list."""

    function: str = Field(max_length=1000)
    arguments_json: str = Field(max_length=MAX_PROGRAM_BYTES)


class ProgramRequest(_WithBytes):
    """One program with its input and limits."""

    source: ProgramBytes = Field(description="Python, UTF-8")
    stdin: ProgramBytes = b""
    call: ProgramCall | None = None
    limits: ProgramLimits


class ProgramOutcome(_WithBytes):
    """How it ended; as `sandbox.Outcome`."""

    ended: Literal["exited", "signal", "cpu", "wall", "output", "files"]
    exit_code: int | None = None
    stdout: bytes = Field(default=b"", max_length=MAX_OUTCOME_BYTES)
    stderr: str = Field(default="", max_length=1 << 20)
    cpu_seconds: float = Field(ge=0.0)
    wall_seconds: float = Field(ge=0.0)
