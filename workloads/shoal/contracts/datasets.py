"""Data sets on both ends of a run: where its tasks come from, and what a run of mode `Generate` keeps of what was sampled.

Parts of `TrainingRun.spec` and of `config/run.json`, as in `recipe`. Read by the operator, by prepare and by the collector.
"""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from shoal.contracts.base import Probability, SpecModel, unset

Mode = Literal["Train", "Generate", "SFT"]
"""The purpose of a run: reinforcement learning, writing a data set of verified traces, or a supervised warm start."""

FILTER_DATASET = "filter"
"""Name of the data set that the run of an offline filter writes."""
LONGEST_FILTERED_NAME = 33
"""Characters of the name of a run with an offline filter: that of the filter's run is longer, and has at most 40."""

ColumnName = Annotated[str, StringConstraints(min_length=1, max_length=128)]
DatasetName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]
ObjectPath = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*/?$", max_length=400)
]
REFUSED_SHARE = 0.2
Place = Annotated[str, StringConstraints(min_length=1, max_length=253)]


def filter_run(run: str) -> str:
    """Name of the run that samples the tasks of `run` for its offline filter."""
    return f"{run}-filter"


Pattern = Annotated[str, StringConstraints(min_length=1, max_length=500)]
"""A regular expression of RE2 (github.com/google/re2/wiki/Syntax): linear in the text, so that no pattern and no row can hang prepare."""
FilterValue = Annotated[str, StringConstraints(max_length=253)]


class AnswerExtraction(SpecModel):
    """Where the final answer stands in the answer column: exactly one of the fields."""

    after: ColumnName | None = Field(None, description="What follows the last place of this text, such as `####`.")
    boxed: bool | None = Field(None, description="true: what stands in the last `\\boxed{}`.")
    pattern: Pattern | None = Field(
        None,
        description="First group of a regular expression (RE2 syntax), or all that it matches where it has no group.",
    )


class RowFilter(SpecModel):
    """Rows to keep by one column. Everything that is given must hold; a row without a value is left out."""

    column: ColumnName = Field(..., description="Column to look at; a dot goes into an object, `extra.level`.")
    one_of: list[FilterValue] = Field([], max_length=64, description="Values to keep, as text; empty: all.")
    none_of: list[FilterValue] = Field([], max_length=64, description="Values to leave out, as text.")
    at_least: float | None = Field(None, description="Least number to keep.")
    at_most: float | None = Field(None, description="Greatest number to keep.")
    matches: Pattern | None = Field(
        None, description="Regular expression (RE2 syntax) that must occur in the value, as text."
    )


class DatasetColumns(SpecModel):
    """Which columns of a data set hold what. A dot goes into an object: `reward_model.ground_truth`."""

    prompt: ColumnName | None = Field(
        None, description="The problem: text, or a list of chat messages. Required unless template is given."
    )
    template: Annotated[str, StringConstraints(min_length=1, max_length=4000)] | None = Field(
        None,
        exclude_if=unset,
        description="Text of the problem made of several columns: `{name}` stands for a column's value, `{{` for a brace.",
    )
    answer: ColumnName | None = Field(None, description="The final answer; rows without one are left out.")
    extract: AnswerExtraction | None = Field(
        None,
        exclude_if=unset,
        description="Where in the answer column the final answer stands; absent: the whole column is the answer.",
    )
    verification_info: ColumnName | None = Field(
        None, description="JSON object that the environment judges answers with, such as the tests of a program."
    )
    problem_id: ColumnName | None = Field(None, description="Identity of the problem; absent: a digest of it.")
    task_type: ColumnName | None = Field(None, description="`math` or `code`; absent: math.")
    metadata: list[ColumnName] = Field([], max_length=32, description="Columns kept beside each task.")


class DatasetSource(SpecModel):
    """Files of tasks, Parquet, JSON (lines or a list) or CSV: on a Hugging Face hub, in a mounted folder, or in the object store."""

    hugging_face: Place | None = Field(None, description="Data set repository on a Hugging Face hub, `owner/name`.")
    revision: Place | None = Field(None, description="Revision of the repository; required with huggingFace.")
    subset: ColumnName | None = Field(
        None,
        exclude_if=unset,
        description="Subset (config) of a huggingFace data set or folder. Absent: its default, or its only one.",
    )
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
            "intellect-2", "synthetic-1", "numina-math-1.5", "deepscaler", "gsm8k", "math", "big-math", "dapo-math", "open-r1-mixture", "mbpp",
            "prompt-answer", "aime", "gpqa", "livecodebench", "ifeval",
        ]
        | None
    ) = Field(
        None,
        description="Known layout of the columns; absent: recognised by their names. aime, gpqa, livecodebench and ifeval must be named here.",
    )  # fmt: skip
    columns: DatasetColumns | None = Field(
        None, description="Names of the columns, when the layout is not a known one."
    )
    where: list[RowFilter] = Field(
        [], exclude_if=unset, max_length=16, description="Rows to keep; a row must pass all. Empty: all rows."
    )
    row_limit: int | None = Field(
        None,
        exclude_if=unset,
        ge=1,
        le=1_000_000_000,
        description="Rows read at most, in the order of the files; absent: all.",
    )
    shuffle_seed: int | None = Field(
        None,
        exclude_if=unset,
        ge=0,
        le=2_147_483_647,
        description="Order the tasks at random by this seed, before count is taken; absent: the order of the files.",
    )
    max_refused_share: Probability = Field(
        REFUSED_SHARE,
        exclude_if=lambda share: share == REFUSED_SHARE,
        description="Prepare fails when a greater share of the tasks cannot be asked, or has a gold answer that cannot be judged.",
    )


class GenerateSettings(SpecModel):
    """Filters of a run of mode Generate: it keeps completions with a task reward of 1, within these bounds, each text once."""

    dataset: DatasetName = Field("traces", description="Name of the data set; it lies under `datasets/<name>/`.")
    min_completion_tokens: int = Field(1, ge=1, le=1_048_576, description="Shorter completions are left out.")
    max_completion_tokens: int | None = Field(
        None, ge=1, le=1_048_576, description="Longer completions are left out; absent: none is too long."
    )
    traces_per_problem: int = Field(4, ge=1, le=1024, description="Most completions kept for one problem.")
    licence: Place = Field("unknown", description="Licence of the data set, for its card.")
    rows_per_part: int = Field(10_000, ge=1, le=1_000_000, description="Rows of one Parquet file.")
