"""The model and the batch that golden values are made with: numbers from a formula, so that no random generator has to stay the same.

In: nothing. Out: a tiny Qwen3 in float32, prompts, completions, advantages. Called by `benchmarks/trainer/make_golden.py` in the oracle's environment
and by `test_golden_trl` in ours.
"""

from typing import Any

import numpy as np
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

VOCABULARY = 64
ROWS, GROUP_SIZE = 8, 4
TEMPERATURE = 0.9


def golden_model() -> Any:
    """Two layers of width 32 (30 thousand parameters), untied."""
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=VOCABULARY,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=16,
            max_position_embeddings=128,
            tie_word_embeddings=False,
            eos_token_id=1,
            bos_token_id=None,
            pad_token_id=0,
            dtype="float32",
        )
    ).float()
    with torch.no_grad():
        for number, (name, parameter) in enumerate(sorted(model.named_parameters())):
            values = wave(parameter.numel(), number).reshape(parameter.shape)
            parameter.copy_(torch.from_numpy(1 + 0.1 * values if "norm" in name else 0.3 * values))
    return model


def wave(count: int, number: int) -> np.ndarray:
    """`count` numbers in [-1, 1] without a pattern that matters, different for each `number`; float64."""
    return np.sin(12.9898 * (np.arange(count) + 1.0) + 78.233 * number + 0.37 * np.sqrt(np.arange(count) + 1.0))


def prompts() -> list[list[int]]:
    """Of 3 to 10 tokens; the rows of a group share one."""
    groups = [tokens(3 + 7 * group, 100 + group) for group in range(ROWS // GROUP_SIZE)]
    return [groups[row // GROUP_SIZE] for row in range(ROWS)]


def completions() -> list[list[int]]:
    """Of 2 to 16 tokens."""
    return [tokens(2 + 2 * row, 200 + row) for row in range(ROWS)]


def advantages() -> list[float]:
    return [round(1.7 * float(value), 3) for value in wave(ROWS, 300)]


def tokens(count: int, number: int) -> list[int]:
    return (2 + np.floor((wave(count, number) + 1) / 2 * (VOCABULARY - 3))).astype(int).tolist()


def moved(logprobs: list[float], number: int, reach: float) -> list[float]:
    """Log-probabilities of another policy: each moved by at most `reach`, none above 0."""
    return [
        min(0.0, round(value + reach * float(by), 6))
        for value, by in zip(logprobs, wave(len(logprobs), number), strict=True)
    ]
