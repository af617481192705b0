"""What the orchestrator remembers about nodes, leases, submissions and open checks: documents in Redis and in the object store.

`SubmissionRecord` is written to the store and is part of the truth; `NodeRecord`, `LeaseRecord` and `Job` live in Redis and are made again from the
store by `recovery`. Nothing outside this folder reads them.
"""

from collections import Counter
from typing import Literal

from pydantic import Field

from shoal.contracts.base import Contract, LeaseId, NodeId, RunName, Sha256Hex
from shoal.contracts.node_states import MEMBERS
from shoal.contracts.pools import Sampler
from shoal.contracts.protocol import GroupPlace, Lease, NodeState, ShortText
from shoal.contracts.verdicts import RejectReason


class NodeRecord(Contract):
    """One node as the orchestrator sees it. Times are seconds since 1970 on the orchestrator's clock unless said otherwise."""

    node: NodeId
    state: NodeState = "Discovered"
    pool: str = Field(
        default="", description="that it was last admitted to; empty: never, or not known since Redis was lost"
    )
    invited_pool: str = Field(
        default="", description="that its newest invite was for; of one without any: that it was refused"
    )
    outside: bool | None = Field(
        default=None, description="a stranger's machine; None: not known since the orchestrator lost its memory"
    )
    address: str = Field(
        default="",
        description="address block that its newest invite was given to; empty: not known since Redis was lost",
    )
    refused: str = Field(default="", description="why its registration was not answered with an invite")
    refused_unix: float = Field(default=0.0, description="when that was first so")
    last_heartbeat_unix: float = 0.0
    answered_seen_unix: float = Field(
        default=0.0, description="discovery's time of the registration that the last invite answered"
    )
    invite_nonce: str = ""
    capable_nonce: str = Field(default="", description="nonce of the invite under which its challenge was answered")
    uplink_mbps: float | None = Field(
        default=None,
        description="as discovery measured it before the registration of its newest invite; None: not measured",
    )
    gflops: float = Field(default=0.0, description="as that challenge measured them")
    challenge_seconds: float = Field(default=0.0, ge=0.0, description="how long that challenge took")
    invite_expires_unix: float = 0.0
    policy_version: int | None = None
    abandoned_leases: int = 0
    restarts: int = Field(
        default=0, ge=0, description="milliseconds since 1970 of the newest restart that was asked for"
    )
    group: GroupPlace | None = Field(default=None, description="never given: an orchestrator of 0.2.0 could")
    welcome: bool = Field(
        default=False, description="an admin said that it may join, whatever its pool's admission says"
    )
    logs_wanted: str = Field(default="", description="id of a question for logs that was not answered")
    metrics: dict[str, float] = Field(default_factory=dict)

    @property
    def place(self) -> str:
        """The pool in which it counts: a member's own, of others the one that they are to come to."""
        return self.pool or self.invited_pool if self.state in MEMBERS else self.invited_pool or self.pool


class DrawnBy(Contract):
    """What draws the tokens of one file, as it was when the file's lease was given: its node may be in another pool when the file is judged."""

    pool: str = Field(description="of the node; empty: not known since Redis was lost")
    sampler: Sampler | None = Field(description="by the pool's terms of that time; None: nothing to redo")


class LeaseRecord(Contract):
    """A lease and what became of it."""

    lease: Lease
    groups: int
    status: Literal["open", "submitted", "abandoned", "returned"] = "open"
    sha256: Sha256Hex | None = Field(
        default=None, description="of the one file that this lease may hand in, once named"
    )
    size: int | None = None
    drawn_by: DrawnBy | None = Field(default=None, description="None: given before this was noted")
    charged: bool = Field(default=False, description="a slice's: it took of the credit that training has earned")


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
    drawn_by: DrawnBy | None = Field(default=None, description="the lease's")


class OpinionNote(Contract):
    """What a job remembers of an opinion: who, which reason, and the digest of the verdict, so that a repeated request does not count twice."""

    validator: ShortText
    reason: RejectReason
    digest: Sha256Hex


MOST_READINGS = 2
"""By one validator of one file, where no reader of it lived: a further one is another validator's. A hostile file may cost a minute each time."""


class Job(Contract):
    """A submission that waits for a verdict."""

    record: SubmissionRecord
    claimed_by: ShortText = ""
    inconclusive: int = 0
    opinions: list[OpinionNote] = Field(default_factory=list)
    prefer_another_until_unix: float = 0.0

    @property
    def given_up_by(self) -> set[str]:
        """Validators that could not read the file as often as they may try."""
        readings = Counter(note.validator for note in self.opinions if note.reason == "unread")
        return {validator for validator, count in readings.items() if count >= MOST_READINGS}

    @property
    def name(self) -> str:
        return f"{self.record.node}/{self.record.sha256}"
