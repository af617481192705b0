"""Rewards, computed again with the run's environment (INTELLECT-2, section 3.1).

What this gives is what the trainer uses; the claim must agree with it, except where programs were run.
"""

from collections.abc import Callable, Sequence

from shoal.contracts.answers import TurnFaults
from shoal.contracts.rollouts import Rollout, sampled_stretches
from shoal.contracts.verdicts import UNSCORED, RowReward
from shoal.environments.base import runs_programs
from shoal.environments.scored_once import ProgramTime, ScoredOnce
from shoal.rewards.total import total_reward
from shoal.telemetry import get_logger
from shoal.validation.facts import Facts, File, Finding, reject
from shoal.validation.metrics import PROGRAM_DISAGREEMENTS, TURN_FAULTS

TOLERANCE = 1e-4
"""Claims travel as float32; the smallest honest step of a penalty is alpha, by default 3e-4."""


def score_rows(
    file: File,
    facts: Facts,
    progress: Callable[[], None] = lambda: None,
    programs: ProgramTime | None = None,
    turn_faults: list[TurnFaults] | None = None,
) -> list[RowReward]:
    """The rewards that count, one a row; all None where our own scoring failed, which is nobody's zero.

    A continuation is scored as the whole answer: with the tokens that it continues, as its length counts with them.
    Of an environment whose scores cannot be made again the worker's counts, in a run of members alone (`Facts.is_claimed`).
    Equal answers to a task are scored once. `progress` is called after every row.

    Rewards of programs are measured. Once every row has been scored, programs whose claim differs run again: what our own runs agree on counts, and a
    row on which they disagree is left out. So a false claim takes no time from other rows. Programs, judges and others' environments share
    `validation.programSeconds` of a file: half an hour of CPU time by default, where 48 rows of 100 slow tests would come to 5 hours. `programs`
    counts it, and may have less left. Rows after that are left out.
    Rows that wrong rewards of turns leave without a score are left in `turn_faults`.
    """
    differing: list[str] = []
    scored = ScoredOnce(facts.environment, programs or ProgramTime(facts.validation.program_seconds))
    prefixes = facts.prefixes(file.rows)

    def text(number: int) -> str:
        return facts.scored_text(file.rows[number], prefixes[number])

    found: list[float | None] = []
    for number, row in enumerate(file.rows):
        claimed = facts.is_claimed(row)
        found.append(_in_range(row) if claimed else scored.reward(facts.tasks[row.prompt_index], text(number)))
        progress()
    for number, row in enumerate(file.rows):
        task = facts.tasks[row.prompt_index]
        if _differ(row.task_reward, found[number]) and runs_programs(facts.environment, task):
            ours = found[number] = scored.settle(task, text(number))
            PROGRAM_DISAGREEMENTS.labels("claim" if ours is not None else "own runs").inc()
            differing.append(f"{task.problem_id} (row {number}, {'left out' if ours is None else ours})")
            progress()
    if differing:
        get_logger().warning(
            "programs scored differently than claimed",
            node=file.job.node[:12],
            tasks=differing[:20],
            rows=len(differing),
        )
    turns: list[tuple[float, ...] | None] = [None] * len(found)
    if facts.turn_credit:
        turns, faults = _by_turn(file, facts, scored, found, text)
        if faults is not None and turn_faults is not None:
            turn_faults.append(faults)
    return [
        total_reward(
            found[number],
            prefixes[number] + len(row.completion_tokens),
            row.target_length,
            facts.length_reward,
            turns[number],
        )
        for number, row in enumerate(file.rows)
    ]


def _by_turn(
    file: File, facts: Facts, scored: ScoredOnce, found: list[float | None], text: Callable[[int], str]
) -> tuple[list[tuple[float, ...] | None], TurnFaults | None]:
    """Of each row that has a reward those of its turns. A row whose environment gives others than its episode has is not scored: `found` loses it."""
    turns: list[tuple[float, ...] | None] = []
    faults: list[str] = []
    for number, row in enumerate(file.rows):
        score = scored.score(facts.tasks[row.prompt_index], text(number)) if found[number] is not None else None
        fault = None if score is None else score.turn_fault(len(sampled_stretches(row.completion_mask)))
        if fault is not None:
            faults.append(f"row {number}: {fault}"[:200])
            found[number] = score = None
        turns.append(None if score is None else score.turn_rewards)
    if not faults:
        return turns, None
    told = TurnFaults(environment=facts.environment.name, rows=len(faults), first=faults[0])
    TURN_FAULTS.labels(told.environment).inc(told.rows)
    get_logger().warning("rows have no rewards of turns", node=file.job.node[:12], **told.model_dump())
    return turns, told


def check(file: File, facts: Facts, rewards: Sequence[RowReward]) -> Finding | None:
    """Compare every claim with ours. A row that one side could not score claims nothing, nor does a program's reward (`score_rows`).

    Where nobody can score again, the claim counts, if it is a score at all.
    """
    for number, (row, ours) in enumerate(zip(file.rows, rewards, strict=True)):
        if facts.is_claimed(row) and _in_range(row) != row.task_reward:
            return reject("reward", f"row {number}: task_reward is claimed as {row.task_reward:.6g}; allowed: 0 to 1")
        if runs_programs(facts.environment, facts.tasks[row.prompt_index]):
            continue
        for name in ("task_reward", "length_penalty", "reward"):
            claimed, computed = getattr(row, name), getattr(ours, name)
            if _differ(claimed, computed):
                return reject(
                    "reward", f"row {number}: {name} is claimed as {claimed:.6g}, computed again it is {computed:.6g}"
                )
    return None


def claimed_rows(file: File, facts: Facts, rewards: Sequence[RowReward]) -> int:
    """Rows whose reward counts and is the worker's."""
    return sum(facts.is_claimed(row) and each != UNSCORED for row, each in zip(file.rows, rewards, strict=True))


def _in_range(row: Rollout) -> float | None:
    """The score that a worker claims; None where it claims none, or one outside 0 to 1."""
    return row.task_reward if row.task_reward is not None and 0.0 <= row.task_reward <= 1.0 else None


def _differ(claimed: float | None, computed: float | None) -> bool:
    return claimed is not None and computed is not None and abs(claimed - computed) > TOLERANCE
