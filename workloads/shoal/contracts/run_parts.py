"""How the parts of a run are, as the operator sees them: `config/parts.json`, which the page of the run mounts (docs/ui.md). Pure.

On a cluster only the API server knows pods, and no pod of a run may ask it. The operator writes this into a ConfigMap whenever it changed.
"""

from typing import Annotated

from pydantic import Field, StringConstraints

from shoal.contracts.base import Contract, RunName

MAX_PARTS = 128
"""As many as the status of a TrainingRun lists: the run's own nine, and pools."""
MAX_MESSAGE = 1000


class PartState(Contract):
    """One part: a workload of the run, or one of our own kinds."""

    component: Annotated[str, StringConstraints(max_length=64)] = Field(description="Trainer, InferencePool, ...")
    name: Annotated[str, StringConstraints(min_length=1, max_length=253)] = Field(description="name of its object")
    ready: bool = Field(description="whether it is ready")
    pods_ready: int = Field(ge=0)
    pods_desired: int = Field(ge=0)
    reason: Annotated[str, StringConstraints(max_length=128)] = Field(description="one word, as in a condition")
    message: Annotated[str, StringConstraints(max_length=MAX_MESSAGE)] = ""


class RunParts(Contract):
    """The parts of one run, in the order in which they start."""

    run: RunName
    parts: list[PartState] = Field(max_length=MAX_PARTS)
