"""The node agent's process: one per pool pod. Holds the node's key, keeps the node a member of the run, and serves the pod's Unix socket."""

import threading

import uvicorn

from shoal.contracts.run import home, load_node_config
from shoal.protocol import agent_socket, node_key
from shoal.protocol.session import Session
from shoal.telemetry import serve_health, start

HEALTH_PORT = 9103
GRACE_SECONDS = 10  # a running upload may end; longer ones are repeated by the worker


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
    server = uvicorn.Server(
        uvicorn.Config(
            agent_socket.make_app(session),
            log_level="warning",
            access_log=False,
            timeout_graceful_shutdown=GRACE_SECONDS,
            server_header=False,
            proxy_headers=False,
        )
    )
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
