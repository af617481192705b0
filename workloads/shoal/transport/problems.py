"""Refusals as HTTP answers (RFC 9457): the one table of statuses and titles, and the FastAPI handlers that use it."""

from types import MappingProxyType
from typing import Any, NamedTuple

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException as StarletteHTTPException

from shoal.contracts.problems import TYPE_PREFIX, ProblemCode, ProblemDocument, Refusal

CLOSE = MappingProxyType({"Connection": "close"})
"""Of an answer that comes before the whole body was read: what follows would be taken for the next request."""


class Kind(NamedTuple):
    """How HTTP says a code."""

    status: int
    title: str
    headers: MappingProxyType[str, str] = MappingProxyType({})


KINDS: dict[ProblemCode, Kind] = {
    ProblemCode.NOT_SIGNED: Kind(401, "Request is not signed as required"),
    ProblemCode.SEEN_BEFORE: Kind(401, "Request was seen before"),
    ProblemCode.SIGNER_NOT_THE_NODE: Kind(403, "Signer is not the node"),
    ProblemCode.WRONG_ROLE: Kind(403, "Wrong role"),
    ProblemCode.NOT_VALID: Kind(422, "Request does not fit the contract"),
    ProblemCode.BODY_TOO_LARGE: Kind(413, "Body is too large"),
    ProblemCode.BODY_TOO_SLOW: Kind(408, "Body arrived too slowly", CLOSE),
    ProblemCode.TOO_MANY_REQUESTS: Kind(429, "Too many requests"),
    ProblemCode.STORE_AWAY: Kind(503, "The object store does not answer"),
    ProblemCode.REDIS_AWAY: Kind(503, "Redis does not answer"),
    ProblemCode.ANOTHER_RUN: Kind(409, "Another run"),
    ProblemCode.NOT_REGISTERED: Kind(404, "Not registered"),
    ProblemCode.TOO_MANY_NODES: Kind(503, "Too many nodes"),
    ProblemCode.INVITE_NOT_SIGNED: Kind(422, "Invite is not signed as required"),
    ProblemCode.INVITE_OF_ANOTHER_NODE: Kind(409, "Invite of another node"),
    ProblemCode.INVITE_EXPIRED: Kind(409, "Invite has expired"),
    ProblemCode.UPLINK_NOT_MEASURED: Kind(428, "Measure the uplink first, with POST /v1/uplink-tests"),
    ProblemCode.UPLINK_OUTDATED: Kind(404, "Register again"),
    ProblemCode.TOO_MANY_UPLOADS: Kind(429, "Too many uploads at once"),
    ProblemCode.NO_SUCH_TEST: Kind(409, "No such test"),
    ProblemCode.UPLOAD_TOO_SMALL: Kind(422, "Upload is too small"),
    ProblemCode.UPLOAD_TOO_LARGE: Kind(413, "Upload is too large", CLOSE),
    ProblemCode.STATE_REBUILDING: Kind(503, "State is being rebuilt"),
    ProblemCode.NOT_PREPARED: Kind(503, "Not prepared"),
    ProblemCode.NO_SUCH_TASK_TABLE: Kind(404, "No such task table"),
    ProblemCode.NO_SUCH_PACKAGE: Kind(404, "No such package"),
    ProblemCode.NOT_ADMITTED: Kind(403, "Not admitted"),
    ProblemCode.NOT_A_MEMBER: Kind(403, "Not a member now"),
    ProblemCode.EVICTED: Kind(403, "Evicted"),
    ProblemCode.BANNED: Kind(403, "Banned"),
    ProblemCode.POOL_FORGOTTEN: Kind(403, "Register again"),
    ProblemCode.INVITE_NOT_VALID: Kind(403, "Invite is not valid"),
    ProblemCode.RECORD_BUSY: Kind(503, "Record is busy"),
    ProblemCode.TOO_MANY_HEARTBEATS: Kind(429, "Too many heartbeats"),
    ProblemCode.CHALLENGE_NOT_PASSED: Kind(428, "Challenge first"),
    ProblemCode.CHALLENGE_NOT_DUE: Kind(409, "No challenge is due"),
    ProblemCode.TOO_MANY_CHALLENGES: Kind(429, "Too many challenges"),
    ProblemCode.TOO_MANY_ANSWERS: Kind(503, "Too many answers at once"),
    ProblemCode.NO_SUCH_CHALLENGE: Kind(409, "No such challenge"),
    ProblemCode.CHALLENGE_TOO_SLOW: Kind(403, "Too slow"),
    ProblemCode.CHALLENGE_WRONG: Kind(403, "The product is wrong"),
    ProblemCode.NO_ADMIN: Kind(401, "No admin"),
    ProblemCode.NOT_THE_ADMIN: Kind(401, "Not the admin", MappingProxyType({"WWW-Authenticate": "Bearer"})),
    ProblemCode.NO_SUCH_NODE: Kind(404, "No such node"),
    ProblemCode.NODE_NOT_A_MEMBER: Kind(409, "Not a member now"),
    ProblemCode.NODE_EXCLUDED: Kind(409, "Excluded from the run"),
    ProblemCode.NOT_BANNED: Kind(409, "Not banned"),
    ProblemCode.LOGS_NOT_WANTED: Kind(409, "Nobody asked for logs"),
    ProblemCode.NO_SUCH_QUESTION: Kind(404, "No such request"),
    ProblemCode.STEP_NOT_OPEN: Kind(409, "Step is not open to this node"),
    ProblemCode.STEP_STALLED: Kind(409, "The step waits for an administrator"),
    ProblemCode.ENOUGH_UNDER_WAY: Kind(409, "Enough work is in progress"),
    ProblemCode.SLICE_UNDER_WAY: Kind(409, "Slice is in progress"),
    ProblemCode.FILES_NOT_JUDGED: Kind(409, "Files could not be judged"),
    ProblemCode.LEASE_DROPPED: Kind(409, "A lease was dropped"),
    ProblemCode.PROGRAM_TIME_USED: Kind(409, "Programs used their time"),
    ProblemCode.NEWCOMERS_SHARE: Kind(409, "Newcomers hold their share"),
    ProblemCode.QUOTA_LEASED: Kind(409, "Too many files"),
    ProblemCode.QUOTA_USED: Kind(429, "Too many files"),
    ProblemCode.NO_SUCH_LEASE: Kind(404, "No such lease"),
    ProblemCode.LEASE_OF_ANOTHER_NODE: Kind(403, "Lease of another node"),
    ProblemCode.LEASE_OVER: Kind(409, "Lease is over"),
    ProblemCode.LEASE_FOR_ANOTHER_FILE: Kind(409, "Lease is for another file"),
    ProblemCode.ALREADY_SUBMITTED: Kind(409, "Already submitted"),
    ProblemCode.SUBMITTED_BEFORE: Kind(409, "File was submitted before"),
    ProblemCode.NOTHING_UPLOADED: Kind(409, "Nothing was uploaded"),
    ProblemCode.WRONG_SIZE: Kind(422, "Wrong size"),
    ProblemCode.WRONG_DIGEST: Kind(422, "Wrong digest"),
    ProblemCode.WRONG_GROUPS: Kind(422, "Wrong number of groups"),
    ProblemCode.FILE_TOO_LARGE: Kind(413, "File is too large"),
    ProblemCode.GRANT_NOT_VALID: Kind(403, "Grant is not valid"),
    ProblemCode.NOT_A_FORM: Kind(415, "Not a form"),
    ProblemCode.FORM_NOT_VALID: Kind(400, "Form is not valid"),
    ProblemCode.FORM_FIELD_TOO_LARGE: Kind(413, "Form field is too large"),
    ProblemCode.UPLOAD_TOO_SLOW: Kind(408, "Upload is too slow", CLOSE),
    ProblemCode.CLAIM_OVER: Kind(409, "Claim is over"),
    ProblemCode.VERDICT_NOT_SIGNED: Kind(422, "Verdict is not signed as required"),
    ProblemCode.NO_SUCH_FILE_QUEUED: Kind(404, "No such file in the queue"),
    ProblemCode.VERDICT_MISFIT: Kind(409, "Verdict does not fit the file"),
    ProblemCode.WRONG_ROWS: Kind(422, "Wrong number of rows"),
    ProblemCode.LENGTHS_MISSING: Kind(422, "Lengths are missing"),
    ProblemCode.TRAINER_OF_ANOTHER_RUN: Kind(409, "Trainer of another run"),
    ProblemCode.VERSION_OF_ANOTHER_RUN: Kind(409, "Version of another run"),
    ProblemCode.VERSION_TOO_EARLY: Kind(409, "Version is too early"),
    ProblemCode.VERSION_CHANGED: Kind(409, "Version has other bytes"),
    ProblemCode.VERSION_NOT_STORED: Kind(409, "Version is not in the store"),
    ProblemCode.MANIFEST_NOT_VALID: Kind(409, "Version's manifest is not valid"),
    ProblemCode.DATASET_OF_ANOTHER_RUN: Kind(409, "Data set of another run"),
    ProblemCode.NO_SUCH_DATASET: Kind(409, "No such data set"),
    ProblemCode.DATASET_TOO_EARLY: Kind(409, "Data set is too early"),
    ProblemCode.DATASET_CHANGED: Kind(409, "Data set has another card"),
    ProblemCode.DATASET_NOT_STORED: Kind(409, "Data set is not in the store"),
    ProblemCode.NOT_YET_A_MEMBER: Kind(503, "Not a member yet"),
    ProblemCode.POD_ENDING: Kind(409, "This pod is stopping"),
    ProblemCode.ORCHESTRATOR_AWAY: Kind(503, "The orchestrator does not answer"),
    ProblemCode.TOO_MANY_METRICS: Kind(422, "Too many metrics"),
    ProblemCode.NO_SUCH_FILE: Kind(404, "No such file"),
    ProblemCode.NOT_A_PLAIN_FILE: Kind(422, "Not a plain file"),
    ProblemCode.EMPTY_FILE: Kind(422, "Empty file"),
    ProblemCode.NOT_A_PROGRAM: Kind(422, "This is not a program"),
    ProblemCode.SLOTS_TAKEN: Kind(503, "Every slot is in use"),
    ProblemCode.SANDBOX_FAILED: Kind(500, "The sandbox failed"),
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
    """Pydantic's errors by field, at most ten."""
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
        return refused(Refusal(ProblemCode.NOT_VALID, mistakes(error.errors())))
