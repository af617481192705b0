"""The far side of a worker's socket, for tests: answers as an agent does and keeps what it was handed."""

import json
import socketserver
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from shoal.contracts.problems import TYPE_PREFIX, ProblemDocument
from shoal.contracts.protocol import (
    HeldByPod,
    Lease,
    LocalReturn,
    LocalSubmission,
    StepInfo,
    SubmissionReceipt,
    rest_of,
)
from shoal.contracts.run import AgentState
from shoal.contracts.task_table import write_tasks
from shoal.contracts.tasks import Task
from shoal.contracts.work import FIRST_PART_NUMBER, LeasePart


@dataclass
class Agent:
    """What the agent would know; tests change it while a worker runs."""

    state: AgentState
    tasks: list[Task]
    step: StepInfo | None = None
    leases: int = 0
    most_leases: int = 2
    """That a worker may have at a time."""
    named: list[list[str] | None] = field(default_factory=list)
    """Leases that the worker worked on as it asked for each one."""
    refuse_files: bool = False
    metrics: dict[str, float] = field(default_factory=dict)
    files: list[tuple[LocalSubmission, bytes]] = field(default_factory=list)
    refused_files: list[str] = field(default_factory=list)
    returned: list[str | None] = field(default_factory=list)
    refuse_leases: bool = False
    refuse_steps: str = ""
    """The code with which every question for a step is refused, unless empty."""
    refused: int = 0
    groups: int = 1
    """Of a lease."""
    remembers: bool = False
    """It tells a worker that comes in the place of another what is held; one that was restarted itself knows of nothing."""
    stays: bool = False
    """Whether it says that another worker follows on one that ends."""
    held: dict[str, Lease] = field(default_factory=dict)
    handing_in: list[str] = field(default_factory=list)
    rests: dict[str, Lease] = field(default_factory=dict)
    """Leases for what parts left, by name."""

    def rest(self, handed: LocalSubmission) -> Lease | None:
        """The lease for what a part leaves that its worker goes on with."""
        if handed.part is None or not handed.part.keep:
            return None
        before = self.rests.get(handed.lease)
        had = before.part.groups if before is not None and before.part is not None else list(range(self.groups))
        submission = before.part.submission if before is not None and before.part is not None else int(handed.lease, 16)
        part = LeasePart(
            node=self.state.node,
            submission=submission,
            groups=[place for place in had if place not in handed.part.groups],
        )
        name, number = rest_of(handed.lease), FIRST_PART_NUMBER + len(self.rests)
        self.rests[name] = self.held[name] = Lease(
            lease=name, node=self.state.node, step=4, submission=number, expires_unix=time.time() + 600, part=part
        )
        return self.rests[name]


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True


class SocketAgent:
    """Serves `agent` on `home/run/agent.sock` until `close`."""

    def __init__(self, home: Path, agent: Agent) -> None:
        self.path = home / "run" / "agent.sock"
        self.path.parent.mkdir(parents=True, exist_ok=True)

        class Handler(BaseHTTPRequestHandler):
            def address_string(self) -> str:
                return "unix"

            def log_message(self, *_: object) -> None:
                return

            def do_GET(self) -> None:
                answers: dict[str, Any] = {"/v1/state": agent.state, "/v1/step": agent.step}
                path = self.path.partition("?")[0]
                if path == "/v1/held":
                    leases = list(agent.held.values()) if agent.remembers else []
                    told = HeldByPod(leases=leases, handing_in=agent.handing_in, stays=agent.stays)
                    self._answer(200, told.to_json())
                elif path == "/v1/tasks":
                    self._answer(200, write_tasks(agent.tasks))
                elif path == "/v1/step" and agent.refuse_steps:
                    problem = ProblemDocument(type=TYPE_PREFIX + agent.refuse_steps, title="Wait", detail="ask again")
                    self._answer(409, problem.model_dump_json().encode())
                elif answers[path] is None:
                    self._answer(204, b"")
                elif path == "/v1/step" and "together=" in self.path:
                    self._answer(200, answers[path].model_copy(update={"leases": agent.most_leases}).to_json())
                else:
                    self._answer(200, answers[path].to_json())

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.path == "/v1/metrics":
                    agent.metrics |= json.loads(body)
                    self._answer(204, b"")
                elif self.path == "/v1/leases" and agent.refuse_leases:
                    agent.refused += 1
                    self._answer(409, b'{"title": "Enough work is in progress", "detail": "ask again"}')
                elif self.path == "/v1/leases":
                    asked = json.loads(body)
                    agent.named.append(asked.pop("held", None))
                    asked.pop("parts", None)
                    number, agent.leases = agent.leases, agent.leases + 1
                    lease = Lease(lease=f"{number:032x}", **asked, submission=number, expires_unix=time.time() + 600)
                    agent.held[lease.lease] = lease
                    self._answer(200, lease.to_json())
                elif self.path == "/v1/returns":
                    name = LocalReturn.from_json(body).lease
                    agent.returned.append(name)
                    for each in [*agent.held] if name is None else [name]:
                        agent.held.pop(each, None)
                    self._answer(204, b"")
                else:
                    handed = LocalSubmission.from_json(body)
                    if agent.refuse_files:
                        agent.refused_files.append(handed.lease)
                        self._answer(409, b'{"title": "The step was sealed", "detail": "ask again"}')
                        return
                    data = (home / "tmp" / handed.file).read_bytes()
                    agent.held.pop(handed.lease, None)
                    agent.files.append((handed, data))
                    receipt = SubmissionReceipt(
                        lease=handed.lease, sha256="ab" * 32, status="queued", rest=agent.rest(handed)
                    )
                    self._answer(200, receipt.to_json())

            def _answer(self, status: int, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        self._server = _Server(str(self.path), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self.path.unlink()
