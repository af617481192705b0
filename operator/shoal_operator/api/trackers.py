"""Where a run's metrics go outside the run (`spec.trackers`), and the pod that sends them."""

from pydantic import Field

from shoal.contracts.trackers import Trackers
from shoal_operator.api.base import Resources, Size
from shoal_operator.api.pods import ObjectRef, OutwardTemplate
from shoal_operator.api.volumes import Volume


class TrackersTemplate(Trackers, OutwardTemplate):
    """One pod that reads the store and sends every step's metrics to the trackers that are given; at least one is. Their keys come by podTemplate."""

    credentials_secret: ObjectRef | None = Field(
        None,
        description="Secret with `accessKey` and `secretKey` that may only read the run's store; absent: storage.s3.credentialsSecret.",
    )
    volume_size: Size = Field("1Gi", description="Size of the volume for files of trackers, which outlives the pod.")
    volume: Volume | None = Field(None, description="That volume's claim.")
    resources: Resources = Field(default_factory=Resources, description="Resources of the pod.")

    @property
    def settings(self) -> Trackers:
        """What its process is told."""
        return Trackers(**{name: getattr(self, name) for name in Trackers.model_fields})
