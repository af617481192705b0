"""What a submission must hold, and its rows once completions are there: pure functions.

In: the open step, the lease and the public description of the run; later the completions. Out: `PlannedRow`s to
generate, then `Rollout`s to write. Called by `worker`. Validators draw and render the same again from public values.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from shoal.contracts.protocol import Lease, StepInfo
from shoal.contracts.rollouts import Rollout
from shoal.contracts.run import PublicRun
from shoal.contracts.tasks import Task
from shoal.contracts.vine import continuations
from shoal.contracts.work import TrainingStep, Work, draw
from shoal.inference.completions import Completion, Request
from shoal.rewards.total import total_reward
from shoal.sampling.draw import continuation_seed

Render = Callable[[Task, int | None], Sequence[int]]
"""Prompt tokens of a task with a target length."""
ScoreTokens = Callable[[Task, Sequence[int], Sequence[bool]], float | None]
"""Task reward of completion tokens with their mask; None when scoring failed."""


@dataclass(frozen=True)
class PlannedRow:
    """One completion to make: sample `sample_index` of the group on row `prompt_index` of the task table.

    `prefix` has the tokens of another row's completion that this one continues (`contracts.vine`): the end of its prompt, and part of its answer.
    """

    task: Task
    prompt_index: int
    sample_index: int
    target_length: int | None
    request: Request
    prefix: Sequence[int] = ()


def plan_submission(
    work: Work, step: StepInfo, lease: Lease, public: PublicRun, tasks: Sequence[Task], render: Render
) -> list[PlannedRow]:
    """The rows that a lease for this work must hold, group after group, in the order drawn.

    Raises ValueError when a prompt leaves no room for a completion: no worker can serve such a run.
    """
    beacon = bytes.fromhex(step.beacon)
    if lease.prompts is not None and isinstance(work, TrainingStep):
        work = work.on(lease.prompts)
    groups = draw(work, beacon=beacon, run=public.run, node=lease.node, submission=lease.submission, part=lease.part)
    rows = []
    for group in groups:
        task = tasks[group.prompt_index]
        prompt = tuple(render(task, group.target_length))
        room = min(public.sampling.max_completion_tokens, public.max_sequence_length - len(prompt))
        if room < 1:
            raise ValueError(
                f"the prompt of {task.problem_id} has {len(prompt)} tokens, but maxSequenceLength is {public.max_sequence_length}"
            )
        for sample, seed in enumerate(group.seeds):
            request = Request(prompt, seed, public.sampling.temperature, room, public.truncation)
            rows.append(PlannedRow(task, group.prompt_index, sample, group.target_length, request))
    return rows


def plan_continuations(
    planned: Sequence[PlannedRow], completions: Sequence[Completion], public: PublicRun
) -> list[PlannedRow]:
    """The rows that follow on these in the file, now that their completions are known; none unless the run has Monte-Carlo values."""
    vine, rows = public.vine, []
    for each in continuations(len(planned), vine):
        assert vine is not None
        parent, tokens = planned[each.parent], completions[each.parent].tokens
        prefix = tokens[: vine.positions(len(tokens))[each.boundary - 1]]
        first = parent.request
        request = Request(
            prompt_tokens=(*first.prompt_tokens, *prefix),
            seed=continuation_seed(first.seed, each.boundary, each.number),
            temperature=first.temperature,
            max_tokens=first.max_tokens - len(prefix),
        )
        index = each.sample_index(public.group_size, vine)
        rows.append(PlannedRow(parent.task, parent.prompt_index, index, parent.target_length, request, prefix))
    return rows


def assemble(
    planned: Sequence[PlannedRow],
    completions: Sequence[Completion],
    lease: Lease,
    public: PublicRun,
    policy_version: int,
    score: ScoreTokens,
) -> list[Rollout]:
    """Rows of the file, with the rewards that this worker claims. `policy_version` is that of all rows.

    Where completions say otherwise (`Completion.segments`) it is the oldest of theirs; with several of them in the file each row has its segments.
    """
    versions = {version for completion in completions for version, _ in completion.segments}
    return [
        _row(row, completion, lease, public, min(versions, default=policy_version), score, several=len(versions) > 1)
        for row, completion in zip(planned, completions, strict=True)
    ]


def answer_of(planned: PlannedRow, completion: Completion) -> tuple[list[int], list[bool]]:
    """The tokens of a row that are scored, and which of them the model sampled."""
    mask = completion.mask or [True] * len(completion.tokens)
    return [*planned.prefix, *completion.tokens], [*([True] * len(planned.prefix)), *mask]


def _row(
    planned: PlannedRow,
    completion: Completion,
    lease: Lease,
    public: PublicRun,
    policy_version: int,
    score: ScoreTokens,
    *,
    several: bool,
) -> Rollout:
    answer, answer_mask = answer_of(planned, completion)
    mask = answer_mask[len(planned.prefix) :]
    task_reward = score(planned.task, answer, answer_mask)
    claim = total_reward(task_reward, len(answer), planned.target_length, public.length_reward)
    return Rollout(
        run=public.run,
        step=lease.step,
        policy_version=policy_version,
        node=lease.node,
        submission=lease.submission,
        problem_id=planned.task.problem_id,
        prompt_index=planned.prompt_index,
        sample_index=planned.sample_index,
        prompt_tokens=planned.request.prompt_tokens,
        completion_tokens=completion.tokens,
        completion_logprobs=completion.logprobs,
        completion_mask=mask,
        finish_reason=completion.finish_reason,
        task_type=planned.task.task_type,
        target_length=planned.target_length,
        task_reward=claim.task_reward,
        length_penalty=claim.length_penalty,
        reward=claim.reward,
        seed=planned.request.seed,
        temperature=planned.request.temperature,
        proofs=completion.proofs,
        segment_versions=[version for version, _ in completion.segments] if several else (),
        segment_starts=[first for _, first in completion.segments] if several else (),
        routes=completion.routes if public.routes is not None else None,
    )
