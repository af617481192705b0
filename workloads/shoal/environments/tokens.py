"""What ends a completion, and the text of it that is scored. Workers and validators must agree on both to the last token.

Prompts are made in `prompts`.
"""

import json
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol


class Tokenizer(Hashable, Protocol):
    """What is used of a Hugging Face tokenizer."""

    @property
    def added_tokens_decoder(self) -> Mapping[int, Any]: ...

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool, clean_up_tokenization_spaces: bool) -> str: ...


def completion_text(tokenizer: Tokenizer, tokens: Sequence[int], eos_token_ids: frozenset[int]) -> str:
    """Text of a completion: without its end-of-sequence token, every other special token written out."""
    kept = list(tokens)
    if kept and kept[-1] in eos_token_ids:
        kept.pop()
    return tokenizer.decode(kept, skip_special_tokens=False, clean_up_tokenization_spaces=False)


def eos_token_ids(folder: Path) -> frozenset[int]:
    """Stop tokens of a checkpoint: those of `generation_config.json`, as transformers generates with it, else those of `config.json`.

    Raises ValueError when there is none, for then no completion would ever end, and OSError when `config.json` cannot
    be read.
    """
    for name in ("generation_config.json", "config.json"):
        path = folder / name
        if name == "config.json" or path.exists():
            value = json.loads(path.read_bytes()).get("eos_token_id")
            found = [value] if isinstance(value, int) else list(value or [])
            if any(not isinstance(each, int) or isinstance(each, bool) or each < 0 for each in found):
                raise ValueError(f"{path}: eos_token_id is {value!r}; allowed: a token id, or a list of them")
            if found:
                return frozenset(found)
    raise ValueError(f"{folder}: neither generation_config.json nor config.json gives eos_token_id")
