"""Three tasks of a run as its model will see them, and how answers to them score: what `shoal env preview` prints, before anything is started.

In: a run's configuration. Out: a `Preview`. Prompts go through `prompts.prompt_tokens`, as those of workers and validators do; tokenizer and template
are the model's own, from a folder or a hub, or those that a generated model will have. Raises CannotPreview, in one line.
"""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.contracts.prompts import PromptSettings, PromptTerms
from shoal.contracts.run import RunConfig
from shoal.contracts.tasks import Task
from shoal.environments.base import BadEnvironment, Environment, Score, Unscorable
from shoal.environments.hub import explained
from shoal.environments.packages import BadPackages, of_manifest
from shoal.environments.prompt_check import decided
from shoal.environments.prompts import TOKENIZER_FILES, BadPrompt, load_tokenizer, prompt_tokens
from shoal.environments.slips import COURSES
from shoal.environments.task_source import BadTaskSource, Found, RunSource, find_tasks, judged_by
from shoal.storage import Store, not_told

SHOWN_TASKS = 3
MOST_PROOFS = 64
"""Gold answers that are proven: seconds, where prepare needs half an hour for all of a large data set."""


class CannotPreview(ValueError):
    """Tasks or tokenizer are not available; the message names the field of the manifest."""


@dataclass(frozen=True)
class ScoredText:
    """An answer, what it scores (None: it could not be scored), and why."""

    text: str
    task_reward: float | None
    detail: str


@dataclass(frozen=True)
class ShownTask:
    """One task: the prompt's token ids with the text of each, and a right and a wrong answer where the environment has them."""

    problem_id: str
    target_length: int | None
    tokens: list[int]
    pieces: list[str]
    text: str
    right: ScoredText | None
    wrong: ScoredText


@dataclass(frozen=True)
class SourcePreview:
    """Tasks of one source: how many, three of them, and what became of its data set. `name` and `share` are those of a mixture's source."""

    name: str
    share: float
    tasks: int
    shown: list[ShownTask]
    left_out: dict[str, int]
    proven: int


@dataclass(frozen=True)
class Preview:
    """What is shown of each source, and what is wrong with it, in words."""

    sources: list[SourcePreview]
    longest_completion: int
    longest_sequence: int
    problems: tuple[str, ...]


def preview(config: RunConfig, tokenizer_folder: Path | None = None, objects: Store | None = None) -> Preview:
    """The first, a middle and the last task of each source. Reads whole data sets, proves `MOST_PROOFS` golds of each. Raises CannotPreview.

    `objects`: what lies below `storage.prefix`, for data sets and packages that are there; None: these are refused.
    """
    try:
        with of_manifest(config, objects):
            return _preview(config, tokenizer_folder, objects)
    except BadPackages as error:
        raise CannotPreview(str(error)) from None


def _preview(config: RunConfig, tokenizer_folder: Path | None, objects: Store | None) -> Preview:
    try:
        sources = RunSource.of_run(config.tasks)
        judged_by(sources)
    except BadEnvironment as error:
        raise CannotPreview(f"spec.tasks: {error}") from None
    longest, room = config.sampling.max_completion_tokens, config.recipe.max_sequence_length
    weights = sum(source.weight for source in sources)
    looked_at: list[SourcePreview] = []
    with tempfile.TemporaryDirectory(prefix="shoal-preview-") as scratch:
        for source in sources:
            found = _found(config, source, Path(scratch), objects)
            tokenizer, terms = _asked(config, source, tokenizer_folder)
            lengths = source.lengths(config)
            targets = lengths.targets if lengths is not None else []
            picked = sorted({0, len(found.tasks) // 2, len(found.tasks) - 1})[:SHOWN_TASKS]
            shown = [
                _shown(
                    source, tokenizer, terms, found.tasks[place], targets[number % len(targets)] if targets else None
                )
                for number, place in enumerate(picked)
            ]
            share = source.weight / weights
            looked_at.append(SourcePreview(source.name, share, len(found.tasks), shown, found.left_out, found.proven))
    problems = [problem for each in looked_at for problem in _problems(each.shown, longest, room)]
    return Preview(looked_at, longest, room, tuple(problems))


def _found(config: RunConfig, source: RunSource, scratch: Path, objects: Store | None) -> Found:
    dataset = source.origin.dataset
    if dataset is not None and dataset.object is not None and objects is None:
        raise CannotPreview(f"{source.field}.dataset.object: {not_told(config)}")
    if missing := list(getattr(source.environment, "problems", list)()):
        raise CannotPreview(f"{source.field}.environment: {missing[0]}")
    try:
        return find_tasks(config, source, scratch, most_proofs=MOST_PROOFS, objects=objects)
    except BadTaskSource as error:
        raise CannotPreview(str(error)) from None


def _shown(source: RunSource, tokenizer: Any, terms: PromptTerms, task: Task, target: int | None) -> ShownTask:
    environment = source.environment
    try:
        tokens = prompt_tokens(tokenizer, environment, task, target, terms)
    except BadPrompt as error:
        raise CannotPreview(f"{source.field}: task {task.problem_id}: {error}") from None
    try:
        right = _scored(environment, task, environment.gold(task))
    except ValueError:  # most programs and forms come without a solution
        right = None
    broken = getattr(environment, "broken", None)
    return ShownTask(
        problem_id=task.problem_id,
        target_length=target,
        tokens=tokens,
        pieces=[_text(tokenizer, [token]) for token in tokens],
        text=_text(tokenizer, tokens),
        right=right,
        wrong=_scored(environment, task, broken(task) if broken is not None else ""),
    )


def _scored(environment: Environment, task: Task, text: str) -> ScoredText:
    found = environment.score(task, text)
    match found:
        case Score():
            return ScoredText(text, found.task_reward, found.detail)
        case Unscorable():
            return ScoredText(text, None, found.reason)


def _text(tokenizer: Any, tokens: Sequence[int]) -> str:
    return str(tokenizer.decode(list(tokens), skip_special_tokens=False, clean_up_tokenization_spaces=False))


def _problems(shown: Sequence[ShownTask], longest: int, room: int) -> list[str]:
    lines = []
    for each in shown:
        if each.right is not None and each.right.task_reward != 1.0:
            scored = "could not be scored" if each.right.task_reward is None else f"scores {each.right.task_reward:g}"
            lines.append(f"task {each.problem_id}: its own right answer {scored}: {each.right.detail}")
        if each.wrong.task_reward == 1.0:
            lines.append(f"task {each.problem_id}: a wrong answer scores 1")
        if len(each.tokens) + 1 > room:
            lines.append(
                f"task {each.problem_id}: its prompt has {len(each.tokens)} tokens, recipe.maxSequenceLength is {room}: raise that"
            )
        elif len(each.tokens) + longest > room:
            left = room - len(each.tokens)
            lines.append(
                f"task {each.problem_id}: its prompt of {len(each.tokens)} tokens leaves {left} for an answer,"
                f" sampling.maxCompletionTokens is {longest}: raise recipe.maxSequenceLength"
            )
    return lines


def _asked(config: RunConfig, source: RunSource, folder: Path | None) -> tuple[Any, PromptTerms]:
    """The tokenizer of the run's base model, and how the source's tasks become its prompts."""
    model, settings = config.model, source.origin.prompt or config.tasks.prompt
    if folder is None and model.generated is not None:
        environment, lengths = source.environment, source.lengths(config)
        wanted = COURSES[model.generated.name][0]
        if not isinstance(environment, wanted):
            raise CannotPreview(
                f"spec.model.generated: is made for the environment {wanted.name}; name that, or another model"
            )
        from shoal.environments.generated_model import tokenizer_for

        targets = lengths.targets if lengths is not None else [None]
        return tokenizer_for(environment, targets, config.seed), _raw(settings)
    if folder is None and model.run is not None:
        raise CannotPreview(
            f"spec.model.run: the model of run {model.run} lies in its store; give --tokenizer with the folder of its model"
        )
    try:
        folder = folder or (
            Path(model.path)
            if model.path is not None
            else _downloaded(model.hugging_face or "", model.revision or "main")
        )
        tokenizer = load_tokenizer(folder)
        return tokenizer, decided(settings, folder, tokenizer)
    except BadPrompt as error:
        raise CannotPreview(f"{source.field}.prompt: {error}") from None
    except Exception as error:  # of the hub, of transformers, of tokenizers: each has its own
        said = " ".join(str(error).split())[:300]
        raise CannotPreview(
            f"spec.model: the tokenizer of {config.model_id} cannot be read: {said}; --tokenizer takes a folder with the files of a checkpoint"
            " except its weights"
        ) from None


def _raw(settings: PromptSettings | None) -> PromptTerms:
    """The terms of a model that has no chat template. Raises CannotPreview where the settings need one."""
    given = settings or PromptSettings()
    if given.template == "Chat" or given.system or given.template_arguments:
        raise CannotPreview(
            "spec.tasks.prompt: a generated model has no chat template; allowed: assistantPrefix, template: Raw"
        )
    return PromptTerms(template="Raw", assistant_prefix=given.assistant_prefix or "", tokenizer_digest="0" * 64)


def _downloaded(repository: str, revision: str) -> Path:
    from huggingface_hub import snapshot_download

    with explained(repository, revision, "model"):
        wanted = [*TOKENIZER_FILES, "config.json", "generation_config.json"]
        return Path(snapshot_download(repository, revision=revision, allow_patterns=wanted))
