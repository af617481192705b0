"""Tools in the loop: what is marked as a tool's output is that, at the places where a tool was called, and nowhere else.

Every call is run again by the rules of `environments.episodes`, in every row: this costs what the environment's tools cost. `sampling` and `bounds`
have passed before. The checks of what was sampled then look at sampled tokens alone. In a run without tools every token was sampled.

Calls of an environment with turns are run again behind the proofs (`run_again`), because they may be programs: before that only those of a file's
turns and messages are looked at that need no run (`environments.turns`). They share the CPU time of the file's programs.
"""

from collections.abc import Callable

from shoal.environments import Unscorable
from shoal.environments.scored_once import ProgramTime
from shoal.environments.turns import Turns
from shoal.telemetry import get_logger
from shoal.validation.facts import Facts, File, Finding, reject
from shoal.validation.metrics import TOOL_DISAGREEMENTS, TOOL_ROWS_OUT_OF_TIME


def check(file: File, facts: Facts, progress: Callable[[], None] = lambda: None) -> Finding | None:
    """Replay every row. A tool that fails here leaves the file undecided."""
    for number, row in enumerate(file.rows):
        progress()
        if facts.tools is None:
            if not all(row.completion_mask) or row.finish_reason == "unanswered":
                return reject(
                    "tools",
                    f"row {number}: completion_mask is false somewhere, or finish_reason is unanswered,"
                    " and this run's environment has no tools whose output could be there",
                )
            continue
        masked = zip(row.completion_logprobs, row.completion_mask, strict=True)
        if any(value != 0.0 for value, sampled in masked if not sampled):
            return reject(
                "tools", f"row {number}: a tool's token has a log-probability other than 0; it was not sampled"
            )
        task = facts.tasks[row.prompt_index]
        problem = facts.tools.problem(
            task, row.completion_tokens, row.completion_mask, row.finish_reason, facts.longest_completion(row)
        )
        if isinstance(problem, Unscorable):
            return Finding("inconclusive", None, f"row {number}: a tool failed: {problem.reason}")
        if problem is not None:
            return reject("tools", f"row {number}: {problem}")
    return None


def run_again(
    file: File, facts: Facts, programs: ProgramTime, progress: Callable[[], None] = lambda: None
) -> tuple[frozenset[int], Finding | None]:
    """Run the calls of every row with turns again: the rows that are not scored, and what no machine could have answered.

    A row is not scored where its answers differ, or where the environment cannot answer it. Nor is one with calls once the file's programs have had
    their time; a row without calls needs nothing of that. Rows whose score cannot be made again have answers that cannot be either.
    """
    if not isinstance(facts.tools, Turns):
        return frozenset(), None
    unscored: dict[int, str] = {}
    late: set[int] = set()
    for number, row in enumerate(file.rows):
        if facts.is_claimed(row):
            continue
        if programs.over:
            if facts.tools.calls(row.completion_tokens, row.completion_mask):
                late.add(number)
            progress()
            continue
        found = facts.tools.run_again(
            facts.tasks[row.prompt_index],
            row.completion_tokens,
            row.completion_mask,
            row.finish_reason,
            facts.longest_completion(row),
        )
        programs.spent += found.program_seconds
        progress()
        if found.lie is not None:
            return frozenset(), reject("tools", f"row {number}: {found.lie}")
        if found.failed is not None:
            return frozenset(), Finding("inconclusive", None, f"row {number}: a function failed: {found.failed}")
        if found.differs is not None:
            unscored[number] = found.differs
    if unscored:
        TOOL_DISAGREEMENTS.inc(len(unscored))
        first = next(iter(unscored))
        get_logger().warning(
            "functions answered otherwise than claimed; the rows are not scored",
            node=file.job.node[:12],
            rows=len(unscored),
            first=first,
            reason=unscored[first][:500],
        )
    if late:
        TOOL_ROWS_OUT_OF_TIME.inc(len(late))
        get_logger().warning(
            "the programs of a file have had their time; its later rows with calls are not scored",
            node=file.job.node[:12],
            rows=len(late),
            first=min(late),
            spent_seconds=round(programs.spent, 3),
        )
    return frozenset(unscored) | late, None
