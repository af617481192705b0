"""The data set in the store: parts as they fill, a note of how far it is, at the end a page for people and the card that seals it.

In: kept traces and counts of problems, slice by slice in order. Out: `datasets/<name>/`. `progress.json` is written after the files that it names, so
a restart goes on behind the last part: the slices since then are read again and give the same rows. Called by `collector`.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Sequence

import yaml
from pydantic import Field

from shoal.contracts import keys
from shoal.contracts.base import Contract, RunName, Sha256Hex
from shoal.contracts.dataset_card import DatasetCard, DatasetFile
from shoal.contracts.datasets import GenerateSettings
from shoal.contracts.filtering import ProblemCount
from shoal.contracts.run import Prepared, RunConfig
from shoal.contracts.sft_data import Trace, read_traces, write_problem_counts, write_traces
from shoal.storage import Store, find

CHECKPOINT_PROBLEMS = 20_000
"""Counts in memory at once; where little is kept, files are written by these and not by rows."""


class OtherDataset(ValueError):
    """The files under the data set's name come from another source; the message says what to do."""


class DatasetState(Contract):
    """`progress.json`: what is written so far, and which slice comes next."""

    run: RunName
    tasks_digest: Sha256Hex
    filters: GenerateSettings
    next_step: int = Field(default=0, ge=0)
    rows_seen: int = Field(default=0, ge=0)
    rows: int = Field(default=0, ge=0)
    completion_tokens: int = Field(default=0, ge=0)
    left_out: dict[str, int] = Field(default_factory=dict)
    problems: int = Field(default=0, ge=0)
    problems_solved: int = Field(default=0, ge=0)
    correct_histogram: list[int] = Field(default_factory=list)
    files: int = Field(default=0, ge=0, description="number of the next part")
    parts: list[DatasetFile] = Field(default_factory=list)
    problem_files: list[DatasetFile] = Field(default_factory=list)


class DatasetWriter:
    """Writes the data set of one run."""

    def __init__(self, config: RunConfig, prepared: Prepared, store: Store) -> None:
        """Go on from what is there. Raises OtherDataset when that is not of this run."""
        self._config, self._prepared, self._store = config, prepared, store
        self._name = config.generate.dataset
        self._traces: list[Trace] = []
        self._counts: list[ProblemCount] = []
        self.state = self._load()

    def _load(self) -> DatasetState:
        fresh = DatasetState(
            run=self._config.run,
            tasks_digest=self._prepared.tasks_digest,
            filters=self._config.generate,
            correct_histogram=[0] * (self._config.recipe.group_size + 1),
        )
        found = find(self._store, self._key("progress.json"), DatasetState.from_json)
        if found is None:
            return fresh
        same = (found.run, found.tasks_digest, found.filters, len(found.correct_histogram))
        if same != (fresh.run, fresh.tasks_digest, fresh.filters, len(fresh.correct_histogram)):
            raise OtherDataset(
                f"{self._key('progress.json')} is of a data set with other tasks, filters or samples; set spec.generate.dataset to another name"
            )
        return found

    def _key(self, name: str) -> str:
        return keys.dataset(self._name) + name

    @property
    def card_digest(self) -> str | None:
        """SHA-256 of the card, or None while the data set is not sealed."""
        return find(self._store, keys.dataset_card(self._name), lambda card: hashlib.sha256(card).hexdigest())

    def written(self) -> Iterator[Trace]:
        """Every row of the parts that are written, for whoever must know what is there. Raises OtherDataset for a part that was changed."""
        for part in self.state.parts:
            data = self._store.get(self._key(part.name))
            if hashlib.sha256(data).hexdigest() != part.sha256:
                raise OtherDataset(
                    f"{self._key(part.name)} was changed since it was written; delete {self._key('')} to start over"
                )
            yield from read_traces(data)

    def add(
        self, step: int, rows_seen: int, traces: Sequence[Trace], counts: Sequence[ProblemCount], left_out: Counter[str]
    ) -> None:
        """Take over slice `step`; writes files when there is enough for them."""
        if step != self.state.next_step:
            raise ValueError(f"slice {step} was added, slice {self.state.next_step} comes next")
        self._traces += traces
        self._counts += counts
        histogram = list(self.state.correct_histogram)
        for count in counts:
            histogram[count.correct] += 1
        self.state = self.state.model_copy(
            update={
                "next_step": step + 1,
                "rows_seen": self.state.rows_seen + rows_seen,
                "rows": self.state.rows + len(traces),
                "completion_tokens": self.state.completion_tokens + sum(trace.tokens for trace in traces),
                "left_out": dict(Counter(self.state.left_out) + left_out),
                "problems": self.state.problems + len(counts),
                "problems_solved": self.state.problems_solved + sum(count.correct > 0 for count in counts),
                "correct_histogram": histogram,
            }
        )
        if len(self._traces) >= self._config.generate.rows_per_part or len(self._counts) >= CHECKPOINT_PROBLEMS:
            self.flush()

    def flush(self) -> None:
        """Write what is in memory, then the note that it is there."""
        if not self._counts:
            return
        number, parts, problem_files = self.state.files, list(self.state.parts), list(self.state.problem_files)
        if self._traces:
            part = keys.dataset_part(self._name, number)
            parts.append(self._put(part, write_traces(self._traces), len(self._traces)))
        problems = keys.dataset_problems(self._name, number)
        problem_files.append(self._put(problems, write_problem_counts(self._counts), len(self._counts)))
        self.state = self.state.model_copy(update={"files": number + 1, "parts": parts, "problem_files": problem_files})
        self._store.put(self._key("progress.json"), self.state.to_json())
        self._traces, self._counts = [], []

    def seal(self, weights_digest: str) -> str:
        """Write the page and the card; returns the card's SHA-256."""
        self.flush()
        state, config, prepared = self.state, self._config, self._prepared
        card = DatasetCard(
            name=self._name,
            run=config.run,
            licence=config.generate.licence,
            model_id=prepared.model_id,
            weights_digest=weights_digest,
            environment=prepared.environment,
            environment_digest=prepared.environment_digest,
            rewards_claimed=prepared.rewards_claimed,
            tasks_digest=prepared.tasks_digest,
            tasks_digest_found=prepared.tasks_digest_found,
            task_count=prepared.task_count,
            samples_per_problem=config.recipe.group_size,
            temperature=config.sampling.temperature,
            filters=config.generate,
            rows=state.rows,
            completion_tokens=state.completion_tokens,
            left_out=dict(sorted(state.left_out.items())),
            problems=state.problems,
            problems_solved=state.problems_solved,
            correct_histogram=state.correct_histogram,
            parts=state.parts,
            problem_files=state.problem_files,
        )
        self._store.put(self._key("README.md"), page(card).encode())
        data = card.to_json()
        self._store.put(keys.dataset_card(self._name), data)
        return hashlib.sha256(data).hexdigest()

    def _put(self, key: str, data: bytes, rows: int) -> DatasetFile:
        self._store.put(key, data)
        return DatasetFile(
            name=key.rpartition("/")[2], sha256=hashlib.sha256(data).hexdigest(), size=len(data), rows=rows
        )


def _found_right(card: DatasetCard) -> str:
    if not card.rewards_claimed:
        return "an independent validator found right"
    return "were found right: by an independent validator where scores can be made again, else by the run's own worker alone"


def page(card: DatasetCard) -> str:
    """The data set's page, `README.md`: metadata as hubs read it, then what people ask."""
    head = {
        "license": card.licence,
        "configs": [{"config_name": "default", "data_files": [{"split": "train", "path": "part-*.parquet"}]}],
        "tags": ["reasoning", "synthetic"],
    }
    rows = [
        ("rows", card.rows),
        ("completion tokens", card.completion_tokens),
        ("problems sampled", card.problems),
        ("problems solved at least once", card.problems_solved),
        ("samples a problem", card.samples_per_problem),
        ("temperature", card.temperature),
        ("model", card.model_id),
        ("digest of its weights", card.weights_digest),
        ("judged by", f"environment {card.environment}, digest {card.environment_digest}"),
        ("task table", f"{card.task_count} tasks, digest {card.tasks_digest}"),
        ("written by run", card.run),
        ("licence", card.licence),
    ]
    left_out = "".join(f"| {reason} | {number} |\n" for reason, number in card.left_out.items())
    return (
        f"---\n{yaml.safe_dump(head, sort_keys=False)}---\n\n# {card.name}\n\n"
        f"Completions of a language model that {_found_right(card)}, each checked to come from the model named here.\n\n"
        "| | |\n|---|---|\n" + "".join(f"| {name} | {value} |\n" for name, value in rows) + "\n"
        "Columns: `problem_id`, `task_type`, `prompt`, `completion` (without its end-of-sequence token), `reward`, `tokens`.\n\n"
        f"Filters: `{json.dumps(card.filters.model_dump(mode='json', by_alias=True, exclude_none=True))}`. A completion that was left out:\n\n"
        f"| why | completions |\n|---|---|\n{left_out}\n"
        f"Problems by number of right samples, from none to all: {', '.join(map(str, card.correct_histogram))}.\n"
        "`problems-*.parquet` says it for each problem; `card.json` has the digest of every file.\n"
    )
