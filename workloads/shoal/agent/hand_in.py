"""Handing in a file: hash, grant, upload, confirm. The same for an S3 store and for a folder store, because a grant is a form either way.

In: `LocalSubmission` from the worker, a plain file name under the pod's `tmp/`. Out: the orchestrator's receipt. Every part may be
repeated, so a lost connection, an expired grant or a restarted orchestrator only costs another try. Called by `agent_socket`.
"""

import hashlib
import ssl
import time
from pathlib import Path
from typing import IO

import httpx

from shoal.contracts.problems import ProblemCode, Refusal
from shoal.contracts.protocol import (
    LocalSubmission,
    SubmissionNotice,
    SubmissionReceipt,
    UploadGrant,
    UploadRequest,
)
from shoal.files import open_plain
from shoal.retries import Backoff, retrying
from shoal.telemetry import busy, get_logger
from shoal.transport import Refused, SignedClient, Unavailable
from shoal.transport.authorities import well_known
from shoal.transport.bounded import UNENCODED
from shoal.transport.client import reason_of
from shoal.transport.neighbourhood import ForbiddenUrl, Neighbourhood
from shoal.transport.rate_limit import NO_CAPS, Caps

CHUNK_BYTES = 1 << 20
CALL_SECONDS = 60.0  # one question to the orchestrator; hashing a gigabyte in the store lies within
HAND_IN_SECONDS = 280.0  # less than the 300 s that the worker waits
PAUSES = Backoff(0.2, 5.0)
UPLOAD_TIMEOUT = httpx.Timeout(60.0, connect=5.0)  # between bytes, not for the whole file


def hand_in(
    client: SignedClient,
    node: str,
    folder: Path,
    submission: LocalSubmission,
    neighbourhood: Neighbourhood | None = None,
) -> SubmissionReceipt:
    """Upload and confirm one file; raises `Refusal` for a file that is not there, `Refused` and `Unavailable` as the client does.

    `neighbourhood` judges where a grant sends the file; None: it may be sent anywhere.
    """
    deadline = time.monotonic() + HAND_IN_SECONDS
    with open_submission(folder / submission.file) as file, busy("upload"):
        sha256, size = digest(file)
        request = UploadRequest(node=node, lease=submission.lease, size=size, sha256=sha256)
        notice = SubmissionNotice(
            node=node,
            lease=submission.lease,
            size=size,
            sha256=sha256,
            groups=submission.groups,
            policy_version=submission.policy_version,
            part=submission.part,
        )

        def once() -> SubmissionReceipt:
            grant = _ask_grant(client, request)
            if grant is not None:
                if neighbourhood is not None:
                    neighbourhood.check(grant.url)
                post_form(grant, file, client.tls, client.caps)
            receipt = client.call(
                "POST",
                "/v1/submissions",
                notice,
                SubmissionReceipt,
                deadline_seconds=CALL_SECONDS,
                timeout_seconds=CALL_SECONDS,
            )
            if receipt is None:
                raise UploadFailedError("no receipt")
            return receipt

        log = get_logger()
        return retrying(
            _may_pass,
            PAUSES,
            deadline_seconds=deadline - time.monotonic(),
            give_up=lambda error, waited: Unavailable(
                f"could not upload {submission.file} in {waited:.0f} s; last: {reason_of(error)}"
            ),
            say=lambda error, _: log.info("upload will be tried again", file=submission.file, reason=reason_of(error)),
        )(once)


def _may_pass(error: BaseException) -> bool:
    """Whether another grant and another try may help."""
    if isinstance(error, Refused):
        return error.code == ProblemCode.NOTHING_UPLOADED
    return isinstance(error, httpx.HTTPError | UploadFailedError | ForbiddenUrl)


class UploadFailedError(Exception):
    """The store did not accept the upload; a new grant and another attempt may help."""


def open_submission(path: Path) -> IO[bytes]:
    """Open a worker's file, so that nothing else of this pod can be handed in; raises `Refusal`."""
    try:
        return open_plain(path)
    except FileNotFoundError as error:
        raise Refusal(ProblemCode.NO_SUCH_FILE, f"{path.name} is not in tmp/") from error
    except OSError as error:
        raise Refusal(ProblemCode.NOT_A_PLAIN_FILE, f"{path.name}: {error.strerror}") from error


def digest(file: IO[bytes]) -> tuple[str, int]:
    """SHA-256 (hex) and size (bytes) of a file; raises `Refusal` for an empty one."""
    running, size = hashlib.sha256(), 0
    file.seek(0)
    while chunk := file.read(CHUNK_BYTES):
        running.update(chunk)
        size += len(chunk)
    if size == 0:
        raise Refusal(ProblemCode.EMPTY_FILE, "a submission needs at least one row")
    return running.hexdigest(), size


def _ask_grant(client: SignedClient, request: UploadRequest) -> UploadGrant | None:
    """A grant, or None when the file is already in the store and only the receipt is missing."""
    try:
        return client.call("POST", "/v1/uploads", request, UploadGrant, deadline_seconds=CALL_SECONDS)
    except Refused as refused:
        if refused.code == ProblemCode.ALREADY_SUBMITTED:
            return None
        raise


def post_form(grant: UploadGrant, file: IO[bytes], tls: ssl.SSLContext | None = None, caps: Caps = NO_CAPS) -> None:
    """Post the form: the grant's fields first, then the file, streamed. `tls`: what the store's certificate is held to."""
    file.seek(0)
    verify = tls or well_known()
    with httpx.Client(
        transport=caps.transport(verify),
        verify=verify,
        trust_env=False,
        follow_redirects=False,
        timeout=UPLOAD_TIMEOUT,
    ) as http:
        form = http.stream(
            "POST", grant.url, data=grant.fields, files={"file": ("rollouts.parquet", file)}, headers=UNENCODED
        )
        with form as answer:  # of a server that the run named: nothing is read of it but the begin of an error
            if answer.status_code >= 300:
                said = next(answer.iter_raw(), b"")[:300].decode(errors="replace")
                raise UploadFailedError(f"the store answered {answer.status_code}: {said}")
