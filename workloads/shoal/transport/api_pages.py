"""What `/openapi.json` says of discovery and orchestrator: who may ask, with which body, and what comes back.

Handlers parse their bodies themselves, after the signature (`service.Gate`), so FastAPI does not know them; this table does. `describe` puts it into
the document that FastAPI makes. A test holds the table against the routes.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from fastapi import FastAPI

from shoal.contracts.base import Contract
from shoal.contracts.problems import TYPE_PREFIX, ProblemCode
from shoal.contracts.protocol import (
    Challenge,
    ChallengeAnswer,
    ChallengeRequest,
    ChallengeResult,
    ClaimRenewal,
    ClaimRequest,
    DatasetAnnouncement,
    Exclusions,
    Heartbeat,
    HeartbeatReply,
    Invite,
    KnownNodes,
    Lease,
    LeaseRequest,
    LeaseReturn,
    NodeLogs,
    Registered,
    Registration,
    RunProgress,
    StepInfo,
    SubmissionNotice,
    SubmissionReceipt,
    TrainerProgress,
    UploadGrant,
    UploadRequest,
    ValidationJob,
    VersionAnnouncement,
)
from shoal.contracts.run import JoinOffer, PublicRun
from shoal.contracts.signed import Signed
from shoal.contracts.trust import KeysNotice
from shoal.contracts.uplink import UplinkRequest, UplinkResult, UplinkTest
from shoal.contracts.verdicts import Verdict

Caller = Literal["anyone", "node", "orchestrator", "trainer", "relay", "validator", "holder of an upload grant"]
NODE, DIGEST, LEASE = "4a" * 32, "e3" * 32, "0f" * 16
COMPONENTS = "#/components/schemas/{model}"
SIGNATURE = {
    "type": "apiKey",
    "in": "header",
    "name": "Signature",
    "description": "RFC 9421 with Ed25519 over @method, @target-uri and content-digest (RFC 9530): parameters created, keyid (the public key in"
    " hex), nonce (new for each request) and tag shoal-request-v1, named in the header Signature-Input.",
}
REFUSALS = {
    "401": "not signed as required, or replayed",
    "403": "the signer may not ask this",
    "409": "does not fit the current state",
    "413": "too large",
    "422": "does not match the contract; the answer names each wrong field",
    "428": "a check must come first; the detail says which",
    "429": "too many requests; Retry-After says when to try again",
    "503": "the store or Redis does not answer, or the state is being rebuilt; nothing is lost: Retry-After says when to try again",
}


@dataclass(frozen=True)
class Page:
    """One operation."""

    method: Literal["get", "post", "put"]
    path: str
    caller: Caller
    summary: str
    body: type[Contract] | None = None
    reply: type[Contract] | None = None
    example: dict[str, Any] | None = None
    polls: bool = False
    """takes `wait_seconds`, and answers 204 when nothing came in that time"""
    since: bool = False
    """takes `since`: what is older is left out"""


KEYS = Page(
    "get", "/v1/keys", "anyone", "Whose keys hold; 204 when none changed after generation `after`", reply=KeysNotice
)
DISCOVERY = (
    KEYS,
    Page("get", "/v1/join", "anyone", "What a stranger's machine must know of the run", reply=JoinOffer),
    Page(
        "post", "/v1/uplink-tests", "node", "Ask for a measurement of the uplink", UplinkRequest, UplinkTest,
        {"node": NODE, "pool": "pool"},
    ),
    Page("put", "/v1/uplink", "node", "Upload a test's random bytes; discovery counts and drops them", reply=UplinkResult),
    Page(
        "post", "/v1/nodes", "node", "Register; the signer must be `node`", Registration, Registered,
        {
            "node": NODE, "run": "arithmetic", "pool": "pool", "software_version": "shoal 0.2.0",
            "hardware": {"cpus": 16, "memory_bytes": 68719476736, "disk_free_bytes": 500000000000, "gpus": 1, "gpu_type": "NVIDIA H100"},
        },
    ),
    Page(
        "get", "/v1/nodes", "orchestrator", "Registrations without an invite, oldest first",
        reply=KnownNodes, since=True,
    ),
    Page("get", "/v1/nodes/{node}/invite", "node", "Wait for this node's invite", reply=Signed[Invite], polls=True),
    Page(
        "put", "/v1/nodes/{node}/invite", "orchestrator", "Leave an invite for a node", Signed[Invite], None,
        {
            "document": {
                "run": "arithmetic", "pool": "pool", "node": NODE, "orchestrator_url": "https://orchestrator.example.org",
                "nonce": LEASE, "expires_unix": 1800000000,
            },
            "signer": DIGEST, "signature": "00" * 64,
        },
    ),
)  # fmt: skip

ORCHESTRATOR = (
    KEYS,
    Page("get", "/v1/run", "anyone", "The run in aggregates", reply=RunProgress),
    Page(
        "post", "/v1/heartbeats", "node", "Report state; the first heartbeat carries the invite", Heartbeat, HeartbeatReply,
        {"node": NODE, "policy_version": 7, "metrics": {"worker_tokens_per_second": 2700.0}},
    ),
    Page("post", "/v1/challenges", "node", "Ask for the pool's challenge", ChallengeRequest, Challenge, {"node": NODE}),
    Page(
        "post", "/v1/challenge-answers", "node", "Answer it", ChallengeAnswer, ChallengeResult,
        {"node": NODE, "challenge": LEASE, "product": "AAAA"},
    ),
    Page("get", "/v1/public", "node", "What a member must know of the run", reply=PublicRun),
    Page("get", "/v1/tasks", "node", "The task table, Parquet"),
    Page("get", "/v1/packages", "node", "A wheel of an environment"),
    Page("get", "/v1/step", "node", "The step to work on; 204 when none is open", reply=StepInfo),
    Page("post", "/v1/leases", "node", "Lease a submission number", LeaseRequest, Lease, {"node": NODE, "step": 7}),
    Page("post", "/v1/returns", "node", "Hand a lease back", LeaseReturn, None, {"node": NODE, "lease": LEASE}),
    Page(
        "post", "/v1/uploads", "node", "Ask for an upload grant", UploadRequest, UploadGrant,
        {"node": NODE, "lease": LEASE, "size": 1048576, "sha256": DIGEST},
    ),
    Page(
        "post", "/v1/submissions", "node", "Confirm an upload", SubmissionNotice, SubmissionReceipt,
        {"node": NODE, "lease": LEASE, "size": 1048576, "sha256": DIGEST, "groups": 6},
    ),
    Page("post", "/v1/staging", "holder of an upload grant", "Upload: the grant's fields, then the file (folder store only)"),
    Page(
        "post", "/v1/versions", "trainer", "Announce a policy version", VersionAnnouncement, None,
        {"run": "arithmetic", "version": 7, "weights_digest": DIGEST, "total_size": 2600000},
    ),
    Page(
        "post", "/v1/datasets", "trainer", "Announce a whole data set", DatasetAnnouncement, None,
        {"run": "arithmetic", "name": "traces", "card_digest": DIGEST},
    ),
    Page(
        "post", "/v1/progress", "trainer", "Report the trainer's progress", TrainerProgress, None,
        {"run": "arithmetic", "step": 7, "phase": "update"},
    ),
    Page("get", "/v1/exclusions", "relay", "Nodes that left or were excluded", reply=Exclusions),
    Page("post", "/v1/claims", "validator", "Take a file to check", ClaimRequest, ValidationJob, {"validator": "validator-0"}, polls=True),
    Page(
        "post", "/v1/claim-renewals", "validator", "Renew the claim on a file", ClaimRenewal, None,
        {"validator": "validator-0", "node": NODE, "sha256": DIGEST},
    ),
    Page("post", "/v1/logs", "node", "Hand in requested logs", NodeLogs, None),
    Page("post", "/v1/verdicts", "validator", "Submit a verdict", Signed[Verdict], None),
)  # fmt: skip


FILES = {"/v1/tasks": "application/vnd.apache.parquet", "/v1/packages": "application/octet-stream"}
"""Pages that answer with a file, and its media type."""


def describe(app: FastAPI, pages: Sequence[Page]) -> None:
    """Let the application's OpenAPI document carry these pages; those of other routes stay as FastAPI has them."""
    made = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = copy.deepcopy(made())
            components = document.setdefault("components", {})
            components.setdefault("securitySchemes", {})["signature"] = SIGNATURE
            schemas = components.setdefault("schemas", {})
            schemas["Problem"] = _problem()
            for page in pages:
                operation = document["paths"].get(page.path, {}).get(page.method)
                if operation is not None:  # `/v1/staging` is not there with an S3 store
                    _fill(operation, page, schemas)
            app.openapi_schema = document
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's documented way


def _fill(operation: dict[str, Any], page: Page, schemas: dict[str, Any]) -> None:
    operation["summary"] = page.summary
    operation["description"] = "For anyone." if page.caller == "anyone" else f"Only for: {page.caller}."
    signed = page.caller not in ("anyone", "holder of an upload grant")
    operation["security"] = [{"signature": []}] if signed else []
    if page.polls:
        operation.setdefault("parameters", []).append(
            {
                "name": "wait_seconds",
                "in": "query",
                "description": "seconds to wait for an answer",
                "schema": {"type": "number", "minimum": 0, "maximum": 25, "default": 0},
            }
        )
    if page.since:
        operation.setdefault("parameters", []).append(
            {
                "name": "since",
                "in": "query",
                "description": "seconds since 1970 by this service's clock; older ones are left out",
                "schema": {"type": "number", "minimum": 0, "maximum": 1e11, "default": 0},
            }
        )
    if page.body is not None:
        media: dict[str, Any] = {"schema": _schema(page.body, schemas)}
        if page.example is not None:
            media["example"] = page.example
        operation["requestBody"] = {"required": True, "content": {"application/json": media}}
    if page.path == "/v1/uplink":
        binary = {"schema": {"type": "string", "format": "binary"}}
        operation["requestBody"] = {"required": True, "content": {"application/octet-stream": binary}}
    if page.path == "/v1/staging":
        operation["requestBody"] = {"required": True, "content": {"multipart/form-data": {"schema": _form()}}}
    answers: dict[str, Any] = {}
    if page.reply is not None:
        content = {"application/json": {"schema": _schema(page.reply, schemas)}}
        answers["200"] = {"description": page.reply.__doc__ or "the answer", "content": content}
    elif page.path in FILES:
        answers["200"] = {"description": page.summary, "content": {FILES[page.path]: {}}}
    if (page.reply is None and page.path not in FILES) or page.polls or page.path == "/v1/step":
        answers["204"] = {"description": "nothing to say"}
    for status, what in REFUSALS.items():
        content = {"application/problem+json": {"schema": {"$ref": COMPONENTS.format(model="Problem")}}}
        answers[status] = {"description": what, "content": content}
    operation["responses"] = answers


def _schema(model: type[Contract], schemas: dict[str, Any]) -> dict[str, str]:
    """A reference to a model; its definition, and those that it refers to, are added to `schemas`."""
    name = model.__name__.replace("[", "_").replace("]", "")
    found = model.model_json_schema(ref_template=COMPONENTS)
    schemas.update(found.pop("$defs", {}))
    schemas[name] = found
    return {"$ref": COMPONENTS.format(model=name)}


def _problem() -> dict[str, Any]:
    """RFC 9457."""
    return {
        "type": "object",
        "required": ["type", "title", "status", "detail"],
        "properties": {
            "type": {"type": "string", "description": "code of the refusal; clients decide by it"},
            "title": {"type": "string", "description": "short description of the code"},
            "status": {"type": "integer"},
            "detail": {"type": "string", "description": "what is wrong, what is allowed, what to do"},
        },
        "example": {
            "type": f"{TYPE_PREFIX}{ProblemCode.LEASE_OVER}", "title": "Lease is over", "status": 409,
            "detail": f"lease {LEASE} expired or was given back: ask for a new one",
        },
    }  # fmt: skip


def _form() -> dict[str, Any]:
    """A grant's fields and the file, which comes last."""
    text = {"type": "string"}
    return {
        "type": "object",
        "required": ["key", "policy", "signature", "file"],
        "properties": {"key": text, "policy": text, "signature": text, "file": {"type": "string", "format": "binary"}},
    }
