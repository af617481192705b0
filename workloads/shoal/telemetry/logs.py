"""Structured logs: one JSON line an event on standard output, with time, level, role, pod and run; on a node's own machine also the node.

`shoal logs` merges these lines by time; on a cluster the container runtime collects them. Records of libraries, text that they print on standard
error, and exceptions that nobody caught become such lines too (`text_lines`). Keys and tokens must never be passed as fields; a traceback is told
without the values of variables, which may hold them.
"""

import logging
import os
import sys
import traceback
from typing import Any, TextIO

import structlog
from structlog.typing import EventDict, Processor

from shoal.contracts.run import pod_name
from shoal.telemetry.disk import watch_disks
from shoal.telemetry.text_lines import tell_uncaught, text_becomes_events

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
        event["exception"] = "".join(traceback.format_exception(*given)).rstrip()[-MAX_TRACEBACK:]
        # Last, so that it is in what a pod's status keeps of a long line, which is its end.
        event["error"] = event.pop("error", f"{kind.__name__}: {error}"[:MAX_ERROR])
    return event


STEPS: list[Processor] = [
    structlog.contextvars.merge_contextvars,
    with_process,
    structlog.processors.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    with_traceback,
]
"""From what is said to the fields of its line."""


def library_formatter() -> logging.Formatter:
    """Makes the same lines of the records of the standard module, with the library's name as `logger`."""
    if not _of_process:  # in a process that a library started, which has no `start`
        every_line(role=os.environ.get("SHOAL_ROLE", "unnamed"), pod=pod_name())
    before: list[Processor] = [structlog.stdlib.add_logger_name, *STEPS]
    last: list[Any] = [structlog.stdlib.ProcessorFormatter.remove_processors_meta, structlog.processors.JSONRenderer()]
    return structlog.stdlib.ProcessorFormatter(foreign_pre_chain=before, processors=last)


def start(role: str, stream: TextIO | None = None) -> structlog.stdlib.BoundLogger:
    """Configure logging of this process, once, at its entry point; returns the logger to use. Its volumes are measured from then on.

    `stream`: where the lines go in place of standard output, which a program for people needs for itself, as it needs standard error.
    """
    own = stream is None
    stream = stream if stream is not None else sys.stdout
    structlog.configure(
        processors=[*STEPS, structlog.processors.JSONRenderer()],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.WriteLoggerFactory(stream),
        cache_logger_on_first_use=True,
    )
    # Libraries log through the standard module: keep their warnings, in the same stream.
    handler = logging.StreamHandler(stream)
    handler.setFormatter(library_formatter())
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.captureWarnings(True)
    stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    every_line(role=role, pod=pod_name())
    if own:
        os.environ.setdefault("TQDM_DISABLE", "1")  # bars are for people
        text_becomes_events()
        tell_uncaught()
    watch_disks()
    return structlog.get_logger()


def get_logger() -> structlog.stdlib.BoundLogger:
    return structlog.get_logger()
