"""The page of a run in the cluster: what a run says of it (`spec.ui`)."""

from pydantic import Field

from shoal.contracts.base import SpecModel
from shoal_operator.api.base import Resources
from shoal_operator.api.exposure import Exposure
from shoal_operator.api.pods import ObjectRef, PodTemplate


class UiTemplate(SpecModel):
    """The page of the run: one pod that reads the store and the orchestrator and writes nothing. Viewers need its token."""

    credentials_secret: ObjectRef | None = Field(
        None,
        description="Secret with `accessKey` and `secretKey` that may only read the run's store; absent: storage.s3.credentialsSecret.",
    )
    exposure: Exposure = Field(
        default_factory=Exposure,
        description="How browsers outside the cluster reach the page. ClusterIP: by `kubectl port-forward` or your own Ingress.",
    )
    resources: Resources = Field(default_factory=Resources, description="Resources of the page.")
    pod_template: PodTemplate = Field(default_factory=PodTemplate, description="Placement and labels of the pod.")
