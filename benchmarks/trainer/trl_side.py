"""TRL 1.16.0's GRPOTrainer around a given model, without generation and without a hub: runs in the oracle's environment only.

In: a model and the settings of a loss. Out: a trainer whose real `compute_loss` can be called with a batch of given tokens. Called by `make_golden`
and `measure`.
"""

import tempfile
from typing import Any

import torch
import trl.trainer.utils
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer


def make_trainer(
    model: Any, *, rows: int, group_size: int, rewards: Any = None, rloo: bool = False, **settings: Any
) -> Any:
    """A trainer that takes `rows` completions as one micro-batch and one optimizer step, in training mode.

    With `beta` the batch must bring the reference's log-probabilities: no second model is loaded.
    """
    beta = settings.pop("beta", 0.0)
    kind, config = (RLOOTrainer, RLOOConfig) if rloo else (GRPOTrainer, GRPOConfig)
    arguments = config(
        output_dir=tempfile.mkdtemp(prefix="trl-"),
        per_device_train_batch_size=rows,
        gradient_accumulation_steps=1,
        num_generations=group_size,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        beta=0.0,
        use_cpu=not torch.cuda.is_available(),
        **({"bf16": False, "gradient_checkpointing": False} | settings),
    )
    trainer = kind(
        model=model,
        reward_funcs=rewards if rewards is not None else _no_reward,
        args=arguments,
        train_dataset=Dataset.from_dict({"prompt": ["2 3 4"] * rows}),
        processing_class=small_tokenizer(model.config.vocab_size),
    )
    trainer.beta = beta
    trainer.current_gradient_accumulation_steps = 1  # what `train()` sets before the first batch
    trainer.model.train()
    return trainer


def padded_batch(
    prompts: list[list[int]],
    completions: list[list[int]],
    advantages: list[float],
    old: list[list[float]],
    reference: list[list[float]] | None = None,
    importance: list[list[float]] | None = None,
) -> dict[str, torch.Tensor]:
    """What `_generate_and_score_completions` would hand to the loss: prompts padded on the left, completions on the right."""
    prompt_width, width = max(map(len, prompts)), max(map(len, completions))
    masks = [[1] * len(row) for row in completions]
    batch = {
        "prompt_ids": torch.tensor([[0] * (prompt_width - len(row)) + row for row in prompts]),
        "prompt_mask": torch.tensor([[0] * (prompt_width - len(row)) + [1] * len(row) for row in prompts]),
        "completion_ids": _right(completions, width, 0),
        "completion_mask": _right(masks, width, 0),
        "advantages": torch.tensor(advantages, dtype=torch.float32),
        "old_per_token_logps": _right(old, width, 0.0),
        "num_items_in_batch": torch.tensor(sum(map(len, completions))),
    }
    if reference is not None:
        batch["ref_per_token_logps"] = _right(reference, width, 0.0)
    if importance is not None:
        batch["importance_sampling_ratio"] = _right(importance, width, 1.0)
    return batch


def force_completion_only_head() -> None:
    """Let TRL score completion tokens only, as it does on accelerators; without one it scores every position, padding too.

    The tiles themselves stay torch's: the kernel's own module asks again which device it is on.
    """
    trl.trainer.utils._use_triton = lambda device: True


def _right(rows: list[list[Any]], width: int, padding: Any) -> torch.Tensor:
    return torch.tensor([row + [padding] * (width - len(row)) for row in rows])


def _no_reward(completions: list[Any], **_: Any) -> list[float]:
    return [0.0] * len(completions)


def small_tokenizer(vocabulary: int) -> PreTrainedTokenizerFast:
    """One token a word, the words are numbers: the trainer wants a tokenizer, the loss never asks it."""
    words = {str(number): number for number in range(vocabulary)}
    special = {"pad_token": "0", "eos_token": "1", "unk_token": "0"}
    tokenizer = Tokenizer(models.WordLevel(words, "0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)
