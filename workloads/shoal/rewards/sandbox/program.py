"""A program to be judged, what it may use, and what came of it: the interface between an environment and a sandbox.

Plain values, so that they can also travel to a runner pod. Called by `environments.code`; `pool` runs them.
"""

from dataclasses import dataclass, field
from typing import Any, Literal

MEBIBYTE = 1 << 20

FILE_BYTES = 16 * MEBIBYTE
"""All files of a program together; its folder is its own and starts empty. Fixed, because a folder waits for its program."""


@dataclass(frozen=True)
class Limits:
    """Limits of one program. A program is one process: it cannot start another."""

    cpu_seconds: int = 8
    """Whole seconds, as the kernel counts; the kernel ends the process."""
    wall_seconds: float = 20.0
    """For programs that sleep or wait. Far above the CPU limit, so that a busy machine does not decide about a score."""
    memory_bytes: int = 512 * MEBIBYTE
    """Address space. Python itself takes about 20 MiB of it."""
    output_bytes: int = 4 * MEBIBYTE
    """Of standard output, and as much again of standard error."""
    threads: int = 64
    open_files: int = 64


@dataclass(frozen=True)
class Call:
    """A function of the program, `name` or `Class.method` (the class is made without arguments), and JSON arguments."""

    function: str
    arguments: list[Any]


@dataclass(frozen=True)
class Program:
    """Python source with its input. With `call` its standard output is the JSON of the returned value, without it what it prints."""

    source: str
    stdin: bytes = b""
    call: Call | None = None
    limits: Limits = field(default_factory=Limits)


Ended = Literal["exited", "signal", "cpu", "wall", "output", "files"]


@dataclass(frozen=True)
class Outcome:
    """How a program ended. `exited` with code 0 is the only end that may be right; all others are the program's own doing."""

    ended: Ended
    exit_code: int | None
    stdout: bytes
    stderr: str
    """The last few lines."""
    cpu_seconds: float
    wall_seconds: float

    @property
    def succeeded(self) -> bool:
        return self.ended == "exited" and self.exit_code == 0

    def reason(self) -> str:
        """In a few words, for a score's detail."""
        if self.ended == "exited":
            last = self.stderr.strip().splitlines()[-1:] or [""]
            return f"ended with exit code {self.exit_code}" + (f": {last[0][:200]}" if last[0] else "")
        return {
            "signal": f"was killed by signal {self.exit_code}",
            "cpu": f"used up its CPU time ({self.cpu_seconds:.1f} s)",
            "wall": f"did not end within {self.wall_seconds:.1f} s",
            "output": "wrote more output than is allowed",
            "files": "wrote more to files than is allowed",
        }[self.ended]


class SandboxFailed(RuntimeError):
    """The sandbox, not the program, failed: nothing is known about the program, and nobody's score is zero for it."""


class NoIsolation(RuntimeError):
    """This machine has no isolation that we know of, and the admin has not said that programs may run without."""
