"""What an admin and the orchestrator say to each other about a run's nodes (docs/nodes.md). The admin's token is in a file; nothing here is secret.

Metrics, addresses and refusals come from nodes: whoever shows them makes them harmless first.
"""

from typing import Annotated

from pydantic import Field, StringConstraints

from shoal.contracts.base import Contract, LeaseId, NodeId, RunName
from shoal.contracts.protocol import Assignment, NodeState
from shoal.contracts.weights import VersionNumber

Reason = Annotated[
    str, StringConstraints(min_length=3, max_length=1000, strip_whitespace=True, pattern=r"^[^\x00-\x1f\x7f]*$")
]
"""Kept in the ledger, for everybody to read."""


class NodeView(Contract):
    """One node as the orchestrator sees it."""

    node: NodeId
    state: NodeState
    pool: RunName | None = Field(default=None, description="null: not known since Redis was lost")
    outside: bool | None = Field(default=None, description="a stranger's machine; null: not known since Redis was lost")
    address: str = Field(default="", description="address block that its newest invite went to")
    refused: str = Field(default="", description="why it was not invited")
    last_heartbeat_unix: float = Field(default=0.0, ge=0.0)
    policy_version: VersionNumber | None = None
    files_accepted: int = Field(default=0, ge=0)
    files_rejected: int = Field(default=0, ge=0)
    leases_open: int = Field(default=0, ge=0)
    leases_abandoned: int = Field(default=0, ge=0)
    program_seconds: float = Field(
        default=0.0,
        ge=0.0,
        exclude_if=lambda seconds: seconds == 0.0,
        description="CPU seconds of programs and judges of its files, of late",
    )
    uplink_mbps: float | None = Field(default=None, ge=0.0, description="measured by discovery; null: not measured")
    gflops: float = Field(default=0.0, ge=0.0, description="measured by its challenge; 0: no challenge")
    metrics: dict[str, float] = Field(default_factory=dict)
    assignment: Assignment | None = None


class NodeList(Contract):
    """Nodes in the order of their keys; `next` is where the next page begins."""

    nodes: list[NodeView]
    next: NodeId | None = None


class ReasonRequest(Contract):
    """Ban a node, or take a ban back."""

    reason: Reason


class LogsTicket(Contract):
    """A node was asked for its logs; it answers with its next heartbeat."""

    request: LeaseId
