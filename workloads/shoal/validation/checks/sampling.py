"""Fixed data sampling: prompts, target lengths and seeds are those that the beacon draws for this lease (INTELLECT-2,
section 2.3.3).
"""

from shoal.contracts.evaluation import drawn_for
from shoal.contracts.rollouts import Rollout
from shoal.contracts.seeds import DrawnGroup, draw_submission
from shoal.environments.tokens import prompt_tokens
from shoal.validation.facts import Facts, File, Finding, reject


def check(file: File, facts: Facts) -> Finding | None:
    """Draw again and compare row by row; the order of rows is the order of the draw."""
    if len(file.rows) != facts.rows:
        return reject(
            "sampling",
            f"the file has {len(file.rows)} rows, the lease holds {facts.rows}: every row drawn is submitted",
        )
    job = file.job
    drawn = facts.drawn(job.step)
    node, submission = drawn_for(job.step, job.node, job.submission)
    groups = draw_submission(
        beacon=bytes.fromhex(job.beacon),
        run=job.run,
        step=job.step,
        node=node,
        submission=submission,
        task_count=len(drawn),
        first_task=drawn.start,
        groups=facts.sampling.groups_per_submission,
        group_size=facts.group_size,
        targets=facts.length_reward.targets if facts.length_reward else None,
    )
    for place, group in enumerate(groups):
        task = facts.tasks[group.prompt_index]
        prompt = prompt_tokens(facts.tokenizer, facts.environment, task, group.target_length)
        for sample in range(facts.group_size):
            number = place * facts.group_size + sample
            problem = _difference(file.rows[number], group, sample, prompt, facts)
            if problem is not None:
                return reject("sampling", f"row {number}: {problem}")
    return None


def _difference(row: Rollout, group: DrawnGroup, sample: int, prompt: list[int], facts: Facts) -> str | None:
    task = facts.tasks[group.prompt_index]
    for name, drawn in (
        ("prompt_index", group.prompt_index),
        ("sample_index", sample),
        ("problem_id", task.problem_id),
        ("task_type", task.task_type),
        ("target_length", group.target_length),
        ("seed", group.seeds[sample]),
    ):
        found = getattr(row, name)
        if found != drawn:
            shown = repr(found[:80]) if isinstance(found, str) else found  # a stranger's text may hold control codes
            return f"{name} is {shown}, drawn is {drawn}"
    if list(row.prompt_tokens) != prompt:
        return f"prompt_tokens are not those of {task.problem_id} with target length {group.target_length}"
    if not abs(row.temperature - facts.sampling.temperature) <= 1e-6:  # a float32 in the file, perhaps not a number
        return f"temperature is {row.temperature}, the run samples at {facts.sampling.temperature}"
    return None
