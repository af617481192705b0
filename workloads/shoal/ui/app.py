"""The service behind the page: JSON by `GET /api/...`, news by server-sent events, and the files of `static/`. Nothing it does writes.

In: a `RunWatch` and an `Access`. Every answer carries the headers of `access.HEADERS`; errors are `application/problem+json`.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import StreamingResponse
from starlette.exceptions import HTTPException

from shoal.contracts import keys
from shoal.contracts.problems import ProblemDocument
from shoal.contracts.verdicts import Verdict
from shoal.errors import InputWrong, RunFailed
from shoal.ledger.audit import BadLedger, check_proof
from shoal.report.ledger_proofs import prove_from
from shoal.storage import NotFound, StoreUnavailable
from shoal.text import plain
from shoal.transport.patience import within
from shoal.transport.problems import problem_response
from shoal.ui import documents
from shoal.ui.access import COOKIE, HEADERS, LONGEST_TOKEN, Access
from shoal.ui.newest import NewestAnswers
from shoal.ui.rollouts import NotShown, RolloutFiles, file_document, row_document
from shoal.ui.watch import RunWatch

STATIC = Path(__file__).parent / "static"
KINDS = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
LOOK_SECONDS = 0.5
"""How often an open stream looks whether there is news: the sources are read once a second."""
KEEP_ALIVE_SECONDS = 15.0
MOST_STREAMS = 32
TOKEN_SECONDS = 10.0
"""For the body of the one request that needs no token: it is the token."""

Hex = Annotated[str, Query(pattern="^[0-9a-f]{0,64}$")]
Page = Annotated[int, Query(ge=0, le=1_000_000)]
Kind = Annotated[str, Query(pattern="^[a-z-]{0,40}$")]
Outcome = Annotated[str, Query(pattern="^(accept|reject|expired|inconclusive|)$")]


def problem(status: int, title: str, detail: str) -> Response:
    """An error in words; `detail` says what to do."""
    return problem_response(ProblemDocument(title=title, status=status, detail=detail))


def make_app(watch: RunWatch, access: Access, *, secure_cookie: bool = False, probed: bool = False) -> FastAPI:
    """The service. `secure_cookie`: it is served over HTTPS. `probed`: a kubelet asks `/healthz` and `/readyz`, which say nothing of the run."""

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        yield
        watch.stop()

    app = FastAPI(title="Shoal run", docs_url=None, redoc_url=None, openapi_url=None, lifespan=life)
    files = RolloutFiles(watch.source.store)
    static = _static_files()

    @app.middleware("http")
    async def guard(request: Request, go_on: Callable[[Request], Awaitable[Response]]) -> Response:
        refused = _refusal(request, access)
        if refused is None and _path(request).startswith("/api/"):
            watch.touch()
        answer = refused or await go_on(request)
        answer.headers.update(HEADERS)
        return answer

    _add_problems(app)
    _add_session(app, access, secure_cookie=secure_cookie)
    _add_run_routes(app, watch, NewestAnswers(files))
    _add_file_routes(app, watch, files)
    _add_ledger_routes(app, watch)

    if probed:

        @app.get("/healthz")
        def healthz() -> Response:
            alive = watch.liveness.alive()
            return Response(watch.liveness.describe(), 200 if alive else 503, media_type="text/plain")

        @app.get("/readyz")
        def readyz() -> Response:
            return Response("ready", media_type="text/plain")

    @app.get("/{name:path}")
    def page(name: str) -> Response:
        found = static.get(name or "index.html")
        return found() if found else problem(404, "Not here", "the page is at /")

    return app


def _add_problems(app: FastAPI) -> None:
    """What goes wrong, in words."""

    @app.exception_handler(StoreUnavailable)
    async def away(_: Request, error: Exception) -> Response:
        return problem(503, "The object store does not answer", f"{plain(error, 300)}; the page retries by itself")

    @app.exception_handler(NotShown)
    async def not_shown(_: Request, error: Exception) -> Response:
        return problem(409, "This cannot be shown", plain(error, 600))

    @app.exception_handler(RequestValidationError)
    async def wrong(_: Request, error: RequestValidationError) -> Response:
        told = "; ".join(f"{plain(each['loc'][-1], 40)}: {plain(each['msg'], 100)}" for each in error.errors()[:5])
        return problem(422, "The request is not well formed", told)

    @app.exception_handler(HTTPException)
    async def other(_: Request, error: HTTPException) -> Response:
        return problem(error.status_code, "Not here", plain(error.detail, 200))


def _add_session(app: FastAPI, access: Access, *, secure_cookie: bool) -> None:
    """The one request that needs no token."""

    @app.post("/api/session")
    async def session(request: Request) -> Response:
        """Trade the token for a cookie. The body is the token; nothing else is ever written."""
        body = b""
        try:
            async for chunk in within(request.stream(), lambda: TOKEN_SECONDS):
                body += chunk
                if len(body) > LONGEST_TOKEN:
                    return problem(413, "Too long", "the body must be the token and nothing else")
        except TimeoutError:
            return problem(408, "Too slow", f"the body, which is the token, did not come within {TOKEN_SECONDS:.0f} s")
        if not access.is_token(body.decode("utf-8", "replace").strip()):
            return problem(401, "Wrong token", "use the token that `shoal ui` printed, or the one in its --token-file")
        # A proxy that speaks HTTPS for us says so; who lies here gets a cookie that his own browser keeps to itself.
        secure = secure_cookie or request.headers.get("x-forwarded-proto", "") == "https"
        answer = Response(status_code=204)
        answer.set_cookie(COOKIE, access.cookie_value(), httponly=True, samesite="strict", secure=secure, path="/api")
        return answer


def _add_run_routes(app: FastAPI, watch: RunWatch, newest: NewestAnswers) -> None:
    """The run as a whole, its steps and its nodes."""
    streams = _Streams()

    @app.get("/api/run")
    def run() -> dict[str, Any]:
        trust = watch.source.trust
        return documents.run_document(watch.seen, trust.run_key, trust.origin, trust.given)

    @app.get("/api/live")
    def live() -> dict[str, Any]:
        return documents.live_document(watch.seen, watch.revision)

    @app.get("/api/events")
    async def events(request: Request) -> Response:
        if streams.open >= MOST_STREAMS:
            return problem(503, "Too many open pages", f"{MOST_STREAMS} pages are open; close one, then load again")
        # nginx before us, as of an Ingress, would gather what is told until it has a page full of it.
        return StreamingResponse(
            _events(request, watch, streams), media_type="text/event-stream", headers={"X-Accel-Buffering": "no"}
        )

    @app.get("/api/steps")
    def steps(after: Annotated[int, Query(ge=-1)] = -1) -> dict[str, Any]:
        return documents.steps_document(watch.seen.facts.steps, after)

    @app.get("/api/samples")
    def samples() -> dict[str, Any]:
        """Three answers of the newest accepted file, as the model saw their prompts and gave them."""
        return newest.document(watch.seen)

    @app.get("/api/timeline")
    def timeline(steps: Annotated[int, Query(ge=1, le=200)] = 8) -> dict[str, Any]:
        return documents.timeline_document(watch.seen, steps)

    @app.get("/api/nodes")
    def nodes() -> dict[str, Any]:
        return documents.nodes_document(watch.seen)


def _add_file_routes(app: FastAPI, watch: RunWatch, files: RolloutFiles) -> None:
    """Files of rollouts and their rows."""

    @app.get("/api/files")
    def listed(
        node: Hex = "", outcome: Outcome = "", step: Annotated[int | None, Query(ge=0)] = None, page: Page = 0
    ) -> dict[str, Any]:
        return documents.files_document(watch.seen, node=node, outcome=outcome, step=step, page=page)

    @app.get("/api/files/{node}/{sha256}")
    def one_file(node: str, sha256: str) -> Any:
        verdict = _verdict(watch, node, sha256)
        if verdict is None:
            return problem(404, "No such file", "no verdict names this file; it may still wait for its verdict")
        unix = watch.seen.facts.verdict_unix.get(keys.verdict(node, sha256))
        vine = watch.seen.vine
        document: dict[str, Any] = {"verdict": documents.verdict_document(verdict, unix, vine), "problem": ""}
        try:
            return document | file_document(files.open(verdict), verdict, vine)
        except NotShown as error:  # the verdict can be shown all the same
            return document | {"problem": str(error), "metadata": {}, "rows": []}

    @app.get("/api/files/{node}/{sha256}/rows/{row}")
    def one_row(node: str, sha256: str, row: int) -> Any:
        verdict = _verdict(watch, node, sha256)
        if verdict is None:
            return problem(404, "No such file", "no verdict names this file; it may still wait for its verdict")
        return row_document(files.open(verdict), verdict, row, files.text(), watch.seen.vine)


def _add_ledger_routes(app: FastAPI, watch: RunWatch) -> None:
    """Entries of the ledger, and the proof of one."""

    @app.get("/api/ledger")
    def ledger(node: Hex = "", kind: Kind = "", page: Page = 0) -> dict[str, Any]:
        return documents.ledger_document(watch.seen, node=node, kind=kind, page=page)

    @app.get("/api/ledger/{number}/proof")
    def proof(number: int) -> Any:
        audit = watch.seen.audit
        if audit is None:
            return problem(
                409, "The page has not read the ledger yet", watch.seen.ledger_problem or "try again in a moment"
            )
        try:
            made = prove_from(watch.source, audit, number)
            check_proof(made, watch.source.trust.run_key)
        except (InputWrong, RunFailed, BadLedger, NotFound) as error:
            return problem(409, "This entry cannot be proven", plain(error, 500))
        return {
            "proven": f"entry {number} is one of the {made.checkpoint.document.size} under the checkpoint",
            "path": len(made.path),
            "root": made.checkpoint.document.root,
            "proof": json.loads(made.to_json()),
        }


def _path(request: Request) -> str:
    """The path by which a route is chosen. `request.url` is put together with the Host header, in which a client may write a path of its own."""
    return str(request.scope["path"])


def _refusal(request: Request, access: Access) -> Response | None:
    """Why a request is not answered, or None. The page's own files hold nothing of a run and are for everybody."""
    if not access.knows_name(request.headers.get("host", "")):
        return problem(
            421, "Another name", "this page answers on its loopback address only; open it as http://127.0.0.1"
        )
    path = _path(request)
    if not path.startswith("/api/") or path == "/api/session":
        return None
    if access.may_read(request.headers.get("authorization", ""), request.cookies.get(COOKIE, "")):
        return None
    return problem(
        401, "A token is needed", "open the address that `shoal ui` printed, or send Authorization: Bearer TOKEN"
    )


def _verdict(watch: RunWatch, node: str, sha256: str) -> Verdict | None:
    return next((each for each in watch.seen.facts.verdicts if (each.node, each.sha256) == (node, sha256)), None)


def _static_files() -> dict[str, Callable[[], Response]]:
    """The files of the page by name, listed once: a name from outside is looked up and never joined to a path."""

    def serve(path: Path) -> Callable[[], Response]:
        return lambda: Response(path.read_bytes(), media_type=KINDS[path.suffix])

    return {path.relative_to(STATIC).as_posix(): serve(path) for path in STATIC.rglob("*") if path.suffix in KINDS}


class _Streams:
    """Open event streams; a page left open in a hundred tabs must not take every connection."""

    def __init__(self) -> None:
        self.open = 0


async def _events(request: Request, watch: RunWatch, streams: _Streams) -> AsyncIterator[str]:
    """The live document now and whenever something changed; a comment now and then, so that a dead connection is noticed."""
    told, quiet = -1, 0.0
    streams.open += 1  # here, where `finally` is sure to follow: an answer that is never begun costs no place
    try:
        yield "retry: 2000\n\n"
        while not await request.is_disconnected():
            watch.touch()
            if watch.revision != told:
                told, quiet = watch.revision, 0.0
                body = await asyncio.to_thread(documents.live_document, watch.seen, told)
                yield f"event: live\ndata: {json.dumps(body, allow_nan=False)}\n\n"
            elif quiet >= KEEP_ALIVE_SECONDS:
                quiet = 0.0
                yield ": still here\n\n"
            await asyncio.sleep(LOOK_SECONDS)
            quiet += LOOK_SECONDS
    finally:
        streams.open -= 1
