"""Validator: the processes that check every uploaded file before it is trained on, and what they check it against.

A run has one Validator, made from its template or named by `spec.validatorRef`: two sets of thresholds would give two verdicts on one file. The run
copies `validation` into `run.json`, which validators and orchestrator read.
"""

from typing import Literal

from pydantic import Field

from shoal.contracts.base import RunName, SpecModel
from shoal.contracts.storage import StorageSpec
from shoal.contracts.validation import Validation
from shoal_operator.api.base import ChildMeta, Resources, ScaledStatus
from shoal_operator.api.pods import Gpus, PodTemplate, ValidatorImages
from shoal_operator.api.volumes import Volume, temporary_field


class ValidatorFields(SpecModel):
    """Settings of validators, whoever makes them."""

    replicas: int = Field(1, ge=0, le=256, description="Validators.")
    validation: Validation = Field(default_factory=Validation, description="How uploads are checked.")
    gpu: Gpus = Field(default_factory=Gpus, description="Accelerators of one validator.")
    resources: Resources = Field(default_factory=Resources, description="Resources of one validator.")
    temporary_volume: Volume | None = temporary_field("versions that are fetched")
    pod_template: PodTemplate = Field(default_factory=PodTemplate, description="Placement and labels of the pods.")


class ValidatorTemplate(ValidatorFields):
    """The validators that the run makes; they check every uploaded file."""


class ValidatorSpec(ValidatorFields):
    """Which run is checked, by how many validators, and what they need."""

    run: RunName = Field(..., description="Name of the run whose uploads are checked.")
    storage: StorageSpec = Field(default_factory=StorageSpec, description="The run's object store.")
    images: ValidatorImages = Field(default_factory=ValidatorImages, description="Images instead of the release's.")


class Validator(SpecModel):
    """The validators of a run."""

    api_version: Literal["shoal.dev/v1alpha1"] = "shoal.dev/v1alpha1"
    kind: Literal["Validator"] = "Validator"
    metadata: ChildMeta
    spec: ValidatorSpec
    status: ScaledStatus | None = None
