"""docs/http.md, from the services' OpenAPI documents and their handlers: every route, who may call it, what travels. Called by `__main__`.

Paths and methods are those of the OpenAPI documents that the applications give. Bodies are signed bytes that the handlers parse
by hand. So who signs and which documents travel comes from the handler's source, by the few idioms that handlers have (`gate.role`,
`gate.speaks_for`, `parse`, `call`).
"""

import ast
import builtins
import inspect
import textwrap
import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from fastapi import FastAPI
from fastapi.routing import APIRoute
from tools.docs.messages import messages, shown_type
from tools.docs.tables import GENERATED, table

from shoal.agent import socket_routes
from shoal.contracts.base import Contract
from shoal.contracts.problems import TYPE_PREFIX
from shoal.contracts.programs import ProgramOutcome, ProgramRequest
from shoal.contracts.protocol import RunProgress
from shoal.contracts.roster import ROLES, Roster
from shoal.contracts.run import AgentState
from shoal.contracts.signed import Signed, sign
from shoal.crypto.keys import PrivateKey
from shoal.discovery import discovery
from shoal.orchestrator.http import service
from shoal.rewards.runner import service as runner
from shoal.transport.problems import KINDS

BODIES: dict[str, str | type[Contract]] = {
    "/v1/staging": "multipart form of a grant",
    "/v1/metrics": "`{name: number}`",
    "/v1/uplink": "random bytes",
    "/v1/programs": ProgramRequest,
}
ANSWERS: dict[tuple[str, str], str | type[Contract]] = {
    ("POST", "/v1/programs"): ProgramOutcome,
    ("GET", "/v1/state"): AgentState,
    ("GET", "/v1/run"): RunProgress,
    ("GET", "/v1/nodes/{node}/invite"): "`Signed[Invite]`, or 204 after the wait",
}
"""What the idioms do not show, by path: text, or the document."""
TITLES = {
    "discovery": ("Discovery, port 8081", "Nodes register here and wait for an invite."),
    "orchestrator": ("Orchestrator, port 8080", "All other requests of nodes and of the run's own parts."),
    "agent": ("The agent's Unix socket", "`run/agent.sock` of a pool pod, for worker and fetcher; the socket's file mode is the permission."),
    "runner": ("Runner, port 9107", "Executes programs. No signatures: a NetworkPolicy decides who may call."),
}  # fmt: skip
INTRODUCTION = f"""# HTTP

{GENERATED}

Nodes and roles of the run's roster sign their requests with HTTP Message Signatures (RFC 9421, Ed25519); they cover method, target URI,
Content-Digest (RFC 9530), time and nonce. *node* below means that the signer must be the node that the request names.
Errors are `application/problem+json` with
`type`, `title`, `detail` and `status`; 429 and 503 carry `Retry-After`. Clients decide by the code at the end of `type` (see Problems). Documents
refuse unknown fields. `/healthz`, `/readyz` and `/metrics` are on every port.
"""
PROBLEMS = f"""The `type` of a refusal is `{TYPE_PREFIX}` and one of these codes. A code never changes its meaning; titles and details may.
Errors of HTTP alone, such as an unknown path, have the type `about:blank`."""


@dataclass(frozen=True)
class Route:
    """One route of a service: who may call it, the document that it reads, the one that it answers with."""

    method: str
    path: str
    signer: str
    body: str
    answer: str
    documents: tuple[type[Contract], ...]


class _Nothing:
    """Stands for what an application is only given to keep: any attribute is another such thing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Nothing()


def apps() -> dict[str, FastAPI]:
    """The applications as the processes make them, over nothing: only their routes are looked at."""
    key = PrivateKey.generate()
    roster = sign(Roster(run="docs", keys=dict.fromkeys(ROLES, key.public)), key)
    nothing: Any = _Nothing()
    config: Any = _Nothing()
    config.run, config.trusted_roster, config.pools = "docs", lambda: roster.document, []
    config.addresses = SimpleNamespace(discovery="http://discovery", orchestrator="http://orchestrator")
    state: Any = _Nothing()
    state.config, state.roster, state.store = config, roster.document, SimpleNamespace(kind="folder")
    threads: Any = SimpleNamespace(slots=1)
    return {
        "discovery": discovery.make_app(config, nothing),
        "orchestrator": service.make_app(state, nothing, nothing, nothing),
        "agent": socket_routes.make_app(nothing, nothing, nothing, nothing),
        "runner": runner.make_app(threads),
    }


def routes(app: FastAPI) -> list[Route]:
    """The routes of an application's OpenAPI document, in its order."""
    handlers = {
        (method, route.path): route.endpoint
        for route in app.routes
        if isinstance(route, APIRoute)
        for method in route.methods
    }
    return [
        _route(method.upper(), path, handlers[method.upper(), path])
        for path, operations in app.openapi()["paths"].items()
        for method in operations
        if not path.endswith(("healthz", "readyz", "metrics")) or path.startswith("/v1/")
    ]


def http_page() -> str:
    """The whole page."""
    lines = [INTRODUCTION]
    documents: dict[str, type[Contract]] = {}
    for name, app in apps().items():
        title, text = TITLES[name]
        lines += [f"## {title}", "", text, ""]
        found = routes(app)
        lines += table(
            ("request", "signed by", "body", "answer"),
            [(f"`{route.method} {route.path}`", route.signer, route.body, route.answer) for route in found],
        )
        documents |= {document.__name__: document for route in found for document in route.documents}
    lines += ["## Problems", "", PROBLEMS, ""]
    lines += table(
        ("code", "status", "title"), [(f"`{code}`", str(kind.status), kind.title) for code, kind in KINDS.items()]
    )
    lines += ["## Documents", ""]
    lines += messages(documents.values())
    return "\n".join(lines).rstrip() + "\n"


def _route(method: str, path: str, handler: Any) -> Route:
    tree = ast.parse(textwrap.dedent(inspect.getsource(handler)))
    names = _Names(handler)
    signer, bodies, answers = "", [], []
    for called, arguments in _calls(tree):
        if called.endswith("gate.role") and isinstance(arguments[1], ast.Constant):
            signer = str(arguments[1].value)
        elif called.endswith(("gate.speaks_for", "gate.node", "gate.node_of_head")):
            signer = signer or "node"
        if called in ("gate.speaks_for", "parse"):
            bodies.append(names.value(arguments[1]))
        if called == "call":
            answers.append(names.returned(arguments[0]))
        if called.endswith(("run_in_threadpool", ".call")):
            # A handler that passes a request on: the document after the path is the body, the one after it the answer.
            answers += [names.value(argument) for argument in arguments if isinstance(argument, ast.Name)]
        if called == "json_answer" and arguments:
            given = arguments[0].value if isinstance(arguments[0], ast.Await) else arguments[0]
            if isinstance(given, ast.Call) and ast.unparse(given.func) != "call":
                answers += [names.value(given.func), names.returned(given.func)]
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == "reply":
            answers.append(names.value(node.value))
        if isinstance(node, ast.FunctionDef) and node.returns is not None:
            answers.append(names.value(node.returns))
    body = [kind for kind in bodies if _documents(kind)]
    answer = [kind for kind in answers if _documents(kind)]
    if path.startswith("/v1/admin"):
        signer = signer or "admin's token"
    source = ast.unparse(tree)
    asks = BODIES.get(path) if method == "POST" else None
    told = ANSWERS.get((method, path))
    if isinstance(asks, type):
        body, asks = [asks], None
    if isinstance(told, type):
        answer, told = [told], None
    said = told or " or ".join(dict.fromkeys(f"`{shown_type(kind)}`" for kind in answer))
    if "parquet" in source:
        said = "Parquet"
    elif not said and "status_code=204" in source:
        said = "204"
    found = tuple(dict.fromkeys(document for kind in (*body, *answer) for document in _documents(kind)))
    return Route(
        method,
        path,
        signer,
        asks or " or ".join(dict.fromkeys(f"`{shown_type(kind)}`" for kind in body)),
        said,
        found,
    )


def _calls(tree: ast.AST) -> Iterator[tuple[str, list[ast.expr]]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), [*node.args, *(keyword.value for keyword in node.keywords)]


class _Names:
    """What the words of a handler's source mean: its module's names, and those that it closes over."""

    def __init__(self, handler: Any) -> None:
        found = inspect.getclosurevars(handler)
        self._names = {**vars(builtins), **handler.__globals__, **found.nonlocals}

    def value(self, expression: ast.expr) -> Any:
        """A name, a module's attribute, or `Signed[...]` of these; None for any other expression."""
        match expression:
            case ast.Name(id=name):
                return self._names.get(name)
            case ast.Attribute(value=ast.Name(id=name), attr=attribute) if inspect.ismodule(self._names.get(name)):
                return getattr(self._names[name], attribute, None)
            case ast.Attribute(value=ast.Name(id=name), attr=attribute) if name in self._names:
                return getattr(type(self._names[name]), attribute, None)  # a method of what the handler closes over
            case ast.Subscript(value=ast.Name(id="Signed"), slice=within):
                return Signed[self.value(within)]  # type: ignore[misc]  # a type that is found at run time
        return None

    def returned(self, expression: ast.expr) -> Any:
        """What the function that an expression names returns."""
        function = self.value(expression)
        return typing.get_type_hints(function).get("return") if inspect.isfunction(function) else None


def _documents(kind: Any) -> list[type[Contract]]:
    """The contracts within a type: itself, or members of a union."""
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return [document for member in typing.get_args(kind) for document in _documents(member)]
    return [kind] if isinstance(kind, type) and issubclass(kind, Contract) else []
