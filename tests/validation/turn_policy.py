"""A policy that writes what a script says, turn after turn, and the file that a worker makes with it.

A trained model would write the turns that it learnt; adversaries need turns of every kind. So the policy is an automaton in the shape of a model: its
hidden states depend on all tokens before them, its head draws the script's next token, and each turn begins with one letter of 24, by the row's
seed. Proofs, draws and probabilities are checked as of any model. Rows are made by the worker's own episodes (`tool_episodes.play`).
"""

import dataclasses
import functools
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import tiny_policy
import tool_policy
import torch
from court import VERSION, facts_of

from shoal.contracts.completions import Sampling
from shoal.contracts.prompts import PromptSettings, PromptTerms
from shoal.contracts.rollouts import Rollout, sampled_stretches
from shoal.contracts.tasks import Task, tasks_digest
from shoal.environments import Score, digest
from shoal.environments.interpreter import Interpreter
from shoal.environments.prompt_check import decided
from shoal.environments.prompts import load_tokenizer, prompt_tokens
from shoal.environments.turns import Turns
from shoal.inference.completions import Completion, Request
from shoal.inference.rollouts import assemble, plan_submission
from shoal.inference.tool_episodes import play
from shoal.sampling import gumbel
from shoal.toploc import codec
from shoal.validation.facts import Facts
from shoal.validation.prefill import prefill


class Brief(Interpreter):
    """The same functions in few words: each is a token a byte here."""

    functions = tuple({"name": name, "description": "", "parameters": {}} for name in ("calculate", "python"))
    most_turns = 3


ENVIRONMENT = Brief()
TASKS = ENVIRONMENT.tasks(32, seed=5)
END = tiny_policy.EOS
EOS = frozenset({END})
TEMPLATE = (
    "{% if tools %}<tool_call></tool_call>{% for tool in tools %}{{ tool.function.name }} {% endfor %}{% endif %}"
    "{% for message in messages %}{{ '\\n' }}{{ message.role }}:{{ message.content }}{% if message.role == 'assistant' %}<eos>{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '\\n' }}assistant:{% endif %}"
)
TURN_BEGINS = "\nassistant:"
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWX"
HIDDEN, VOCABULARY = 128, 258
REST = "Answer: 42"
LEASE = tool_policy.LEASE
PUBLIC = tool_policy.PUBLIC.model_copy(
    update={
        "environment": "interpreter",
        "environment_digest": digest(ENVIRONMENT),
        "tasks_digest": tasks_digest(TASKS),
        "task_count": len(TASKS),
        "group_size": 2,
        "max_sequence_length": 1000,
        "sampling": Sampling(temperature=0.8, max_completion_tokens=500, groups_per_submission=2),
    }
)


def call(code: str, name: str = "python", argument: str = "code") -> str:
    """How the model calls."""
    return f"<tool_call>{json.dumps({'name': name, 'arguments': {argument: code}})}</tool_call>"


class Scripted(torch.nn.Module):
    """The policy. `scripts`: the texts of the turns, by the tokens of the prompt; `<eos>` follows each."""

    def __init__(self, tokenizer: Any) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(3)
        letters = [self.tokens(tokenizer, letter)[0] for letter in LETTERS]
        weight = torch.randn(VOCABULARY, HIDDEN, generator=draw)
        basis, _ = torch.linalg.qr(torch.randn(HIDDEN, len(letters), generator=draw))
        weight -= weight @ basis @ basis.T  # no other token is likely where a letter is
        weight[letters] = basis.T * HIDDEN**0.5
        self.lm_head = torch.nn.Linear(HIDDEN, VOCABULARY, bias=False)
        self.lm_head.weight = torch.nn.Parameter(weight)
        for parameter in self.parameters():
            parameter.requires_grad_(False)
        self.noise = 0.005 * torch.randn(997, HIDDEN, generator=draw)
        self.begin = 10.0 * basis.sum(dim=1)
        self.marker = self.tokens(tokenizer, TURN_BEGINS)
        self.config = SimpleNamespace(vocab_size=VOCABULARY)
        self.dtype = torch.float32
        self.scripts: dict[tuple[int, ...], list[list[int]]] = {}

    @staticmethod
    def tokens(tokenizer: Any, text: str) -> list[int]:
        return list(tokenizer.encode(text, add_special_tokens=False))

    def model(self, input_ids: torch.Tensor, use_cache: bool) -> SimpleNamespace:
        return SimpleNamespace(last_hidden_state=torch.stack([self.states(row.tolist()) for row in input_ids]))

    def states(self, tokens: Sequence[int]) -> torch.Tensor:
        """Hidden states [tokens, HIDDEN]: what comes next, and something of what was."""
        noise = self.noise[[(token * 31 + place) % len(self.noise) for place, token in enumerate(tokens)]]
        return torch.cat([self.lm_head.weight, self.begin[None]])[self.wanted(tokens)] + noise

    def wanted(self, tokens: Sequence[int]) -> list[int]:
        """The token that follows each; VOCABULARY where any letter may."""
        script = next((turns for prompt, turns in self.scripts.items() if tuple(tokens[: len(prompt)]) == prompt), [])
        found, turn, offset, last = [], 0, -1, self.marker[-1]
        for place, token in enumerate(tokens):
            if token == last and tokens[place + 1 - len(self.marker) : place + 1] == self.marker:
                offset = 0
            elif token == END:
                turn, offset = turn + 1, -1
            elif offset >= 0:
                offset += 1
            text = script[min(turn, len(script) - 1)] if script else []
            found.append(VOCABULARY if offset == 0 else text[offset - 1] if 0 < offset <= len(text) else END)
        return found


@functools.cache
def chat() -> tuple[Any, PromptTerms]:
    """A tokenizer of bytes with a chat template, and how it makes prompts."""
    with tempfile.TemporaryDirectory() as folder:
        tiny_policy.make_policy(Path(folder), seed=9)
        tokenizer = load_tokenizer(Path(folder))
        tokenizer.chat_template = TEMPLATE
        tokenizer.save_pretrained(folder)
        tokenizer = load_tokenizer(Path(folder))
        return tokenizer, decided(PromptSettings(), Path(folder), tokenizer)


class TurnScenario:
    """The policy with a script for the first task of LEASE's file; of the second it asks the calculator."""

    def __init__(self, *script: str) -> None:
        self.tokenizer, self.terms = chat()
        self.model = Scripted(self.tokenizer)
        self.turns = Turns(ENVIRONMENT, self.tokenizer, EOS, self.terms)
        self.public = PUBLIC.model_copy(update={"prompt": self.terms})
        self.planned = plan_submission(
            PUBLIC.codec.decode(tiny_policy.STEP.step),
            tiny_policy.STEP,
            LEASE,
            self.public,
            TASKS,
            lambda task, target: prompt_tokens(self.tokenizer, ENVIRONMENT, task, target, self.terms),
        )
        self.learn(self.planned[2].request, call("6*7", "calculate", "expression"), REST)
        self.learn(self.planned[0].request, *script)

    def learn(self, asked: Request, *script: str) -> None:
        """From now on the policy writes these turns where it is asked this."""
        self.model.scripts[tuple(asked.prompt_tokens)] = [Scripted.tokens(self.tokenizer, text) for text in script]

    def rows(self, *lying: Turns) -> list[Rollout]:
        """A worker's file, whose first rows have other functions, one each."""
        first = [
            play([row], turns, self.generate)[0] for row, turns in zip(self.planned[: len(lying)], lying, strict=True)
        ]
        made = [*first, *play(self.planned[len(lying) :], self.turns, self.generate)]
        rows = assemble(self.planned, made, LEASE, self.public, VERSION, self.score)
        return [self.proven(row) for row in rows]

    def generate(self, asked: Sequence[Request]) -> list[Completion]:
        return [self.sampled(request) for request in asked]

    def score(self, task: Task, tokens: Sequence[int], mask: Sequence[bool]) -> float | None:
        found = ENVIRONMENT.score(task, self.turns.answer_text(tokens, mask))
        return found.task_reward if isinstance(found, Score) else None

    @torch.inference_mode()
    def sampled(self, request: Request) -> Completion:
        """One turn, drawn by the run's rule."""
        tokens = list[int]()
        while len(tokens) < request.max_tokens and not (tokens and tokens[-1] in EOS):
            before = [*request.prompt_tokens, *tokens]
            logits = self.model.lm_head(self.model.states(before)[-1:])
            logprobs = torch.log_softmax(logits / request.temperature, dim=-1)
            _, drawn = gumbel.redraw(
                logprobs, torch.tensor([0]), torch.tensor([request.seed]), torch.tensor([len(before) - 1])
            )
            tokens.append(int(drawn[0]))
        return Completion(tokens, [0.0] * len(tokens), "stop" if tokens[-1] in EOS else "length", b"")

    def proven(self, row: Rollout, **fields: Any) -> Rollout:
        """The row with these fields, and with proofs and log-probabilities that fit its tokens, as everybody with the weights can make them."""
        row = dataclasses.replace(row, **fields)
        ours = prefill(self.model, row, EOS)
        logprobs, proofs, start = iter(ours.logprobs), b"", 0
        for stretch in sampled_stretches(row.completion_mask):
            end = start + stretch.stop - stretch.start
            proofs += codec.encode(ours.states[start:end])
            start = end
        claimed = [min(float(next(logprobs)), 0.0) if sampled else 0.0 for sampled in row.completion_mask]
        return dataclasses.replace(row, completion_logprobs=claimed, proofs=proofs)


def facts_of_turns(made: TurnScenario) -> Facts:
    """What a validator knows of the run of these turns."""
    return facts_of(ENVIRONMENT, TASKS, made.tokenizer, PUBLIC, prompt=made.terms)


class Lying(Turns):
    """Functions that write what a liar likes, in an otherwise honest worker: a message behind each turn, until none is left."""

    def __init__(self, made: TurnScenario, *messages: str) -> None:
        super().__init__(ENVIRONMENT, made.tokenizer, EOS, made.terms)
        self._left = [Scripted.tokens(made.tokenizer, message) for message in messages]

    def output(self, task: Task, tokens: Sequence[int], mask: Sequence[bool], limit: int) -> list[int] | None:
        return self._left.pop(0) if self._left else None
