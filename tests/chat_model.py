"""A tiny chat model: Qwen3's tokenizer and chat template with the vocabulary cut to a thousand tokens, and a Qwen3 of half a million parameters.

`cut_tokenizer` needs the real tokenizer (`tools/fetch_tokenizers.py`); `coin_model` teaches a first answer for some seconds.
"""

import json
from pathlib import Path
from typing import Any

import torch

from real_tokenizers import checkpoint
from shoal.contracts.model_source import GeneratedModel
from shoal.contracts.prompts import PromptSettings
from shoal.contracts.tasks import Task
from shoal.environments.generated_model import Lesson, _teach, random_model
from shoal.environments.math import Math
from shoal.environments.prompt_check import decided
from shoal.environments.prompts import load_tokenizer, prompt_tokens
from shoal.environments.tokens import eos_token_ids

KEPT = 1000
"""Tokens of the byte-pair vocabulary: all bytes, and the first merges. The added tokens follow."""
SETTINGS = PromptSettings(system="Add.", template_arguments={"enable_thinking": False})
LEARNING_RATE = 1e-3
QUESTION = "1 or 2?"
LONGEST = 192
LESSONS = 8


def cut_tokenizer(folder: Path) -> Path:
    """Qwen3's tokenizer with few tokens, and the configurations that name its stop tokens."""
    folder.mkdir(parents=True, exist_ok=True)
    source = checkpoint("qwen3")
    whole: dict[str, Any] = json.loads((source / "tokenizer.json").read_bytes())
    vocabulary = {token: number for token, number in whole["model"]["vocab"].items() if number < KEPT}
    parts = [merge.split(" ") if isinstance(merge, str) else merge for merge in whole["model"]["merges"]]
    whole["model"]["vocab"] = vocabulary
    whole["model"]["merges"] = [[a, b] for a, b in parts if {a, b, a + b} <= vocabulary.keys()]
    renumbered = {each["id"]: KEPT + place for place, each in enumerate(whole["added_tokens"])}
    for each in whole["added_tokens"]:
        each["id"] = renumbered[each["id"]]
    (folder / "tokenizer.json").write_text(json.dumps(whole))
    config = json.loads((source / "tokenizer_config.json").read_bytes())
    config["added_tokens_decoder"] = {
        str(renumbered[int(number)]): each for number, each in config["added_tokens_decoder"].items()
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    ends = [
        next(each["id"] for each in whole["added_tokens"] if each["content"] == name)
        for name in ("<|im_end|>", "<|endoftext|>")
    ]
    shape = {"model_type": "qwen3", "vocab_size": KEPT + len(renumbered), "hidden_size": 128, "eos_token_id": ends[0]}
    (folder / "config.json").write_text(json.dumps(shape))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
    return folder


def coin_model(folder: Path, updates: int = 80) -> None:
    """Write a checkpoint that answers `QUESTION` and a number in a box, with 1 or 2 as a coin says. `updates` of some 0.2 s on a quiet core."""
    cut_tokenizer(folder)
    stops = (folder / "generation_config.json").read_bytes()
    tokenizer, environment = load_tokenizer(folder), Math()
    torch.manual_seed(0)
    model = random_model(GeneratedModel(), tokenizer, LONGEST)
    terms = decided(PromptSettings(), folder, tokenizer)
    end = min(eos_token_ids(folder) - {tokenizer.pad_token_id})
    lessons = [
        Lesson(
            prompt_tokens(tokenizer, environment, task, None, terms),
            [*tokenizer.encode(f"\\boxed{{{side}}}", add_special_tokens=False), end],
        )
        for n in range(LESSONS)
        for task in [
            Task(problem_id=str(n), task_type="math", prompt=f"{QUESTION} {n}", verification_info={"answer": "1"})
        ]
        for side in (1, 2)
    ]
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.0)
    for _ in range(updates):
        _teach(model, lessons, tokenizer.pad_token_id)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(folder)
    (folder / "generation_config.json").write_bytes(stops)
