"""`POST /v1/programs`: one program in, one outcome out; 503 when as many wait as can.

In: `ProgramRequest`s of validators and workers, who alone can reach a runner (NetworkPolicy). Out: `ProgramOutcome`s. It holds no key, no
configuration and no state: whoever asked asks again, here or elsewhere, when this process dies. Made by `__main__`.
"""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor

from fastapi import FastAPI, Request
from fastapi.responses import Response
from prometheus_client import Counter, Gauge, Histogram
from pydantic import ValidationError

from shoal.contracts.problems import ProblemCode, Refusal
from shoal.contracts.programs import MAX_PROGRAM_BYTES
from shoal.rewards.sandbox.documents import document_of, program_of
from shoal.rewards.sandbox.pool import SandboxPool, trial_in
from shoal.rewards.sandbox.program import Program, SandboxFailed
from shoal.telemetry import get_logger
from shoal.telemetry.health import render_metrics
from shoal.transport.problems import add_problem_answers, mistakes
from shoal.transport.server import BodyLimit

WAITING_FOR_A_SLOT = 2
"""Programs that may wait for each slot: enough that no slot is idle, few enough that whoever waits is better off with another runner."""
TRIAL_EVERY_SECONDS = 30.0
"""Of silence, after which `/healthz` runs a program of its own."""
TRIAL_SECONDS = 4.0
"""That one answer of `/healthz` waits for it: less than the shortest time limit of a probe (`pods.http_probes`). The next goes on waiting."""

PROGRAMS = Counter("shoal_runner_programs_total", "Judged programs, by outcome.", ["ended"])
REFUSED = Counter("shoal_runner_refused_total", "Programs refused because every slot was in use.")
RUNNING = Gauge("shoal_runner_in_flight", "Programs that run or wait for a slot.")
SECONDS = Histogram(
    "shoal_runner_program_seconds",
    "Wall-clock seconds from request to outcome.",
    buckets=(0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100),
)


def make_app(pool: SandboxPool) -> FastAPI:
    """The application over a pool of sandboxes."""
    app = FastAPI(title="shoal runner", openapi_url=None)
    app.add_middleware(BodyLimit, max_bytes=MAX_PROGRAM_BYTES)
    add_problem_answers(app)
    threads = ThreadPoolExecutor(pool.slots, thread_name_prefix="judge")
    room = pool.slots * (1 + WAITING_FOR_A_SLOT)
    running = 0
    broken: str | None = None  # why the last program found no sandbox
    succeeded = time.monotonic()
    trial: asyncio.Future[str | None] | None = None
    trials = ThreadPoolExecutor(1, thread_name_prefix="trial")

    @app.post("/v1/programs")
    async def judge(request: Request) -> Response:
        nonlocal running, broken, succeeded
        if running >= room:  # before the body is read: what cannot be judged soon takes no memory
            REFUSED.inc()
            raise Refusal(ProblemCode.SLOTS_TAKEN, f"{running} programs run or wait; try again", retry_after_seconds=1)
        running += 1
        RUNNING.set(running)
        try:
            program = asked_program(await request.body())
            with SECONDS.time():
                outcome = await asyncio.get_running_loop().run_in_executor(threads, pool.run, program)
        except SandboxFailed as error:
            broken = str(error)
            get_logger().error("a sandbox failed", reason=broken)
            PROGRAMS.labels("failed").inc()
            raise Refusal(ProblemCode.SANDBOX_FAILED, str(error)) from error
        finally:
            running -= 1
            RUNNING.set(running)
        broken, succeeded = None, time.monotonic()
        PROGRAMS.labels(outcome.ended).inc()
        return Response(document_of(outcome), media_type="application/json")

    @app.get("/readyz")
    async def ready() -> Response:
        return Response(broken or "ready", 503 if broken else 200, media_type="text/plain")

    @app.get("/healthz")
    async def alive() -> Response:
        """Whether programs run here. Where none has lately, a small one is tried, so that a runner that cannot is started again."""
        nonlocal broken, succeeded, trial
        if broken is None and (running or time.monotonic() - succeeded < TRIAL_EVERY_SECONDS):
            return Response("alive", media_type="text/plain")
        if trial is None:
            trial = asyncio.get_running_loop().run_in_executor(trials, trial_in, pool)
        asked = trial  # perhaps together with another probe
        await asyncio.wait([asked], timeout=TRIAL_SECONDS)
        if not asked.done():
            return Response(f"a trial program has not ended within {TRIAL_SECONDS:.0f} s", 503, media_type="text/plain")
        broken = found = asked.result()
        if trial is asked:
            trial = None
        if found is None:
            succeeded = time.monotonic()
        return Response(found or "alive", 503 if found else 200, media_type="text/plain")

    app.add_api_route("/metrics", _metrics, methods=["GET"])
    return app


def asked_program(body: bytes) -> Program:
    """The program that a request asks for; `Refusal` names what is wrong with it."""
    try:
        return program_of(body)
    except ValidationError as error:
        raise Refusal(ProblemCode.NOT_A_PROGRAM, mistakes(error.errors())) from error
    except (ValueError, RecursionError) as error:
        raise Refusal(ProblemCode.NOT_A_PROGRAM, str(error)[:300]) from error


async def _metrics() -> Response:
    body, content_type = render_metrics()
    return Response(body, media_type=content_type)
