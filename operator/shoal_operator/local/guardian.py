"""The guardian outlives a killed `shoal up` for a moment and stops the processes that it left.

It holds the reading end of a pipe whose writing end only `shoal up` has. When `shoal up` ends in whatever way, the pipe closes, and the guardian
stops every process that is still recorded. Started as `python -m shoal_operator.local.guardian FOLDER GRACE_SECONDS` with the pipe on standard input.
"""

import contextlib
import signal
import subprocess
import sys
from pathlib import Path

from shoal_operator.local.processes import ProcessTable


class Guardian:
    """Starts the guardian process; `release` tells it that all was stopped in order."""

    def __init__(self, folder: Path, grace_seconds: float) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "shoal_operator.local.guardian", str(folder), str(grace_seconds)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def release(self) -> None:
        """End the guardian; what is still recorded is stopped."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()


def main() -> None:
    folder, grace_seconds = Path(sys.argv[1]), float(sys.argv[2])
    # It must survive the Ctrl-C and the hang-up that may end its parent.
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.buffer.read()
    ProcessTable(folder).stop_all(grace_seconds)


if __name__ == "__main__":
    main()
