"""Memory of the head against vocabulary x length: one point a fresh process.

    python -m benchmarks.trainer.head TOKENS VOCABULARY

In: two sizes. Out (printed): peak bytes of loss and both gradients above what states, weight and their two gradients take. Called by `__main__`.
"""

import subprocess
import sys

import torch

from benchmarks.trainer.memory import peak_bytes, set_peak_back
from shoal.training.logprobs import head_loss

HIDDEN = 64
"""Narrow, so that what depends on vocabulary x length is what is seen."""
TOKENS = (1024, 8192)
VOCABULARIES = (8192, 65_536)
FLOAT_BYTES = 4


def table() -> list[dict[str, int]]:
    """A row for each size: bytes beyond arguments and gradients, and what the logits alone would take."""
    rows = []
    for vocabulary in VOCABULARIES:
        for tokens in TOKENS:
            command = [sys.executable, "-m", "benchmarks.trainer.head", str(tokens), str(vocabulary)]
            printed = subprocess.run(command, check=True, capture_output=True, text=True, timeout=600).stdout
            rows.append(
                {
                    "tokens": tokens,
                    "vocabulary": vocabulary,
                    "head_bytes": int(printed.split()[-1]),
                    "logits_bytes": tokens * vocabulary * FLOAT_BYTES,
                }
            )
    return rows


def _point(tokens: int, vocabulary: int) -> int:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    _loss(8, 64)  # libraries that are loaded at the first use
    states = torch.randn(tokens, HIDDEN, requires_grad=True)
    weight = torch.randn(vocabulary, HIDDEN, requires_grad=True)
    gradients = FLOAT_BYTES * (states.numel() + weight.numel())
    targets, temperatures = torch.randint(vocabulary, (tokens,)), torch.ones(tokens)
    before = set_peak_back()
    loss, _, _ = head_loss(states, weight, targets, temperatures, lambda here, logprobs, entropy: -logprobs.sum())
    loss.backward()
    return int(max(0, peak_bytes() - before - gradients))


def _loss(tokens: int, vocabulary: int) -> None:
    states = torch.randn(tokens, HIDDEN, requires_grad=True)
    weight = torch.randn(vocabulary, HIDDEN, requires_grad=True)
    targets, temperatures = torch.randint(vocabulary, (tokens,)), torch.ones(tokens)
    head_loss(states, weight, targets, temperatures, lambda here, logprobs, entropy: -logprobs.sum())[0].backward()


if __name__ == "__main__":
    print(_point(int(sys.argv[1]), int(sys.argv[2])))
