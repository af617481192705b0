"""`card.json` of a data set of verified traces (`sft_data`): what it is, with every file and its digest. Pure, and needs no Parquet."""

from typing import Literal

from pydantic import Field

from shoal.contracts.base import Contract, RunName, Sha256Hex, unset
from shoal.contracts.datasets import DatasetName, GenerateSettings
from shoal.contracts.weights import FileName


class DatasetFile(Contract):
    """One file of a data set."""

    name: FileName
    sha256: Sha256Hex
    size: int = Field(ge=1, description="bytes")
    rows: int = Field(ge=0)


class DatasetCard(Contract):
    """`card.json`: what the data set is, and every file of it."""

    schema_version: Literal[1] = 1
    name: DatasetName
    run: RunName
    licence: str = Field(max_length=253)
    model_id: str
    weights_digest: Sha256Hex = Field(description="of version 0, which sampled every row")
    environment: str
    environment_digest: Sha256Hex
    rewards_claimed: bool = Field(
        default=False,
        exclude_if=lambda value: not value,
        description="some rewards are those that the run's own workers claimed: their environment's scores cannot be made again",
    )
    tasks_digest: Sha256Hex
    tasks_digest_found: Sha256Hex | None = Field(
        default=None, exclude_if=unset, description="with the tasks whose prompts could not be made; None: all could"
    )
    task_count: int = Field(ge=1)
    samples_per_problem: int = Field(ge=1)
    temperature: float = Field(gt=0.0)
    filters: GenerateSettings
    rows: int = Field(ge=0)
    completion_tokens: int = Field(ge=0)
    left_out: dict[str, int] = Field(
        default_factory=dict, description="accepted completions that were not kept, by reason"
    )
    problems: int = Field(ge=0, description="that were sampled")
    problems_solved: int = Field(ge=0)
    correct_histogram: list[int] = Field(description="problems by number of correct samples, from none to all")
    parts: list[DatasetFile] = Field(max_length=100_000)
    problem_files: list[DatasetFile] = Field(max_length=100_000)
