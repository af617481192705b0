"""The worker's side of the agent's Unix socket: state, task table, open step, leases, submissions, metrics.

The agent holds the node's key and talks to the orchestrator; a worker knows neither. Methods return None where the
answer is "not now", so that `worker` waits; what is wrong for good raises. The agent may restart at any time:
requests are retried until their deadline.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from shoal.contracts.protocol import (
    HeldByPod,
    Lease,
    LeaseRequest,
    LocalReturn,
    LocalSubmission,
    StepInfo,
    SubmissionReceipt,
)
from shoal.contracts.run import AgentState
from shoal.contracts.task_table import read_tasks
from shoal.contracts.tasks import Task, tasks_digest
from shoal.telemetry import get_logger
from shoal.transport.client import Refused, SignedClient, Unavailable

ASK_SECONDS = 5.0
"""Deadline of a question that is asked again anyway."""
FETCH_SECONDS = 60.0
"""Of a table or a wheel: longer than the agent itself asks (`socket_routes.TASKS_SECONDS`), so that its answer says what is wrong."""
SUBMIT_SECONDS = 300.0
"""An upload of a large file over a slow line happens within this request; a lease rarely lives longer."""


class WrongTasksError(RuntimeError):
    """The task table that came is not the run's: its digest differs."""


class AgentClient:
    """Questions to the agent of this pod."""

    def __init__(self, socket: Path) -> None:
        self._http = SignedClient("http://agent", unix_socket=socket)
        self._refused: str | None = (
            None  # the code of the last answer's refusal: it is asked every second, and told once
        )

    def state(self) -> AgentState | None:
        """The agent's state, or None while the agent is away."""
        try:
            return self._http.call("GET", "/v1/state", reply=AgentState, deadline_seconds=ASK_SECONDS)
        except Unavailable:
            return None

    def tasks(self, digest: str, benchmark: bool = False) -> list[Task] | None:
        """The run's task table, or that of a benchmark, checked against its digest; None while it is not available."""
        path = f"/v1/tasks?digest={digest}" if benchmark else "/v1/tasks"
        try:
            tasks = read_tasks(
                self._http.request("GET", path, timeout_seconds=FETCH_SECONDS, deadline_seconds=FETCH_SECONDS).content
            )
        except (Unavailable, Refused) as error:
            get_logger().info("the task table is not available", reason=str(error))
            return None
        if tasks_digest(tasks) != digest:
            raise WrongTasksError(
                f"the task table has digest {tasks_digest(tasks)[:12]}..., the run's is {digest[:12]}..."
            )
        return tasks

    def package(self, digest: str) -> bytes | None:
        """A wheel of the run, for the caller to check; None while it is not available."""
        try:
            return self._http.request(
                "GET", f"/v1/packages?digest={digest}", timeout_seconds=FETCH_SECONDS, deadline_seconds=FETCH_SECONDS
            ).content
        except (Unavailable, Refused) as error:
            get_logger().info("a package is not available", digest=digest, reason=str(error))
            return None

    def step(self, holds: Sequence[int] = (), together: int = 1, parts: bool = False) -> StepInfo | None:
        """The open step, or None. With versions that this pod holds it may be a slice of an evaluation of one of them.

        `together`: leases that the worker would have at a time; the answer says how many it may have. With `parts` it says after which time whole
        groups are handed in. Where many nodes ask, it says when to ask again.
        """
        asked = [f"holds={','.join(map(str, holds))}"] if holds else []
        asked += [f"together={together}"] if together > 1 else []
        asked += ["parts=1"] if parts else []
        path = f"/v1/step?{'&'.join([*asked, 'pace=1'])}"
        try:
            shown = self._http.call("GET", path, reply=StepInfo, deadline_seconds=ASK_SECONDS)
        except Unavailable as error:
            get_logger().debug("no step", reason=str(error))
            return None
        except Refused as error:
            log = get_logger()
            (log.debug if error.code == self._refused else log.info)("no step", reason=str(error))
            self._refused = error.code
            return None
        self._refused = None
        return shown

    def lease(self, node: str, step: int, held: Collection[str] | None = None, parts: bool = False) -> Lease | None:
        """A lease for `step`, or None: refused (the step closed, enough is leased, not Healthy) or nobody there. `held`: those that there are; None
        for an earlier orchestrator. `parts`: the lease may be for the rest of another one."""
        wanted = LeaseRequest(node=node, step=step, held=sorted(held) if held is not None else None, parts=parts)
        try:
            return self._http.call("POST", "/v1/leases", wanted, Lease, deadline_seconds=ASK_SECONDS)
        except (Unavailable, Refused) as error:
            get_logger().debug("no lease", step=step, reason=str(error))
            return None

    def held(self) -> HeldByPod | None:
        """What this pod holds; None while nobody says."""
        try:
            return self._http.call("GET", "/v1/held", reply=HeldByPod, deadline_seconds=ASK_SECONDS)
        except (Unavailable, Refused) as error:
            get_logger().info("not known what this pod holds", reason=str(error))
            return None

    def give_back(self, lease: str | None) -> None:
        """Give a lease back, or, with None, all that a worker of this pod still holds; one that cannot be given back runs out."""
        try:
            body = LocalReturn(lease=lease)
            self._http.call("POST", "/v1/returns", body, deadline_seconds=ASK_SECONDS)
        except (Unavailable, Refused) as error:
            get_logger().info("could not give leases back", reason=str(error))

    def submit(self, submission: LocalSubmission) -> SubmissionReceipt:
        """Hand over a file; raises `Refused` when it is not wanted any more, `Unavailable` when nobody took it."""
        receipt = self._http.call(
            "POST",
            "/v1/submissions",
            submission,
            SubmissionReceipt,
            deadline_seconds=SUBMIT_SECONDS,
            timeout_seconds=SUBMIT_SECONDS,
        )
        if receipt is None:
            raise Unavailable("the agent accepted the file but sent no receipt")
        return receipt

    def report(self, metrics: Mapping[str, float]) -> None:
        """Numbers for the next heartbeat; lost when the agent is away."""
        try:
            self._http.request("POST", "/v1/metrics", json.dumps(dict(metrics)).encode(), deadline_seconds=1.0)
        except (Unavailable, Refused) as error:
            get_logger().debug("metrics not taken", reason=str(error))
