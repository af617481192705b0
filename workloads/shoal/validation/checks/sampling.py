"""Fixed data sampling: prompts, target lengths and seeds are those that the beacon draws for this lease (INTELLECT-2,
section 2.3.3). Continuations are those that follow from the completions (`contracts.vine`).
"""

from collections.abc import Mapping

from shoal.contracts.rollouts import Rollout
from shoal.contracts.vine import Continuation, VineSettings, continuations
from shoal.contracts.work import TrainingStep, draw
from shoal.environments.prompts import prompt_tokens
from shoal.sampling.draw import DrawnGroup, continuation_seed
from shoal.validation.facts import Facts, File, Finding, reject


def check(file: File, facts: Facts) -> Finding | None:
    """Draw again and compare row by row; the order of rows is the order of the draw, and continuations follow on all completions."""
    if len(file.rows) != facts.rows:
        return reject(
            "sampling",
            f"the file has {len(file.rows)} rows, the lease holds {facts.rows}: every row drawn is submitted",
        )
    job = file.job
    beacon = bytes.fromhex(job.beacon)
    work = facts.work(job)
    if isinstance(work, TrainingStep) and work.curriculum is not None:
        pools = work.curriculum.of(work.number).digest
        if pools != job.pools:
            return Finding(
                "inconclusive",
                None,
                f"the pools of step {work.number} have digest {pools[:12]}... by the store's batches, the orchestrator says"
                f" {(job.pools or 'none')[:12]}",
            )
    groups = draw(work, beacon=beacon, run=job.run, node=job.node, submission=job.submission, part=job.part)
    for place, group in enumerate(groups):
        task = facts.tasks[group.prompt_index]
        prompt = prompt_tokens(facts.tokenizer, facts.environment, task, group.target_length, facts.prompt)
        for sample in range(facts.group_size):
            number = place * facts.group_size + sample
            problem = _difference(file.rows[number], group, sample, prompt, facts)
            if problem is not None:
                return reject("sampling", f"row {number}: {problem}")
    for each, prefix in zip(
        continuations(facts.completions, facts.vine), facts.prefixes(file.rows)[facts.completions :], strict=True
    ):
        assert facts.vine is not None
        problem = _other_continuation(file.rows[each.row], file.rows[each.parent], each, prefix, facts.vine, facts)
        if problem is not None:
            return reject("sampling", f"row {each.row}: {problem}")
    return None


def _difference(row: Rollout, group: DrawnGroup, sample: int, prompt: list[int], facts: Facts) -> str | None:
    task = facts.tasks[group.prompt_index]
    drawn = {
        "prompt_index": group.prompt_index,
        "sample_index": sample,
        "problem_id": task.problem_id,
        "task_type": task.task_type,
        "target_length": group.target_length,
        "seed": group.seeds[sample],
    }
    problem = _other_values(row, drawn)
    if problem is None and list(row.prompt_tokens) != prompt:
        return f"prompt_tokens are not those of {task.problem_id} with target length {group.target_length}"
    return problem or _other_temperature(row, facts)


def _other_continuation(
    row: Rollout, parent: Rollout, place: Continuation, prefix: int, vine: VineSettings, facts: Facts
) -> str | None:
    """The fault of a continuation after `prefix` tokens of `parent`, a row that has passed; or None."""
    drawn = {name: getattr(parent, name) for name in ("prompt_index", "problem_id", "task_type", "target_length")} | {
        "sample_index": place.sample_index(facts.group_size, vine),
        "seed": continuation_seed(parent.seed, place.boundary, place.number),
    }
    problem = _other_values(row, drawn)
    if problem is not None:
        return problem
    if list(row.prompt_tokens) != [*parent.prompt_tokens, *parent.completion_tokens[:prefix]]:
        return f"prompt_tokens are not the prompt and the first {prefix} completion tokens of row {place.parent}"
    limit = facts.longest_completion(row, prefix)
    if len(row.completion_tokens) > limit:
        return f"{len(row.completion_tokens)} completion tokens behind {prefix} of row {place.parent}; at most {limit} are allowed"
    return _other_temperature(row, facts)


def _other_values(row: Rollout, drawn: Mapping[str, object]) -> str | None:
    for name, wanted in drawn.items():
        found = getattr(row, name)
        if found != wanted:
            shown = repr(found[:80]) if isinstance(found, str) else found  # a stranger's text may hold control codes
            return f"{name} is {shown}, drawn is {wanted}"
    return None


def _other_temperature(row: Rollout, facts: Facts) -> str | None:
    if not abs(row.temperature - facts.sampling.temperature) <= 1e-6:  # a float32 in the file, perhaps not a number
        return f"temperature is {row.temperature}, the run samples at {facts.sampling.temperature}"
    return None
