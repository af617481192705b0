"""The plain sampler: a prompt that is asked several times is read once, and its answers are those of reading it each time."""

from typing import Any

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from shoal.environments.sampling import sample

END = 1
PROMPTS = [[5, 6, 7], [8, 9], [5, 6, 7], [5, 6, 7], [4, 3, 2], [8, 9]]


class Counted:
    """A model that keeps how many rows and tokens each call reads."""

    def __init__(self) -> None:
        torch.manual_seed(3)
        config = Qwen3Config(
            vocab_size=40, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
            num_key_value_heads=1, head_dim=16, eos_token_id=END,
        )  # fmt: skip
        self.model, self.config, self.read = Qwen3ForCausalLM(config).eval(), config, list[tuple[int, ...]]()

    def __call__(self, input_ids: torch.Tensor, **more: Any) -> Any:
        self.read.append(tuple(input_ids.shape))
        return self.model(input_ids=input_ids, **more)


def read_each_time(model: Any, prompts: list[list[int]], most: int, seed: int) -> list[list[int]]:
    """What `sample` is to give, by whole forward passes over each row: lengths as they are met, one draw a step for all rows."""
    generator = torch.Generator().manual_seed(seed)
    found: list[list[int]] = [[] for _ in prompts]
    for length in dict.fromkeys(map(len, prompts)):
        rows = [row for row, prompt in enumerate(prompts) if len(prompt) == length]
        grown = {row: list(prompts[row]) for row in rows}
        ended: set[int] = set()
        for _ in range(most):
            last = [model(input_ids=torch.tensor([grown[row]])).logits[0, -1] for row in rows]
            drawn = torch.multinomial(torch.softmax(torch.stack(last), dim=-1), 1, generator=generator)[:, 0].tolist()
            for row, token in zip(rows, drawn, strict=True):
                grown[row].append(token)
                if row not in ended:
                    found[row].append(token)
                if token == END:
                    ended.add(row)
            if len(ended) == len(rows):
                break
    return found


def test_a_prompt_that_is_asked_several_times_is_read_once_and_answered_as_if_read_each_time() -> None:
    model = Counted()
    found = sample(model, PROMPTS, 6, seed=11)  # type: ignore[arg-type]  # of a model it takes no more than this
    assert model.read[0] == (2, 3)  # four rows of three tokens, two of them different
    assert (4, 1) in model.read
    assert (1, 2) in model.read
    with torch.inference_mode():
        assert found == read_each_time(model.model, PROMPTS, 6, seed=11)
    assert found[0] != found[2] or found[2] != found[3]  # each has its own chance
