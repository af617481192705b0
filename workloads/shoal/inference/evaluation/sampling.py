"""Ask a model an environment's tasks, k answers each, with the engine that rollout workers use, and score what it says.

In: a checkpoint folder, an environment, `Settings`. Out: `AnsweredTask`s for `scores`. Prompts, stop tokens, tools and scoring are the workers' own,
so that a score here is the score that a run would have given. Called by `cli/eval.py`.
"""

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from shoal import accelerators
from shoal.contracts.evaluation import Truncation
from shoal.contracts.final_model import ModelOrigin, read_origin
from shoal.contracts.pools import EngineSettings
from shoal.contracts.prompts import PromptSettings, PromptTerms
from shoal.contracts.tasks import Task
from shoal.environments.base import Environment, Score
from shoal.environments.episodes import scored_text, tools_of
from shoal.environments.prompt_check import decided
from shoal.environments.prompts import BadPrompt, load_tokenizer, prompt_tokens
from shoal.evaluation.scores import Answer, AnsweredTask
from shoal.inference.checkpoint import BadCheckpointError, read_checkpoint
from shoal.inference.completions import Completion, Request
from shoal.inference.process_settings import set_engine_variables
from shoal.inference.rollouts import PlannedRow
from shoal.inference.tool_episodes import ToolFailedError, play

ROWS_TOGETHER = 512
"""Completions asked for at once: enough to keep an engine busy, few enough that progress is seen and memory stays small."""


class CannotEvaluate(ValueError):
    """The model cannot be asked; the message says what is wrong and what is allowed."""


@dataclass(frozen=True)
class Settings:
    """How answers are sampled. Lengths in tokens: `max_tokens` of a completion; `targets` go into prompts, one a task in turn (none: no length)."""

    samples: int
    temperature: float
    max_tokens: int
    seed: int = 0
    targets: tuple[int, ...] = ()
    truncation: Truncation | None = None

    def target(self, index: int) -> int | None:
        """The length that the prompt of task number `index` asks for."""
        return self.targets[index % len(self.targets)] if self.targets else None


USUAL_MAX_TOKENS = 1024
"""Tokens of a completion where neither the user nor the model's run says it."""


@dataclass(frozen=True)
class EvaluationRequest:
    """The user's choices. `max_tokens` None: what the model's run allowed; `target_length` None: what its run asked for, 0: no length."""

    samples: int
    temperature: float
    max_tokens: int | None = None
    seed: int = 0
    target_length: int | None = None
    truncation: Truncation | None = None
    prompt: PromptSettings | None = None
    """None: as the model's run made its prompts, else by the tokenizer's chat template where it has one."""
    longest: int | None = None
    """Tokens of prompt and completion together, as a run has them: tasks without room are left out, and completions end there. None: the model's
    positions, and what does not fit is refused."""
    engine: EngineSettings = field(default_factory=EngineSettings)


def ask(
    model: Path,
    environment: Environment,
    tasks: Sequence[Task],
    wanted: EvaluationRequest,
    say: Callable[[str], None],
) -> tuple[Settings, list[AnsweredTask]]:
    """How was asked, and all answers, scored; `say` is told which lengths are used and how many completions are there.

    Raises CannotEvaluate: for what does not fit the model, before the engine is loaded. Takes the engine's start (half a minute on a CPU) and then as
    long as the completions.
    """
    if find_spec("vllm") is None:
        raise CannotEvaluate("vLLM is not installed here; install shoal with its extra `worker` (CPU) or `cuda`")
    try:
        accelerators.check(os.environ, engine=True)
    except accelerators.NoGpu as error:
        raise CannotEvaluate(str(error)) from None
    if unused := accelerators.why_unused(os.environ, accelerators.read_machine(), engine=True):
        say(f"this machine's GPUs stay unused: {unused}")
    try:
        checkpoint = read_checkpoint(model)
    except (BadCheckpointError, OSError) as error:
        raise CannotEvaluate(str(error)) from None
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")  # its warnings are for servers, and would hide the result
    set_engine_variables()  # read when what follows is loaded
    try:
        tokenizer = load_tokenizer(model)
    except (OSError, ValueError) as error:
        raise CannotEvaluate(f"{model}: no tokenizer can be read: {str(error).strip().splitlines()[0]}") from None
    origin = read_origin(model)
    targets = asked_targets(wanted, origin)
    try:
        terms = asked_terms(wanted, origin, model, tokenizer)
        tools = tools_of(environment, tokenizer, checkpoint.eos_token_ids, terms)
        prompts = [
            prompt_tokens(tokenizer, environment, task, targets[index % len(targets)] if targets else None, terms)
            for index, task in enumerate(tasks)
        ]
    except BadPrompt as error:
        raise CannotEvaluate(f"no prompts can be made: {error}") from None
    positions = min(checkpoint.max_positions, wanted.longest or checkpoint.max_positions)
    if wanted.longest is not None:
        fit = [index for index, prompt in enumerate(prompts) if len(prompt) < positions]
        if not fit:
            raise CannotEvaluate(
                f"no prompt has less than {positions} tokens, the longest sequence of the run or of the model"
            )
        if len(fit) < len(tasks):
            say(
                f"{len(tasks) - len(fit)} of {len(tasks)} tasks are left out: their prompts leave no room for an answer"
            )
        tasks, prompts = [tasks[index] for index in fit], [prompts[index] for index in fit]
    settings = chosen(wanted, origin, targets, max(map(len, prompts)), positions)
    rows = planned(tasks, prompts, settings, positions, cut=wanted.longest is not None)
    for line in how_asked(wanted, origin, settings):
        say(line)
    from shoal.inference.engine import Engine  # vLLM: half a minute, which a mistake in the options should not cost

    longest = max(len(row.request.prompt_tokens) + row.request.max_tokens for row in rows)
    batch = min(len(rows), ROWS_TOGETHER)
    engine = Engine(checkpoint, max_sequence_length=longest, batch=batch, settings=wanted.engine)
    answers: list[Answer] = []
    try:
        engine.record_proofs(False)
        for start in range(0, len(rows), ROWS_TOGETHER):
            part = rows[start : start + ROWS_TOGETHER]
            if tools is None:
                made = engine.generate([row.request for row in part], _never)
            else:
                pauses = None if tools.by_turns else tools.pauses
                made = play(part, tools, lambda asked: engine.generate(asked, _never, pauses))  # noqa: B023 - called in this turn
            for row, completion in zip(part, made, strict=True):
                mask = completion.mask or [True] * len(completion.tokens)
                text = scored_text(tools, tokenizer, completion.tokens, mask, checkpoint.eos_token_ids)
                answers.append(judged(environment, row.task, text, completion))
            say(f"{len(answers)} of {len(rows)} completions")
    except ToolFailedError as error:
        raise CannotEvaluate(f"a tool failed, so its task has no answer: {error}") from None
    finally:
        engine.close()
    count = settings.samples
    return settings, [
        AnsweredTask(task.problem_id, answers[index * count : (index + 1) * count]) for index, task in enumerate(tasks)
    ]


def asked_targets(wanted: EvaluationRequest, origin: ModelOrigin | None) -> tuple[int, ...]:
    """The lengths to ask for: the user's, else those of the model's run."""
    if wanted.target_length is not None:
        return (wanted.target_length,) if wanted.target_length else ()
    return tuple(origin.targets) if origin is not None else ()


def asked_terms(
    wanted: EvaluationRequest, origin: ModelOrigin | None, model: Path, tokenizer: Any
) -> PromptTerms | None:
    """How prompts are made: as the user says, else as the model's run did. Raises BadPrompt."""
    if wanted.prompt is None and origin is not None:
        return origin.prompt
    return decided(wanted.prompt, model, tokenizer)


def chosen(
    wanted: EvaluationRequest, origin: ModelOrigin | None, targets: tuple[int, ...], longest_prompt: int, positions: int
) -> Settings:
    """The settings in full: a completion's limit is the user's, else that of the model's run, else `USUAL_MAX_TOKENS`, if the model has room."""
    most = wanted.max_tokens
    if most is None:
        usual = (origin.max_completion_tokens if origin is not None else None) or USUAL_MAX_TOKENS
        most = max(1, min(usual, positions - longest_prompt))
    return Settings(wanted.samples, wanted.temperature, most, wanted.seed, targets, wanted.truncation)


def how_asked(wanted: EvaluationRequest, origin: ModelOrigin | None, settings: Settings) -> list[str]:
    """Notes on defaults that the user did not set, and on choices that differ from the model's run."""
    lines = []
    trained = ", ".join(map(str, origin.targets)) if origin is not None else ""
    if wanted.target_length is None and settings.targets:
        lines.append(
            f"prompts ask for {trained} tokens, as those of its run did; --target-length N asks for another length, 0 for none"
        )
    elif trained and list(settings.targets) != (origin.targets if origin is not None else []):
        asked = f"{settings.targets[0]} tokens" if settings.targets else "no length"
        lines.append(f"prompts ask for {asked}; those of its run asked for {trained} tokens, so scores may be lower")
    if wanted.max_tokens is None:
        lines.append(f"a completion has at most {settings.max_tokens} tokens; --max-tokens N sets another limit")
    return lines


def planned(
    tasks: Sequence[Task], prompts: Sequence[Sequence[int]], settings: Settings, positions: int, *, cut: bool = False
) -> list[PlannedRow]:
    """The completions to ask for, `samples` of each task one after the other.

    One that would not fit is `cut`, as workers do, or CannotEvaluate is raised.
    """
    rows = []
    for index, (task, prompt) in enumerate(zip(tasks, prompts, strict=True)):
        if len(prompt) + settings.max_tokens > positions and not cut:
            raise CannotEvaluate(
                f"the prompt of {task.problem_id} has {len(prompt)} tokens; with {settings.max_tokens} more it exceeds the model's {positions}:"
                f" allowed: --max-tokens up to {max(0, positions - len(prompt))}"
            )
        for sample in range(settings.samples):
            request = Request(
                tuple(prompt),
                answer_seed(settings.seed, task.problem_id, sample),
                settings.temperature,
                min(settings.max_tokens, positions - len(prompt)),
                settings.truncation,
            )
            rows.append(PlannedRow(task, index, sample, settings.target(index), request))
    return rows


def answer_seed(seed: int, problem_id: str, sample: int) -> int:
    """The 63-bit sampling seed of one answer: the same for the same problem, whatever else is asked."""
    digest = hashlib.sha256(f"shoal-eval {seed} {sample} {problem_id}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def judged(environment: Environment, task: Task, text: str, completion: Completion) -> Answer:
    """The environment's score of a completion. One that was cut is scored as it is: a right answer may come before the limit."""
    scored = environment.score(task, text)
    reward = min(1.0, max(0.0, scored.task_reward)) if isinstance(scored, Score) else None
    has_answer = getattr(environment, "has_answer", None)
    answered = None if has_answer is None else bool(reward) or bool(has_answer(task, text))
    return Answer(reward, len(completion.tokens), completion.finish_reason == "length", answered)


def _never() -> str | None:
    """Nothing ends an evaluation early but its user."""
    return None
