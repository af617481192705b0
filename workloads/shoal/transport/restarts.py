"""A restart that an admin asks for, in the containers of a pool's pod: each ends by itself, and Kubernetes starts it again.

Comes in: the number of restarts that the pod's agent tells (`AgentState.restarts`). What happens is what happens on SIGTERM: `STOP` is set, so that a
worker finishes its file or hands its lease back, and what does not end then is ended. Called by the entry points of `fetch` and `worker`. On a
stranger's machine the agent has no number to tell: there it starts its processes again itself.
"""

import os
import threading
from pathlib import Path

from shoal.contracts.protocol import LEAVE_SECONDS
from shoal.contracts.run import AgentState
from shoal.telemetry import STOP, get_logger
from shoal.transport.client import Refused, SignedClient, Unavailable

LOOK_SECONDS = 2.0
"""Between two questions: a heartbeat, which brings the number, comes every ten seconds."""
FORCE_SECONDS = LEAVE_SECONDS + 5.0
"""Seconds after which a process that has not ended counts as hanging."""
EXIT_HUNG = 70
"""Exit code of a process that had to be ended; one that ends by itself exits with 0."""


def end_when_restarted(socket: Path) -> None:
    """Watch from a thread for the agent's number to grow beyond the first one that it told this process."""
    client = SignedClient("http://agent", unix_socket=socket)
    threading.Thread(target=_watch, args=(client,), name="restarts", daemon=True).start()


def _watch(client: SignedClient) -> None:
    first: int | None = None
    while True:
        now = _told(client)
        if first is None:
            first = now
        elif now is not None and now > first:
            break
        if STOP.wait(LOOK_SECONDS):
            return
    get_logger().info("an admin asked for a restart: this process ends")
    STOP.set()
    threading.Event().wait(FORCE_SECONDS)  # the process has ended long before
    get_logger().error("this process did not end by itself", waited_seconds=FORCE_SECONDS)
    os._exit(EXIT_HUNG)


def _told(client: SignedClient) -> int | None:
    """The number, or None while none is available."""
    try:
        state = client.call("GET", "/v1/state", reply=AgentState, deadline_seconds=0.0, timeout_seconds=5.0)
    except (Refused, Unavailable):
        return None
    return state.restarts if state is not None else None
