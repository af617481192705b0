"""What a container said last before it failed, as a run's status keeps it. Made by `reconcile/last_words.py`."""

from typing import Annotated

from pydantic import Field, StringConstraints

from shoal.contracts.base import SpecModel
from shoal_operator.api.base import Time

MOST_CAUSES = 8
"""Entries that a status keeps."""
MOST_WORDS = 1200
"""Characters of one log's end."""

Word = Annotated[str, StringConstraints(max_length=253)]


class LastWords(SpecModel):
    """How a container ended that failed. Kept when its pod is gone."""

    component: Word = Field("", description="Part of the run.")
    pod: Word = Field(..., description="Pod of the container.")
    container: Word = Field("", description="Container; empty: the whole pod, such as one that was evicted.")
    exit_code: int | None = Field(None, description="Exit code.")
    signal: Word = Field("", description="Signal that ended it, such as SIGKILL; empty: none.")
    reason: Word = Field("", description="Reason that Kubernetes gives, such as OOMKilled.")
    finished_at: Time = Field("", description="When it ended, RFC 3339.")
    lines: Annotated[str, StringConstraints(max_length=MOST_WORDS)] = Field(
        "", description="Last 20 lines of its log, shortened, with all that looks like a secret hidden."
    )
