"""Structured logs: one JSON line an event on standard output, with time, level, role and pod.

`shoal logs` merges these lines by time; on a cluster the container runtime collects them. Keys and tokens must never be passed as fields.
"""

import logging
import sys
from typing import TextIO

import structlog

from shoal.contracts.run import pod_name
from shoal.telemetry.disk import watch_disks


def start(role: str, stream: TextIO | None = None) -> structlog.stdlib.BoundLogger:
    """Configure logging of this process, once, at its entry point; returns the logger to use. Its volumes are measured from then on.

    `stream`: where the lines go in place of standard output, which a program for people needs for itself.
    """
    stream = stream if stream is not None else sys.stdout
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.dict_tracebacks,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(stream),
        cache_logger_on_first_use=True,
    )
    # Libraries log through the standard module: keep their warnings, in the same stream.
    logging.basicConfig(level=logging.WARNING, stream=stream, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    structlog.contextvars.bind_contextvars(role=role, pod=pod_name())
    watch_disks()
    return structlog.get_logger()


def get_logger() -> structlog.stdlib.BoundLogger:
    return structlog.get_logger()
