"""Structured logs: one JSON line an event on standard output, with time, level, role, pod and run; on a node's own machine also the node.

`shoal logs` merges these lines by time; on a cluster the container runtime collects them. Records of libraries, text that they print on standard
error, and exceptions that nobody caught become such lines too; what libraries write
to the file descriptor itself (C++, programs such as nginx) stays as it is. Keys and tokens must never be passed as fields; a traceback is told
without the values of variables, which may hold them; and secrets of the environment are hidden wherever a library or an error names them.
"""

import atexit
import contextlib
import io
import json
import logging
import os
import re
import sys
import threading
import traceback
from collections.abc import Mapping
from types import TracebackType
from typing import Any, TextIO, cast

import structlog
from structlog.typing import EventDict, Processor

from shoal.contracts.run import pod_name
from shoal.telemetry.disk import watch_disks
from shoal.text import secret_values, without_cut_secrets, without_secrets

MAX_TEXT = 4_000
"""Characters of one event; a longer line is told in pieces."""


def secrets_here() -> list[str]:
    """Secrets of this process's environment, as they are and as JSON or `repr` writes them."""
    values = secret_values(os.environ)
    return [*values, *(said for value in values if (said := json.dumps(value)[1:-1]) != value)]


class LossyLines:
    """A stream whose lines are lost where they cannot be written: a full disk must end no thread that has something to tell."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        with contextlib.suppress(OSError):
            self._stream.write(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.flush()


class TextLines(io.TextIOBase):
    """Stands for `sys.stderr`: each line that is written is an event at level warning, with `logger` stderr."""

    def __init__(self, raw: TextIO) -> None:
        self._raw = raw
        self._rest = ""
        self._lock = threading.Lock()
        self._secrets = secrets_here()

    def write(self, text: str) -> int:
        with self._lock:
            *lines, self._rest = re.split(r"[\r\n]+", self._rest + text)
            if len(self._rest) > MAX_TEXT:
                self._rest = without_secrets(self._rest, self._secrets)
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
        line = without_secrets(line, self._secrets)  # before a cut that could fall into one
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
        structlog.get_logger().error("an error ends the process", exc_info=(kind, error, trace))

    def of_thread(args: threading.ExceptHookArgs) -> None:
        if args.exc_type is SystemExit:
            return
        name = args.thread.name if args.thread is not None else "unnamed"
        error = (args.exc_type, args.exc_value, args.exc_traceback)
        structlog.get_logger().error("an error ends a thread", thread=name, exc_info=error)

    def lost(args: "sys.UnraisableHookArgs") -> None:
        error = (args.exc_type, args.exc_value, args.exc_traceback)
        structlog.get_logger().error("an error was ignored", where=args.err_msg or "in a destructor", exc_info=error)

    sys.excepthook = of_process
    threading.excepthook = of_thread
    sys.unraisablehook = lost


MAX_TRACEBACK = 16_000
"""Characters of a traceback that are kept, its end: what went wrong. The kubelet cuts lines of 16 KiB in pieces, each of which says so."""
MAX_ERROR = 500

_of_process: dict[str, object] = {}


def every_line(**fields: object) -> None:
    """Put these fields into each line of this process from now on, of whatever thread. A field that a line has itself stays."""
    _of_process.update(fields)


def with_process(_logger: object, _method: str, event: EventDict) -> EventDict:
    for name, value in _of_process.items():
        event.setdefault(name, value)
    return event


def with_traceback(_logger: object, _method: str, event: EventDict) -> EventDict:
    """`exc_info` as two fields at the end of the line: `exception`, the traceback, and `error`, what it came to."""
    given = event.pop("exc_info", None)
    if isinstance(given, BaseException):
        given = (type(given), given, given.__traceback__)
    elif given and not isinstance(given, tuple):
        given = sys.exc_info()
    if given and given[0] is not None:
        kind, error, _ = given
        secrets = secrets_here()
        text = without_secrets("".join(traceback.format_exception(*given)).rstrip(), secrets)
        event["exception"] = text[-MAX_TRACEBACK:]
        # Last, so that it is in what a pod's status keeps of a long line, which is its end.
        event["error"] = event.pop("error", without_secrets(f"{kind.__name__}: {error}", secrets)[:MAX_ERROR])
    return event


STEPS: list[Processor] = [
    structlog.contextvars.merge_contextvars,
    with_process,
    structlog.processors.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    with_traceback,
]
"""From what is said to the fields of its line."""


class JsonLine:
    """Renders an event as its JSON line, without the secrets that the environment of the process holds: also where a caller cut one in two."""

    def __init__(self) -> None:
        self._json = structlog.processors.JSONRenderer()
        self._secrets = secrets_here()

    def __call__(self, logger: Any, method: str, event: EventDict) -> str:
        return str(self._json(logger, method, {self._shown(name): self._shown(each) for name, each in event.items()}))

    def _shown(self, value: Any) -> Any:
        if value is None or isinstance(value, int | float):
            return value
        if isinstance(value, Mapping):
            return {self._shown(name): self._shown(each) for name, each in value.items()}
        if isinstance(value, list | tuple):
            return [self._shown(each) for each in value]
        return without_cut_secrets(value if isinstance(value, str) else repr(value), self._secrets)


def library_formatter() -> logging.Formatter:
    """Makes the same lines of the records of the standard module, with the library's name as `logger`."""
    if not _of_process:  # in a process that a library started, which has no `start`
        every_line(role=os.environ.get("SHOAL_ROLE", "unnamed"), pod=pod_name())
    before: list[Processor] = [structlog.stdlib.add_logger_name, *STEPS]
    last: list[Any] = [structlog.stdlib.ProcessorFormatter.remove_processors_meta, JsonLine()]
    return structlog.stdlib.ProcessorFormatter(foreign_pre_chain=before, processors=last)


def start(role: str, stream: TextIO | None = None) -> structlog.stdlib.BoundLogger:
    """Configure logging of this process, once, at its entry point; returns the logger to use. Its volumes are measured from then on.

    `stream`: where the lines go instead of standard output, which a program for people needs for itself, as it needs standard error.
    """
    own = stream is None
    stream = stream if stream is not None else sys.stdout
    structlog.configure(
        processors=[*STEPS, JsonLine()],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.WriteLoggerFactory(cast(TextIO, LossyLines(stream))),
        cache_logger_on_first_use=True,
    )
    # Libraries log through the standard module: keep their warnings, in the same stream.
    handler = logging.StreamHandler(stream)
    handler.setFormatter(library_formatter())
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.captureWarnings(True)
    stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # a standard stream has it
    every_line(role=role, pod=pod_name())
    if own:
        os.environ.setdefault("TQDM_DISABLE", "1")  # bars are for people
        text_becomes_events()
        tell_uncaught()
    watch_disks()
    return get_logger()


def get_logger() -> structlog.stdlib.BoundLogger:
    logger: structlog.stdlib.BoundLogger = structlog.get_logger()
    return logger
