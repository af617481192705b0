"""What the islands of the benchmark learn: additions with a scratchpad, byte by byte, on a tiny Qwen3.

In: seeds. Out: rows, and a policy with its optimizer. The updates are the trainer's own (`shoal.training.sft.method`). Called by `islands`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from shoal.contracts.sft import SftDataset, SftSettings
from shoal.training.model import Policy, load_policy
from shoal.training.optimizer import Optimizer, cosine_rate
from shoal.training.rollouts import Sample
from shoal.training.sft.method import batch_of, held_out_loss, learn

END, VOCABULARY, PACK = 256, 258, 512
HELD_OUT_ROWS = 128
LEARNING_RATE, WARMUP_STEPS = 2e-3, 10


def row(prompt: Sequence[int], completion: Sequence[int]) -> Sample:
    """A row of which the completion is learnt."""
    count = len(completion)
    return Sample(
        bytes(prompt).decode("latin-1"), np.array([*prompt, *completion]), len(prompt), np.ones(count, bool),
        np.zeros(count, np.float32), 1.0, 0, 0.0, 0.0, 0.0,
    )  # fmt: skip


def addition(chance: np.random.Generator, *, held_out: bool) -> Sample:  # hardly any is drawn twice
    """`12+34=` and `<2+4+0=6,1+3+0=4>46`."""
    first, second = (int(value) for value in chance.integers(0, 1000, 2))
    steps, carry = [], 0
    for a, b in zip(f"{first:03d}"[::-1], f"{second:03d}"[::-1], strict=True):
        total = int(a) + int(b) + carry
        steps.append(f"{a}+{b}+{carry}={total}")
        carry = total // 10
    return row(list(f"{first}+{second}=".encode()), [*f"<{','.join(steps)}>{first + second}".encode(), END])


def write_base(folder: Path, hidden: int, layers: int, seed: int) -> Path:
    """A random model with weights of its own for the head."""
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=VOCABULARY, hidden_size=hidden, intermediate_size=3 * hidden, num_hidden_layers=layers,
        num_attention_heads=4, num_key_value_heads=2, head_dim=32, max_position_embeddings=256,
        tie_word_embeddings=False, eos_token_id=END, bos_token_id=None, pad_token_id=END + 1, dtype="float32",
    )  # fmt: skip
    Qwen3ForCausalLM(config).save_pretrained(folder)
    return folder


class Draw(Protocol):
    """Draws one row."""

    def __call__(self, chance: np.random.Generator, *, held_out: bool) -> Sample: ...


@dataclass
class Learner:
    """One model in training. Rows of update `u` are drawn from (seed, worker, u): islands never see one another's, nor any twice."""

    policy: Policy
    optimizer: Optimizer
    seed: int
    draw: Draw
    pack: int
    tokens: int = 0

    @classmethod
    def start(cls, base: Path, seed: int, updates: int, draw: Draw = addition, pack: int = PACK) -> "Learner":
        """A learner that will make so many updates: its learning rate falls to nothing over them, as in every long run."""
        torch.set_num_threads(1)
        settings = SftSettings(
            dataset=SftDataset(path="/none"),
            learning_rate=LEARNING_RATE,
            warmup_steps=WARMUP_STEPS,
            max_sequence_length=pack,
        )
        policy = load_policy(base)
        optimizer = Optimizer(policy.parameters(), settings, lambda done: cosine_rate(settings, done, updates))
        return cls(policy, optimizer, seed, draw, pack)

    @property
    def parameters(self) -> dict[str, torch.Tensor]:
        return {name: value for name, value in self.policy.named_parameters() if value.requires_grad}

    def update(self, number: int, workers: list[int], rows: int) -> float:
        """One optimizer step on the rows of these workers; its loss."""
        chosen = []
        for worker in workers:
            chance = np.random.default_rng([self.seed, worker, number])
            chosen += [self.draw(chance, held_out=False) for _ in range(rows)]
        batch = batch_of(chosen, self.pack)
        self.tokens += batch.tokens
        return learn(self.policy, self.optimizer, [batch], self.pack, lambda: None).loss

    def held_out(self) -> float:
        """Mean loss over completion tokens of rows that no worker draws (nats)."""
        chance = np.random.default_rng([self.seed, 1 << 20])
        rows = batch_of([self.draw(chance, held_out=True) for _ in range(HELD_OUT_ROWS)], self.pack)
        return float(held_out_loss(self.policy, rows, lambda: None))
