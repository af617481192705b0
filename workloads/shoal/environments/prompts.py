"""The one place where a task becomes the tokens that a model continues: for rollouts, validation, calibration, supervised rows and evaluation.

In: a tokenizer, an environment, a task with a target length, and the `PromptTerms` that prepare pinned. Out: token ids. transformers'
`apply_chat_template` is the authority on templates. Everybody must agree to the last token, so nothing here depends on anything else.

With `Chat` the messages of a task keep their roles, and the environment's words (instruction, request for a length) go into the last of them. What
messages hold is text: where it spells a control token, such as `<|im_end|>`, it is encoded in two halves, and the model sees the letters. With `Raw`
the environment's text is encoded as it is, and a control token in it is one; so it is without terms, as in runs prepared before there were any.

The functions of an environment with turns (`turns`) stand in the prompt. The template's own words list them if these ask for calls as `turns`
reads them, else ours do, in the system message.

A prompt is rendered once. What follows is appended as tokens, and no template sees it again: templates need not be stable over turns.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.contracts.prompts import PromptTerms
from shoal.contracts.tasks import Task
from shoal.environments.base import Environment
from shoal.environments.tokens import Tokenizer, eos_token_ids

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
)
"""What tokens and templates depend on, in a checkpoint's folder; only the first must be there."""
BARS = "[|\uff5c]"
MARKUP = re.compile(rf"<{BARS}[^<>|\s\uff5c]{{1,64}}{BARS}>")
"""How most tokenizers spell control tokens, whether they declare them special or not: `<|im_end|>`, with DeepSeek the bars are full-width."""
CALL, CALL_END = "<tool_call>", "</tool_call>"
"""Around a call of a function, as Qwen, Hermes and others are trained to write it."""
HOW_TO_CALL = (
    "You may call functions. To call one, end your turn with\n"
    f'{CALL}\n{{"name": NAME, "arguments": {{...}}}}\n{CALL_END}\nand the next message has its answer. The functions, one a line:\n'
)
FIRST_MARK, LAST_MARK = 0xE000, 0xF8FF
"""Characters without a meaning (Unicode's private use area)."""


class BadPrompt(ValueError):
    """No prompt can be made; the message says of what and why."""


class WrongTokenizer(RuntimeError):
    """The tokenizer is not the one that prepare decided for."""


def prompt_tokens(
    tokenizer: Tokenizer, environment: Environment, task: Task, target_length: int | None, terms: PromptTerms | None
) -> list[int]:
    """Token ids of the prompt of a task with a target length (tokens) or None. Raises BadPrompt."""
    pieces = prompt_pieces(tokenizer, environment, task, target_length, terms)
    return [token for piece in pieces for token in tokenizer.encode(piece, add_special_tokens=False)]


def prompt_pieces(
    tokenizer: Tokenizer, environment: Environment, task: Task, target_length: int | None, terms: PromptTerms | None
) -> list[str]:
    """The text of a prompt, in pieces that are encoded each by itself: one, unless a message spells a control token."""
    terms = terms.of(task.task_type) if terms is not None else None
    if terms is None or terms.template == "Raw":
        return [environment.prompt(task, target_length) + (terms.assistant_prefix if terms is not None else "")]
    messages = _messages(environment, task, target_length, terms.system)
    control = _control_pattern(tokenizer)
    arguments = terms.template_arguments
    has_turns = hasattr(environment, "answers") and hasattr(
        environment, "most_turns"
    )  # a `turns.WithTurns`, which imports this
    if has_turns and (functions := getattr(environment, "functions", None)):
        check_functions(functions)
        listed = "\n".join(json.dumps(each) for each in functions)
        if control.search(listed):
            raise BadPrompt(
                "a function of the environment spells a control token in its name, description or parameters"
            )
        if _has_words_for_calls(tokenizer, listed, json.dumps(arguments)):
            arguments = arguments | {"tools": _as_tools(functions)}
        else:
            messages = _told(messages, HOW_TO_CALL + listed)
    mark = ""
    if any(control.search(message["content"]) for message in messages):
        mark = _unused_character("".join(message["content"] for message in messages))
        messages = [{**message, "content": control.sub(_halved(mark), message["content"])} for message in messages]
    text = render(tokenizer, messages, arguments)
    for number, message in enumerate(messages):  # of the model's own turns a template may leave out the thoughts
        if message["role"] != "assistant" and message["content"].strip() not in text:
            raise BadPrompt(
                f"the template leaves out message {number + 1} ({message['role']}), or changes its words: {message['content'][:60]!r}"
            )
    text += terms.assistant_prefix
    return text.split(mark) if mark else [text]


def check_functions(functions: Sequence[Any]) -> None:
    """BadPrompt when one of an environment's functions cannot be told and called by a name of its own."""
    names: set[str] = set()
    for number, each in enumerate(functions, 1):
        what = f"function {number} of the environment"
        if not isinstance(each, Mapping):
            raise BadPrompt(
                f"{what} must be an object with name, description and parameters; it is of type {type(each).__name__}"
            )
        name = each.get("name")
        if not isinstance(name, str) or not name:
            raise BadPrompt(f"{what} has no name: a text by which the model calls it")
        if name in names:
            raise BadPrompt(f"{what} has the name {name[:60]!r} of another: a model could not call both")
        names.add(name)


def render(tokenizer: Any, messages: Sequence[dict[str, str]], arguments: dict[str, Any]) -> str:
    """The tokenizer's own template of these messages, up to where the model's turn begins. Raises BadPrompt, whatever the template does."""
    try:
        found = tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True, **arguments)
    except Exception as error:  # a template is a program of the model's author
        said = " ".join(str(error).split())[:300]
        raise BadPrompt(f"the chat template fails: {type(error).__name__}: {said}") from error
    if not isinstance(found, str) or not found:
        raise BadPrompt("the chat template gives no text")
    return found


@lru_cache(maxsize=64)
def _has_words_for_calls(tokenizer: Any, listed: str, arguments: str) -> bool:
    """Whether the template lists functions (JSON, one a line), and asks for calls between `CALL` and `CALL_END`. Asked without any task."""
    functions = [json.loads(each) for each in listed.split("\n")]
    messages = [{"role": "user", "content": "Tell me."}]
    try:
        text = render(tokenizer, messages, json.loads(arguments) | {"tools": _as_tools(functions)})
    except BadPrompt:
        return False
    return all(each in text for each in (CALL, CALL_END, *(str(function["name"]) for function in functions)))


def _as_tools(functions: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [{"type": "function", "function": dict(each)} for each in functions]


def _told(messages: list[dict[str, str]], words: str) -> list[dict[str, str]]:
    """The same messages, with these words at the end of the system message."""
    first = messages[0]
    if first["role"] == "system":
        return [{**first, "content": f"{first['content']}\n\n{words}"}, *messages[1:]]
    return [{"role": "system", "content": words}, *messages]


def encode_text(tokenizer: Tokenizer, text: str) -> list[int]:
    """Token ids of text that somebody else wrote, such as a tool's output: what spells a control token is encoded in two halves."""
    pieces, start = [], 0
    for found in _control_pattern(tokenizer).finditer(text):
        pieces.append(text[start : found.start() + 1])
        start = found.start() + 1
    return [
        token
        for piece in [*pieces, text[start:]]
        if piece
        for token in tokenizer.encode(piece, add_special_tokens=False)
    ]


@lru_cache(maxsize=8)
def _control_pattern(tokenizer: Any) -> re.Pattern[str]:
    """Matches the control tokens: those that the tokenizer declares special, and added ones that are spelt like `<|...|>`. Longest first."""
    added = tokenizer.added_tokens_decoder.values()
    spelt = {each.content for each in added if each.special or MARKUP.fullmatch(each.content)}
    found = sorted((each for each in spelt if len(each) > 1), key=lambda each: (-len(each), each))
    return re.compile("|".join(map(re.escape, found)) or r"(?!)")


def load_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """The tokenizer that `tokenizer.json` in a checkpoint's folder describes.

    Not by AutoTokenizer, whose classes put their own splitting in the place of the file's: DeepSeek-V3's would lose the spaces (transformers 5.19).
    """
    from transformers import PreTrainedTokenizerFast  # seconds to import

    return PreTrainedTokenizerFast.from_pretrained(folder)


def pinned_tokenizer(folder: Path, *pinned: PromptTerms | None) -> PreTrainedTokenizerFast:
    """The tokenizer in a folder, if it is the one that all these terms were decided for. Raises WrongTokenizer."""
    found = tokenizer_digest(folder) if any(pinned) else ""
    for terms in pinned:
        if terms is not None and terms.tokenizer_digest != found:
            raise WrongTokenizer(
                f"{folder}: tokenizer, chat template and stop tokens have digest {found[:12]}..., the run pins"
                f" {terms.tokenizer_digest[:12]}...: prompts would be others than those that the run was prepared with"
            )
    return load_tokenizer(folder)


def tokenizer_digest(folder: Path) -> str:
    """SHA-256 (hex) over `TOKENIZER_FILES` and the stop tokens of a checkpoint. Raises what `eos_token_ids` raises."""
    sha = hashlib.sha256(",".join(map(str, sorted(eos_token_ids(folder)))).encode())
    for name in TOKENIZER_FILES:
        path = folder / name
        if path.is_file():
            sha.update(f"\n{name}\0{hashlib.sha256(path.read_bytes()).hexdigest()}".encode())
    return sha.hexdigest()


def _messages(
    environment: Environment, task: Task, target_length: int | None, system: str | None
) -> list[dict[str, str]]:
    """The messages of a task, the environment's words in the last of them. Raises BadPrompt for an order that no chat has."""
    given = task.prompt
    turns = [("user", given)] if isinstance(given, str) else [(each.role, each.content) for each in given]
    if not turns:
        raise BadPrompt("it has no messages; allowed: a text, or messages that end with one of the user")
    if any(role == "system" for role, _ in turns[1:]):
        raise BadPrompt("a system message is not the first; allowed: one, before all others")
    *before, (role, content) = turns
    if role != "user":
        raise BadPrompt(f"its last message is of role {role!r}; allowed: user, whom the model answers")
    if not content.strip():
        raise BadPrompt("its last message is empty; allowed: what the model is to answer")
    asked = environment.prompt(
        task if isinstance(given, str) else task.model_copy(update={"prompt": content}), target_length
    )
    first = [("system", system)] if system is not None and turns[0][0] != "system" else []
    # The empty lines at the end are where a raw text is continued; a template has its own.
    found = (*first, *before, ("user", asked.rstrip("\n")))
    return [{"role": role, "content": content} for role, content in found]


def _halved(mark: str) -> Any:
    return lambda found: found.group()[0] + mark + found.group()[1:]


def _unused_character(text: str) -> str:
    used = set(text)
    return next(chr(code) for code in range(FIRST_MARK, LAST_MARK + 1) if chr(code) not in used)
