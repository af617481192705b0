"""Rows with continuations for the trainer's tests: those of `tiny_run`, each completion with random continuations behind."""

from dataclasses import replace

import numpy as np
from tiny_run import VOCABULARY, accept, batch_of, rows_of

from shoal.contracts import keys
from shoal.contracts.rollouts import Rollout
from shoal.contracts.steps import StepBatch
from shoal.contracts.verdicts import RowReward
from shoal.contracts.vine import VineSettings, continuations
from shoal.storage import Store

VINE = VineSettings(segments=3, continuations=2)


def continued(parents: list[Rollout], vine: VineSettings = VINE) -> list[Rollout]:
    """The parents, and behind them their continuations as a file has them."""
    chance, rows = np.random.default_rng(3), list(parents)
    for each in continuations(len(parents), vine):
        parent = parents[each.parent]
        position = vine.positions(len(parent.completion_tokens))[each.boundary - 1]
        count = int(chance.integers(1, 6))
        rows.append(
            replace(
                parent,
                sample_index=each.sample_index(4, vine),
                prompt_tokens=[*parent.prompt_tokens, *parent.completion_tokens[:position]],
                completion_tokens=chance.integers(1, VOCABULARY, count).tolist(),
                completion_logprobs=(-chance.random(count)).tolist(),
                completion_mask=[True] * count,
            )
        )
    return rows


def rewards_for(rows: list[Rollout], seed: int = 5) -> list[RowReward]:
    """A right answer or a wrong one by chance, and a little penalty."""
    chance = np.random.default_rng(seed)
    found = []
    for _ in rows:
        right, penalty = float(chance.integers(0, 2)), float(chance.random() / 8)
        found.append(RowReward(task_reward=right, length_penalty=penalty, reward=right - penalty))
    return found


def fill_vine_step(store: Store, step: int) -> StepBatch:
    """A full step: two files of two groups each, with continuations."""
    rows = rows_of(step)
    files = []
    for submission, parents in ((2, rows[:8]), (3, rows[8:])):
        whole = continued([replace(row, submission=submission) for row in parents])
        files.append(accept(store, whole, rewards_for(whole, seed=step)))
    batch = batch_of(step, files)
    store.put(keys.step_batch(step), batch.to_json())
    return batch
