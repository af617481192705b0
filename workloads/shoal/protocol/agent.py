"""The node agent's process: one per pool pod. Holds the node's key, keeps the node a member of the run, and serves the pod's Unix socket.

Asked to end, it goes on serving while the worker, which is asked at the same time, finishes or gives back what it holds; what is left then the agent
gives back itself.
"""

import threading
from types import FrameType

import uvicorn

from shoal.contracts.protocol import LEAVE_SECONDS
from shoal.contracts.run import home, load_node_config
from shoal.protocol import agent_socket, node_key
from shoal.protocol.held_leases import HeldLeases, give_back
from shoal.protocol.session import Session
from shoal.telemetry import get_logger, serve_health, start
from shoal.transport.server import Problem

HEALTH_PORT = 9103
GRACE_SECONDS = 3  # for requests that are still open when all leases are gone: questions, no uploads


class PatientServer(uvicorn.Server):
    """Ends on SIGTERM or SIGINT as others do, but not before this pod's leases are gone or `LEAVE_SECONDS` are over."""

    def __init__(self, config: uvicorn.Config, session: Session, held: HeldLeases, leaving: threading.Event) -> None:
        super().__init__(config)
        self._session = session
        self._held = held
        self._leaving = leaving

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if not self._leaving.is_set():
            self._leaving.set()
            threading.Thread(target=self._leave, name="leaving", daemon=True).start()

    def _leave(self) -> None:
        get_logger().info("asked to end", leases_held=len(self._held.names()))
        try:
            if not self._held.wait_until_none(LEAVE_SECONDS):
                give_back(self._held, self._session.orchestrator(), self._session.key.public, None)
        except Problem as problem:  # no member any more: what is held runs out
            get_logger().info("leases are not given back", reason=problem.detail)
        finally:
            self.should_exit = True


def main() -> None:
    """Entry point of the agent container."""
    log = start("agent")
    config = load_node_config()
    key = node_key.load_or_create(home() / "key" / "node.pem")
    session = Session(config, key)
    stop = threading.Event()
    listener = agent_socket.bind(home() / "run" / "agent.sock")
    serve_health(HEALTH_PORT, session.liveness, lambda: not_ready(session))
    joining = threading.Thread(target=session.run, args=(stop,), name="session", daemon=True)
    joining.start()
    log.info("agent starts", node=key.public, run=config.run, pool=config.pool)
    held, leaving = HeldLeases(), threading.Event()
    options = uvicorn.Config(
        agent_socket.make_app(session, held, leaving),
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=GRACE_SECONDS,
        server_header=False,
        proxy_headers=False,
    )
    server = PatientServer(options, session, held, leaving)
    server.run(sockets=[listener])
    stop.set()
    session.check_soon()
    joining.join(timeout=2.0)


def not_ready(session: Session) -> str | None:
    """None when the node is a healthy member, else its state."""
    state = session.state().state
    return None if state == "Healthy" else f"node is {state}"


if __name__ == "__main__":
    main()
