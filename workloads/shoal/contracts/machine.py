"""What a machine's owner says about what may run there: environment variables and the owner's own files, never fields of a manifest.

`config/lending.json` holds the options of `shoal node join`; agent and fetch read it. `config/owner.json` holds what the owner asked of a node by
`shoal node pause`, `resume` or `drain`, whether it runs or not. No part of a run can write either.
"""

from typing import Literal

from pydantic import Field

from shoal.contracts.base import Contract, unset

OWNERS_CHOICES = ("SHOAL_ENVIRONMENTS", "SHOAL_TRUSTED_ENVIRONMENTS", "SHOAL_SANDBOX")
"""They hold for every process that is started on the machine, by `shoal up` and by `shoal node join`. None holds a secret."""

LEAST_BITS, MOST_BITS = 2_000_000, 10**12
"""Of a cap, bits a second. Below the least a download would be slower than the 64 KiB/s at which a request is given up (`broadcast.download`)."""


class Lending(Contract):
    """Limits of what this machine lends; absent: none."""

    upload_bits: int | None = Field(default=None, ge=LEAST_BITS, le=MOST_BITS, exclude_if=unset)
    download_bits: int | None = Field(default=None, ge=LEAST_BITS, le=MOST_BITS, exclude_if=unset)
    hours: str | None = Field(
        default=None, max_length=200, exclude_if=unset, description="of the day, such as 22:00-07:00; None: always"
    )
    gpus: list[str] = Field(
        default_factory=list, max_length=64, exclude_if=unset, description="indices or UUIDs; none: all"
    )


class OwnersRequest(Contract):
    """What the owner asked last. `pause`: no work until `resume`; `drain`: finish what is held, then end, once."""

    request: Literal["work", "pause", "drain"]
    unix: float = Field(ge=0.0)
