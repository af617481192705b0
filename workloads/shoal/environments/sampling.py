"""A plain sampler for small models in transformers: how often are a model's sampled answers right?

In: a model, its tokenizer, tasks with target lengths. Out: completions, or the share of them that score 1. For prepare and
tests, where a serving engine would be more work than the sampling; rollouts of a run are never made with it.
"""

from collections import defaultdict
from collections.abc import Sequence

import torch
from transformers import DynamicCache, PreTrainedModel, PreTrainedTokenizerFast

from shoal.contracts.tasks import Task
from shoal.environments.base import Environment, Score
from shoal.environments.prompts import prompt_tokens
from shoal.environments.tokens import completion_text

MARGIN = 2
"""A completion may be this many times as long as the longest gold answer; past that it would not be right any more."""


@torch.inference_mode()
def sample(
    model: PreTrainedModel, prompts: Sequence[Sequence[int]], max_tokens: int, seed: int, temperature: float = 1.0
) -> list[list[int]]:
    """One completion (token ids, with its end token if it came to it) for each prompt, drawn from the full softmax."""
    generator = torch.Generator().manual_seed(seed)
    by_length: dict[int, list[int]] = defaultdict(list)
    for index, prompt in enumerate(prompts):
        by_length[len(prompt)].append(index)
    completions: list[list[int]] = [[] for _ in prompts]
    for indices in by_length.values():  # prompts of one length need no padding
        drawn = _sample_batch(model, [prompts[index] for index in indices], max_tokens, generator, temperature)
        for index, row in zip(indices, drawn, strict=True):
            end = model.config.eos_token_id
            completions[index] = row[: row.index(end) + 1] if end in row else row
    return completions


def _sample_batch(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    max_tokens: int,
    generator: torch.Generator,
    temperature: float,
) -> list[list[int]]:
    """`max_tokens` tokens for each prompt (fewer when all have ended); what follows an end token means nothing."""
    tokens = torch.tensor([list(prompt) for prompt in prompts])
    cache = DynamicCache(config=model.config)
    ended = torch.zeros(len(prompts), dtype=torch.bool)
    drawn: list[torch.Tensor] = []
    for _ in range(max_tokens):
        logits = model(input_ids=tokens, past_key_values=cache, use_cache=True).logits[:, -1]
        tokens = torch.multinomial(torch.softmax(logits / temperature, dim=-1), 1, generator=generator)
        drawn.append(tokens)
        ended |= tokens[:, 0] == model.config.eos_token_id
        if ended.all():
            break
    rows: list[list[int]] = torch.cat(drawn, dim=1).tolist()
    return rows


def pass_rate(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    environment: Environment,
    asked: Sequence[tuple[Task, int | None]],
    seed: int,
) -> float:
    """Share of (task, target length) pairs whose one sampled answer at temperature 1 scores 1."""
    prompts = [prompt_tokens(tokenizer, environment, task, target, None) for task, target in asked]
    longest = max(len(tokenizer.encode(environment.gold(task), add_special_tokens=False)) for task, _ in asked)
    ends = frozenset([model.config.eos_token_id])
    right = 0
    for (task, _), tokens in zip(asked, sample(model, prompts, MARGIN * longest, seed), strict=True):
        scored = environment.score(task, completion_text(tokenizer, tokens, ends))
        right += isinstance(scored, Score) and scored.task_reward == 1.0
    return right / len(asked)
