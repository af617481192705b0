"""What prepare decides about prompts, once: which template, whether model, tokenizer and settings fit each other, and which tasks can be asked.

In: `PromptSettings`, the checkpoint's folder and tokenizer, tasks. Out: `PromptTerms`, and the tasks whose prompts can be made and leave room for an
answer. Nothing is written here; every error is a `BadPrompt` in one line. Called by `prepare` and `shoal eval`.

Cost: one rendering a task (measured: 80 microseconds with Qwen3's template). Only texts that might be too long are encoded.
"""

import json
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shoal.contracts.prompts import PromptSettings, PromptTerms
from shoal.contracts.tasks import Task
from shoal.environments.base import Environment
from shoal.environments.prompts import MARKUP, BadPrompt, prompt_pieces, prompt_tokens, render, tokenizer_digest
from shoal.environments.tokens import eos_token_ids

PROBE = "Tell me."
ANSWER = "Here it is."
SPARE_TOKENS = 16
"""More than an encoder adds to a text, whose every other token holds a byte at least."""
EXAMPLE_CHARACTERS = 20_000
OUTSIDE_RAW = "goes with a chat template only, and this run's prompts are raw text"


def decided(settings: PromptSettings | None, folder: Path, tokenizer: Any) -> PromptTerms:
    """What the settings mean with this checkpoint. Raises BadPrompt, whose message begins with the field below `prompt` if it is about one.

    The checkpoint has stop tokens: raises what `eos_token_ids` raises.
    """
    given = settings or PromptSettings()
    stops = eos_token_ids(folder)
    written = _template(tokenizer)
    template = given.template or ("Raw" if written is None else "Chat")
    if template == "Raw":
        missing = "; its tokenizer has no chat template" if written is None else ""
        for name, value in (("system", given.system), ("templateArguments", given.template_arguments)):
            if value:
                raise BadPrompt(f"{name}: {OUTSIDE_RAW}{missing}: leave it out")
    elif written is None:
        raise BadPrompt(
            "template: the tokenizer has no chat template; allowed: Raw, or a model with chat_template.jinja,"
            " or with chat_template in tokenizer_config.json"
        )
    else:
        _check_arguments(given.template_arguments or {}, written)
    _check_markup("assistantPrefix", given.assistant_prefix or "", tokenizer)
    terms = PromptTerms(
        template=template,
        system=given.system,
        assistant_prefix=given.assistant_prefix or "",
        template_arguments=given.template_arguments or {},
        tokenizer_digest=tokenizer_digest(folder),
    )
    if template == "Chat":
        _check_template(tokenizer, terms, _vocabulary(folder))
    if highest := max(stops) if max(stops) >= len(tokenizer) else None:
        raise BadPrompt(
            f"stop token {highest} is none of the tokenizer's {len(tokenizer)} tokens: generation_config.json"
        )
    return terms


def template_end(folder: Path, tokenizer: Any, terms: PromptTerms) -> tuple[str, int | None]:
    """What the template writes behind an answer, and the first stop token of it: without one, a model would go on. Empty where it is not known."""
    if terms.template == "Raw":
        return "", None
    turns = [{"role": "user", "content": PROBE}, {"role": "assistant", "content": ANSWER}]
    try:
        text = tokenizer.apply_chat_template(turns, tokenize=False, **terms.template_arguments)
    except Exception:  # a template that takes no answers of the model is no fault: only prompts are rendered
        return "", None
    end = str(text).rpartition(ANSWER)[2]
    stops = eos_token_ids(folder)
    return end, next((each for each in tokenizer.encode(end, add_special_tokens=False) if each in stops), None)


def askable(
    tasks: Sequence[Task],
    environment: Environment,
    tokenizer: Any,
    terms: PromptTerms,
    targets: Sequence[int],
    longest: int,
    folder: Path,
) -> tuple[list[Task], Counter[str]]:
    """The tasks whose prompts can be made and leave room below `longest` tokens, and by reason how many cannot. BadPrompt when none is left.

    `targets`: the lengths that prompts may ask for; the longest text is looked at.
    """
    target = max(targets, default=None)
    vocabulary = _vocabulary(folder)
    if vocabulary is None or vocabulary >= len(tokenizer):
        vocabulary = None  # no token can be outside of it
    kept: list[Task] = []
    reasons: Counter[str] = Counter()
    first = ""
    for task in tasks:
        try:
            reason = _unfit(task, environment, tokenizer, terms, target, longest, vocabulary)
            detail = reason
        except BadPrompt as error:
            reason, detail = "no prompt can be made", str(error)
        if reason is None:
            kept.append(task)
        else:
            reasons[reason.partition(":")[0]] += 1
            first = first or f"task {task.problem_id}: {detail}"
    if not kept:
        raise BadPrompt(f"none of {len(tasks)} tasks can be asked; the first: {first}")
    return kept, reasons


def example(task: Task, environment: Environment, tokenizer: Any, terms: PromptTerms, targets: Sequence[int]) -> str:
    """A prompt as the model sees it, its beginning, for people."""
    pieces = prompt_pieces(tokenizer, environment, task, targets[0] if targets else None, terms)
    return "".join(pieces)[:EXAMPLE_CHARACTERS]


def _unfit(
    task: Task,
    environment: Environment,
    tokenizer: Any,
    terms: PromptTerms,
    target: int | None,
    longest: int,
    vocabulary: int | None,
) -> str | None:
    """Why a task cannot be asked; what stands before a colon is the same for all of its kind."""
    size = sum(
        len(piece.encode(errors="replace")) for piece in prompt_pieces(tokenizer, environment, task, target, terms)
    )
    if size == 0:
        return "the prompt is empty"
    if size + SPARE_TOKENS < longest and vocabulary is None:
        return None
    tokens = prompt_tokens(tokenizer, environment, task, target, terms)
    if not tokens:
        return "the prompt is empty"
    if len(tokens) >= longest:
        return f"the prompt leaves no room for an answer: {len(tokens)} tokens of {longest}"
    if vocabulary is not None and (odd := max(tokens)) >= vocabulary:
        return f"the prompt holds a token that the model does not have: {odd}, it has 0 to {vocabulary - 1}"
    return None


def _template(tokenizer: Any) -> str | None:
    """The text of the chat template that is used where none is named; None where there is none."""
    if not tokenizer.chat_template:
        return None
    try:
        return str(tokenizer.get_chat_template())
    except ValueError:
        names = ", ".join(sorted(tokenizer.chat_template))
        raise BadPrompt(
            f"template: the tokenizer has chat templates {names}, and none is the default; allowed: one named default, or Raw"
        ) from None


def _check_arguments(arguments: dict[str, Any], template: str) -> None:
    for name in arguments:
        if not re.search(rf"\b{re.escape(name)}\b", template):
            raise BadPrompt(
                f"templateArguments.{name}: the chat template reads no such argument; look into it for those that it has"
            )


def _check_markup(field: str, text: str, tokenizer: Any) -> None:
    known = {each.content for each in tokenizer.added_tokens_decoder.values()}
    for found in MARKUP.finditer(text):
        if found.group() not in known:
            raise BadPrompt(
                f"{field}: {found.group()} is no token of the tokenizer; allowed: tokens that it has, or plain text"
            )


def _check_template(tokenizer: Any, terms: PromptTerms, vocabulary: int | None) -> None:
    """Render a short conversation with it."""
    system = [{"role": "system", "content": terms.system}] if terms.system is not None else []
    messages = [*system, {"role": "user", "content": PROBE}]
    text = render(tokenizer, messages, terms.template_arguments)
    for message in messages:
        if message["content"].strip() not in text:
            raise BadPrompt(
                f"{'system' if message in system else 'template'}: the chat template leaves out the {message['role']} message"
            )
    _check_markup("template", text.replace(terms.system or PROBE, PROBE), tokenizer)
    tokens = tokenizer.encode(text, add_special_tokens=False)
    if vocabulary is not None and max(tokens) >= vocabulary:
        raise BadPrompt(f"template: it makes token {max(tokens)}; the model's vocabulary has 0 to {vocabulary - 1}")


def _vocabulary(folder: Path) -> int | None:
    """Tokens that the model knows, where its configuration says it."""
    config = json.loads((folder / "config.json").read_bytes())
    found = config.get("vocab_size", config.get("text_config", {}).get("vocab_size"))
    return int(found) if found is not None else None
