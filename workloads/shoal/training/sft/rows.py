"""The rows of a data set on this machine's disk, checked against the manifest, as arrays that all of its ranks share.

In: `sft/manifest.json` and the shards that it lists. Out: `TokenRows`, whose tokens are mapped, not read: a data set may be larger than a process may
be. One rank of a machine writes the files, the others open them. Called by `method`, once an attempt.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
from jaxtyping import Int
from pydantic import ValidationError

from shoal import telemetry
from shoal.contracts import keys
from shoal.contracts.sft import SftManifest
from shoal.contracts.sft_data import BadSftRows, read_sft_rows
from shoal.storage import NotFound, Store
from shoal.training.parallel import Ranks
from shoal.training.rollouts import Sample

TOKENS, STARTS, PROMPTS, NAMES = "tokens.npy", "starts.npy", "prompts.npy", "names.json"


class BadRows(ValueError):
    """The rows cannot be trained on; the message says which object or row, and what is wrong with it."""


@dataclass(frozen=True)
class TokenRows:
    """Rows end to end: row `i` is `tokens[starts[i]:starts[i + 1]]`, of which the first `prompts[i]` are its prompt."""

    tokens: Int[np.ndarray, " all"]
    starts: Int[np.ndarray, " bounds"]
    prompts: Int[np.ndarray, " bounds-1"]
    names: list[str]

    def __len__(self) -> int:
        return len(self.prompts)

    def samples(self, indices: Sequence[int] | Int[np.ndarray, " some"]) -> list[Sample]:
        """Rows as what packing takes. What rollouts have besides, rewards and a sampling policy, is nothing here."""
        return [self._sample(int(index)) for index in indices]

    def _sample(self, index: int) -> Sample:
        start, end, prompt = int(self.starts[index]), int(self.starts[index + 1]), int(self.prompts[index])
        completion = end - start - prompt
        return Sample(
            name=self.names[index],
            tokens=np.asarray(self.tokens[start:end], dtype=np.int64),
            prompt_length=prompt,
            mask=np.ones(completion, dtype=np.bool_),
            logprobs=np.zeros(completion, dtype=np.float32),
            temperature=1.0,
            policy_version=0,
            task_reward=0.0,
            length_penalty=0.0,
            reward=0.0,
        )


@dataclass(frozen=True)
class SftRowLimits:
    """Limits of a row: `vocabulary` in tokens, `max_length` of prompt and completion together."""

    vocabulary: int
    max_length: int


def read_manifest(store: Store, run: str) -> SftManifest:
    """The manifest that prepare has left. Raises BadRows."""
    try:
        manifest = SftManifest.from_json(store.get(keys.SFT_MANIFEST))
    except NotFound as error:
        raise BadRows(f"{error}; prepare writes it for a run of mode SFT") from error
    except ValidationError as error:
        raise BadRows(f"{keys.SFT_MANIFEST}: {error}") from error
    if manifest.run != run:
        raise BadRows(f"{keys.SFT_MANIFEST} is of run {manifest.run!r}; wanted: {run!r}")
    if manifest.rows(held_out=False) == 0:
        raise BadRows(f"{keys.SFT_MANIFEST} has no rows to learn; give a data set with more, or a lower heldOutShare")
    return manifest


def fetch_rows(
    store: Store,
    manifest: SftManifest,
    folder: Path,
    limits: SftRowLimits,
    ranks: Ranks,
    liveness: telemetry.Liveness,
    *,
    held_out: bool,
) -> TokenRows:
    """The rows to learn, or those held out. All ranks call this. Raises BadRows, and `StoreUnavailable` when the store is away."""
    target = folder / ("held-out" if held_out else "learnt")
    ranks.each_does(
        "the rows of the data set to be fetched",
        lambda: _write(target, _shards(store, manifest, held_out, liveness), limits),
        liveness.progress,
        first_of_node=True,
    )
    return TokenRows(
        tokens=np.load(target / TOKENS, mmap_mode="r"),
        starts=np.load(target / STARTS),
        prompts=np.load(target / PROMPTS),
        names=json.loads((target / NAMES).read_text()),
    )


def _shards(
    store: Store, manifest: SftManifest, held_out: bool, liveness: telemetry.Liveness
) -> Iterator[tuple[str, pa.Table]]:
    """The shards' keys and rows, one after the other, each with the digest that the manifest says."""
    for shard in manifest.shards:
        if shard.held_out != held_out:
            continue
        key = keys.sft_shard(shard.name)
        try:
            data = store.get(key)
        except NotFound as error:
            raise BadRows(f"{error}, but {keys.SFT_MANIFEST} lists it") from error
        if (found := hashlib.sha256(data).hexdigest()) != shard.sha256:
            raise BadRows(f"{key} has SHA-256 {found}, {keys.SFT_MANIFEST} says {shard.sha256}: the data has changed")
        try:
            table = read_sft_rows(data)
        except BadSftRows as error:
            raise BadRows(f"{key}: {error}") from error
        liveness.progress()
        yield key, table


def _write(folder: Path, shards: Iterator[tuple[str, pa.Table]], limits: SftRowLimits) -> None:
    """Every row checked, as files that are mapped afterwards."""
    folder.mkdir(parents=True, exist_ok=True)
    names: list[str] = []
    lengths, prompts = [np.zeros(1, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
    raw = folder / f"{TOKENS}.raw"
    with raw.open("wb") as file:
        for key, table in shards:
            asked, answered = (_flat(table, column) for column in ("prompt_tokens", "completion_tokens"))
            ids = table.column("row_id").to_pylist()
            for number, name in enumerate(ids):
                tokens = np.concatenate([asked[number], answered[number]])
                _check(f"{key} row {name}", tokens, len(answered[number]), limits)
                file.write(tokens.astype(np.int32).tobytes())
            names += ids
            lengths.append(np.array([len(a) + len(b) for a, b in zip(asked, answered, strict=True)], dtype=np.int64))
            prompts.append(np.array([len(a) for a in asked], dtype=np.int64))
    starts = np.concatenate(lengths).cumsum()
    np.save(folder / STARTS, starts)
    np.save(folder / PROMPTS, np.concatenate(prompts))
    (folder / NAMES).write_text(json.dumps(names))
    _as_npy(raw, folder / TOKENS, int(starts[-1]))


def _as_npy(raw: Path, target: Path, count: int) -> None:
    """The same numbers behind numpy's header, a piece at a time."""
    mapped = np.lib.format.open_memmap(target, mode="w+", dtype=np.int32, shape=(max(1, count),))
    if count:
        mapped[:count] = np.memmap(raw, dtype=np.int32, mode="r")
    mapped.flush()
    raw.unlink()


def _flat(table: pa.Table, column: str) -> list[Int[np.ndarray, " _"]]:
    """One array a row."""
    chunks = table.column(column).combine_chunks()
    if isinstance(chunks, pa.ChunkedArray):
        chunks = pa.concat_arrays(chunks.chunks)
    offsets, values = chunks.offsets.to_numpy(), chunks.values.to_numpy()
    return [values[start:end] for start, end in pairwise(offsets)]


def _check(name: str, tokens: Int[np.ndarray, " row"], completion: int, limits: SftRowLimits) -> None:
    """Raises BadRows for a row that would be cut, or would poison an update."""
    if completion == 0 or completion == len(tokens):
        what = "there are no completion tokens to learn" if completion == 0 else "no prompt tokens to answer"
        raise BadRows(f"{name} has {what}")
    if len(tokens) > limits.max_length:
        raise BadRows(f"{name}: {len(tokens)} tokens; allowed: {limits.max_length}. Samples are never truncated")
    outside = np.flatnonzero((tokens < 0) | (tokens >= limits.vocabulary))
    if outside.size:
        raise BadRows(f"{name}: token {tokens[outside[0]]}; allowed: 0 to {limits.vocabulary - 1}, the vocabulary")
