"""A tiny chat model: Qwen3's tokenizer and chat template with the vocabulary cut to a thousand tokens, and a Qwen3 of half a million parameters.

`cut_tokenizer` needs the real tokenizer (`tools/fetch_tokenizers.py`); `taught_model` teaches additions in chat prompts for some seconds.
`python chat_model.py FOLDER` makes the model.
"""

import json
import random
import sys
from pathlib import Path
from typing import Any

import torch
from real_tokenizers import checkpoint

from shoal.contracts.prompts import PromptSettings
from shoal.contracts.recipe import GeneratedModel
from shoal.environments.arithmetic import Arithmetic, operands
from shoal.environments.generated_model import Lesson, _teach, random_model
from shoal.environments.prompt_check import decided
from shoal.environments.prompts import load_tokenizer, prompt_tokens
from shoal.environments.slips import learners_addition
from shoal.environments.tokens import eos_token_ids

KEPT = 1000
"""Tokens of the byte-pair vocabulary: all bytes, and the first merges. The added tokens follow."""
SETTINGS = PromptSettings(system="Add.", template_arguments={"enable_thinking": False})
BATCH, LEARNING_RATE, WARM_UP = 64, 3e-3, 20


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


def taught_model(folder: Path, updates: int, seed: int = 0) -> float:
    """Write the checkpoint; returns the last loss."""
    cut_tokenizer(folder)
    stops = (folder / "generation_config.json").read_bytes()
    tokenizer, environment = load_tokenizer(folder), Arithmetic()
    torch.manual_seed(seed)
    chance = random.Random(seed)
    model = random_model(GeneratedModel(), tokenizer, 128)
    terms = decided(SETTINGS, folder, tokenizer)
    end = min(eos_token_ids(folder) - {tokenizer.pad_token_id})
    tasks = environment.tasks(4096, seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.0)
    loss = 0.0
    for step in range(1, updates + 1):
        lessons = [
            Lesson(
                prompt_tokens(tokenizer, environment, task, None, terms),
                [
                    *tokenizer.encode(learners_addition(*operands(task), chance, slips=0.3), add_special_tokens=False),
                    end,
                ],
            )
            for task in chance.choices(tasks, k=BATCH)
        ]
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * min(1.0, step / WARM_UP)
        loss = _teach(model, lessons, tokenizer.pad_token_id)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(folder)
    (folder / "generation_config.json").write_bytes(stops)
    return loss


if __name__ == "__main__":
    sys.stdout.write(f"loss {taught_model(Path(sys.argv[1]), int(sys.argv[2])):.3f}\n")
