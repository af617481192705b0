"""Messages of the measurement of a machine's way out, between a stranger's machine and discovery (docs/ledger.md)."""

from pydantic import Field

from shoal.contracts.base import Contract, LeaseId, NodeId, RunName


class UplinkRequest(Contract):
    """A machine asks discovery to measure its uplink before it registers."""

    node: NodeId
    pool: RunName


class UplinkTest(Contract):
    """An upload of random bytes, to be made once and at once: the time runs from when the test was given out."""

    test: LeaseId
    node: NodeId
    size: int = Field(ge=1, le=1 << 30, description="bytes")
    limit_seconds: float = Field(gt=0.0, le=600.0, description="the test ends then, complete or not")


class UplinkResult(Contract):
    """Discovery's measurement of an upload; bytes are counted and dropped."""

    mbps: float = Field(ge=0.0, description="10^6 bits a second, including the request and the start of the upload")
    size: int = Field(ge=0, description="bytes that came")
    seconds: float = Field(gt=0.0)
