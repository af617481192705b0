"""Last hidden states of a model in transformers: as a worker has them while it decodes, and as a validator computes them again.

In: a causal language model and token ids. Out: float32 states after the final norm, one row for each completion token: the state that it was drawn
from. Called by `calibration`, which compares the two. A serving engine's kernels differ from these; `benchmarks/toploc` measures vLLM's.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import DynamicCache

from shoal.models.head import logits_of
from shoal.toploc.top_points import Float32

PREFILL_TOKENS = 32_768
"""Of one pass over several sequences, at most: activations and keys of more do not fit beside a large model."""


Draw = Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor]
"""Takes logits float32 [rows, vocabulary], the tokens that were just read [rows, read] and the step's number from 0; gives tokens int64 [rows]."""


@dataclass(frozen=True)
class Decoded:
    """One sequence: token ids, and the states [len(completion), hidden size] that decoding saw."""

    prompt: list[int]
    completion: list[int]
    states: Float32


def decode(
    model: Any, prompts: Sequence[Sequence[int]], max_tokens: int, seed: int, batch: int, temperature: float = 1.0
) -> Iterator[list[Decoded]]:
    """Sample completions with a cache of keys and values; yields each batch when it is done.

    At most `batch` prompts of one length go together, and no more of them than `PREFILL_TOKENS` allow.
    """
    device = next(model.parameters()).device
    generator = torch.Generator(device=device).manual_seed(seed)

    def draw(logits: torch.Tensor, read: torch.Tensor, step: int) -> torch.Tensor:
        chances = torch.softmax(logits / temperature, dim=-1).to(device)  # a placed model ends on another device
        return torch.multinomial(chances, 1, generator=generator)[:, 0]

    by_length: dict[int, list[list[int]]] = defaultdict(list)
    for prompt in prompts:
        by_length[len(prompt)].append(list(prompt))  # prompts of one length need no padding
    for length, group in by_length.items():
        rows = max(1, min(batch, PREFILL_TOKENS // max(1, length)))
        for start in range(0, len(group), rows):
            yield decode_batch(model, group[start : start + rows], max_tokens, draw)


@torch.inference_mode()
def decode_batch(model: Any, prompts: Sequence[Sequence[int]], max_tokens: int, draw: Draw) -> list[Decoded]:
    """Completions of prompts of one length, all together, in their order."""
    device = next(model.parameters()).device
    tokens = torch.tensor(prompts, device=device)
    ends = torch.tensor(_ends(model), device=device)
    cache = DynamicCache(config=model.config)
    ended = torch.zeros(len(prompts), dtype=torch.bool, device=device)
    drawn, states = [], []
    for step in range(max_tokens):
        last = model.model(input_ids=tokens, past_key_values=cache, use_cache=True).last_hidden_state[:, -1]
        tokens = draw(logits_of(model, last), tokens, step)[:, None]
        drawn.append(tokens)
        states.append(last.float().cpu())
        ended |= torch.isin(tokens[:, 0], ends)
        if ended.all():
            break
    rows = torch.stack(states, dim=1).numpy()
    decoded = []
    for prompt, completion, row in zip(prompts, torch.cat(drawn, dim=1).tolist(), rows, strict=True):
        end = next((i for i, token in enumerate(completion) if token in _ends(model)), len(completion) - 1)
        decoded.append(Decoded(list(prompt), completion[: end + 1], row[: end + 1]))
    return decoded


@torch.inference_mode()
def prefill(model: Any, sequences: Sequence[Decoded], batch: int) -> list[Float32]:
    """States of the same tokens in passes over `batch` whole sequences, fewer where they are long (`PREFILL_TOKENS`).

    Padding follows the text, where causal attention cannot see it.
    """
    device = next(model.parameters()).device
    states: list[Float32] = []
    for part in _passes(sequences, batch):
        width = max(len(each.prompt) + len(each.completion) for each in part)
        tokens = torch.zeros((len(part), width), dtype=torch.long, device=device)
        for row, each in enumerate(part):
            tokens[row, : len(each.prompt) + len(each.completion)] = torch.tensor([*each.prompt, *each.completion])
        hidden = model.model(input_ids=tokens, use_cache=False).last_hidden_state
        for row, each in enumerate(part):
            # The state at position p is what token p+1 was drawn from.
            first = len(each.prompt) - 1
            states.append(hidden[row, first : first + len(each.completion)].float().cpu().numpy())
    return states


def _passes(sequences: Sequence[Decoded], batch: int) -> Iterator[Sequence[Decoded]]:
    """The sequences in their order, at least one a pass."""
    start = widest = 0
    for number, each in enumerate(sequences):
        widest = max(widest, len(each.prompt) + len(each.completion))
        if number > start and (number - start == batch or (number + 1 - start) * widest > PREFILL_TOKENS):
            yield sequences[start:number]
            start, widest = number, len(each.prompt) + len(each.completion)
    if start < len(sequences):
        yield sequences[start:]


def _ends(model: Any) -> list[int]:
    settings = getattr(model, "generation_config", None)  # as it stops when it is served
    found = getattr(settings, "eos_token_id", None) or model.config.eos_token_id
    return [] if found is None else [found] if isinstance(found, int) else list(found)
