"""What every process says about itself: structured logs, health, metrics, busy time, and waits that say what they wait for."""

from shoal.telemetry.health import OPENMETRICS, Liveness, metrics_kind, render_metrics, serve_health
from shoal.telemetry.logs import every_line, get_logger, start
from shoal.telemetry.metrics import BUSY_SECONDS, busy, unmeasured
from shoal.telemetry.waiting import (
    STOP,
    Stopped,
    end_with_torchrun,
    install_signals,
    tell_torchrun,
    until_stopped,
    wait_for,
)

__all__ = [
    "BUSY_SECONDS",
    "OPENMETRICS",
    "STOP",
    "Liveness",
    "Stopped",
    "busy",
    "end_with_torchrun",
    "every_line",
    "get_logger",
    "install_signals",
    "metrics_kind",
    "render_metrics",
    "serve_health",
    "start",
    "tell_torchrun",
    "unmeasured",
    "until_stopped",
    "wait_for",
]
