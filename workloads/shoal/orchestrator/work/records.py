"""What the orchestrator remembers about leases and submitted files. Nothing outside this program reads these documents.

`SubmissionRecord` is written to the store and is part of the truth; a `LeaseRecord` lives in Redis and is made again from the store by `recovery`.
"""

from typing import Literal

from pydantic import Field

from shoal.contracts.base import Contract, LeaseId, NodeId, RunName, Sha256Hex, unset
from shoal.contracts.pools import Sampler
from shoal.contracts.protocol import Lease
from shoal.contracts.weights import VersionNumber
from shoal.contracts.work import LeasePart


class DrawnBy(Contract):
    """The engine that draws the tokens of one file, as of its lease: its node may be in another pool when the file is judged."""

    pool: str = Field(description="of the node; empty: not known since Redis was lost")
    sampler: Sampler | None = Field(description="by the pool's terms of that time; None: nothing to draw again")


class LeaseRecord(Contract):
    """A lease and its outcome."""

    lease: Lease
    groups: int
    status: Literal["open", "submitted", "abandoned", "returned", "passed", "unbegun"] = "open"
    """`passed`: another lease is for the same part now. `unbegun`: what a sized lease left; no lease, and never written."""
    sha256: Sha256Hex | None = Field(
        default=None, description="of the one file that this lease may hand in, once named"
    )
    size: int | None = None
    drawn_by: DrawnBy | None = Field(default=None, description="None: given before this was noted")
    given_unix: float | None = Field(
        default=None, exclude_if=unset, description="when it was given last; None: before this was noted"
    )
    charged: bool = Field(default=False, description="a slice's: it took of the credit that training has earned")
    part: LeasePart | None = Field(
        default=None, exclude_if=unset, description="that it is for, or that its file has; None: all of its number"
    )
    follows: LeaseId | None = Field(
        default=None,
        exclude_if=unset,
        description="lease for the same part that ended without an accepted file; or the name of what a sized lease left (`parts.more_of`)",
    )
    sized: bool = Field(
        default=False,
        exclude_if=lambda sized: not sized,
        description="it was given for as many groups as its node is fast (`sizing`)",
    )
    more: LeasePart | None = Field(
        default=None,
        exclude_if=unset,
        description="groups of the same draw that a sized lease left; a lease that follows it has them",
    )


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
    policy_version: VersionNumber | None = Field(default=None, exclude_if=unset, description="as the node said")
    part: LeasePart | None = Field(
        default=None, exclude_if=unset, description="that the file has; None: all of its number"
    )
    rest: LeasePart | None = Field(default=None, exclude_if=unset, description="that the file leaves of its lease")
    keeps_rest: bool = Field(default=False, exclude_if=lambda keeps: not keeps, description="the node goes on with it")
