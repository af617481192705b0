"""What the orchestrator remembers about a node: a document in Redis, which `recovery` makes again from the store. No other program reads it."""

from pydantic import Field

from shoal.contracts.base import Contract, NodeId
from shoal.contracts.node_states import MEMBERS
from shoal.contracts.protocol import GroupPlace, NodeState


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
