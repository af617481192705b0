"""Reading a batch: rewards are the verdicts', bytes are those that were accepted, and whatever does not fit is named by file and row."""

import re
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tiny_run import (
    MAX_LENGTH,
    VALIDATOR,
    VOCABULARY,
    accept,
    accept_bytes,
    batch_of,
    fill_step,
    make_store,
    rewards_of,
    rows_of,
)

from samples import METADATA, NODE, NODE_KEY, RUN
from shoal.contracts import keys
from shoal.contracts.rollouts import Rollout, write_rollouts
from shoal.contracts.signed import Signed, sign
from shoal.contracts.steps import BatchFile
from shoal.contracts.verdicts import RowReward, Verdict
from shoal.storage import NotFound, Store
from shoal.training.rollouts import BadBatch, RolloutGroup, RowLimits, StepRows, read_batch, read_groups

LIMITS = RowLimits(VOCABULARY, MAX_LENGTH)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return make_store(tmp_path / "store")


def read(store: Store, files: list[BatchFile], **changes: Any) -> list[RolloutGroup]:
    return read_groups(store, batch_of(5, files).model_copy(update=changes), VALIDATOR.public, LIMITS).groups


def test_a_full_step_is_read_as_groups_of_samples(store: Store) -> None:
    fill_step(store, 5)
    groups = read_groups(store, read_batch(store, RUN, 5), VALIDATOR.public, LIMITS).groups
    assert [len(group.samples) for group in groups] == [4, 4, 4, 4]
    row, sample = rows_of(5)[0], groups[0].samples[0]
    assert sample.tokens.tolist() == [*row.prompt_tokens, *row.completion_tokens]
    assert sample.completion_length == len(row.completion_tokens)
    assert sample.policy_version == 4
    assert sample.temperature == pytest.approx(0.9)


def test_a_long_file_is_read_row_by_row(store: Store) -> None:
    """16 rows of 16,384 tokens: as rows of Python they take 14 MB, one of them takes one."""
    count = 16_384
    chance = np.random.default_rng(3)
    rows = [
        replace(
            row,
            completion_tokens=chance.integers(1, VOCABULARY, count).tolist(),
            completion_logprobs=(-chance.random(count)).tolist(),
            completion_mask=[True] * count,
        )
        for row in rows_of(5)
    ]
    file, limits = accept(store, rows), replace(LIMITS, max_length=2 * count)
    del rows
    tracemalloc.start()
    groups = read_groups(store, batch_of(5, [file]), VALIDATOR.public, limits).groups
    held, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert [len(group.samples) for group in groups] == [4, 4, 4, 4]
    assert most - held < 5e6


def test_rewards_are_the_verdicts_and_not_the_files(store: Store) -> None:
    rows = rows_of(5, groups=1)
    claimed = [replace(row, task_reward=1.0, length_penalty=0.0, reward=1.0) for row in rows]
    (group,) = read(store, [accept(store, claimed, rewards_of(rows))])
    assert [sample.reward for sample in group.samples] == [reward.reward for reward in rewards_of(rows)]


def test_the_segments_of_a_file_of_several_versions_are_read(store: Store) -> None:
    rows = [
        replace(
            row,
            completion_tokens=[*row.completion_tokens] * 20,
            completion_logprobs=[*row.completion_logprobs] * 20,
            completion_mask=[*row.completion_mask] * 20,
            segment_versions=[4, 5] if number else [5],
            segment_starts=[0, 32] if number else [0],
        )
        for number, row in enumerate(rows_of(5, groups=1))
    ]
    limits = replace(LIMITS, max_length=1000)
    groups = read_groups(store, batch_of(5, [accept(store, rows)]), VALIDATOR.public, limits).groups
    first, second = groups[0].samples[:2]
    assert (first.policy_version, first.segments) == (5, ((5, 0),))
    assert (second.policy_version, second.segments) == (4, ((4, 0), (5, 32)))
    assert second.token_versions[30:34].tolist() == [4, 4, 5, 5]


def test_a_row_that_could_not_be_scored_is_left_out_of_its_group(store: Store) -> None:
    rows = rows_of(5, groups=1)
    unscored = RowReward(task_reward=None, length_penalty=None, reward=None)
    (group,) = read(store, [accept(store, rows, [unscored, *rewards_of(rows)[1:]])])
    assert len(group.samples) == 3


def test_only_the_groups_of_the_batch_are_used(store: Store) -> None:
    rows = rows_of(5)
    file = accept(store, rows).model_copy(update={"prompt_indices": [11, 13]})
    groups = read(store, [file])
    assert [len(group.samples) for group in groups] == [4, 4]
    assert groups[0].samples[0].tokens.tolist() == [*rows[4].prompt_tokens, *rows[4].completion_tokens]


def leave_out(store: Store, files: list[BatchFile]) -> StepRows:
    return read_groups(store, batch_of(5, files), VALIDATOR.public, LIMITS, leave_out=True)


def two_files(store: Store, spoil: Callable[[list[Rollout]], bytes]) -> list[BatchFile]:
    rows = rows_of(5)
    other = [replace(row, submission=3) for row in rows[8:]]
    return [accept(store, rows[:8]), accept_bytes(store, spoil(other), other)]


def test_a_bad_file_is_left_out_counted_and_named_and_the_others_are_used(store: Store) -> None:
    read = leave_out(store, two_files(store, broken_parquet))
    assert [len(group.samples) for group in read.groups] == [4, 4]
    assert read.left_out == 8
    (problem,) = read.problems
    assert re.match(r"uploads/.*parquet: not a readable Parquet file", problem)


def test_a_bad_row_is_left_out_counted_and_named_and_its_group_goes_on(store: Store) -> None:
    rows = rows_of(5, groups=1)
    rows[1] = replace(rows[1], prompt_tokens=[VOCABULARY])
    read = leave_out(store, [accept(store, rows)])
    assert [len(group.samples) for group in read.groups] == [3]
    assert read.left_out == 1
    assert re.search(rf"row 1: token {VOCABULARY}; allowed", read.problems[0])


def test_a_group_that_is_left_with_one_row_is_dropped(store: Store) -> None:
    rows = rows_of(5, groups=2)
    for index in range(3):
        rows[index] = replace(rows[index], temperature=-1.0)
    read = leave_out(store, [accept(store, rows)])
    assert [len(group.samples) for group in read.groups] == [4]
    assert read.left_out == 4
    assert "prompt_index 10 is in batch.json, and a single row cannot be compared" in read.problems[-1]


def test_a_batch_of_which_nothing_is_left_is_no_error(store: Store) -> None:
    rows = rows_of(5, groups=1)
    read = leave_out(store, [accept_bytes(store, b"PAR1", rows)])
    assert (read.groups, read.left_out) == ([], 4)


def test_rows_that_were_read_elsewhere_are_told_apart_by_their_digest(store: Store) -> None:
    rows = rows_of(5, groups=2)
    whole = leave_out(store, [accept(store, rows)])
    rows[1] = replace(rows[1], temperature=-1.0)
    assert whole.digest == leave_out(store, [accept(store, rows_of(5, groups=2))]).digest
    assert whole.digest != leave_out(store, [accept(store, rows)]).digest


def test_a_batch_that_is_not_there_yet_is_not_found(store: Store) -> None:
    with pytest.raises(NotFound):
        read_batch(store, RUN, 5)


def test_a_batch_of_another_step_is_refused(store: Store) -> None:
    store.put(keys.step_batch(6), fill_step(store, 5).to_json())
    with pytest.raises(BadBatch, match=r"steps/000006/batch.json is of run 'arithmetic' step 5; wanted: .* step 6"):
        read_batch(store, RUN, 6)


def test_a_batch_that_is_no_batch_is_refused(store: Store) -> None:
    store.put(keys.step_batch(5), b'{"run": "arithmetic"}')
    with pytest.raises(BadBatch, match=r"steps/000005/batch.json: .*"):
        read_batch(store, RUN, 5)


def broken_parquet(rows: list[Rollout]) -> bytes:
    return write_rollouts(rows, METADATA)[:-40]


def other_schema(rows: list[Rollout]) -> bytes:
    table = pq.read_table(pa.BufferReader(write_rollouts(rows, METADATA)))
    sink = pa.BufferOutputStream()
    pq.write_table(table.drop_columns(["seed"]), sink)
    return bytes(sink.getvalue())


def without_tokens(rows: list[Rollout]) -> bytes:
    table = pq.read_table(pa.BufferReader(write_rollouts(rows, METADATA)))
    for name in ("completion_tokens", "completion_logprobs", "completion_mask"):
        place = table.schema.get_field_index(name)
        lists = table.column(name).to_pylist()
        lists[2] = []
        table = table.set_column(place, table.schema.field(name), pa.array(lists, table.schema.field(name).type))
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    return bytes(sink.getvalue())


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (broken_parquet, r"uploads/.*parquet: not a readable Parquet file"),
        (other_schema, r"uploads/.*parquet: columns do not match: missing \['seed'\]"),
        (without_tokens, r"uploads/.*parquet: row 2: completion_tokens is empty"),
    ],
)
def test_a_file_that_is_not_rollouts_v1_is_refused(
    store: Store, spoil: Callable[[list[Rollout]], bytes], message: str
) -> None:
    rows = rows_of(5, groups=1)
    with pytest.raises(BadBatch, match=message):
        read(store, [accept_bytes(store, spoil(rows), rows)])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prompt_tokens": [3, VOCABULARY]}, rf"row 1: token {VOCABULARY}; allowed: 0 to {VOCABULARY - 1}"),
        ({"prompt_tokens": [-1]}, r"row 1: token -1; allowed: 0 to"),
        ({"prompt_tokens": [5] * 60}, rf"row 1: \d+ tokens; allowed: {MAX_LENGTH}. Samples are never truncated"),
        ({"temperature": 0.0}, "row 1: temperature is 0.0; allowed: above 0"),
        ({"temperature": float("nan")}, "row 1: temperature is nan; allowed: above 0"),
    ],
)
def test_a_row_that_would_poison_the_step_is_refused(store: Store, changes: dict[str, Any], message: str) -> None:
    rows = rows_of(5, groups=1)
    rows[1] = replace(rows[1], **changes)
    with pytest.raises(BadBatch, match=message):
        read(store, [accept(store, rows)])


def test_a_log_probability_that_is_not_finite_is_refused(store: Store) -> None:
    rows = rows_of(5, groups=1)
    rows[3] = replace(rows[3], completion_logprobs=[np.nan] * len(rows[3].completion_tokens))
    with pytest.raises(BadBatch, match="row 3: a value of completion_logprobs is not finite"):
        read(store, [accept(store, rows)])


def test_rewards_that_are_not_a_number_are_refused(store: Store) -> None:
    rows = rows_of(5, groups=1)
    file = accept(store, rows)
    key = keys.verdict(NODE, file.sha256)
    store.put(key, store.get(key).replace(b'"reward":', b'"reward":NaN,"was":', 1))
    with pytest.raises(BadBatch, match=r"verdicts/.*json: "):
        read(store, [file])


def test_rewards_of_which_one_is_missing_are_refused(store: Store) -> None:
    rows = rows_of(5, groups=1)
    half = RowReward(task_reward=None, length_penalty=0.0, reward=0.5)
    with pytest.raises(BadBatch, match=r"row 0: the verdict's rewards are \(None, 0.0, 0.5\); allowed: three finite"):
        read(store, [accept(store, rows, [half, *rewards_of(rows)[1:]])])


def test_bytes_other_than_those_accepted_are_refused(store: Store) -> None:
    file = accept(store, rows_of(5, groups=1))
    store.put(keys.upload(NODE, file.sha256), write_rollouts(rows_of(5, groups=2), METADATA))
    with pytest.raises(BadBatch, match=r"has SHA-256 .*; the store's bytes differ from the accepted ones"):
        read(store, [file])


def test_a_file_without_a_verdict_is_refused(store: Store) -> None:
    file = accept(store, rows_of(5, groups=1))
    store.delete(keys.verdict(NODE, file.sha256))
    with pytest.raises(BadBatch, match=r"no object 'verdicts/.*' in the store, but batch.json lists its file"):
        read(store, [file])


def test_a_verdict_that_is_no_accept_is_refused(store: Store) -> None:
    file = accept(store, rows_of(5, groups=1), [], outcome="inconclusive")
    with pytest.raises(BadBatch, match="says 'inconclusive'; training uses accepted files only"):
        read(store, [file])


def test_a_verdict_signed_by_anyone_else_is_refused(store: Store) -> None:
    file = accept(store, rows_of(5, groups=1))
    key = keys.verdict(NODE, file.sha256)
    verdict = Signed[Verdict].from_json(store.get(key)).document
    store.put(key, sign(verdict, NODE_KEY).to_json())
    with pytest.raises(BadBatch, match=r"Verdict is signed by .*; required:"):
        read(store, [file])


def test_a_verdict_about_another_step_is_refused(store: Store) -> None:
    file = accept(store, rows_of(5, groups=1), step=4)
    with pytest.raises(BadBatch, match="is about another file: run, step, node and SHA-256 are"):
        read(store, [file])


@pytest.mark.parametrize(("field", "value"), [("policy_version", 3), ("submission", 9)])
def test_a_file_that_is_not_what_the_batch_says_is_refused(store: Store, field: str, value: int) -> None:
    file = accept(store, rows_of(5, groups=1)).model_copy(update={field: value})
    with pytest.raises(BadBatch, match=rf"{field} is \d, batch.json says {value}"):
        read(store, [file])


def test_a_file_with_another_number_of_rows_is_refused(store: Store) -> None:
    file = accept(store, rows_of(5, groups=1)).model_copy(update={"rows": 5})
    with pytest.raises(BadBatch, match=r"has 4 rows, batch.json says 5, the verdict rewards 4"):
        read(store, [file])


def test_a_group_that_is_not_in_its_file_is_refused(store: Store) -> None:
    file = accept(store, rows_of(5, groups=1)).model_copy(update={"prompt_indices": [10, 77]})
    with pytest.raises(BadBatch, match=r"prompt_index 77 is in batch.json, but the file has no scored row of it"):
        read(store, [file])


def test_a_count_of_groups_that_does_not_add_up_is_refused(store: Store) -> None:
    file = accept(store, rows_of(5, groups=1))
    with pytest.raises(BadBatch, match=r"the files hold 1 of the groups, but batch.json says 2"):
        read(store, [file], groups=2)
