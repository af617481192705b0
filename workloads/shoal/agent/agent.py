"""The node agent: holds the node's key, keeps the node a member of its run, and serves the Unix socket of the machine's other processes.

Two ways in, one agent: `main` is the agent container of a pool's pod, whose other containers do the work; `shoal node join` calls `run_agent` with
processes of its own. Asked to end, it goes on serving while the worker, which is asked at the same time, finishes or gives back what it holds; what
is left then the agent gives back itself.
"""

import os
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Protocol

import uvicorn
from fastapi import Response

from shoal.agent import node_key, socket_routes
from shoal.agent.fellow import pass_on
from shoal.agent.held_leases import HeldLeases, give_back
from shoal.agent.owner import Allowance, Owner
from shoal.agent.session import Session
from shoal.contracts.hosts import STATE_PORT, engine_host
from shoal.contracts.problems import Refusal
from shoal.contracts.protocol import LEAVE_SECONDS, Assignment
from shoal.contracts.run import AgentState, AgentStatus, NodeConfig, PartStatus, home, load_node_config, pod_name
from shoal.crypto.keys import PrivateKey
from shoal.files import replace_file
from shoal.telemetry import every_line, get_logger, serve_health, start
from shoal.telemetry.health import Route
from shoal.transport.authorities import authorities
from shoal.transport.neighbourhood import Neighbourhood
from shoal.transport.rate_limit import NO_CAPS, Caps

HEALTH_PORT = 9103
GRACE_SECONDS = 3  # for requests that are still open when all leases are gone: questions, no uploads
FOLLOW_SECONDS = 0.5
STATUS_SECONDS = 10.0
"""`status.json` is written when it changes, and as often as this, so that its age shows whether the agent is alive."""


class AssignedWork(Protocol):
    """Does the work of a node's assignment: containers beside the agent, or processes that it starts. Called from one thread, except for `end`."""

    def follow(self, assignment: Assignment | None) -> None:
        """Start and stop work as assigned; called every `FOLLOW_SECONDS`."""

    def restarts(self) -> int | None:
        """A counter for the processes that do the work; they end when it grows; None: unknown, or there are none. Called from several threads."""

    def parts(self) -> list[PartStatus]:
        """State of its processes."""

    def logs(self) -> dict[str, str]:
        """Their last log lines, by name."""

    def ask_to_end(self) -> None:
        """Ask all work to end; start nothing more."""

    def end(self) -> None:
        """End the remaining work."""


class ContainersOfThisPod:
    """The work of a pod: its containers are started and logged by Kubernetes. When an admin asks for a restart they end (`transport/restarts.py`)."""

    def __init__(self) -> None:
        self._restarts: int | None = None

    def follow(self, assignment: Assignment | None) -> None:
        if assignment is not None:  # one that grew smaller was lost with Redis, and means nothing
            self._restarts = max(assignment.restarts, self._restarts or 0)

    def restarts(self) -> int | None:
        return self._restarts

    def parts(self) -> list[PartStatus]:
        return []

    def logs(self) -> dict[str, str]:
        return {"pod": "this node is a pod: read its logs with kubectl logs"}

    def ask_to_end(self) -> None:
        return

    def end(self) -> None:
        return


class PatientServer(uvicorn.Server):
    """Ends on SIGTERM or SIGINT as others do, but not before this machine's leases are gone or `LEAVE_SECONDS` are over."""

    def __init__(
        self, config: uvicorn.Config, session: Session, held: HeldLeases, leaving: threading.Event, work: AssignedWork
    ) -> None:
        super().__init__(config)
        self._session = session
        self._held = held
        self._leaving = leaving
        self._work = work

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.leave()

    def leave(self) -> None:
        """Begin to end, once; from any thread."""
        if not self._leaving.is_set():
            self._leaving.set()
            threading.Thread(target=self._leave, name="leaving", daemon=True).start()

    def _leave(self) -> None:
        get_logger().info("asked to end", leases_held=len(self._held.names()))
        try:
            self._work.ask_to_end()
            if not self._held.wait_until_none(LEAVE_SECONDS):
                give_back(self._held, self._session.orchestrator(), self._session.key.public, None)
        except Refusal as refusal:  # no member any more: what is held runs out
            get_logger().info("could not give leases back", reason=refusal.detail)
        finally:
            self.should_exit = True


class Follower:
    """One thread that passes the assignment to the processes, as far as the owner lets them work, and writes `run/status.json`."""

    def __init__(
        self,
        session: Session,
        work: AssignedWork,
        leaving: threading.Event,
        path: Path,
        standing: Callable[[], Allowance] = Allowance,
    ) -> None:
        self._session = session
        self._work = work
        self._leaving = leaving
        self._path = path
        self._standing = standing
        self._written: AgentStatus | None = None
        self.when_over: Callable[[], None] | None = None
        """Called in each round after the run is over, or the node is to end; None: this node stays."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="assignment", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(timeout=5.0)

    def status(self) -> AgentStatus:
        further = {"parts": self._work.parts(), "owner": self._standing().words or None}
        return self._session.status().model_copy(update=further)

    def _run(self) -> None:
        while not self._stop.wait(FOLLOW_SECONDS):
            try:
                allowed = self._standing()
                if not self._leaving.is_set():
                    self._work.follow(self._session.assignment() if allowed.works else None)
                if self.when_over is not None and (allowed.ends or self._session.run_is_over()):
                    self.when_over()
                self._write(self.status())  # last: on a full disk all else goes on
            except Exception as error:  # a full disk, say: the next round tries again, and the node goes on
                get_logger().warning("assignment not followed", error=f"{type(error).__name__}: {str(error)[:300]}")

    def _write(self, status: AgentStatus) -> None:
        before = self._written
        age = status.written_unix - before.written_unix if before is not None else STATUS_SECONDS
        same = before is not None and before.model_copy(update={"written_unix": status.written_unix}) == status
        if same and 0 <= age < STATUS_SECONDS:
            return
        replace_file(self._path, status.to_json(), 0o644)
        self._written = status


def run_agent(
    config: NodeConfig,
    key: PrivateKey,
    work: AssignedWork,
    neighbourhood: Neighbourhood | None = None,
    *,
    owner: Owner | None = None,
    caps: Caps = NO_CAPS,
    fellows: bool = False,
) -> Session:
    """Be a node until SIGTERM or SIGINT, on the main thread; everything lies under `SHOAL_HOME`. Raises ValueError for a bad `config/ca.pem`.

    `neighbourhood` judges the URLs that the run names; None: any may be called. `owner` says when the node may work; it ends when the run is over.
    None: it is a pod, which stays, because Kubernetes would restart it. `caps` bound what it sends and receives. With `fellows` further pods of its
    engine may ask for its state (`fellow`), on a port that Prometheus does not reach.
    """
    every_line(run=config.run, pool=config.pool, node=key.public)
    session = Session(config, key, authorities(home() / "config" / "ca.pem"), work.logs, neighbourhood, caps)
    stop = threading.Event()
    listener = socket_routes.bind(home() / "run" / "agent.sock")

    def state() -> AgentState:
        return session.state().model_copy(update={"restarts": work.restarts()})

    health = serve_health(HEALTH_PORT, session.liveness, lambda: not_ready(session))
    if fellows:
        told: dict[str, Route] = {"/v1/state": lambda _: (200, {}, state().to_json())}
        serve_health(STATE_PORT, session.liveness, lambda: None, told)
    joining = threading.Thread(target=session.run, args=(stop,), name="session", daemon=True)
    joining.start()
    get_logger().info("agent starts")
    held, leaving = HeldLeases(), threading.Event()

    def standing() -> Allowance:
        if owner is None:
            return Allowance()
        return owner.standing(held.unfinished(), held.expected_seconds(life(session)))

    follower = Follower(session, work, leaving, home() / "run" / "status.json", standing)
    app = socket_routes.make_app(session, held, leaving, state, lambda: _no_lease(standing()), lambda: standing().works)

    @app.get("/v1/status")
    def _status() -> Response:
        return Response(follower.status().to_json(), media_type="application/json")

    options = uvicorn.Config(
        app,
        log_config=None,  # its lines go where all of this process go
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=GRACE_SECONDS,
        server_header=False,
        proxy_headers=False,
    )
    server = PatientServer(options, session, held, leaving, work)
    if owner is not None:
        follower.when_over = server.leave
    follower.start()
    try:
        server.run(sockets=[listener])
    finally:
        leaving.set()
        follower.stop()
        work.end()
        stop.set()
        session.check_soon()
        joining.join(timeout=2.0)
        health.shutdown()
    return session


def main() -> None:
    """Entry point of the agent container."""
    start("agent")
    config = load_node_config()
    place = engine_host(pod_name(), config.engine.hosts, os.environ)
    if place is not None and not place.leads:
        pass_on(config, f"http://{place.leader}:{STATE_PORT}", HEALTH_PORT)
        return
    key = node_key.load_or_create(home() / "key" / "node.pem")
    run_agent(config, key, ContainersOfThisPod(), fellows=place is not None)


def life(session: Session) -> float:
    """How long a lease of the run lasts, in seconds; 0 while the run is not known, and none is given."""
    public = session.state().public
    return public.codec.shape.lease_seconds if public is not None else 0.0


def _no_lease(allowed: Allowance) -> str:
    return "" if allowed.leases else allowed.words


def not_ready(session: Session) -> str | None:
    """None when the node is a healthy member, else its state."""
    state = session.state().state
    return None if state == "Healthy" else f"node is {state}"
