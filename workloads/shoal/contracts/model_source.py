"""Where a base model comes from: `model` of a manifest, and a part of `config/run.json`. Pure."""

from typing import Literal

from pydantic import Field

from shoal.contracts.base import Probability, RunName, ShortText, SpecModel


class GeneratedModel(SpecModel):
    """A tiny model made on the spot: for demos and tests, where no model hub is needed."""

    name: Literal["arithmetic", "calculator"] = Field(
        "arithmetic",
        description="What the model is made for: `arithmetic` for the environment of that name, `calculator` for the environment `tool`.",
    )
    hidden_size: int = Field(128, ge=128, le=4096, description="Width of the model; a proof needs 128 values.")
    layers: int = Field(3, ge=1, le=64, description="Transformer layers.")
    warm_start_pass_rate: Probability = Field(
        0.3, description="The supervised warm start ends when this share of sampled answers is correct."
    )
    warm_start_max_steps: int = Field(400, ge=1, le=100_000, description="Most updates of the supervised warm start.")
    warm_start_slips: Probability = Field(
        0.5,
        description="Share of the taught answers that have a mistake, which the rewards then teach the model to avoid. Of `calculator` the mistake is"
        " to make up what the calculator says.",
    )


class ModelSource(SpecModel):
    """Where the base model comes from: exactly one of the fields."""

    hugging_face: ShortText | None = Field(None, description="Repository on a Hugging Face hub, `owner/name`.")
    revision: ShortText | None = Field(None, description="Revision of the repository; required with huggingFace.")
    path: ShortText | None = Field(None, description="Folder with a Hugging Face checkpoint, mounted into prepare.")
    generated: GeneratedModel | None = Field(None, description="A tiny model made on the spot.")
    run: RunName | None = Field(
        None,
        description="Take the model that another run of this namespace and storage trains. This run waits until that run is complete.",
    )
