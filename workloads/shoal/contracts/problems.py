"""Why a service says no: stable codes, the exception that carries one, and the problem document (RFC 9457) that clients read.

The domain raises `Refusal`, which knows nothing of HTTP. `transport.problems` maps its code to a status and a title. The code travels as the
document's `type`, and clients decide by it. A code never changes its meaning; titles and details are for people and may change.
"""

from enum import StrEnum

from pydantic import BaseModel, ConfigDict

TYPE_PREFIX = "urn:shoal:problem:"


class ProblemCode(StrEnum):
    """Each kind of refusal; `transport.problems.KINDS` has its status and title, docs/http.md the table."""

    # Any service
    NOT_SIGNED = "not-signed"
    SEEN_BEFORE = "seen-before"
    SIGNER_NOT_THE_NODE = "signer-not-the-node"
    WRONG_ROLE = "wrong-role"
    NOT_VALID = "not-valid"
    BODY_TOO_LARGE = "body-too-large"
    BODY_TOO_SLOW = "body-too-slow"
    TOO_MANY_REQUESTS = "too-many-requests"
    STORE_AWAY = "store-away"
    REDIS_AWAY = "redis-away"
    # Discovery
    ANOTHER_RUN = "another-run"
    NOT_REGISTERED = "not-registered"
    TOO_MANY_NODES = "too-many-nodes"
    INVITE_NOT_SIGNED = "invite-not-signed"
    INVITE_OF_ANOTHER_NODE = "invite-of-another-node"
    INVITE_EXPIRED = "invite-expired"
    UPLINK_NOT_MEASURED = "uplink-not-measured"
    UPLINK_OUTDATED = "uplink-outdated"
    TOO_MANY_UPLOADS = "too-many-uploads"
    NO_SUCH_TEST = "no-such-test"
    UPLOAD_TOO_SMALL = "upload-too-small"
    UPLOAD_TOO_LARGE = "upload-too-large"
    # The orchestrator and its state
    STATE_REBUILDING = "state-rebuilding"
    NOT_PREPARED = "not-prepared"
    NO_SUCH_TASK_TABLE = "no-such-task-table"
    NO_SUCH_PACKAGE = "no-such-package"
    # Nodes
    NOT_ADMITTED = "not-admitted"
    NOT_A_MEMBER = "not-a-member"
    EVICTED = "evicted"
    BANNED = "banned"
    POOL_FORGOTTEN = "pool-forgotten"
    INVITE_NOT_VALID = "invite-not-valid"
    RECORD_BUSY = "record-busy"
    TOO_MANY_HEARTBEATS = "too-many-heartbeats"
    CHALLENGE_NOT_PASSED = "challenge-not-passed"
    CHALLENGE_NOT_DUE = "challenge-not-due"
    TOO_MANY_CHALLENGES = "too-many-challenges"
    TOO_MANY_ANSWERS = "too-many-answers"
    NO_SUCH_CHALLENGE = "no-such-challenge"
    CHALLENGE_TOO_SLOW = "challenge-too-slow"
    CHALLENGE_WRONG = "challenge-wrong"
    # The admin
    NO_ADMIN = "no-admin"
    NOT_THE_ADMIN = "not-the-admin"
    NO_SUCH_NODE = "no-such-node"
    NODE_NOT_A_MEMBER = "node-not-a-member"
    NODE_EXCLUDED = "node-excluded"
    NOT_BANNED = "not-banned"
    LOGS_NOT_WANTED = "logs-not-wanted"
    NO_SUCH_QUESTION = "no-such-question"
    # Leases and files
    STEP_NOT_OPEN = "step-not-open"
    STEP_STALLED = "step-stalled"
    ENOUGH_UNDER_WAY = "enough-under-way"
    SLICE_UNDER_WAY = "slice-under-way"
    FILES_NOT_JUDGED = "files-not-judged"
    LEASE_DROPPED = "lease-dropped"
    PROGRAM_TIME_USED = "program-time-used"
    NEWCOMERS_SHARE = "newcomers-share"
    QUOTA_LEASED = "quota-leased"
    QUOTA_USED = "quota-used"
    NO_SUCH_LEASE = "no-such-lease"
    LEASE_OF_ANOTHER_NODE = "lease-of-another-node"
    LEASE_OVER = "lease-over"
    LEASE_FOR_ANOTHER_FILE = "lease-for-another-file"
    ALREADY_SUBMITTED = "already-submitted"
    SUBMITTED_BEFORE = "submitted-before"
    NOTHING_UPLOADED = "nothing-uploaded"
    WRONG_SIZE = "wrong-size"
    WRONG_DIGEST = "wrong-digest"
    WRONG_GROUPS = "wrong-groups"
    FILE_TOO_LARGE = "file-too-large"
    GRANT_NOT_VALID = "grant-not-valid"
    NOT_A_FORM = "not-a-form"
    FORM_NOT_VALID = "form-not-valid"
    FORM_FIELD_TOO_LARGE = "form-field-too-large"
    UPLOAD_TOO_SLOW = "upload-too-slow"
    # Verdicts
    CLAIM_OVER = "claim-over"
    VERDICT_NOT_SIGNED = "verdict-not-signed"
    NO_SUCH_FILE_QUEUED = "no-such-file-queued"
    VERDICT_MISFIT = "verdict-misfit"
    WRONG_ROWS = "wrong-rows"
    LENGTHS_MISSING = "lengths-missing"
    # The trainer's announcements
    TRAINER_OF_ANOTHER_RUN = "trainer-of-another-run"
    VERSION_OF_ANOTHER_RUN = "version-of-another-run"
    VERSION_TOO_EARLY = "version-too-early"
    VERSION_CHANGED = "version-changed"
    VERSION_NOT_STORED = "version-not-stored"
    MANIFEST_NOT_VALID = "manifest-not-valid"
    DATASET_OF_ANOTHER_RUN = "dataset-of-another-run"
    NO_SUCH_DATASET = "no-such-dataset"
    DATASET_TOO_EARLY = "dataset-too-early"
    DATASET_CHANGED = "dataset-changed"
    DATASET_NOT_STORED = "dataset-not-stored"
    # The agent's socket
    NOT_YET_A_MEMBER = "not-yet-a-member"
    POD_ENDING = "pod-ending"
    ORCHESTRATOR_AWAY = "orchestrator-away"
    TOO_MANY_METRICS = "too-many-metrics"
    NO_SUCH_FILE = "no-such-file"
    NOT_A_PLAIN_FILE = "not-a-plain-file"
    EMPTY_FILE = "empty-file"
    # The runner of programs
    NOT_A_PROGRAM = "not-a-program"
    SLOTS_TAKEN = "slots-taken"
    SANDBOX_FAILED = "sandbox-failed"


class Refusal(Exception):
    """A request that is refused: its kind, what to do in words, and after how many seconds another try is worth while (None: unknown)."""

    def __init__(self, code: ProblemCode, detail: str, retry_after_seconds: float | None = None) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.detail = detail
        self.retry_after_seconds = retry_after_seconds


class ProblemDocument(BaseModel):
    """An answer of type `application/problem+json`. A client ignores members that it does not know, as RFC 9457 asks."""

    model_config = ConfigDict(frozen=True)

    type: str = "about:blank"
    title: str
    status: int = 0
    detail: str = ""

    @property
    def code(self) -> str:
        """The kind of refusal, as in `ProblemCode`, or newer than it; empty where the answer names none of ours."""
        return self.type.removeprefix(TYPE_PREFIX) if self.type.startswith(TYPE_PREFIX) else ""
