"""What the orchestrator remembers about nodes, leases, submissions and open checks: documents in Redis and in the object store.

`SubmissionRecord` and `Opinion` are written to the store and are part of the truth; `NodeRecord`, `LeaseRecord` and `Job` live in Redis and are made
again from the store by `recovery`. Nothing outside this folder reads them.
"""

from typing import Literal

from pydantic import Field

from shoal.contracts.base import Contract, LeaseId, NodeId, RunName, Sha256Hex
from shoal.contracts.canonical import Signed
from shoal.contracts.protocol import GroupPlace, Lease, NodeState, ShortText
from shoal.contracts.verdicts import RejectReason, Verdict


class NodeRecord(Contract):
    """One node as the orchestrator sees it. Times are seconds since 1970 on the orchestrator's clock unless said otherwise."""

    node: NodeId
    state: NodeState = "Discovered"
    pool: str = ""
    outside: bool | None = Field(
        default=None, description="a stranger's machine; None: not known since the orchestrator lost its memory"
    )
    address: str = Field(
        default="",
        description="address block that its newest invite was given to; empty: not known since Redis was lost",
    )
    refused: str = Field(default="", description="why its registration was not answered with an invite")
    last_heartbeat_unix: float = 0.0
    answered_seen_unix: float = Field(
        default=0.0, description="discovery's time of the registration that the last invite answered"
    )
    invite_nonce: str = ""
    capable_nonce: str = Field(default="", description="nonce of the invite under which its challenge was answered")
    gflops: float = Field(default=0.0, description="as that challenge measured them")
    challenge_seconds: float = Field(default=0.0, ge=0.0, description="how long that challenge took")
    invite_expires_unix: float = 0.0
    policy_version: int | None = None
    abandoned_leases: int = 0
    restarts: int = Field(
        default=0, ge=0, description="milliseconds since 1970 of the newest restart that was asked for"
    )
    group: GroupPlace | None = Field(default=None, description="in pools whose nodes work together")
    welcome: bool = Field(
        default=False, description="an admin said that it may join, whatever its pool's admission says"
    )
    logs_wanted: str = Field(default="", description="id of a question for logs that was not answered")
    metrics: dict[str, float] = Field(default_factory=dict)


class LeaseRecord(Contract):
    """A lease and what became of it."""

    lease: Lease
    groups: int
    status: Literal["open", "submitted", "abandoned", "returned"] = "open"
    sha256: Sha256Hex | None = Field(
        default=None, description="of the one file that this lease may hand in, once named"
    )
    size: int | None = None


class SubmissionRecord(Contract):
    """`submissions/<node>/<sha256>.json`: a hashed and promoted file and the lease that it belongs to."""

    run: RunName
    node: NodeId
    lease: LeaseId
    step: int = Field(ge=0)
    submission: int = Field(ge=0)
    sha256: Sha256Hex
    size: int = Field(ge=1, description="bytes")
    groups: int = Field(ge=1)
    received_unix: float


class Opinion(Contract):
    """A statistical reject by one validator; it slashes only when another check finds the same."""

    validator: ShortText
    verdict: Signed[Verdict]


class OpinionNote(Contract):
    """What a job remembers of an opinion: who, which reason, and the digest of the verdict, so that a repeated request does not count twice."""

    validator: ShortText
    reason: RejectReason
    digest: Sha256Hex


class Job(Contract):
    """A submission that waits for a verdict."""

    record: SubmissionRecord
    claimed_by: ShortText = ""
    inconclusive: int = 0
    opinions: list[OpinionNote] = Field(default_factory=list)
    prefer_another_until_unix: float = 0.0

    @property
    def name(self) -> str:
        return f"{self.record.node}/{self.record.sha256}"
