"""Ctrl-C and SIGTERM: the first asks to stop in order, the second kills at once.

Handlers run in the main thread between two steps of whatever it does; they set a flag or call `kill`, and do nothing else.
"""

import os
import signal
import sys
from collections.abc import Callable
from types import FrameType

from shoal.errors import EXIT_INTERRUPTED


class Interrupts:
    """Installs the handlers; `asked` turns true with the first signal."""

    def __init__(self, kill: Callable[[], None]) -> None:
        self.asked = False
        self._kill = kill
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if not self.asked:
            self.asked = True
            return
        sys.stderr.write("\nkilled every process at once. The same command resumes from the last version.\n")
        sys.stderr.flush()
        try:
            self._kill()
        finally:
            os._exit(EXIT_INTERRUPTED)
