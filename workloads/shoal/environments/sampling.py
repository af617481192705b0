"""A plain sampler for small models in transformers: how often are a model's sampled answers right?

In: a model, its tokenizer, tasks with target lengths. Out: completions, with the outputs of tools that answer at stop texts, or the share of them
that score 1. For prepare, benchmarks and tests, where a serving engine would be more work than the sampling; a run's rollouts are never made with it.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

import torch
from transformers import DynamicCache, PreTrainedModel, PreTrainedTokenizerFast

from shoal.contracts.tasks import Task
from shoal.environments.base import Environment, Score, Unscorable
from shoal.environments.episodes import Tools, WithTools
from shoal.environments.prompts import prompt_tokens
from shoal.environments.tokens import completion_text

MARGIN = 2
"""A completion may be this many times as long as the longest gold answer; past that it would not be right any more."""


Output = Callable[[list[int], list[bool]], list[int] | None]
"""The tokens that a tool puts behind a completion so far, given with its mask; None where the completion ends."""


@dataclass
class SampledRow:
    """A completion as it grows. `mask` is false for what a tool gave; `tokens` and `mask` are of one length."""

    tools: Tools | None = None
    output: Output | None = None
    tokens: list[int] = field(default_factory=list)
    mask: list[bool] = field(default_factory=list)
    ended: bool = False
    _given: deque[int] = field(default_factory=deque)

    def take(self, sampled: int, end: int) -> int:
        """Append the token that was sampled, or the next one that a tool gave. Returns what the model reads next."""
        if self.ended:
            return sampled
        token = self._given.popleft() if self._given else None
        self.tokens.append(sampled if token is None else token)
        self.mask.append(token is None)
        if token is not None:
            return token
        self.ended = sampled == end
        if self.tools is not None and self.output is not None and self.tools.pauses(self._stretch()):
            given = self.output(self.tokens, self.mask)
            self.ended = given is None
            self._given.extend(given or ())
        return sampled

    def _stretch(self) -> list[int]:
        """What the model has written since a tool last wrote."""
        return self.tokens[len(self.mask) - sum(1 for _ in takewhile(bool, reversed(self.mask))) :]


def sample(
    model: PreTrainedModel, prompts: Sequence[Sequence[int]], max_tokens: int, seed: int, temperature: float = 1.0
) -> list[list[int]]:
    """One completion (token ids, with its end token if it came to it) for each prompt, drawn from the full softmax."""
    rows = [SampledRow() for _ in prompts]
    _sample_rows(model, prompts, rows, max_tokens, seed, temperature)
    return [row.tokens for row in rows]


def sample_episodes(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    environment: Environment,
    asked: Sequence[tuple[Task, Sequence[int]]],
    max_tokens: int,
    seed: int,
) -> list[SampledRow]:
    """One completion at temperature 1 for each task and its prompt (token ids); the tools of the environment answer calls.

    `max_tokens` counts tokens of tools too. Raises RuntimeError when a tool fails. The same seed gives the same rows.
    """
    ends = frozenset([model.config.eos_token_id])
    tools = Tools(environment, tokenizer, ends) if isinstance(environment, WithTools) else None
    rows = [SampledRow(tools, _answering(tools, task, max_tokens) if tools is not None else None) for task, _ in asked]
    _sample_rows(model, [prompt for _, prompt in asked], rows, max_tokens, seed, 1.0)
    return rows


def _answering(tools: Tools, task: Task, limit: int) -> Output:
    def output(tokens: list[int], mask: list[bool]) -> list[int] | None:
        given = tools.output(task, tokens, mask, limit)
        if isinstance(given, Unscorable):
            raise RuntimeError(f"task {task.problem_id}: the tool failed: {given.reason}")
        return given

    return output


def _sample_rows(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    rows: Sequence[SampledRow],
    max_tokens: int,
    seed: int,
    temperature: float,
) -> None:
    """Fill one row for each prompt."""
    generator = torch.Generator().manual_seed(seed)
    by_length: dict[int, list[int]] = defaultdict(list)
    for index, prompt in enumerate(prompts):
        by_length[len(prompt)].append(index)
    for indices in by_length.values():  # prompts of one length need no padding
        batch = [rows[index] for index in indices]
        _sample_batch(model, [prompts[index] for index in indices], batch, max_tokens, generator, temperature)


@torch.inference_mode()
def _sample_batch(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    rows: Sequence[SampledRow],
    max_tokens: int,
    generator: torch.Generator,
    temperature: float,
) -> None:
    """At most `max_tokens` tokens for each prompt; all prompts have one length. A prompt that is there several times is read once."""
    places = {prompt: place for place, prompt in enumerate(dict.fromkeys(map(tuple, prompts)))}
    again = torch.tensor([places[tuple(prompt)] for prompt in prompts])
    tokens = torch.tensor(list(places))
    cache = DynamicCache(config=model.config)
    for number in range(max_tokens):
        # Of the last position alone: logits of a whole prompt are its length times the vocabulary.
        logits = model(input_ids=tokens, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[:, -1]
        if number == 0 and len(places) < len(prompts):
            cache.batch_select_indices(again)
            logits = logits[again]
        drawn = torch.multinomial(torch.softmax(logits / temperature, dim=-1), 1, generator=generator)[:, 0].tolist()
        taken = [row.take(token, model.config.eos_token_id) for row, token in zip(rows, drawn, strict=True)]
        if all(row.ended for row in rows):
            break
        tokens = torch.tensor(taken)[:, None]


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
    episodes = [(task, prompt) for (task, _), prompt in zip(asked, prompts, strict=True)]
    rows = sample_episodes(model, tokenizer, environment, episodes, MARGIN * longest, seed)
    for (task, _), row in zip(asked, rows, strict=True):
        scored = environment.score(task, completion_text(tokenizer, row.tokens, ends))
        right += isinstance(scored, Score) and scored.task_reward == 1.0
    return right / len(asked)
