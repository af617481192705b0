"""The runners of a run: pods that only judge programs of strangers' models."""

from pydantic import Field

from shoal.contracts.base import SpecModel
from shoal_operator.api.base import Resources
from shoal_operator.api.pods import PodTemplate


class RunnerTemplate(SpecModel):
    """How many runners there are and what they need. A runtime class such as gVisor's or Kata's goes into `podTemplate.runtimeClassName`."""

    replicas: int = Field(
        1,
        ge=0,
        le=64,
        description="Number of runners. 0: validators and workers judge programs in their own containers.",
    )
    resources: Resources = Field(
        default_factory=Resources,
        description="Resources of one runner. It judges one program at once for each core and each 544 MiB of memory in its limits.",
    )
    pod_template: PodTemplate = Field(default_factory=PodTemplate, description="Placement and labels of the pods.")
