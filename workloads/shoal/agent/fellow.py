"""The agent of a further pod of an engine. The node is the leading pod of its engine (`contracts.hosts`); this one has ranks only.

In: that pod's agent, over HTTP. Out: the Unix socket, on which `fetch` and the worker learn what they would from an agent of their own: relays, a
token for them, the newest version, the run's keys. It has no key and asks for no lease. Started by `agent.main`.
"""

import uvicorn
from fastapi import FastAPI, Request, Response

from shoal.agent import socket_routes
from shoal.contracts.problems import ProblemCode, Refusal
from shoal.contracts.run import AgentState, NodeConfig, home
from shoal.telemetry import Liveness, every_line, get_logger, serve_health
from shoal.transport import SignedClient, Unavailable
from shoal.transport.problems import refused as refused_answer
from shoal.transport.service import json_answer

ASK_SECONDS = 4.0
"""A question is passed on for this long, less than the 5 s that the pod's other containers wait before they ask again."""


def make_app(leader: SignedClient) -> FastAPI:
    """What the pod's other containers ask. Numbers for a heartbeat are dropped: there is none."""
    app = FastAPI(title="Shoal agent of an engine's further pod", docs_url=None, redoc_url=None)

    @app.exception_handler(Unavailable)
    async def _unavailable(_: Request, error: Unavailable) -> Response:
        return refused_answer(Refusal(ProblemCode.ORCHESTRATOR_AWAY, str(error), retry_after_seconds=1))

    @app.get("/v1/state")
    def _state() -> Response:
        return json_answer(leader.call("GET", "/v1/state", reply=AgentState, deadline_seconds=ASK_SECONDS))

    @app.post("/v1/metrics")
    def _metrics() -> Response:
        return Response(status_code=204)

    return app


def pass_on(config: NodeConfig, leader: str, port: int) -> None:
    """Serve until SIGTERM; `leader` is the URL of the leading pod's agent, `port` that of this one's health."""
    every_line(run=config.run, pool=config.pool)
    serve_health(port, Liveness(float("inf")), lambda: None)
    listener = socket_routes.bind(home() / "run" / "agent.sock")
    get_logger().info("this pod is a further host of an engine", leader=leader)
    options = uvicorn.Config(make_app(SignedClient(leader)), log_config=None, log_level="warning", access_log=False)
    uvicorn.Server(options).run(sockets=[listener])
