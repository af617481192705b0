"""Data sets on both ends of a run: where its tasks come from, and what a run of mode `Generate` keeps of what was sampled.

Parts of `TrainingRun.spec` and of `config/run.json`, as in `recipe`. Read by the operator, by prepare and by the collector.
"""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from shoal.contracts.base import SpecModel

Mode = Literal["Train", "Generate", "SFT"]
"""What a run is for: reinforcement learning, writing a data set of verified traces, or a supervised warm start."""

FILTER_DATASET = "filter"
"""Name of the data set that the run of an offline filter writes."""
LONGEST_FILTERED_NAME = 33
"""Characters of the name of a run with an offline filter: that of the filter's run is longer, and has at most 40."""

ColumnName = Annotated[str, StringConstraints(min_length=1, max_length=128)]
DatasetName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]
ObjectPath = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*/?$", max_length=400)
]
Place = Annotated[str, StringConstraints(min_length=1, max_length=253)]


def filter_run(run: str) -> str:
    """Name of the run that samples the tasks of `run` for its offline filter."""
    return f"{run}-filter"


class DatasetColumns(SpecModel):
    """Which columns of a data set hold what."""

    prompt: ColumnName = Field(..., description="The problem: text, or a list of chat messages.")
    answer: ColumnName | None = Field(None, description="The final answer; rows without one are left out.")
    verification_info: ColumnName | None = Field(
        None, description="JSON object that the environment judges answers with, such as the tests of a program."
    )
    problem_id: ColumnName | None = Field(None, description="Identity of the problem; absent: a digest of it.")
    task_type: ColumnName | None = Field(None, description="`math` or `code`; absent: math.")
    metadata: list[ColumnName] = Field([], max_length=32, description="Columns kept beside each task.")


class DatasetSource(SpecModel):
    """Files of tasks, Parquet, JSON lines or CSV: on a Hugging Face hub, in a mounted folder, or in the object store."""

    hugging_face: Place | None = Field(None, description="Data set repository on a Hugging Face hub, `owner/name`.")
    revision: Place | None = Field(None, description="Revision of the repository; required with huggingFace.")
    split: ColumnName = Field(
        "train", description="Split of a huggingFace data set or of a folder; it takes the files named after it."
    )
    path: Place | None = Field(None, description="File, or folder in a hub's layout, mounted into prepare.")
    object: ObjectPath | None = Field(
        None,
        description="Key of an object below storage.prefix. A key that ends in `/` takes every Parquet and JSON lines file below it.",
    )
    layout: (
        Literal[
            "intellect-2", "synthetic-1", "numina-math-1.5", "deepscaler", "aime", "gpqa", "livecodebench", "ifeval"
        ]
        | None
    ) = Field(
        None,
        description="Known layout of the columns; absent: recognised by their names. aime, gpqa, livecodebench and ifeval must be named here.",
    )
    columns: DatasetColumns | None = Field(
        None, description="Names of the columns, when the layout is not a known one."
    )


class GenerateSettings(SpecModel):
    """What a run of mode Generate keeps: completions whose task reward is 1, within these bounds, each text once."""

    dataset: DatasetName = Field("traces", description="Name of the data set; it lies under `datasets/<name>/`.")
    min_completion_tokens: int = Field(1, ge=1, le=1_048_576, description="Shorter completions are left out.")
    max_completion_tokens: int | None = Field(
        None, ge=1, le=1_048_576, description="Longer completions are left out; absent: none is too long."
    )
    traces_per_problem: int = Field(4, ge=1, le=1024, description="Most completions kept for one problem.")
    licence: Place = Field("unknown", description="Licence of the data set, for its card.")
    rows_per_part: int = Field(10_000, ge=1, le=1_000_000, description="Rows of one Parquet file.")
