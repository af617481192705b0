"""Tools in the loop: what is marked as a tool's output is that, at the places where a tool was called, and nowhere else.

Every call is run again by the rules of `environments.episodes`, in every row: this costs what the environment's tools cost. `sampling` and `bounds`
have passed before. The checks of what was sampled then look at sampled tokens alone. In a run without tools every token was sampled.
"""

from shoal.environments import Unscorable
from shoal.validation.facts import Facts, File, Finding, reject


def check(file: File, facts: Facts) -> Finding | None:
    """Replay every row. A tool that fails here leaves the file undecided."""
    for number, row in enumerate(file.rows):
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
