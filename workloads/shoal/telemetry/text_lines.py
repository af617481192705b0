"""What a process says past its logger becomes events: text on Python's standard error, and exceptions that nobody caught.

Called by `logs.start` in processes of ours; a program for people keeps its standard error. What libraries write to the file descriptor itself (C++,
other programs such as nginx) stays as it is.
"""

import atexit
import contextlib
import io
import re
import sys
import threading
from types import TracebackType
from typing import TextIO

import structlog

MAX_TEXT = 4_000
"""Characters of one event; a longer line is told in pieces."""


class TextLines(io.TextIOBase):
    """Stands for `sys.stderr`: each line that is written is an event at level warning, with `logger` stderr."""

    def __init__(self, raw: TextIO) -> None:
        self._raw = raw
        self._rest = ""
        self._lock = threading.Lock()

    def write(self, text: str) -> int:
        with self._lock:
            *lines, self._rest = re.split(r"[\r\n]+", self._rest + text)
            while len(self._rest) > MAX_TEXT:
                lines.append(self._rest[:MAX_TEXT])
                self._rest = self._rest[MAX_TEXT:]
        for line in lines:
            self._tell(line)
        return len(text)

    def finish(self) -> None:
        """Tell what has no end of line yet; called when the process ends."""
        with self._lock:
            rest, self._rest = self._rest, ""
        self._tell(rest)

    def _tell(self, line: str) -> None:
        for begin in range(0, len(line), MAX_TEXT):
            # The reader of our output may be gone; whoever wrote to standard error must not fail for that.
            with contextlib.suppress(OSError, ValueError):
                if piece := line[begin : begin + MAX_TEXT].strip():
                    structlog.get_logger().warning(piece, logger="stderr")

    def writable(self) -> bool:
        return True

    def flush(self) -> None:
        """Nothing is held back but a line without its end."""

    def fileno(self) -> int:
        return self._raw.fileno()

    @property
    def encoding(self) -> str:  # type: ignore[override] # an attribute there; nothing is to set it here
        return "utf-8"

    @property
    def buffer(self) -> object:
        return self._raw.buffer


def text_becomes_events() -> None:
    """Put `TextLines` in the place of `sys.stderr`, once."""
    if not isinstance(sys.stderr, TextLines):
        lines = TextLines(sys.stderr)
        sys.stderr = lines  # it writes and flushes, which is all that is asked of it
        atexit.register(lines.finish)


def tell_uncaught() -> None:
    """An exception that ends the process, a thread, or is lost in a destructor is one event with its traceback as a field."""

    def of_process(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        structlog.get_logger().error("the process ends by an error", exc_info=(kind, error, trace))

    def of_thread(args: threading.ExceptHookArgs) -> None:
        if args.exc_type is SystemExit:
            return
        name = args.thread.name if args.thread is not None else "unnamed"
        error = (args.exc_type, args.exc_value, args.exc_traceback)
        structlog.get_logger().error("a thread ends by an error", thread=name, exc_info=error)

    def lost(args: "sys.UnraisableHookArgs") -> None:
        error = (args.exc_type, args.exc_value, args.exc_traceback)
        structlog.get_logger().error("an error is lost", where=args.err_msg or "in a destructor", exc_info=error)

    sys.excepthook = of_process
    threading.excepthook = of_thread
    sys.unraisablehook = lost
