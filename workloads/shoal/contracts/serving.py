"""Which version of a run is served: `serving/<tag>/000003.json`, one document a move of a tag, each written once.

The newest document of a tag says what the tag names. Earlier ones are its history, which a roll back goes through. Written by `shoal serving`.
Read by whoever serves the model, and by the trainer, which deletes no version that a tag names or may go back to.

A document is not signed: it chooses among versions that the trainer signed, and whoever fetches one checks the trainer's signature.
"""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from shoal.contracts.base import Contract, RunName, Sha256Hex, unset
from shoal.contracts.evaluation import BenchmarkName
from shoal.contracts.weights import VersionNumber

TagName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$")]
"""Name of a tag: an RFC 1123 label of at most 40 characters, which is a folder of the store and a tag of a registry."""

TAG = "serving"
"""The tag that is meant where none is given."""
MOST_MOVES = 999_999
"""Numbers of documents have six digits."""


class PromotedScore(Contract):
    """What an evaluation said of a version when it was promoted."""

    benchmark: BenchmarkName
    avg_at_k: float = Field(ge=0.0, le=1.0)
    low: float = Field(ge=0.0, le=1.0, description="lower end of its 95 % interval over tasks")
    high: float = Field(ge=0.0, le=1.0, description="upper end of it")


class Promotion(Contract):
    """One move of a tag."""

    schema_version: Literal[1] = 1
    run: RunName
    tag: TagName
    number: int = Field(ge=0, le=MOST_MOVES, description="of this move; the first one is 0")
    version: VersionNumber
    sha256: Sha256Hex = Field(
        description="digest of the version, as its seal has it; of `models/final.json` for a run that publishes no versions"
    )
    how: Literal["best", "hand", "back"] = Field(
        description="best by an evaluation, chosen by hand, or a roll back to a version that the tag named before"
    )
    by: str = Field(min_length=1, max_length=200, description="who moved the tag, in their own words")
    reason: str = Field(min_length=1, max_length=2000)
    unix: float = Field(ge=0.0)
    scores: list[PromotedScore] = Field(default_factory=list, exclude_if=unset, max_length=100)
    keep: int | None = Field(
        default=None,
        exclude_if=unset,
        ge=1,
        description="versions that a roll back can still reach, this one counted; none: all",
    )
