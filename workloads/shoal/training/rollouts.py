"""What a step trains on: accepted rollout files of its batch, checked against what was accepted, as groups with rewards.

In: the store (`batch.json`, `uploads/`, `verdicts/`) and a step number. Out: groups of samples. Every file's SHA-256 is
the one in the batch; every verdict is signed by the validators' key and is an accept of these bytes, and rewards are the
verdict's: what the file says about rewards is never looked at. A file or row that cannot be trained on is left out and counted, or
ends the step, as the failure policy says; nothing else of the batch is lost by it. Called by `prefetch`.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np
from jaxtyping import Bool, Float, Int, Integer
from pydantic import ValidationError

from shoal.contracts import keys
from shoal.contracts.rollouts import BadRollouts, Rollout, sampled_stretches
from shoal.contracts.routes import RouteShape
from shoal.contracts.signed import BadSignature, Signed, Signer
from shoal.contracts.steps import BatchFile, StepBatch
from shoal.contracts.verdicts import SMALLEST_GROUP, UNSCORED, RowReward, Verdict
from shoal.models.routes import BadRoutes, decode
from shoal.storage import NotFound, Store
from shoal.storage.rollout_files import OtherBytes, rows_of_file


class BadBatch(ValueError):
    """The batch cannot be trained on. The message says which file and row, and what is wrong with it."""


@dataclass(frozen=True)
class ContinuationReward:
    """The result of one continuation of a completion: the inner boundary (from 1) and the position (tokens of the completion) that it began
    at; its reward, and the length of the whole answer (tokens)."""

    boundary: int
    position: int
    reward: float
    length: int


@dataclass(frozen=True)
class Sample:
    """One completion. `mask` and `logprobs` (the worker's, natural logarithms) are over its completion tokens.

    `estimates` are what came of its continuations, in the file's order; those are not trained on.
    """

    name: str
    tokens: Int[np.ndarray, " length"]
    prompt_length: int
    mask: Bool[np.ndarray, " completion"]
    logprobs: Float[np.ndarray, " completion"]
    temperature: float
    policy_version: int
    task_reward: float
    length_penalty: float
    reward: float
    estimates: tuple[ContinuationReward, ...] = ()
    task_type: str = ""
    segments: tuple[tuple[int, int], ...] = ()
    """Of a row of several versions: each version, and the first of the completion tokens that it sampled. `policy_version` is the oldest."""
    routes: Integer[np.ndarray, "completion layers choices"] | None = None
    """The experts that the worker's engine gave each token of the completion to, 0 where it was not sampled; None where nothing asks for them."""

    turn_rewards: tuple[float, ...] = ()
    """What of the task reward each sampled stretch of the completion earned; empty without credit by turns."""

    @property
    def token_versions(self) -> Int[np.ndarray, " completion"]:
        """The version that each completion token is of."""
        if not self.segments:
            return np.full(self.completion_length, self.policy_version)
        versions, starts = zip(*self.segments, strict=True)
        return np.repeat(versions, np.diff([*starts, self.completion_length]))

    @property
    def completion_length(self) -> int:
        return len(self.tokens) - self.prompt_length


@dataclass(frozen=True)
class RolloutGroup:
    """Completions of one prompt with one target length: what advantages are relative to."""

    samples: list[Sample]


@dataclass(frozen=True)
class StepRows:
    """The rows of a batch: its groups, how many rows were left out, and why (one sentence each, with file and row)."""

    groups: list[RolloutGroup]
    left_out: int
    problems: list[str]

    @property
    def digest(self) -> str:
        """SHA-256 over which rows these are, and their rewards: equal on every rank, or the ranks would not train on the same."""
        running = hashlib.sha256()
        for group in self.groups:
            running.update(b"group")
            for sample in group.samples:
                running.update(f"{sample.name} {sample.reward!r} {len(sample.tokens)};".encode())
                running.update(repr(sample.estimates).encode() if sample.estimates else b"")
                running.update(repr(sample.turn_rewards).encode() if sample.turn_rewards else b"")
        return running.hexdigest()


class Continuations(Protocol):
    """How a file's rows that continue its completions are read; they lie behind the completions."""

    rows_each: int
    """Rows of a file for each completion: itself and its continuations."""

    def estimates(
        self, rows: Sequence[Rollout], rewards: Sequence[RowReward], completions: int
    ) -> list[list[ContinuationReward]]:
        """The results of the continuations of each of the file's `completions`; those that could not be scored are left out.

        Raises BadBatch when one does not continue from where it must: the file would not be one that a validator of this run accepts.
        """


@dataclass(frozen=True)
class RowLimits:
    """Limits of a row: `vocabulary` in tokens, `max_length` of prompt and completion together.

    `continuations`: how files hold such; None: they hold completions only. `routes`: those that every row must have; None: none are read.
    `turn_credit`: each row must have a reward for each of its turns.
    """

    vocabulary: int
    max_length: int
    continuations: Continuations | None = None
    routes: RouteShape | None = None
    turn_credit: bool = False


def read_batch(store: Store, run: str, step: int) -> StepBatch:
    """`steps/<step>/batch.json`. Raises `storage.NotFound` when there is none yet, BadBatch when it is not this step's."""
    key = keys.step_batch(step)
    try:
        batch = StepBatch.from_json(store.get(key))
    except ValidationError as error:
        raise BadBatch(f"{key}: {error}") from error
    if (batch.run, batch.step) != (run, step):
        raise BadBatch(f"{key} is of run {batch.run!r} step {batch.step}; wanted: run {run!r} step {step}")
    return batch


def read_groups(
    store: Store,
    batch: StepBatch,
    validator_key: Signer,
    limits: RowLimits,
    *,
    leave_out: bool = False,
    within: Path | None = None,
) -> StepRows:
    """The groups of a batch in the order of its files. `within`: a folder where one of them lies meanwhile; None: `TMPDIR`.

    What cannot be trained on raises BadBatch, or with `leave_out` is left out and named in `problems`. A group that is left with one row is
    dropped: there is nothing to compare it with. Raises `StoreUnavailable` when the store is away: that is not a fault of the data.
    """
    groups: list[RolloutGroup] = []
    problems: list[str] = []
    left_out = 0
    for file in batch.files:
        try:
            read = _read_file(store, batch, file, validator_key, limits, within)
        except BadBatch as error:
            read = StepRows([], file.rows, [str(error)])
        if read.problems and not leave_out:
            raise BadBatch(read.problems[0])
        groups.extend(read.groups)
        problems.extend(read.problems)
        left_out += read.left_out
    if not problems and len(groups) != batch.groups:
        raise BadBatch(
            f"step {batch.step}: the files hold {len(groups)} of the groups, but batch.json says {batch.groups}"
        )
    return StepRows(groups, left_out, problems)


def _read_file(
    store: Store, batch: StepBatch, file: BatchFile, validator_key: Signer, limits: RowLimits, within: Path | None
) -> StepRows:
    """The groups of one file. Raises BadBatch when the file as a whole is not what was accepted."""
    key = keys.upload(file.node, file.sha256)
    try:
        verdict = _read_verdict(store, batch, file, validator_key)
        with rows_of_file(store, key, file.sha256, within) as rows:
            return _group_rows(key, batch, file, rows, verdict.rewards, limits)
    except NotFound as error:
        raise BadBatch(f"step {batch.step}: {error}, but batch.json lists its file") from error
    except OtherBytes as error:
        raise BadBatch(str(error)) from error
    except BadRollouts as error:
        raise BadBatch(f"{key}: {error}") from error


def _require_of_batch(key: str, batch: StepBatch, file: BatchFile, first: Rollout) -> None:
    """Whether a file's first row, with which all others agree, is of this batch; raises BadBatch."""
    for field, wanted in (
        ("run", batch.run),
        ("step", batch.step),
        ("node", file.node),
        ("submission", file.submission),
        ("policy_version", file.policy_version),
    ):
        if getattr(first, field) != wanted:
            raise BadBatch(f"{key}: {field} is {getattr(first, field)!r}, batch.json says {wanted!r}")


def _require_counts(key: str, file: BatchFile, rows: int, rewards: int) -> None:
    if not rows == file.rows == rewards:
        raise BadBatch(f"{key} has {rows} rows, batch.json says {file.rows}, the verdict rewards {rewards}")


def _group_rows(
    key: str,
    batch: StepBatch,
    file: BatchFile,
    rows: Iterable[Rollout],
    rewards: Sequence[RowReward],
    limits: RowLimits,
) -> StepRows:
    """The used groups of a file's rows, which are looked at one by one; those that continue others together.

    A row that the validator could not score is left out without being a problem.
    """
    continuations = limits.continuations
    completions = file.rows
    estimates: list[list[ContinuationReward]] = [[]] * file.rows
    if continuations is not None:
        rows = list(rows)
        _require_of_batch(key, batch, file, rows[0])
        _require_counts(key, file, len(rows), len(rewards))
        if len(rows) % continuations.rows_each:
            raise BadBatch(
                f"{key} has {len(rows)} rows; allowed: a multiple of {continuations.rows_each}, completions and continuations"
            )
        completions = len(rows) // continuations.rows_each
        try:
            estimates = continuations.estimates(rows, rewards, completions)
        except BadBatch as error:
            raise BadBatch(f"{key} {error}") from error
    used: dict[int, list[Sample]] = {index: [] for index in file.prompt_indices}
    problems: list[str] = []
    left_out = count = 0
    for number, row in enumerate(rows):
        count += 1
        if not number:
            _require_of_batch(key, batch, file, row)
        if row.prompt_index not in used or number >= min(completions, len(rewards)):
            continue
        reward = rewards[number]
        if reward == UNSCORED:
            left_out += 1
            continue
        try:
            sample = _sample(f"{key} row {number}", row, reward, limits)
            used[row.prompt_index].append(replace(sample, estimates=tuple(estimates[number])))
        except BadBatch as error:
            problems.append(str(error))
            left_out += 1
    _require_counts(key, file, count, len(rewards))
    groups = []
    for index, samples in used.items():
        if len(samples) >= SMALLEST_GROUP:
            groups.append(RolloutGroup(samples))
            continue
        left_out += len(samples)
        what = "but the file has no scored row of it" if not samples else "and a single row cannot be compared"
        problems.append(f"{key}: prompt_index {index} is in batch.json, {what}")
    return StepRows(groups, left_out, problems)


def _read_verdict(store: Store, batch: StepBatch, file: BatchFile, validator_key: Signer) -> Verdict:
    key = keys.verdict(file.node, file.sha256)
    try:
        verdict = Signed[Verdict].from_json(store.get(key)).verified(validator_key)
    except (BadSignature, ValidationError) as error:
        raise BadBatch(f"{key}: {error}") from error
    about = (verdict.run, verdict.step, verdict.node, verdict.sha256)
    if about != (batch.run, batch.step, file.node, file.sha256):
        raise BadBatch(f"{key} is about another file: run, step, node and SHA-256 are {about}")
    if verdict.outcome != "accept":
        raise BadBatch(f"{key} says {verdict.outcome!r}; training uses accepted files only")
    return verdict


def _sample(name: str, row: Rollout, reward: RowReward, limits: RowLimits) -> Sample:
    """The row as arrays; raises BadBatch when a value would poison the step."""
    tokens = np.array([*row.prompt_tokens, *row.completion_tokens], dtype=np.int64)
    if len(tokens) > limits.max_length:
        raise BadBatch(f"{name}: {len(tokens)} tokens; allowed: {limits.max_length}. Samples are never truncated")
    outside = np.flatnonzero((tokens < 0) | (tokens >= limits.vocabulary))
    if outside.size:
        raise BadBatch(f"{name}: token {tokens[outside[0]]}; allowed: 0 to {limits.vocabulary - 1}, the vocabulary")
    logprobs = np.array(row.completion_logprobs, dtype=np.float32)
    if not np.isfinite(logprobs).all():
        raise BadBatch(f"{name}: a value of completion_logprobs is not finite")
    if not (np.isfinite(row.temperature) and row.temperature > 0):
        raise BadBatch(f"{name}: temperature is {row.temperature}; allowed: above 0")
    values = (reward.task_reward, reward.length_penalty, reward.reward)
    if any(value is None or not np.isfinite(value) for value in values):
        raise BadBatch(f"{name}: the verdict's rewards are {values}; allowed: three finite numbers, or all three none")
    turns = (reward.turns or ()) if limits.turn_credit else ()
    if limits.turn_credit and len(turns) != (count := len(sampled_stretches(row.completion_mask))):
        raise BadBatch(f"{name}: the verdict rewards {len(turns)} turns and the row has {count}; recipe.credit is Turn")
    return Sample(
        name=name,
        tokens=tokens,
        prompt_length=len(row.prompt_tokens),
        mask=np.array(row.completion_mask, dtype=np.bool_),
        logprobs=logprobs,
        temperature=float(row.temperature),
        policy_version=row.versions[0],
        task_reward=float(reward.task_reward or 0.0),
        length_penalty=float(reward.length_penalty or 0.0),
        reward=float(reward.reward or 0.0),
        task_type=row.task_type,
        segments=tuple(zip(row.segment_versions, row.segment_starts, strict=True)),
        routes=None if limits.routes is None else _routes(name, row, limits.routes),
        turn_rewards=turns,
    )


def _routes(name: str, row: Rollout, shape: RouteShape) -> Integer[np.ndarray, "completion layers choices"]:
    """A byte a choice, of all tokens of the completion: 384 bytes a token of Qwen3-30B-A3B, so 8 GB of 20 million tokens on each rank."""
    mask = np.array(row.completion_mask, dtype=np.bool_)
    if row.routes is None:
        raise BadBatch(f"{name}: it has no routes, which recipe.routerReplay asks for")
    try:
        found = decode(row.routes, int(mask.sum()), shape)
    except BadRoutes as error:
        raise BadBatch(f"{name}: {error}") from error
    whole = np.zeros((len(mask), shape.layers, shape.choices), dtype=np.uint8 if shape.width == 1 else np.int32)
    whole[mask] = found
    return whole
