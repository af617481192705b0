"""The orchestrator's routes for its admin, under `/v1/admin`: a token from a file is the permission (docs/nodes.md).

Every answer is a document of `contracts/admin.py`; the OpenAPI document has an example of each.
"""

import hmac
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request, Response
from fastapi import Path as InPath

from shoal.contracts.admin import LogsTicket, NodeList, NodeView, ReasonRequest
from shoal.contracts.problems import ProblemCode, Refusal
from shoal.contracts.protocol import Assignment, NodeLogs
from shoal.orchestrator.nodes import admin
from shoal.orchestrator.run_state import RunState
from shoal.transport.service import json_answer, parse

SHORTEST_TOKEN = 32
Node = Annotated[str, InPath(pattern=r"^[0-9a-f]{64}$", description="Public key of the node, 64 hex digits.")]
Question = Annotated[str, InPath(pattern=r"^[0-9a-f]{32}$", description="`request` of the request for logs.")]

_NODE = "9c31" * 16
_VIEW = NodeView(
    node=_NODE,
    state="Healthy",
    pool="open",
    outside=True,
    address="203.0.113.7",
    last_heartbeat_unix=1_800_000_000.0,
    policy_version=7,
    files_accepted=12,
    uplink_mbps=41.5,
    gflops=310.5,
    metrics={"tokens_total": 81_920.0},
    assignment=Assignment(),
)


def read_token(path: Path) -> bytes | None:
    """The admin's token; None without a file: then there is no admin. Raises `SystemExit` for a token that could be guessed."""
    try:
        token = path.read_bytes().strip()
    except FileNotFoundError:
        return None
    if len(token) < SHORTEST_TOKEN:
        raise SystemExit(f"{path} has fewer than {SHORTEST_TOKEN} characters: somebody could guess it")
    return token


def _documented(reply: Any, example: Any, summary: str, body: bool = False, **more: Any) -> dict[str, Any]:
    """A route's entry in the OpenAPI document."""
    answer = {"model": reply, "content": {"application/json": {"example": example.model_dump(mode="json")}}}
    problems = {
        401: "No token, or not the admin's",
        404: "No such node or request",
        409: "Not possible in the node's state",
        422: "Not a valid request",
        503: "The object store, Redis or the run's state is away; try again",
    }
    responses: dict[int | str, dict[str, Any]] = {
        200: answer,
        **{code: {"description": text} for code, text in problems.items()},
    }
    extra: dict[str, Any] = {"security": [{"admin": []}]}
    if body:
        schema = ReasonRequest.model_json_schema()
        content = {"schema": schema, "example": {"reason": "uploads the same file under ten keys"}}
        extra["requestBody"] = {"required": True, "content": {"application/json": content}}
    return {"responses": responses, "openapi_extra": extra, "summary": summary, "tags": ["admin"], **more}


def add_admin_routes(app: FastAPI, state: RunState, token: bytes | None, call: Callable[..., Any]) -> None:
    """Routes under `/v1/admin`; `call` runs a function on a worker thread once the run's state is ready."""

    def check(request: Request) -> None:
        if token is None:
            raise Refusal(
                ProblemCode.NO_ADMIN,
                "this orchestrator has no admin token: put one into the file secrets/admin_token and start it again",
            )
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), token):
            raise Refusal(
                ProblemCode.NOT_THE_ADMIN,
                "send the run's admin token as `Authorization: Bearer TOKEN`",
            )

    @app.get("/v1/admin/nodes", **_documented(NodeList, NodeList(nodes=[_VIEW]), "List nodes and what they do"))
    async def nodes(
        request: Request,
        node_state: Annotated[str, Query(alias="state", max_length=20, description="Only nodes in this state.")] = "",
        pool: Annotated[str, Query(max_length=40, description="Only nodes of this pool.")] = "",
        after: Annotated[str, Query(max_length=64, description="`next` of the previous page.")] = "",
    ) -> Response:
        check(request)
        return json_answer(await call(admin.list_nodes, state, node_state=node_state, pool=pool, after=after))

    @app.get("/v1/admin/nodes/{node}", **_documented(NodeView, _VIEW, "One node, with its metrics"))
    async def one(node: Node, request: Request) -> Response:
        check(request)
        return json_answer(await call(admin.one_node, state, node))

    @app.post("/v1/admin/nodes/{node}/restart", **_documented(NodeView, _VIEW, "Restart a node's work"))
    async def restart(node: Node, request: Request) -> Response:
        check(request)
        return json_answer(await call(admin.restart, state, node))

    @app.post(
        "/v1/admin/nodes/{node}/logs",
        **_documented(LogsTicket, LogsTicket(request="0f" * 16), "Ask a node for its logs"),
    )
    async def ask(node: Node, request: Request) -> Response:
        check(request)
        return json_answer(await call(admin.ask_logs, state, node))

    example = NodeLogs(node=_NODE, request="0f" * 16, parts={"worker": '{"event": "file done"}\n'})

    @app.get(
        "/v1/admin/nodes/{node}/logs/{question}",
        **_documented(NodeLogs, example, "The node's answer; 204 until it answers"),
    )
    async def answer(node: Node, question: Question, request: Request) -> Response:
        check(request)
        return json_answer(await call(admin.logs, state, node, question))

    @app.post(
        "/v1/admin/nodes/{node}/invite",
        **_documented(NodeView, _VIEW, "Admit a node, whatever its pool's admission says"),
    )
    async def invite(node: Node, request: Request) -> Response:
        check(request)
        return json_answer(await call(admin.invite, state, node))

    banned = _VIEW.model_copy(update={"state": "Banned", "assignment": None})

    @app.post(
        "/v1/admin/nodes/{node}/ban",
        **_documented(NodeView, banned, "Exclude a node; the reason is kept in the ledger", body=True),
    )
    async def ban(node: Node, request: Request) -> Response:
        check(request)
        return json_answer(await call(admin.ban, state, node, (await parse(request, ReasonRequest)).reason))

    back = _VIEW.model_copy(update={"state": "Discovered", "assignment": None})

    @app.post("/v1/admin/nodes/{node}/unban", **_documented(NodeView, back, "Take a ban back", body=True))
    async def unban(node: Node, request: Request) -> Response:
        check(request)
        return json_answer(await call(admin.unban, state, node, (await parse(request, ReasonRequest)).reason))
