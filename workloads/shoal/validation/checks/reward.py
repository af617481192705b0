"""Rewards, computed again with the run's environment (INTELLECT-2, section 3.1).

What this gives is what the trainer uses; the claim must agree with it, except where programs were run.
"""

from collections.abc import Callable, Sequence

from shoal.contracts.verdicts import RowReward
from shoal.environments.base import runs_programs
from shoal.environments.scored_once import ScoredOnce
from shoal.environments.tokens import completion_text
from shoal.rewards.total import total_reward
from shoal.telemetry import get_logger
from shoal.validation.facts import Facts, File, Finding, reject
from shoal.validation.metrics import PROGRAM_DISAGREEMENTS

TOLERANCE = 1e-4
"""Claims travel as float32; the smallest honest step of a penalty is alpha, by default 3e-4."""


def score_rows(file: File, facts: Facts, progress: Callable[[], None] = lambda: None) -> list[RowReward]:
    """The rewards that count, one a row; all None where our own scoring failed, which is nobody's zero.

    A continuation is scored as the whole answer: with the tokens that it continues, as its length counts with them.
    Equal answers to a task are scored once. `progress` is called after every row.

    Rewards of programs are measured. Where a claim differs, the program runs again here: what our own runs agree on counts, and a row on which
    they disagree is left out. All programs of a file share `validation.programSeconds`: half an hour of CPU time by default, where 48 rows of 100
    slow tests would come to 5 hours.
    """
    rewards: list[RowReward] = []
    differing: list[str] = []
    scored = ScoredOnce(facts.environment, facts.validation.program_seconds)
    for number, (row, prefix) in enumerate(zip(file.rows, facts.prefixes(file.rows), strict=True)):
        answer = [*row.prompt_tokens[len(row.prompt_tokens) - prefix :], *row.completion_tokens]
        text = completion_text(facts.tokenizer, answer, facts.eos_token_ids)
        task = facts.tasks[row.prompt_index]
        task_reward = scored.reward(task, text)
        if _differ(row.task_reward, task_reward) and runs_programs(facts.environment, task):
            task_reward = scored.settle(task, text)
            PROGRAM_DISAGREEMENTS.labels("claim" if task_reward is not None else "own runs").inc()
            differing.append(f"{task.problem_id} (row {number}, {'left out' if task_reward is None else task_reward})")
        rewards.append(total_reward(task_reward, len(answer), row.target_length, facts.length_reward))
        progress()
    if differing:
        get_logger().warning(
            "programs scored differently than claimed",
            node=file.job.node[:12],
            tasks=differing[:20],
            rows=len(differing),
        )
    return rewards


def check(file: File, facts: Facts, rewards: Sequence[RowReward]) -> Finding | None:
    """Compare every claim with ours. A row that one side could not score claims nothing, nor does a program's reward (`score_rows`)."""
    for number, (row, ours) in enumerate(zip(file.rows, rewards, strict=True)):
        if runs_programs(facts.environment, facts.tasks[row.prompt_index]):
            continue
        for name in ("task_reward", "length_penalty", "reward"):
            claimed, computed = getattr(row, name), getattr(ours, name)
            if _differ(claimed, computed):
                return reject(
                    "reward", f"row {number}: {name} is claimed as {claimed:.6g}, computed again it is {computed:.6g}"
                )
    return None


def _differ(claimed: float | None, computed: float | None) -> bool:
    return claimed is not None and computed is not None and abs(claimed - computed) > TOLERANCE
