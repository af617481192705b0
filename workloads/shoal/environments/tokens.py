"""Between text and tokens: the prompt that a worker samples from, and the text of a completion that is scored.

Workers and validators must agree on both to the last token, so both call this module with the tokenizer of the
policy's checkpoint. No special tokens are added to a prompt: a prompt that wants them writes them.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from shoal.contracts.tasks import Task
from shoal.environments.base import Environment


class Tokenizer(Protocol):
    """What is used of a Hugging Face tokenizer."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool, clean_up_tokenization_spaces: bool) -> str: ...


def prompt_tokens(tokenizer: Tokenizer, environment: Environment, task: Task, target_length: int | None) -> list[int]:
    """Token ids of the prompt of a task with a target length (tokens) or None."""
    return tokenizer.encode(environment.prompt(task, target_length), add_special_tokens=False)


def completion_text(tokenizer: Tokenizer, tokens: Sequence[int], eos_token_ids: frozenset[int]) -> str:
    """Text of a completion: without its end-of-sequence token, every other special token written out."""
    kept = list(tokens)
    if kept and kept[-1] in eos_token_ids:
        kept.pop()
    return tokenizer.decode(kept, skip_special_tokens=False, clean_up_tokenization_spaces=False)


def eos_token_ids(folder: Path) -> frozenset[int]:
    """End-of-sequence token ids of a checkpoint: those of `config.json` and of `generation_config.json` together.

    Raises ValueError when there is none, for then no completion would ever end, and OSError when `config.json` cannot
    be read.
    """
    found: set[int] = set()
    for name in ("config.json", "generation_config.json"):
        path = folder / name
        if name == "config.json" or path.exists():
            value = json.loads(path.read_bytes()).get("eos_token_id")
            found |= {value} if isinstance(value, int) else set(value or [])
    if not found:
        raise ValueError(f"{folder}: neither config.json nor generation_config.json gives eos_token_id")
    return frozenset(found)
