"""Four real tokenizers with their chat templates, each in a folder that looks like a checkpoint's, and prompts that are rendered with all of them.

Run as a program, it writes what transformers' `apply_chat_template` makes of them to `golden_prompts.json`, which tests compare `prompt_tokens` with.
"""

import functools
import json
import shutil
import sys
from pathlib import Path
from typing import Any

from tools.fetch_tokenizers import CannotFetch, fetched

from servers import lacking
from shoal.contracts.prompts import PromptSettings
from shoal.contracts.tasks import ChatMessage, Task

GOLDEN = Path(__file__).with_name("golden_prompts.json")
STOPS: dict[str, int | list[int]] = {
    "qwen3": [151645, 151643],
    "llama3_1": [128001, 128008, 128009],
    "deepseek_v3": 1,
    "gemma3": [1, 106],
}
"""`eos_token_id` of the generation configurations of Qwen3-8B, Llama-3.1-8B-Instruct, DeepSeek-V3 and gemma-3-27b-it."""
MODEL_TYPES = {"qwen3": "qwen3", "llama3_1": "llama", "deepseek_v3": "deepseek_v3", "gemma3": "gemma3"}
VOCABULARY = {"qwen3": 151_936, "llama3_1": 128_256, "deepseek_v3": 129_280, "gemma3": 262_208}
FAMILIES = sorted(STOPS)


def talk(*turns: tuple[str, str]) -> list[ChatMessage]:
    return [ChatMessage(role=role, content=content) for role, content in turns]


TURNS = talk(("system", "You are terse."), ("user", "What is 2+3?"), ("assistant", "5"), ("user", "And 7 more?"))
CASES: dict[str, tuple[Any, int | None, PromptSettings]] = {
    "problem": ("What is 1/2 + 1/3?", None, PromptSettings()),
    "length": ("What is 1/2 + 1/3?", 2000, PromptSettings()),
    "system": ("What is 1/2 + 1/3?", None, PromptSettings(system="Think step by step.")),
    "prefix": ("What is 1/2 + 1/3?", 1000, PromptSettings(assistant_prefix="<think>\n")),
    "turns": (TURNS, None, PromptSettings(system="is not used: the row brings its own")),
    "unicode": ("Löse: ∑ 1/n² = ?\n  日本語 🙂", None, PromptSettings()),
}
OWN_CASES = {
    "qwen3": {"no thinking": ("What is 1/2 + 1/3?", 500, PromptSettings(template_arguments={"enable_thinking": False}))}
}
"""Of one family only."""


def cases(family: str) -> dict[str, tuple[Any, int | None, PromptSettings]]:
    return CASES | OWN_CASES.get(family, {})


def task(prompt: Any) -> Task:
    return Task(problem_id="p", task_type="math", prompt=prompt, verification_info={"answer": "5/6"})


@functools.cache
def checkpoint(family: str) -> Path:
    """Tokenizer, configuration and generation configuration; no weights."""
    try:
        source = fetched(family)
    except CannotFetch as error:
        lacking(f"the tokenizer {family}", str(error))
    folder = source.with_name(f"{source.name}-checkpoint")
    if not (folder / "ready").is_file():
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(source, folder)
        config = {"model_type": MODEL_TYPES[family], "vocab_size": VOCABULARY[family], "eos_token_id": 0}
        (folder / "config.json").write_text(json.dumps(config))
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": STOPS[family]}))
        (folder / "ready").touch()
    return folder


def record() -> dict[str, dict[str, list[int]]]:
    """By transformers alone, from messages that are written out here, without a line of ours."""
    from transformers import PreTrainedTokenizerFast

    instruction = "\nPut the final answer into \\boxed{}."
    found: dict[str, dict[str, list[int]]] = {}
    for family in FAMILIES:
        tokenizer = PreTrainedTokenizerFast.from_pretrained(checkpoint(family))
        found[family] = {}
        for name, (prompt, length, settings) in cases(family).items():
            turns = [("user", prompt)] if isinstance(prompt, str) else [(each.role, each.content) for each in prompt]
            wish = f" Think for {length} tokens before giving a response." if length else ""
            messages = [{"role": role, "content": content} for role, content in turns]
            messages[-1]["content"] += instruction + wish
            if settings.system and messages[0]["role"] != "system":
                messages.insert(0, {"role": "system", "content": settings.system})
            more = settings.template_arguments or {}
            if settings.assistant_prefix is None:
                tokens = tokenizer.apply_chat_template(
                    messages, add_generation_prompt=True, tokenize=True, return_dict=False, **more
                )
            else:
                text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False, **more)
                tokens = tokenizer.encode(text + settings.assistant_prefix, add_special_tokens=False)
            found[family][name] = list(tokens)
    return found


if __name__ == "__main__":
    rows = {family: {name: json.dumps(ids) for name, ids in each.items()} for family, each in record().items()}
    text = json.dumps(rows, indent=1, sort_keys=True).replace('"[', "[").replace(']"', "]")
    GOLDEN.write_text(text + "\n")
    sys.stdout.write(f"{GOLDEN}: written\n")
