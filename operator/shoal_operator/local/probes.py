"""Startup, readiness and liveness probes, as a kubelet runs them: `httpGet` and `tcpSocket`, with period, timeout and thresholds.

`ProbeState` is pure: it is told the outcome of each check and says when the next one is due. The checks themselves run on a small pool of threads,
so that a hanging part never holds up the supervision of the others.
"""

import http.client
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shoal_operator.local.expand import UnsupportedField


@dataclass(frozen=True)
class Probe:
    """One probe of a container. `path` is None for a TCP probe. Seconds; thresholds count consecutive outcomes."""

    port: int
    path: str | None
    initial_delay_seconds: float
    period_seconds: float
    timeout_seconds: float
    failure_threshold: int
    success_threshold: int


def parse_probe(spec: Mapping[str, Any] | None, where: str) -> Probe | None:
    """A container's probe, with Kubernetes' defaults; raises `UnsupportedField` for exec and gRPC probes and named ports."""
    if spec is None:
        return None
    action = spec.get("httpGet") or spec.get("tcpSocket")
    if action is None:
        raise UnsupportedField(f"{where}: probe has neither httpGet nor tcpSocket; others are not available here")
    if not isinstance(action["port"], int):
        raise UnsupportedField(f"{where}: probe names port {action['port']!r}; give its number")
    return Probe(
        port=action["port"],
        path=spec["httpGet"].get("path", "/") if "httpGet" in spec else None,
        initial_delay_seconds=float(spec.get("initialDelaySeconds", 0)),
        period_seconds=float(spec.get("periodSeconds", 10)),
        timeout_seconds=float(spec.get("timeoutSeconds", 1)),
        failure_threshold=int(spec.get("failureThreshold", 3)),
        success_threshold=int(spec.get("successThreshold", 1)),
    )


def check(probe: Probe, address: str) -> str | None:
    """Run a probe once: None when it succeeds, else why not, in a few words."""
    try:
        if probe.path is None:
            socket.create_connection((address, probe.port), timeout=probe.timeout_seconds).close()
            return None
        connection = http.client.HTTPConnection(address, probe.port, timeout=probe.timeout_seconds)
        try:
            connection.request("GET", probe.path, headers={"User-Agent": "shoal-probe"})
            answer = connection.getresponse()
            if 200 <= answer.status < 400:
                return None
            return f"{answer.status} {answer.read(200).decode(errors='replace')}"
        finally:
            connection.close()
    except (OSError, http.client.HTTPException) as error:
        return f"{type(error).__name__}: {error}"


class ProbeState:
    """Consecutive outcomes of one probe since a container's start."""

    def __init__(self, probe: Probe, started: float) -> None:
        self.probe = probe
        self.next_due = started + probe.initial_delay_seconds
        self.successes = 0
        self.failures = 0
        self.message = "not checked yet"

    def record(self, problem: str | None, now: float) -> None:
        """Note an outcome (None is success) at time `now` (seconds, monotonic)."""
        self.next_due = now + self.probe.period_seconds
        if problem is None:
            self.successes += 1
            self.failures = 0
            self.message = ""
        else:
            self.failures += 1
            self.successes = 0
            self.message = problem

    @property
    def passing(self) -> bool:
        return self.successes >= self.probe.success_threshold

    @property
    def failing(self) -> bool:
        return self.failures >= self.probe.failure_threshold
