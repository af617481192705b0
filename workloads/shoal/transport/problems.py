"""Refusals as HTTP answers (RFC 9457): the one table of statuses and titles, and the FastAPI handlers that use it."""

from types import MappingProxyType
from typing import Any, NamedTuple

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException as StarletteHTTPException

from shoal.contracts.problems import TYPE_PREFIX, Code, ProblemDocument, Refusal

CLOSE = MappingProxyType({"Connection": "close"})
"""Of an answer that comes before the whole body was read: what follows would be taken for the next request."""


class Kind(NamedTuple):
    """How HTTP says a code."""

    status: int
    title: str
    headers: MappingProxyType[str, str] = MappingProxyType({})


KINDS: dict[Code, Kind] = {
    Code.NOT_SIGNED: Kind(401, "Request is not signed as required"),
    Code.SEEN_BEFORE: Kind(401, "Request was seen before"),
    Code.SIGNER_NOT_THE_NODE: Kind(403, "Signer is not the node"),
    Code.WRONG_ROLE: Kind(403, "Wrong role"),
    Code.NOT_VALID: Kind(422, "Request does not fit the contract"),
    Code.BODY_TOO_LARGE: Kind(413, "Body is too large"),
    Code.BODY_TOO_SLOW: Kind(408, "Body came too slowly", CLOSE),
    Code.TOO_MANY_REQUESTS: Kind(429, "Too many requests"),
    Code.STORE_AWAY: Kind(503, "The object store is away"),
    Code.REDIS_AWAY: Kind(503, "Redis is away"),
    Code.ANOTHER_RUN: Kind(409, "Another run"),
    Code.NOT_REGISTERED: Kind(404, "Not registered"),
    Code.TOO_MANY_NODES: Kind(503, "Too many nodes"),
    Code.INVITE_NOT_SIGNED: Kind(422, "Invite is not signed as required"),
    Code.INVITE_OF_ANOTHER_NODE: Kind(409, "Invite of another node"),
    Code.INVITE_EXPIRED: Kind(409, "Invite has expired"),
    Code.UPLINK_NOT_MEASURED: Kind(428, "Measure the uplink first, with POST /v1/uplink-tests"),
    Code.UPLINK_OUTDATED: Kind(404, "Register anew"),
    Code.TOO_MANY_UPLOADS: Kind(429, "Many uploads at once"),
    Code.NO_SUCH_TEST: Kind(409, "No such test"),
    Code.UPLOAD_TOO_SMALL: Kind(422, "Upload is too small"),
    Code.UPLOAD_TOO_LARGE: Kind(413, "Upload is too large", CLOSE),
    Code.STATE_REBUILDING: Kind(503, "State is being rebuilt"),
    Code.NOT_PREPARED: Kind(503, "Not prepared"),
    Code.NO_SUCH_TASK_TABLE: Kind(404, "No such task table"),
    Code.NOT_ADMITTED: Kind(403, "Not admitted"),
    Code.NOT_A_MEMBER: Kind(403, "Not a member now"),
    Code.EVICTED: Kind(403, "Evicted"),
    Code.BANNED: Kind(403, "Banned"),
    Code.POOL_FORGOTTEN: Kind(403, "Register again"),
    Code.INVITE_NOT_VALID: Kind(403, "Invite is not valid"),
    Code.RECORD_BUSY: Kind(503, "Record is busy"),
    Code.TOO_MANY_HEARTBEATS: Kind(429, "Too many heartbeats"),
    Code.CHALLENGE_NOT_PASSED: Kind(428, "Challenge first"),
    Code.CHALLENGE_NOT_DUE: Kind(409, "No challenge is due"),
    Code.TOO_MANY_CHALLENGES: Kind(429, "Too many challenges"),
    Code.TOO_MANY_ANSWERS: Kind(503, "Many answers at once"),
    Code.NO_SUCH_CHALLENGE: Kind(409, "No such challenge"),
    Code.CHALLENGE_TOO_SLOW: Kind(403, "Too slow"),
    Code.CHALLENGE_WRONG: Kind(403, "Wrong product"),
    Code.NO_ADMIN: Kind(401, "No admin"),
    Code.NOT_THE_ADMIN: Kind(401, "Not the admin", MappingProxyType({"WWW-Authenticate": "Bearer"})),
    Code.NO_SUCH_NODE: Kind(404, "No such node"),
    Code.NODE_NOT_A_MEMBER: Kind(409, "Not a member now"),
    Code.NODE_EXCLUDED: Kind(409, "Excluded from the run"),
    Code.NOT_BANNED: Kind(409, "Not banned"),
    Code.LOGS_NOT_WANTED: Kind(409, "Logs are not wanted"),
    Code.NO_SUCH_QUESTION: Kind(404, "No such question"),
    Code.STEP_NOT_OPEN: Kind(409, "Step is not open to this node"),
    Code.STEP_STALLED: Kind(409, "The step waits for a person"),
    Code.ENOUGH_UNDER_WAY: Kind(409, "Enough is under way"),
    Code.SLICE_UNDER_WAY: Kind(409, "Slice is under way"),
    Code.FILES_NOT_JUDGED: Kind(409, "Files could not be judged"),
    Code.QUOTA_LEASED: Kind(409, "Too many files"),
    Code.QUOTA_USED: Kind(429, "Too many files"),
    Code.NO_SUCH_LEASE: Kind(404, "No such lease"),
    Code.LEASE_OF_ANOTHER_NODE: Kind(403, "Lease of another node"),
    Code.LEASE_OVER: Kind(409, "Lease is over"),
    Code.LEASE_FOR_ANOTHER_FILE: Kind(409, "Lease is for another file"),
    Code.ALREADY_SUBMITTED: Kind(409, "Already submitted"),
    Code.SUBMITTED_BEFORE: Kind(409, "File was submitted before"),
    Code.NOTHING_UPLOADED: Kind(409, "Nothing was uploaded"),
    Code.WRONG_SIZE: Kind(422, "Wrong size"),
    Code.WRONG_DIGEST: Kind(422, "Wrong digest"),
    Code.WRONG_GROUPS: Kind(422, "Wrong number of groups"),
    Code.FILE_TOO_LARGE: Kind(413, "File is too large"),
    Code.GRANT_NOT_VALID: Kind(403, "Grant is not valid"),
    Code.NOT_A_FORM: Kind(415, "Not a form"),
    Code.FORM_NOT_VALID: Kind(400, "Form is not valid"),
    Code.FORM_FIELD_TOO_LARGE: Kind(413, "Form field is too large"),
    Code.UPLOAD_TOO_SLOW: Kind(408, "Upload is too slow", CLOSE),
    Code.CLAIM_OVER: Kind(409, "Claim is over"),
    Code.VERDICT_NOT_SIGNED: Kind(422, "Verdict is not signed as required"),
    Code.NO_SUCH_FILE_QUEUED: Kind(404, "No such file in the queue"),
    Code.VERDICT_MISFIT: Kind(409, "Verdict does not fit the file"),
    Code.WRONG_ROWS: Kind(422, "Wrong number of rows"),
    Code.LENGTHS_MISSING: Kind(422, "Lengths are missing"),
    Code.TRAINER_OF_ANOTHER_RUN: Kind(409, "Trainer of another run"),
    Code.VERSION_OF_ANOTHER_RUN: Kind(409, "Version of another run"),
    Code.VERSION_TOO_EARLY: Kind(409, "Version comes too early"),
    Code.VERSION_CHANGED: Kind(409, "Version has other bytes"),
    Code.VERSION_NOT_STORED: Kind(409, "Version is not in the store"),
    Code.MANIFEST_NOT_VALID: Kind(409, "Version's manifest is not valid"),
    Code.DATASET_OF_ANOTHER_RUN: Kind(409, "Data set of another run"),
    Code.NO_SUCH_DATASET: Kind(409, "No such data set"),
    Code.DATASET_TOO_EARLY: Kind(409, "Data set comes too early"),
    Code.DATASET_CHANGED: Kind(409, "Data set has another card"),
    Code.DATASET_NOT_STORED: Kind(409, "Data set is not in the store"),
    Code.NOT_YET_A_MEMBER: Kind(503, "Not a member yet"),
    Code.POD_ENDING: Kind(409, "This pod is ending"),
    Code.ORCHESTRATOR_AWAY: Kind(503, "The orchestrator is away"),
    Code.TOO_MANY_METRICS: Kind(422, "Too many metrics"),
    Code.NO_SUCH_FILE: Kind(404, "No such file"),
    Code.NOT_A_PLAIN_FILE: Kind(422, "Not a plain file"),
    Code.EMPTY_FILE: Kind(422, "Empty file"),
    Code.NOT_A_PROGRAM: Kind(422, "This is no program"),
    Code.SLOTS_TAKEN: Kind(503, "Every slot is taken"),
    Code.SANDBOX_FAILED: Kind(500, "The sandbox failed"),
}


def problem_of(refusal: Refusal) -> ProblemDocument:
    """The document that says a refusal."""
    kind = KINDS[refusal.code]
    return ProblemDocument(type=TYPE_PREFIX + refusal.code, title=kind.title, status=kind.status, detail=refusal.detail)


def refused(refusal: Refusal) -> Response:
    """The answer that says a refusal."""
    headers = dict(KINDS[refusal.code].headers)
    if refusal.retry_after_seconds is not None:
        headers["Retry-After"] = f"{refusal.retry_after_seconds:g}"
    return problem_response(problem_of(refusal), headers)


def problem_response(document: ProblemDocument, headers: dict[str, str] | None = None) -> Response:
    """The answer with a problem document as its body."""
    return JSONResponse(document.model_dump(), document.status, headers, media_type="application/problem+json")


def mistakes(errors: Any) -> str:
    """What pydantic found wrong, by field, at most ten."""
    return "; ".join(f"{'.'.join(map(str, each['loc'])) or 'body'}: {each['msg']}" for each in errors[:10])


def add_problem_answers(app: FastAPI) -> None:
    """Make every error of the application a problem document."""

    @app.exception_handler(Refusal)
    async def _refusal(_: Request, refusal: Refusal) -> Response:
        return refused(refusal)

    @app.exception_handler(StarletteHTTPException)
    async def _http(_: Request, error: StarletteHTTPException) -> Response:
        detail = "see /openapi.json for what this service offers"
        return problem_response(ProblemDocument(title=str(error.detail), status=error.status_code, detail=detail))

    @app.exception_handler(RequestValidationError)
    async def _invalid(_: Request, error: RequestValidationError) -> Response:
        return refused(Refusal(Code.NOT_VALID, mistakes(error.errors())))
