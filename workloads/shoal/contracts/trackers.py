"""Where a run's metrics go outside the run: part of `TrainingRun.spec`, and the argument of the process that sends them (`shoal.tracking`)."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from shoal.contracts.base import SpecModel

Project = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]
Space = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95}$")]


class WandbTracker(SpecModel):
    """Weights & Biases. Its key comes by WANDB_API_KEY, another server by WANDB_BASE_URL, in podTemplate."""

    project: Project = Field("shoal", description="Project of the run.")
    entity: Project | None = Field(None, description="User or team that owns it; absent: that of the key.")
    mode: Literal["Online", "Offline"] = Field(
        "Online", description="Offline: files in the volume, for `wandb sync` later."
    )


class TrackioTracker(SpecModel):
    """trackio: an SQLite file in the volume, or a Hugging Face Space, for which HF_TOKEN comes in podTemplate."""

    project: Project = Field("shoal", description="Project of the run.")
    space: Space | None = Field(None, description="Space, `owner/name`, that gets the metrics; absent: none.")


class TensorBoardTracker(SpecModel):
    """TensorBoard: event files in the volume."""


class Trackers(SpecModel):
    """Each that is given gets every metric of every step."""

    wandb: WandbTracker | None = Field(None, description="Send metrics to Weights & Biases; absent: no.")
    trackio: TrackioTracker | None = Field(None, description="Write metrics for trackio; absent: no.")
    tensorboard: TensorBoardTracker | None = Field(None, description="Write metrics for TensorBoard; absent: no.")

    @property
    def named(self) -> list[str]:
        """Names of those that are given, which are also those of their packages and extras."""
        return [name for name in ("wandb", "trackio", "tensorboard") if getattr(self, name) is not None]

    @property
    def calls_out(self) -> bool:
        """Whether any of them is a service elsewhere."""
        return (self.wandb is not None and self.wandb.mode == "Online") or (
            self.trackio is not None and self.trackio.space is not None
        )
