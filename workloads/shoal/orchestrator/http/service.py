"""The orchestrator's HTTP service (docs/http.md): routes, who may call them, and the process.

Every route is thin: it finds the signer, parses the body, and calls one function of `nodes`, `work`, `verdicts`, `announcements` or `progress` on a
worker thread. Until Redis holds what the store says (at start, and after Redis was lost) requests get 503 and callers try again.
"""

import asyncio
import re
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import chain
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from fastapi import FastAPI, Request, Response
from starlette.concurrency import run_in_threadpool
from starlette.responses import StreamingResponse

from shoal.contracts import keys
from shoal.contracts.pools import SAMPLER
from shoal.contracts.problems import ProblemCode, Refusal
from shoal.contracts.protocol import (
    MAX_LOG_CHARACTERS,
    ChallengeAnswer,
    ChallengeRequest,
    ClaimRenewal,
    ClaimRequest,
    DatasetAnnouncement,
    Heartbeat,
    LeaseRequest,
    LeaseReturn,
    NodeLogs,
    SubmissionNotice,
    TrainerProgress,
    UploadRequest,
    VersionAnnouncement,
)
from shoal.contracts.run import PublicRun, home, load_run_config
from shoal.contracts.signed import BadSignature, Signed
from shoal.contracts.verdicts import Verdict
from shoal.crypto.keys import PrivateKey
from shoal.orchestrator import announcements, key_changes, metrics, progress, recovery
from shoal.orchestrator.background import Background
from shoal.orchestrator.http.admin_routes import add_admin_routes, read_token
from shoal.orchestrator.http.heartbeats import QuickHeartbeats
from shoal.orchestrator.http.staging import receive_form, temporary_file
from shoal.orchestrator.nodes import admin, capability_check, membership
from shoal.orchestrator.run_state import RunState
from shoal.orchestrator.verdicts import verdicts
from shoal.orchestrator.work import handout, lease_returns, uploads
from shoal.storage import Store, StoreUnavailable, open_store
from shoal.storage.grants import BadGrant, check_folder_grant
from shoal.telemetry import Liveness, every_line, install_signals, serve_health, start, wait_for
from shoal.transport import SignedClient, api_pages
from shoal.transport.peers import add_peer_answers
from shoal.transport.problems import add_problem_answers
from shoal.transport.redis_access import RedisNonces, connect, connect_async
from shoal.transport.server import BodyLimit, SignatureGate, serve
from shoal.transport.service import (
    Gate,
    add_health,
    add_keys_route,
    json_answer,
    parse,
    poll_seconds,
    read_secret,
)
from shoal.transport.shared_answer import KeptAnswers, SharedAnswer

PORT = 8080
STORE_SECONDS = 20.0
"""Seconds that a request waits for the store, less than its caller's 30 s; then it gets 503, and the caller retries."""
LEDGER_SECONDS = 600.0
"""Seconds to wait for the store at start: nothing can be served without the ledger."""
CLAIM_POLL_SECONDS = 0.2  # how often a waiting validator's long poll looks at the queue
STAGED_TOGETHER = 4
"""Files that are put into the store at a time: others are received meanwhile, and threads are left for leases and verdicts."""
PACKAGE_PART_BYTES = 1 << 20
"""Bytes of a wheel that a request holds at a time: all nodes may ask at once when a run starts."""
MAX_BODY_BYTES = 64 << 10
"""Greatest JSON body of most requests, which have less than a tenth of it; a heartbeat with all its metrics about 7,000 bytes."""
BODY_BYTES = {
    "/v1/challenge-answers": 512 << 10,  # a product of 400,000 characters
    "/v1/logs": 8 * 6 * MAX_LOG_CHARACTERS + (64 << 10),  # eight parts; a character is six bytes where JSON escapes it
    "/v1/progress": 1 << 20,  # the trainer's figures of a step, and its islands'
    "/v1/verdicts": 16 << 20,  # about 80 bytes for each row, and the largest files have about 100,000 rows
}
"""Limits of longer bodies. A body is read only after the signature over its head matches, and a role's body only from that role (`Gate`)."""

HOLDS = re.compile(r"([0-9]{1,6}(,[0-9]{1,6}){0,15})?", re.ASCII)
TOGETHER = re.compile(r"[1-9]\d?", re.ASCII)

P = ParamSpec("P")
R = TypeVar("R")


def make_app(
    state: RunState, background: Background, nonces: RedisNonces, temporary: Path, admin_token: bytes | None = None
) -> FastAPI:
    """The application over a run's state. `temporary` is the folder of incoming uploads. Without `admin_token` there is no admin."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        background.start()
        yield
        await run_in_threadpool(background.stop)

    app = FastAPI(title="Shoal orchestrator", lifespan=lifespan, docs_url=None, redoc_url=None)
    addresses = state.config.addresses
    signatures = SignatureGate(addresses.orchestrator, nonces, lambda: [addresses.public_orchestrator])
    app.add_middleware(QuickHeartbeats, state=state, gate=signatures, client=nonces.client)
    app.add_middleware(BodyLimit, max_bytes=MAX_BODY_BYTES, exempt=("/v1/staging",), by_path=BODY_BYTES)
    add_problem_answers(app)
    add_peer_answers(app, background.wake)
    live = background.liveness
    add_health(
        app,
        alive=lambda: None if live.alive() else live.describe(),
        ready=lambda: None if recovery.is_built(state) else "rebuilding the run's state from the store",
    )
    gate = Gate(signatures, state.keys)
    add_keys_route(app, state.keys, lambda: key_changes.notice(state))

    async def call(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a function of ours on a worker thread, once Redis holds this run's state."""

        def guarded() -> R:
            if not recovery.is_built(state):
                background.wake()
                raise Refusal(
                    ProblemCode.STATE_REBUILDING,
                    "the orchestrator is reading the run's state from the store; try again in a second",
                    retry_after_seconds=0.5,
                )
            return function(*args, **kwargs)

        return await run_in_threadpool(guarded)

    _add_run_routes(app, state, gate, call)
    _add_node_routes(app, state, gate, call)
    _add_validator_routes(app, state, gate, call)
    add_admin_routes(app, state, admin_token, call)
    if state.store.kind != "s3":
        _add_staging_route(app, state, temporary)
    api_pages.describe(app, api_pages.ORCHESTRATOR)
    return app


def _add_run_routes(app: FastAPI, state: RunState, gate: Gate, call: Callable[..., Any]) -> None:
    """The run in aggregates, what the trainer's pod says, and what relays ask for."""

    aggregates = SharedAnswer(lambda: call(lambda: progress.run_progress(state).to_json()))

    @app.get("/v1/run")
    async def run() -> Response:
        return Response(await aggregates.get(), media_type="application/json")

    @app.post("/v1/versions")
    async def announce(request: Request) -> Response:
        await gate.role(request, "trainer")
        await call(announcements.announce_version, state, await parse(request, VersionAnnouncement))
        return Response(status_code=204)

    @app.post("/v1/datasets")
    async def dataset(request: Request) -> Response:
        await gate.role(request, "trainer")
        await call(announcements.announce_dataset, state, await parse(request, DatasetAnnouncement))
        return Response(status_code=204)

    @app.get("/v1/exclusions")
    async def exclusions(request: Request) -> Response:
        await gate.role(request, "relay")
        return json_answer(await call(membership.exclusions, state))

    @app.post("/v1/progress")
    async def trainer_progress(request: Request) -> Response:
        await gate.role(request, "trainer")
        await call(announcements.note_progress, state, await parse(request, TrainerProgress))
        return Response(status_code=204)


def _add_node_routes(app: FastAPI, state: RunState, gate: Gate, call: Callable[..., Any]) -> None:
    """The routes of nodes, in the order of their use."""

    @app.post("/v1/heartbeats")
    async def heartbeat(request: Request) -> Response:
        reply = await call(membership.heartbeat, state, await gate.speaks_for(request, Heartbeat))
        metrics.HEARTBEATS.labels(reply.state).inc()
        return json_answer(reply)

    @app.post("/v1/challenges")
    async def challenge(request: Request) -> Response:
        wanted = await gate.speaks_for(request, ChallengeRequest)
        return json_answer(await call(capability_check.give, state, wanted))

    @app.post("/v1/challenge-answers")
    async def challenge_answer(request: Request) -> Response:
        answer = await gate.speaks_for(request, ChallengeAnswer)
        return json_answer(await call(capability_check.receive, state, answer))

    @app.post("/v1/logs")
    async def logs(request: Request) -> Response:
        await call(admin.take_logs, state, await gate.speaks_for(request, NodeLogs))
        return Response(status_code=204)

    @app.get("/v1/public")
    async def public(request: Request) -> Response:
        node = await gate.node(request)

        def answer() -> PublicRun:
            state.nodes.require_member(node)
            return public_run(state)

        return json_answer(await call(answer))

    tables = KeptAnswers(lambda digest: call(state.store.get, keys.task_table(digest)))

    @app.get("/v1/tasks")
    async def tasks(request: Request) -> Response:
        """The run's table, or, with `?digest=`, that of a benchmark."""
        node = await gate.node(request)
        wanted = request.query_params.get("digest")

        def allowed() -> str:
            state.nodes.require_member(node)
            prepared = state.prepared
            digest = prepared.tasks_digest if wanted is None else wanted
            if digest not in (prepared.tasks_digest, *(each.tasks_digest for each in prepared.benchmarks)):
                raise Refusal(
                    ProblemCode.NO_SUCH_TASK_TABLE, "digest is neither that of the run's tasks nor of a benchmark's"
                )
            return digest

        # Up to 64 MiB: however many connections take their time, these bytes are here once.
        return Response(await tables.get(await call(allowed)), media_type="application/vnd.apache.parquet")

    @app.get("/v1/packages")
    async def packages(request: Request) -> Response:
        """The wheel with `?digest=` of one of the run's packages."""
        node = await gate.node(request)
        wanted = request.query_params.get("digest", "")

        def answer() -> tuple[bytes, int]:
            state.nodes.require_member(node)
            sizes = {each.sha256: each.size_bytes for each in state.prepared.packages}
            if wanted not in sizes:
                raise Refusal(ProblemCode.NO_SUCH_PACKAGE, "digest is not that of a package of the run")
            return next(package_parts(state.store, wanted, 0, sizes[wanted])), sizes[wanted]

        first, size = await call(answer)  # before the head of the answer: a store that is away is told by its status

        return StreamingResponse(
            chain([first], package_parts(state.store, wanted, len(first), size)),
            media_type="application/octet-stream",
            headers={"Content-Length": str(size)},
        )

    surveys = handout.Surveys(state)

    @app.get("/v1/step")
    async def step(request: Request) -> Response:
        node = await gate.node(request)
        return json_answer(
            await call(
                handout.step_for,
                state,
                node,
                held_versions(request),
                leases_together(request),
                "parts" in request.query_params,
                "pace" in request.query_params,
                surveys,
            )
        )

    @app.post("/v1/leases")
    async def lease(request: Request) -> Response:
        wanted = await gate.speaks_for(request, LeaseRequest)
        with metrics.counted(metrics.LEASES):
            return json_answer(await call(handout.lease_for, state, wanted, surveys))

    @app.post("/v1/returns")
    async def lease_return(request: Request) -> Response:
        await call(lease_returns.take_back, state, await gate.speaks_for(request, LeaseReturn))
        return Response(status_code=204)

    @app.post("/v1/uploads")
    async def upload(request: Request) -> Response:
        wanted = await gate.speaks_for(request, UploadRequest)
        with metrics.counted(metrics.UPLOADS):
            return json_answer(await call(uploads.grant_upload, state, wanted))

    @app.post("/v1/submissions")
    async def submission(request: Request) -> Response:
        notice = await gate.speaks_for(request, SubmissionNotice)
        receipt = await call(uploads.submit, state, notice)
        metrics.SUBMISSIONS.labels(receipt.status).inc()
        metrics.SUBMITTED_BYTES.inc(notice.size)
        return json_answer(receipt)


def package_parts(store: Store, sha256: str, start: int, size: int) -> Iterator[bytes]:
    """A wheel of `size` bytes from `start` on, in parts: up to 32 MiB for each node that starts are not held whole."""
    for place in range(start, size, PACKAGE_PART_BYTES):
        yield store.get_range(keys.package(sha256), place, min(place + PACKAGE_PART_BYTES, size))


def _add_validator_routes(app: FastAPI, state: RunState, gate: Gate, call: Callable[..., Any]) -> None:
    """Claims by long poll, their renewals, and verdicts."""

    @app.post("/v1/claims")
    async def claim(request: Request) -> Response:
        await gate.role(request, "validator")
        wanted = await parse(request, ClaimRequest)
        ends = asyncio.get_running_loop().time() + poll_seconds(request)
        while True:
            job = await call(handout.claim, state, wanted)
            if job is not None or asyncio.get_running_loop().time() >= ends or await request.is_disconnected():
                return json_answer(job)
            await asyncio.sleep(CLAIM_POLL_SECONDS)

    @app.post("/v1/claim-renewals")
    async def renewal(request: Request) -> Response:
        await gate.role(request, "validator")
        await call(handout.renew, state, await parse(request, ClaimRenewal))
        return Response(status_code=204)

    @app.post("/v1/verdicts")
    async def verdict(request: Request) -> Response:
        await gate.role(request, "validator")
        signed = await parse(request, Signed[Verdict])
        try:
            key_changes.check_verdict(state, signed)
        except BadSignature as error:
            raise Refusal(ProblemCode.VERDICT_NOT_SIGNED, str(error)) from error
        await call(verdicts.receive, state, signed)
        return Response(status_code=204)


def _add_staging_route(app: FastAPI, state: RunState, temporary: Path) -> None:
    """Uploads into a store that gives strangers no form of its own; the policy in the form is the permission."""

    def check(fields: dict[str, str]) -> tuple[str, int]:
        try:
            return check_folder_grant(fields, now_unix=state.clock(), run_secret=state.run_secret)
        except BadGrant as error:
            raise Refusal(ProblemCode.GRANT_NOT_VALID, str(error)) from error

    together = asyncio.Semaphore(STAGED_TOGETHER)

    @app.post("/v1/staging")
    async def staging(request: Request) -> Response:
        with temporary_file(temporary) as file:
            content_type = request.headers.get("content-type", "")
            key, _ = await receive_form(content_type, request.stream(), check, file)
            async with together:
                await run_in_threadpool(state.store.put_file, key, Path(file.name))
        return Response(status_code=204)


def public_run(state: RunState) -> PublicRun:
    """The run's description for an admitted node."""
    config, prepared = state.config, state.prepared
    return PublicRun(
        run=config.run,
        mode=config.mode,
        steps=state.schedule.steps,
        async_level=config.async_level,
        model_id=config.model_id,
        environment=prepared.environment,
        environment_digest=prepared.environment_digest,
        tasks_digest=prepared.tasks_digest,
        task_count=prepared.task_count,
        group_size=config.recipe.group_size,
        max_sequence_length=config.recipe.max_sequence_length,
        sampling=config.sampling,
        length_reward=config.length_reward,
        sampler=SAMPLER,
        benchmarks=list(state.plan.benchmarks),
        vine=config.recipe.vine,
        prompt=prepared.prompt,
        mixture=prepared.mixture,
        several_versions=config.several_versions,
        quantization=config.quantization,
        logits=prepared.proof_profile.logits if prepared.proof_profile is not None else None,
        routes=prepared.routes,
        curriculum=config.tasks.curriculum is not None,
        packages=prepared.packages,
    )


def held_versions(request: Request) -> list[int]:
    """Versions that a node says it holds, `?holds=6,7`; none: it is given no evaluation. Raises `Refusal`."""
    text = request.query_params.get("holds", "")
    if not HOLDS.fullmatch(text):
        raise Refusal(
            ProblemCode.NOT_VALID, "holds: expected up to 16 version numbers with commas between, such as 6,7"
        )
    return [int(part) for part in text.split(",")] if text else []


def leases_together(request: Request) -> int | None:
    """Leases that a node's worker would have at a time, `?together=4`; None: it does not say. Raises `Refusal`."""
    text = request.query_params.get("together")
    if text is None:
        return None
    if not TOGETHER.fullmatch(text):
        raise Refusal(ProblemCode.NOT_VALID, "together: expected a number of leases from 1 to 99, such as 4")
    return int(text)


def load_ledger(state: RunState) -> bool | None:
    """Read the ledger, and declare the run in it if needed, before any request is served; None while the store does not answer."""
    try:
        state.ledger.load()
        key_changes.record(state)
        state.terms.open()
    except StoreUnavailable:
        return None
    return True


def main() -> None:
    """Entry point of the orchestrator container."""
    log = start("orchestrator")
    config = load_run_config()
    every_line(run=config.run)
    key = PrivateKey.from_pem(read_secret("role.pem"))
    secret = read_secret("run_secret")
    if len(secret) < 16:
        sys.exit("secrets/run_secret has fewer than 16 bytes: somebody could guess beacons and upload grants")
    if config.trusted_roster().keys["orchestrator"] != key.public:
        sys.exit("secrets/role.pem is not the orchestrator's key in the roster of config/run.json")
    client = connect(config.addresses.redis)
    store = open_store(config, deadline_seconds=STORE_SECONDS)
    state = RunState(config, store, client, key, secret)
    install_signals()
    wait_for("the ledger in the object store", lambda: load_ledger(state), deadline_seconds=LEDGER_SECONDS)
    nonces = RedisNonces(connect_async(config.addresses.redis), state.prefix)
    background = Background(state, SignedClient(config.addresses.discovery, key))
    log.info("orchestrator starts", port=PORT, store=store.kind, ledger_entries=state.view.next_number)
    # A port that only serves figures has no loop of its own to watch: its liveness is never asked for.
    serve_health(metrics.NODE_METRICS_PORT, Liveness(float("inf")), lambda: None, registry=metrics.NODES_REGISTRY)
    token = read_token(home() / "secrets" / "admin_token")
    serve(make_app(state, background, nonces, home() / "tmp", token), PORT)
