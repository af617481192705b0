"""A data set of prompts and completions as rows of tokens, for a run of mode SFT: checked once, before anything is trained.

In: what a run of mode Generate has written, or Parquet and JSON lines files; the base model's tokenizer. Out: shards of rows and the manifest that
seals them (`contracts.sft`). Prompts are those that a run of mode Train would give its workers for the same tasks: as they were sampled from, or made
by the run's environment. A completion ends with the model's end-of-sequence token. Nothing is left out and nothing is cut: what cannot be learnt
stops the import with its row. Called by `prepare`.
"""

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from shoal import telemetry
from shoal.contracts import keys
from shoal.contracts.dataset_card import DatasetCard
from shoal.contracts.prompts import PromptTerms
from shoal.contracts.run import RunConfig
from shoal.contracts.sft import SftDataset, SftManifest, SftSettings, SftShard
from shoal.contracts.sft_data import BadTraces, SftRow, read_traces, write_sft_rows
from shoal.contracts.tasks import ChatMessage, Task
from shoal.environments.base import Environment
from shoal.environments.datasets import SUFFIXES, file_rows, holds_rows
from shoal.environments.prompt_check import template_end
from shoal.environments.prompts import load_tokenizer, prompt_pieces
from shoal.environments.tokens import eos_token_ids
from shoal.storage import NotFound, Store, open_below_prefix, open_store_of

SHARD_ROWS, SHARD_TOKENS = 10_000, 4_000_000
"""Of one shard at most: about ten megabytes, so that neither this process nor a reader holds much at once."""
ENCODE_ROWS = 256
"""Texts that the tokenizer is given at once."""
DEFAULT_DATASET = "traces"


class BadSftData(ValueError):
    """A data set that cannot be learnt; the message says which file and row, and what is allowed."""


@dataclass(frozen=True)
class Example:
    """One row as text. `row` says where it is, for people; rows of one problem are learnt or held out together."""

    row: str
    problem: str
    prompt: list[str]
    """In pieces that are encoded each by itself (`prompts.prompt_pieces`)."""
    completion: str


@dataclass(frozen=True)
class Asking:
    """How a problem becomes a prompt: `kind` is the type of a task that names none; `pieces` makes the prompt of a task, in pieces."""

    kind: str
    pieces: Callable[[Task], list[str]]


def import_rows(
    config: RunConfig, store: Store, base: Path, environment: Environment, scratch: Path, terms: PromptTerms
) -> SftManifest:
    """Write the rows of the run's data set into its store, the manifest last; `base` is the base checkpoint's folder. Raises BadSftData."""
    assert config.sft is not None  # the operator's builders write it with mode SFT
    for info in store.list(keys.SFT):  # of a try that was stopped
        store.delete(info.key)
    encode = Encoder(base, config.sft, terms)

    asking = Asking(environment.name, lambda task: prompt_pieces(encode.tokenizer, environment, task, None, terms))
    read, source = examples(config, config.sft.dataset, asking, scratch)
    held_out = held_out_problems({each.problem for each in read()}, config.sft.held_out_share, config.seed)
    shards: list[SftShard] = []
    completion_tokens = 0
    for which in (False, True):
        part = (each for each in read() if (each.problem in held_out) == which)
        for number, rows in enumerate(_cut(encode(part))):
            shards.append(_put(store, f"{'held-out' if which else 'learnt'}-{number:05d}.parquet", rows, which))
            if not which:
                completion_tokens += sum(len(row.completion_tokens) for row in rows)
    if not completion_tokens:
        raise BadSftData(f"{source} has no rows; the data set needs at least one")
    manifest = SftManifest(run=config.run, source=source[:600], shards=shards, completion_tokens=completion_tokens)
    store.put(keys.SFT_MANIFEST, manifest.to_json())
    telemetry.get_logger().info(
        "rows written",
        rows=manifest.rows(held_out=False),
        held_out=manifest.rows(held_out=True),
        completion_tokens=completion_tokens,
    )
    return manifest


def examples(
    config: RunConfig, dataset: SftDataset, asking: Asking, scratch: Path
) -> tuple[Callable[[], Iterator[Example]], str]:
    """A function that reads the data set from its beginning, and where it is, in words."""
    if dataset.run is not None:
        name = dataset.name or DEFAULT_DATASET
        return _of_run(dataset.run, name, open_store_of(dataset.run, config)), f"data set {name} of run {dataset.run}"
    if dataset.object is not None:
        files = _fetched(open_below_prefix(config), dataset.object, scratch / "sft")
        source = f"object {dataset.object}"
    else:
        files = _mounted(Path(dataset.path or ""))
        source = str(dataset.path)
    problem = dataset.prompts == "Problem"
    return lambda: _of_files(files, asking if problem else None), source


def held_out_problems(problems: set[str], share: float, seed: int) -> set[str]:
    """The problems that are not learnt, drawn by digest, so that the same ones are in whatever order they come. One at least, where there are two."""
    count = round(len(problems) * share)
    if share > 0 and len(problems) > 1:
        count = max(1, count)
    drawn = sorted(problems, key=lambda problem: hashlib.sha256(f"{seed}\0{problem}".encode()).digest())
    return set(drawn[:count])


class Encoder:
    """Text to tokens, with every check that needs the model: its tokenizer, its vocabulary, the longest row allowed."""

    def __init__(self, base: Path, settings: SftSettings, terms: PromptTerms) -> None:
        self.tokenizer: Any = load_tokenizer(base)
        self._vocabulary = int(json.loads((base / "config.json").read_bytes())["vocab_size"])
        self._longest = settings.max_sequence_length
        ends = eos_token_ids(base)
        own = self.tokenizer.eos_token_id
        written = template_end(base, self.tokenizer, terms)[1]
        self._end = written if written is not None else own if own in ends else min(ends)

    def __call__(self, given: Iterator[Example]) -> Iterator[SftRow]:
        """Raises BadSftData naming the row."""
        while batch := list(islice(given, ENCODE_ROWS)):
            pieces = iter(self._encode([piece for each in batch for piece in each.prompt]))
            prompts = [[token for _ in each.prompt for token in next(pieces)] for each in batch]
            completions = self._encode([each.completion for each in batch])
            for each, prompt, completion in zip(batch, prompts, completions, strict=True):
                written = completion[-1:] == [self._end]  # by the text itself: two in a row would be learnt as such
                yield self._checked(SftRow(each.row, prompt, completion if written else [*completion, self._end]))

    def _encode(self, texts: list[str]) -> list[list[int]]:
        found: list[list[int]] = self.tokenizer(texts, add_special_tokens=False)["input_ids"]
        return found

    def _checked(self, row: SftRow) -> SftRow:
        tokens = row.prompt_tokens + row.completion_tokens
        if not row.prompt_tokens or len(row.completion_tokens) == 1:
            what = "prompt" if not row.prompt_tokens else "completion"
            raise BadSftData(f"{row.row_id}: the {what} is empty; a row to learn has both")
        if len(tokens) > self._longest:
            raise BadSftData(
                f"{row.row_id}: {len(tokens)} tokens; allowed: {self._longest} (spec.sft.maxSequenceLength). Nothing is ever cut off:"
                " raise it, or leave the row out of the data set"
            )
        if (odd := max(tokens)) >= self._vocabulary:
            raise BadSftData(
                f"{row.row_id}: the tokenizer makes token {odd}; the model's vocabulary has 0 to {self._vocabulary - 1}"
            )
        return row


def _cut(rows: Iterator[SftRow]) -> Iterator[list[SftRow]]:
    """Rows in shards."""
    shard: list[SftRow] = []
    tokens = 0
    for row in rows:
        size = len(row.prompt_tokens) + len(row.completion_tokens)
        if shard and (len(shard) == SHARD_ROWS or tokens + size > SHARD_TOKENS):
            yield shard
            shard, tokens = [], 0
        shard.append(row)
        tokens += size
    if shard:
        yield shard


def _put(store: Store, name: str, rows: list[SftRow], held_out: bool) -> SftShard:
    data = write_sft_rows(rows)
    store.put(keys.sft_shard(name), data)
    tokens = sum(len(row.prompt_tokens) + len(row.completion_tokens) for row in rows)
    return SftShard(
        name=name, sha256=hashlib.sha256(data).hexdigest(), rows=len(rows), tokens=tokens, held_out=held_out
    )


def _of_run(run: str, name: str, store: Store) -> Callable[[], Iterator[Example]]:
    """The traces that a run of mode Generate has written, each part as its card says."""
    key = keys.dataset_card(name)
    try:
        card = DatasetCard.from_json(store.get(key))
    except NotFound as error:
        raise BadSftData(
            f"run {run} has no data set {name!r} ({key} is not in its store); give the name of a run of mode Generate that is"
            " complete, with this run's storage, and the name in its spec.generate.dataset"
        ) from error
    except ValueError as error:
        raise BadSftData(f"{key} of run {run}: {error}") from error

    def read() -> Iterator[Example]:
        for part in card.parts:
            where = f"{keys.dataset(name)}{part.name}"
            try:
                data = store.get(where)
            except NotFound as error:
                raise BadSftData(f"run {run}: {error}, but card.json lists it") from error
            if (found := hashlib.sha256(data).hexdigest()) != part.sha256:
                raise BadSftData(f"run {run}: {where} has SHA-256 {found}, but card.json says {part.sha256}")
            try:
                for number, trace in enumerate(read_traces(data)):
                    row = f"{part.name} row {number} ({trace.problem_id})"
                    yield Example(row, trace.problem_id, [trace.prompt], trace.completion)
            except BadTraces as error:
                raise BadSftData(f"run {run}: {where}: {error}") from error

    return read


def _of_files(files: list[Path], asking: Asking | None) -> Iterator[Example]:
    """Rows of files by their columns: `prompt`, `completion`, and `problem_id` and `task_type` where they are there."""
    for path in files:
        try:
            for number, row in enumerate(file_rows(path)):
                yield _example(f"{path.name} row {number}", row, asking)
        except BadSftData:
            raise
        except ValueError as error:
            raise BadSftData(str(error)) from error


def _example(where: str, row: dict[str, Any], asking: Asking | None) -> Example:
    completion, prompt = row.get("completion"), row.get("prompt")
    if not isinstance(completion, str):
        raise BadSftData(f"{where}: completion is {_kind(completion)}; allowed: text")
    if asking is None and not isinstance(prompt, str):
        raise BadSftData(
            f"{where}: prompt is {_kind(prompt)}; allowed: the text that the model continues. For problems, which the environment"
            " makes that text of, set spec.sft.dataset.prompts to Problem"
        )
    given = row.get("problem_id")
    problem = str(given) if given is not None else hashlib.sha256(json.dumps(prompt).encode()).hexdigest()[:32]
    if asking is None:
        return Example(where, problem, [str(prompt)], completion)
    try:
        asked = [ChatMessage(**each) for each in prompt] if isinstance(prompt, list) else prompt
        task = Task(problem_id=problem, task_type=str(row.get("task_type") or asking.kind), prompt=asked)
        return Example(where, problem, asking.pieces(task), completion)
    except (TypeError, ValueError) as error:
        raise BadSftData(f"{where}: no prompt can be made of it: {str(error)[:300]}") from error


def _kind(value: Any) -> str:
    return "missing" if value is None else f"a {type(value).__name__}"


def _fetched(store: Store, key: str, folder: Path) -> list[Path]:
    """Objects under a key or a prefix, copied into `folder`."""
    found = [info.key for info in store.list(key)] if key.endswith("/") else [key]
    wanted = [each for each in found if holds_rows(each)]
    if not wanted:
        raise BadSftData(f"there is no object {key} that ends in {' or '.join(SUFFIXES)} below storage.prefix")
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for number, each in enumerate(wanted):
        files.append(folder / f"{number:05d}-{each.rpartition('/')[2]}")
        try:
            store.get_to_file(each, files[-1])
        except NotFound as error:
            raise BadSftData(f"{error} below storage.prefix; give the key of a Parquet or JSON lines file") from error
    return files


def _mounted(place: Path) -> list[Path]:
    if place.is_dir():
        files = sorted(path for path in place.rglob("*") if holds_rows(path.name) and path.is_file())
    else:
        files = [place] if place.is_file() else []
    if not files:
        raise BadSftData(
            f"{place} is not a file that ends in {' or '.join(SUFFIXES)}, nor a folder with one; mount it there"
        )
    return files
