"""Validator: the processes that check every uploaded file before it is trained on."""

from typing import Literal

from pydantic import Field

from shoal.contracts.base import RunName, SpecModel
from shoal.contracts.recipe import StorageSpec
from shoal_operator.api.base import ChildMeta, Resources, ScaledStatus


class ValidatorSpec(SpecModel):
    """Which run is checked, by how many validators, and what they need."""

    run: RunName = Field(..., description="Name of the run whose uploads are checked.")
    replicas: int = Field(1, ge=0, le=256, description="Validators.")
    resources: Resources = Field(default_factory=Resources, description="Resources of one validator.")
    storage: StorageSpec = Field(default_factory=StorageSpec, description="The run's object store.")


class Validator(SpecModel):
    """The validators of a run."""

    api_version: Literal["shoal.dev/v1alpha1"] = "shoal.dev/v1alpha1"
    kind: Literal["Validator"] = "Validator"
    metadata: ChildMeta
    spec: ValidatorSpec
    status: ScaledStatus | None = None
