"""Packages of environments that a run brings: wheels, each pinned by its SHA-256, which no image has to hold.

`tasks.packages` of a manifest names them (`EnvironmentPackage`). Prepare puts each into the run's store and pins it in `prepared.json`
(`PinnedPackage`). Validators read that, and nodes learn it from the orchestrator. Pure.
"""

import re
from typing import Annotated

from pydantic import Field, StringConstraints

from shoal.contracts.base import Contract, Sha256Hex, SpecModel, unset
from shoal.contracts.datasets import ObjectPath, Place

MOST_PACKAGES = 32
MOST_WHEEL_BYTES = 32 << 20
"""Of one wheel. An orchestrator reads it whole for each node that starts, and an answer of its has 64 MiB at most."""

PackageName = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$", min_length=1, max_length=100)
]
PackageVersion = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9.!+_-]*$", max_length=64)]
WheelUrl = Annotated[
    str, StringConstraints(pattern=r"^https?://[A-Za-z0-9.\[\]:_-]+/[A-Za-z0-9._~/%+-]*$", max_length=500)
]
"""Without a query and without a user: a manifest holds no secrets."""


class EnvironmentPackage(SpecModel):
    """A wheel of pure Python: an environment, or something that one needs. Without url, path and object it comes from a package index."""

    package: PackageName = Field(..., description="Name of the distribution, such as `shoal-environment-word-puzzles`.")
    version: PackageVersion = Field(..., description="Its version, as the wheel says it.")
    sha256: Sha256Hex = Field(
        ..., description="SHA-256 of the wheel, in hex. Prepare refuses other bytes, and so do workers and validators."
    )
    url: WheelUrl | None = Field(None, exclude_if=unset, description="Address of the wheel; prepare fetches it.")
    path: Place | None = Field(None, exclude_if=unset, description="The wheel's file, mounted into prepare.")
    object: ObjectPath | None = Field(
        None,
        exclude_if=unset,
        description="Key of the wheel below storage.prefix (`shoal env publish`).",
    )


class PinnedPackage(Contract):
    """A package as prepare found it: `size_bytes` of the wheel with this digest lie in the run's store."""

    package: PackageName
    version: PackageVersion
    sha256: Sha256Hex
    size_bytes: int = Field(ge=1, le=MOST_WHEEL_BYTES)


def plain_name(name: str) -> str:
    """The one spelling of a distribution's name (packaging.python.org, name normalization)."""
    return re.sub(r"[-_.]+", "-", name).lower()
