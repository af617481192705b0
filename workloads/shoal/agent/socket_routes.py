"""The agent's Unix socket: what worker and fetch of the same pod ask (docs/http.md).

No signatures here: the socket's file mode (0660) is the permission. Requests that concern the run are passed on, signed with the node's key, which
never leaves the agent.
"""

import json
import math
import os
import re
import socket
import threading
from collections.abc import Callable
from pathlib import Path

from fastapi import FastAPI, Request, Response
from pydantic import TypeAdapter, ValidationError
from starlette.concurrency import run_in_threadpool

from shoal.agent.hand_in import hand_in
from shoal.agent.held_leases import HeldLeases, give_back
from shoal.agent.session import Session
from shoal.contracts.problems import ProblemCode, Refusal
from shoal.contracts.protocol import Lease, LeaseRequest, LocalReturn, LocalSubmission, MetricName, StepInfo
from shoal.contracts.run import AgentState, home
from shoal.transport import Refused, Unavailable
from shoal.transport.problems import add_problem_answers, problem_response
from shoal.transport.problems import refused as refused_answer
from shoal.transport.server import BodyLimit
from shoal.transport.service import json_answer, parse

PASS_SECONDS = 4.0
"""A question is passed on for this long, less than the 5 s that a worker waits before it asks again."""
TASKS_SECONDS = 55.0  # the table may be tens of megabytes
PLAIN = re.compile(r"[0-9a-f,]{1,200}", re.ASCII)
METRIC_NAME: TypeAdapter[str] = TypeAdapter(MetricName)


def make_app(
    session: Session,
    held: HeldLeases,
    leaving: threading.Event,
    state: Callable[[], AgentState],
    no_lease: Callable[[], str] = lambda: "",
    goes_on: Callable[[], bool] = lambda: True,
) -> FastAPI:
    """The application over a session. Its handlers run on worker threads, because they wait for the orchestrator.

    `held` is kept in step with what passes; once `leaving` is set no further lease is given, nor while `no_lease` says why not. `state` is what
    the pod's other containers are told. `goes_on`: whether a worker that ends is started again.
    """
    app = FastAPI(title="Shoal agent", docs_url=None, redoc_url=None)
    app.add_middleware(BodyLimit)
    add_problem_answers(app)

    @app.exception_handler(Refused)
    async def _refused(_: Request, refused: Refused) -> Response:
        session.note_refusal(refused)
        return problem_response(refused.problem)

    @app.exception_handler(Unavailable)
    async def _unavailable(_: Request, error: Unavailable) -> Response:
        return refused_answer(Refusal(ProblemCode.ORCHESTRATOR_AWAY, str(error), retry_after_seconds=1))

    @app.get("/v1/state")
    async def _state() -> Response:
        return json_answer(state())

    @app.get("/v1/tasks")
    def tasks(request: Request) -> Response:
        answer = session.orchestrator().request(
            "GET", _passed_on("/v1/tasks", request, "digest"), deadline_seconds=TASKS_SECONDS
        )
        return Response(answer.content, media_type="application/vnd.apache.parquet")

    @app.get("/v1/packages")
    def packages(request: Request) -> Response:
        path = _passed_on("/v1/packages", request, "digest")
        answer = session.orchestrator().request("GET", path, deadline_seconds=TASKS_SECONDS)
        return Response(answer.content, media_type="application/octet-stream")

    @app.get("/v1/step")
    def step(request: Request) -> Response:
        path = _passed_on("/v1/step", request, "holds", "together", "parts", "pace")
        info = session.orchestrator().call("GET", path, reply=StepInfo, deadline_seconds=PASS_SECONDS)
        if info is not None:
            session.note_latest_version(info.latest_version)
        return json_answer(info)

    @app.post("/v1/leases")
    async def lease(request: Request) -> Response:
        wanted = await parse(request, LeaseRequest)
        if leaving.is_set():
            raise Refusal(ProblemCode.POD_ENDING, "the agent asks for no further lease")
        if why := no_lease():
            raise Refusal(ProblemCode.POD_ENDING, why)
        client = session.orchestrator()
        given = await run_in_threadpool(client.call, "POST", "/v1/leases", wanted, Lease, deadline_seconds=PASS_SECONDS)
        if given is not None:
            held.note(given)
        return json_answer(given)

    @app.get("/v1/held")
    def holds() -> Response:
        stays = not leaving.is_set() and goes_on() and session.assignment() is not None
        return json_answer(held.told(stays))

    @app.post("/v1/returns")
    async def returned(request: Request) -> Response:
        wanted = await parse(request, LocalReturn)
        client = session.orchestrator()
        await run_in_threadpool(give_back, held, client, session.key.public, wanted.lease)
        return Response(status_code=204)

    @app.post("/v1/submissions")
    async def submission(request: Request) -> Response:
        handed = await parse(request, LocalSubmission)
        client = session.orchestrator()
        with held.handing_in(handed.lease):
            try:
                receipt = await run_in_threadpool(
                    hand_in, client, session.key.public, home() / "tmp", handed, session.neighbourhood
                )
            except Refused:
                held.forget(handed.lease)
                raise
            if receipt.rest is not None:
                held.note_rest(handed.lease, receipt.rest)
            else:
                held.forget(handed.lease, done=handed.part is None)
        return json_answer(receipt)

    @app.post("/v1/metrics")
    async def metrics(request: Request) -> Response:
        session.note_metrics(parse_metrics(await request.body()))
        return Response(status_code=204)

    return app


def _passed_on(path: str, request: Request, *parameters: str) -> str:
    """The path with the query parameters that are passed on; raises `Refusal` when one is not a list of names."""
    passed = []
    for parameter in parameters:
        value = request.query_params.get(parameter)
        if value is None:
            continue
        if not PLAIN.fullmatch(value):
            raise Refusal(
                ProblemCode.NOT_VALID, f"{parameter}: expected digits, letters a to f and commas, 200 at most"
            )
        passed.append(f"{parameter}={value}")
    return f"{path}?{'&'.join(passed)}" if passed else path


def parse_metrics(body: bytes) -> dict[str, float]:
    """`{name: number}`; raises `Refusal` naming what is wrong."""
    try:
        document = json.loads(body)
    except ValueError as error:
        raise Refusal(ProblemCode.NOT_VALID, f"not JSON: {str(error)[:200]}") from error
    if not isinstance(document, dict):
        raise Refusal(ProblemCode.NOT_VALID, 'expected an object such as {"tokens_total": 12}')
    numbers: dict[str, float] = {}
    for name, value in document.items():
        try:
            METRIC_NAME.validate_python(name)
        except ValidationError as error:
            raise Refusal(
                ProblemCode.NOT_VALID, f"{name[:100]!r} is not a metric name: a letter, then letters, digits, '_'"
            ) from error
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise Refusal(ProblemCode.NOT_VALID, f"{name}: expected a finite number")
        numbers[name] = float(value)
    return numbers


def bind(path: Path) -> socket.socket:
    """A listening Unix socket with mode 0660; one left by an earlier process is replaced."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o117)  # set before the bind, so that there is no moment with a wider mode
    try:
        listener.bind(str(path))
    finally:
        os.umask(before)
    return listener
