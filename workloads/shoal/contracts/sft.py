"""Supervised fine-tuning (`spec.mode: SFT`): its settings, and the manifest of the rows that prepare makes of a data set and the trainer reads.

`SftSettings` is a part of `TrainingRun.spec` and of `config/run.json`, as in `recipe`. Rows are Parquet files (`sft_data`) under `sft/`, listed with
their digests by `sft/manifest.json`, which is written after them. The manifest's digest is the data's: training states are bound to it.
"""

from typing import Literal

from pydantic import Field

from shoal.contracts.base import Contract, RunName, Sha256Hex, SpecModel, unset
from shoal.contracts.datasets import DatasetName, ObjectPath, Place
from shoal.contracts.muon import MuonSettings
from shoal.contracts.weights import FileName
from shoal.crypto.canonical import document_digest


class SftDataset(SpecModel):
    """Prompts with completions to learn, Parquet or JSON lines with columns `prompt` and `completion`: exactly one of run, object, path."""

    run: RunName | None = Field(
        None, description="A run of mode Generate, in this namespace and storage. This run waits until it is complete."
    )
    name: DatasetName | None = Field(None, description="Which data set of that run; absent: `traces`.")
    object: ObjectPath | None = Field(
        None,
        description="Key of an object below storage.prefix. A key that ends in `/` takes every Parquet and JSON lines file below it.",
    )
    path: Place | None = Field(None, description="File, or folder of such files, mounted into prepare.")
    prompts: Literal["AsWritten", "Problem"] = Field(
        "AsWritten",
        description="AsWritten: the column `prompt` is the text that the model continues. Problem: tasks.environment makes that text from it.",
    )


class SftSettings(SpecModel):
    """How a data set is learnt: completions only, every token with the same weight. Rows are packed, never cut."""

    dataset: SftDataset = Field(..., description="What is learnt.")
    epochs: int = Field(2, ge=1, le=10_000, description="Passes over the rows; each in another order.")
    max_updates: int | None = Field(
        None,
        ge=1,
        le=100_000_000,
        description="Training ends after this many updates, even before the last epoch; absent: all epochs.",
    )
    batch_rows: int = Field(128, ge=1, le=1_048_576, description="Rows of one update, over all ranks.")
    learning_rate: float = Field(1e-5, gt=0.0, le=1.0, description="Peak AdamW learning rate.")
    warmup_steps: int = Field(25, ge=0, le=100_000, description="Updates of linear warm-up.")
    schedule: Literal["Cosine", "Constant"] = Field(
        "Cosine",
        description="Learning rate after the warm-up. Cosine: falls to zero at the last update. Constant: stays.",
    )
    adam_beta1: float = Field(0.9, ge=0.0, lt=1.0, description="AdamW first-moment decay.")
    adam_beta2: float = Field(0.999, ge=0.0, lt=1.0, description="AdamW second-moment decay.")
    weight_decay: float = Field(0.0, ge=0.0, le=1.0, description="AdamW decoupled weight decay.")
    max_grad_norm: float = Field(1.0, gt=0.0, le=1e6, description="Global gradient-norm clip.")
    muon: MuonSettings | None = Field(
        None,
        exclude_if=unset,
        description="Update the matrices of the decoder's layers by Muon, with the same learning rate; absent: AdamW updates all.",
    )
    held_out_share: float = Field(
        0.02,
        ge=0.0,
        le=0.5,
        description="Share of the problems that is held out. The run reports their loss at each step.",
    )
    max_sequence_length: int = Field(
        32_768, ge=16, le=1_048_576, description="Tokens of prompt and completion together; a longer row is an error."
    )
    pack_length: int | None = Field(
        None,
        ge=16,
        le=4_194_304,
        description="Tokens of one packed micro-batch; absent: maxSequenceLength.",
    )


class SftShard(Contract):
    """One file of rows."""

    name: FileName
    sha256: Sha256Hex
    rows: int = Field(ge=1)
    tokens: int = Field(ge=1)
    held_out: bool


class SftManifest(Contract):
    """`sft/manifest.json`: seals the rows."""

    schema_version: Literal[1] = 1
    run: RunName
    source: str = Field(max_length=600, description="where the rows came from, for people")
    shards: list[SftShard] = Field(min_length=1, max_length=1_000_000)
    completion_tokens: int = Field(ge=1, description="of all rows that are learnt")

    @property
    def digest(self) -> str:
        """Names the data: equal only for the same bytes in the same order."""
        return document_digest(self)

    def rows(self, *, held_out: bool) -> int:
        return sum(shard.rows for shard in self.shards if shard.held_out == held_out)
