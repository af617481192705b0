"""Which commit a branch or tag of a hub's repository was: part of `prepared.json` and of `GET /v1/run`."""

from typing import Literal

from pydantic import Field

from shoal.contracts.base import Contract


class HubCommit(Contract):
    """What a branch or tag of a hub's repository was when prepare resolved it."""

    kind: Literal["model", "dataset"]
    repository: str = Field(min_length=1, max_length=253)
    revision: str = Field(min_length=1, max_length=253, description="as the manifest has it")
    commit: str = Field(pattern=r"^[0-9a-f]{40}$")
