"""What a run has trained, as other runs and people take it: a Hugging Face checkpoint under `models/final/`, sealed by `models/final.json`.

Written by the trainer when the run's last version is made, before that version is published: a run that is complete has one. Read by prepare of a run
whose `spec.model.run` names this one.
"""

from pydantic import Field

from shoal.contracts.base import Contract, RunName, Sha256Hex
from shoal.contracts.weights import FileName, VersionNumber


class FinalModel(Contract):
    """`models/final.json`, written after the files and deleted before they change."""

    run: RunName
    version: VersionNumber
    model_id: str = Field(min_length=1, max_length=253, description="of the run's base model")
    files: dict[FileName, Sha256Hex] = Field(min_length=1, max_length=10_000)
