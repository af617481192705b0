"""What a run has trained, as other runs and people take it: a Hugging Face checkpoint under `models/final/`, sealed by `models/final.json`.

Written by the trainer when the run's last version is made, before that version is published: a run that is complete has one. Read by prepare of a run
whose `spec.model.run` names this one.

`ModelOrigin` lies beside a model that was taken out of a run's store: how its run asked, so that `shoal eval` can ask alike.
"""

from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from shoal.contracts.base import Contract, RunName, Sha256Hex, unset
from shoal.contracts.prompts import PromptTerms
from shoal.contracts.weights import FileName, VersionNumber


class FinalModel(Contract):
    """`models/final.json`, written after the files and deleted before they change."""

    run: RunName
    version: VersionNumber
    model_id: str = Field(min_length=1, max_length=253, description="of the run's base model")
    files: dict[FileName, Sha256Hex] = Field(min_length=1, max_length=10_000)


ORIGIN_FILE = "shoal-run.json"
"""In a folder with a model that was taken out of a run's store."""


class ModelOrigin(Contract):
    """`shoal-run.json`: the run that trained a model, and how it asked. Lengths in tokens."""

    run: RunName
    version: VersionNumber
    targets: list[Annotated[int, Field(ge=1)]] = Field(
        default_factory=list, max_length=64, description="lengths that its prompts asked for; none: it asked for none"
    )
    max_completion_tokens: int | None = Field(default=None, ge=1, description="none: of a run without rollouts")
    prompt: PromptTerms | None = Field(
        default=None, exclude_if=unset, description="how prompts were made; none: the environment's text"
    )


def read_origin(folder: Path) -> ModelOrigin | None:
    """How the run asked that made the model in `folder`; None where nothing readable says it."""
    try:
        return ModelOrigin.from_json((folder / ORIGIN_FILE).read_bytes())
    except (OSError, ValidationError):
        return None
