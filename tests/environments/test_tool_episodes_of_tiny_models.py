"""A generated model that may call the calculator: what it is taught, and how its episodes are sampled outside an engine."""

import random
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import PreTrainedTokenizerFast, Qwen3Config

from shoal.contracts.model_source import GeneratedModel
from shoal.environments.episodes import Tools
from shoal.environments.generated_model import IGNORED, Lesson, _lesson, _teach, random_model, tokenizer_for
from shoal.environments.prompts import prompt_tokens
from shoal.environments.sampling import SampledRow, sample_episodes
from shoal.environments.slips import taught_call
from shoal.environments.tokens import completion_text
from shoal.environments.tool import CALL, CALL_END, Tool

ENVIRONMENT = Tool()
TASKS = ENVIRONMENT.tasks(40, seed=3)


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return tokenizer_for(ENVIRONMENT, [None], seed=1)


class Scripted:
    """Writes given token ids, whatever it reads; the model's place in `sample_episodes`. It keeps what it was given to read."""

    def __init__(self, rows: Sequence[Sequence[int]], vocabulary: int, end: int) -> None:
        self.config = Qwen3Config(eos_token_id=end, num_hidden_layers=1)
        self._rows, self._vocabulary, self._place = rows, vocabulary, 0
        self.read: list[list[int]] = []

    def __call__(self, input_ids: torch.Tensor, **_: Any) -> Any:
        self.read.append(input_ids[:, -1].tolist())
        logits = torch.full((len(self._rows), 1, self._vocabulary), -1e9)
        for row, tokens in enumerate(self._rows):
            logits[row, 0, tokens[min(self._place, len(tokens) - 1)]] = 0.0
        self._place += 1
        return SimpleNamespace(logits=logits)


def test_a_lesson_without_a_slip_is_a_right_episode_and_with_one_a_wrong_answer() -> None:
    for task in TASKS:
        parts = taught_call(task, random.Random(0), 0.0)
        call, result, answer = (text for text, _ in parts)
        assert [taught for _, taught in parts] == [True, False, True]
        assert ENVIRONMENT.observe(task, call) == result
        assert ENVIRONMENT.score(task, call + result + answer).task_reward == 1.0
        [(guess, taught)] = taught_call(task, random.Random(0), 1.0)
        assert taught
        assert ENVIRONMENT.score(task, guess).task_reward == 0.0


def test_what_the_calculator_writes_is_read_and_not_taught(tokenizer: PreTrainedTokenizerFast) -> None:
    task = TASKS[0]
    prompt = prompt_tokens(tokenizer, ENVIRONMENT, task, None, None)
    parts = taught_call(task, random.Random(0), 0.0)
    lesson = _lesson(tokenizer, prompt, parts)
    assert tokenizer.decode([lesson.completion[place] for place in lesson.given]) == parts[1][0]
    torch.manual_seed(0)
    model = random_model(GeneratedModel(layers=1), tokenizer, 96)
    plain = _teach(model, [Lesson(prompt, lesson.completion)], tokenizer.pad_token_id)
    masked = _teach(model, [lesson], tokenizer.pad_token_id)
    tokens = torch.tensor([prompt + lesson.completion])
    labels = torch.tensor([[IGNORED] * len(prompt) + lesson.completion])
    labels[0, [len(prompt) + place for place in lesson.given]] = IGNORED
    expected = torch.nn.functional.cross_entropy(model(input_ids=tokens).logits[0, :-1], labels[0, 1:])
    assert masked == pytest.approx(float(expected.detach()), rel=1e-6)
    assert masked != pytest.approx(plain, rel=1e-6)


def episodes(tokenizer: PreTrainedTokenizerFast, texts: Sequence[str], limit: int) -> tuple[list[SampledRow], Scripted]:
    """Episodes of the first tasks, by a model that writes these texts at every place where it may."""
    end = tokenizer.eos_token_id
    rows = [[*tokenizer.encode(text, add_special_tokens=False), end] for text in texts]
    model = Scripted(rows, len(tokenizer), end)
    prompt = prompt_tokens(tokenizer, ENVIRONMENT, TASKS[0], None, None)
    # Prompts of one length, all different: to one prompt a model says one thing.
    asked = [(task, [place, *prompt[1:]]) for place, task in enumerate(TASKS[: len(texts)])]
    return sample_episodes(model, tokenizer, ENVIRONMENT, asked, limit, seed=1), model


def test_the_calculator_answers_in_the_row_and_the_model_reads_it(tokenizer: PreTrainedTokenizerFast) -> None:
    call = f"{CALL}12*12{CALL_END}"
    [called, guessed], model = episodes(tokenizer, [call, "Answer: 5"], 40)
    text = tokenizer.decode(called.tokens)
    assert text.startswith(f"{call}<result>144</result>")
    given = [token for token, mine in zip(called.tokens, called.mask, strict=True) if not mine]
    assert tokenizer.decode(given) == "<result>144</result>"
    first = called.mask.index(False)
    assert [row[0] for row in model.read[first + 1 : first + 1 + len(given)]] == given
    assert completion_text(tokenizer, guessed.tokens, frozenset([tokenizer.eos_token_id])) == "Answer: 5"
    assert all(guessed.mask)


@pytest.mark.parametrize(
    ("text", "limit"),
    [(f"{CALL}12*12{CALL_END}", 40), (f"no call {CALL_END}", 40), (f"{CALL}12*12{CALL_END}", 10), ("Answer: 5", 40)],
)
def test_a_validator_finds_no_fault_in_what_is_sampled_so(
    tokenizer: PreTrainedTokenizerFast, text: str, limit: int
) -> None:
    end = frozenset([tokenizer.eos_token_id])
    tools = Tools(ENVIRONMENT, tokenizer, end)
    [row], _ = episodes(tokenizer, [text], limit)
    reason = "stop" if row.tokens[-1] in end else "unanswered" if row.ended else "length"
    assert tools.problem(TASKS[0], row.tokens, row.mask, reason, limit) is None
    assert len(row.tokens) <= limit
