"""Rewards, computed again with the run's environment (INTELLECT-2, section 3.1).

What this gives is what the trainer uses; the claim must agree with it.
"""

from collections.abc import Callable, Sequence

from shoal.contracts.rollouts import Rollout
from shoal.contracts.verdicts import RowReward
from shoal.environments.scored_once import ScoredOnce
from shoal.environments.tokens import completion_text
from shoal.rewards.total import total_reward
from shoal.validation.facts import Facts, File, Finding, reject

TOLERANCE = 1e-4
"""Claims travel as float32; the smallest honest step of a penalty is alpha, by default 3e-4."""


def score_rows(file: File, facts: Facts, progress: Callable[[], None] = lambda: None) -> list[RowReward]:
    """The rewards that count, one a row; all None where our own scoring failed, which is nobody's zero.

    A continuation is scored as the whole answer: with the tokens that it continues, as its length counts with them.
    Equal answers to a task are scored once. `progress` is called after every row.
    """
    rewards = []
    scored = ScoredOnce(facts.environment)
    for row, prefix in zip(file.rows, facts.prefixes(file.rows), strict=True):
        answer = [*row.prompt_tokens[len(row.prompt_tokens) - prefix :], *row.completion_tokens]
        text = completion_text(facts.tokenizer, answer, facts.eos_token_ids)
        task_reward = scored.reward(facts.tasks[row.prompt_index], text)
        rewards.append(total_reward(task_reward, len(answer), row.target_length, facts.length_reward))
        progress()
    return rewards


def check(file: File, rewards: Sequence[RowReward]) -> Finding | None:
    """Compare every claim with ours. A row that one side could not score claims nothing."""
    for number, (row, ours) in enumerate(zip(file.rows, rewards, strict=True)):
        problem = _difference(row, ours)
        if problem is not None:
            return reject("reward", f"row {number}: {problem}")
    return None


def _difference(row: Rollout, ours: RowReward) -> str | None:
    for name in ("task_reward", "length_penalty", "reward"):
        claimed, computed = getattr(row, name), getattr(ours, name)
        if claimed is not None and computed is not None and abs(claimed - computed) > TOLERANCE:
            return f"{name} is claimed as {claimed:.6g}, computed again it is {computed:.6g}"
    return None
