"""What the collector reads of a slice: accepted bytes only, the validator's rewards, the tasks that the slice answers for."""

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from samples import NODE, RUN
from shoal.collection.slices import BadSlice, read_slice
from shoal.contracts import keys
from shoal.contracts.rollouts import Rollout, RolloutMetadata, write_rollouts
from shoal.contracts.signed import sign
from shoal.contracts.steps import BatchFile, StepBatch
from shoal.contracts.verdicts import RowReward, Verdict
from shoal.crypto.keys import PrivateKey
from shoal.storage.store import Store, open_folder

VALIDATOR = PrivateKey.generate()
ROWS = [
    Rollout(
        run=RUN, step=3, policy_version=0, node=NODE, submission=0, problem_id=f"p{index}", prompt_index=index, sample_index=sample,
        prompt_tokens=[1], completion_tokens=[2, 3], completion_logprobs=[-0.1, -0.2], completion_mask=[True, True], finish_reason="stop",
        task_type="math", target_length=None, task_reward=1.0, length_penalty=0.0, reward=1.0, seed=5, temperature=1.0, proofs=b"",
    )
    for index in (8, 6, 7) for sample in (0, 1)
]  # fmt: skip
"""As drawn: in no order. Every worker claims that it was right."""
REWARDS = [0.0, 1.0, None, 1.0, 0.0, 0.0]
DATA = write_rollouts(ROWS, RolloutMetadata("tiny", "0" * 64, "1" * 64, "0"))
SHA = hashlib.sha256(DATA).hexdigest()


def verdict(**changes: object) -> Verdict:
    fields: dict[str, object] = {
        "run": RUN, "node": NODE, "lease": "a" * 32, "step": 3, "submission": 0, "sha256": SHA, "policy_version": 0, "outcome": "accept",
        "rewards": [RowReward(task_reward=r, length_penalty=None if r is None else 0.0, reward=r) for r in REWARDS], "rows": len(ROWS),
    }  # fmt: skip
    return Verdict.model_validate(fields | changes)


BATCH = StepBatch(
    run=RUN, step=3, beacon="c" * 64, groups=3, groups_dropped=0,
    files=[BatchFile(node=NODE, submission=0, sha256=SHA, policy_version=0, rows=len(ROWS), prompt_indices=[8, 6, 7])],
)  # fmt: skip


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = open_folder(tmp_path, "shoal/run", deadline_seconds=2.0)
    made.put(keys.upload(NODE, SHA), DATA)
    made.put(keys.verdict(NODE, SHA), sign(verdict(), VALIDATOR).to_json())
    return made


def test_completions_come_in_the_order_of_the_table_with_the_validators_rewards(store: Store) -> None:
    read = read_slice(store, BATCH, VALIDATOR.public, range(6, 9))
    assert [(row.prompt_index, row.sample_index, reward) for row, reward in read] == [
        (6, 0, None), (6, 1, 1.0), (7, 0, 0.0), (7, 1, 0.0), (8, 0, 0.0), (8, 1, 1.0),
    ]  # fmt: skip


def test_tasks_that_another_slice_answers_for_are_left_to_it(store: Store) -> None:
    assert {row.prompt_index for row, _ in read_slice(store, BATCH, VALIDATOR.public, range(8, 9))} == {8}


def test_a_task_without_completions_is_missed(store: Store) -> None:
    with pytest.raises(BadSlice, match="step 3: no completions of row 9 of the task table"):
        read_slice(store, BATCH, VALIDATOR.public, range(6, 10))


def forged(store: Store) -> None:
    store.put(keys.verdict(NODE, SHA), sign(verdict(), PrivateKey.generate()).to_json())


def rejected(store: Store) -> None:
    document = verdict(outcome="reject", reason="computation", evidence="row 0", rewards=[], rows=0)
    store.put(keys.verdict(NODE, SHA), sign(document, VALIDATOR).to_json())


def changed(store: Store) -> None:
    other = write_rollouts([replace(row, seed=6) for row in ROWS], RolloutMetadata("tiny", "0" * 64, "1" * 64, "0"))
    store.put(keys.upload(NODE, SHA), other)


def removed(store: Store) -> None:
    store.delete(keys.upload(NODE, SHA))


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (forged, "verdicts/"),
        (rejected, "is not an accept of this file"),
        (changed, "the store's bytes differ from the accepted ones"),
        (removed, "but batch.json lists its file"),
    ],
)
def test_what_is_not_what_was_accepted_is_refused(store: Store, damage: Callable[[Store], None], text: str) -> None:
    damage(store)
    with pytest.raises(BadSlice, match=text):
        read_slice(store, BATCH, VALIDATOR.public, range(6, 9))
