"""Supervised fine-tuning, PRIME and VinePPO a second time: float64, one answer after the other, by transformers' own attention and autograd.

Written from the papers' formulas (`extensions/reference_prime`, `extensions/reference_vineppo`) and from nothing of ours but the rule which samples
an optimizer batch has. AdamW is arXiv:1711.05101, algorithm 2. Called by `method_gaps`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call


@dataclass(frozen=True)
class Answer:
    """Prompt and completion as one sequence; `places` are those of the tokens that the model sampled."""

    tokens: list[int]
    places: list[int]
    temperature: float = 1.0


class PlainModel:
    """A model whose `leaves` are trained: its weights, or adapters (A, B) of some of them, whose weight is W + scale B A."""

    def __init__(
        self, model: Any, adapters: Mapping[str, tuple[Tensor, Tensor]] | None = None, scale: float = 0.0
    ) -> None:
        self._model, self._scale = model.double(), scale
        self._weights = {name: value.detach().clone() for name, value in self._model.named_parameters()}
        self._adapted = sorted(adapters or {})
        self.leaves = self._weights
        if adapters:
            self.leaves = {
                f"{name}.{side}": value.detach().double().clone()
                for name, pair in adapters.items()
                for side, value in zip(("lora_a", "lora_b"), pair, strict=True)
            }
        for leaf in self.leaves.values():
            leaf.requires_grad_()

    def scores(self, answer: Answer) -> Tensor:
        """Log-probabilities of every word at each sampled token."""
        weights = dict(self._weights)
        for name in self._adapted:
            weights[f"{name}.weight"] = weights[f"{name}.weight"] + self._scale * (
                self.leaves[f"{name}.lora_b"] @ self.leaves[f"{name}.lora_a"]
            )
        given = {"input_ids": torch.tensor(answer.tokens)[None], "use_cache": False}
        logits = functional_call(self._model, weights, (), given).logits[0]
        before = torch.tensor(answer.places, dtype=torch.int64) - 1
        return (logits[before] / answer.temperature).log_softmax(-1)

    def logprobs(self, answer: Answer) -> Tensor:
        """Of the sampled tokens."""
        chosen = torch.tensor(answer.tokens)[answer.places]
        return self.scores(answer).gather(1, chosen[:, None])[:, 0]

    def gradients(self, loss: Tensor) -> dict[str, Tensor]:
        found = torch.autograd.grad(loss, list(self.leaves.values()), allow_unused=True)
        return {
            name: torch.zeros_like(leaf) if gradient is None else gradient
            for (name, leaf), gradient in zip(self.leaves.items(), found, strict=True)
        }


class PlainAdamW:
    """AdamW behind a clip of the whole gradient's norm, torch's: the norm plus 1e-6 divides."""

    def __init__(self, model: PlainModel, clip: float, beta1: float, beta2: float, decay: float) -> None:
        self._model, self._clip, self._betas, self._decay = model, clip, (beta1, beta2), decay
        self._first = {name: torch.zeros_like(leaf) for name, leaf in model.leaves.items()}
        self._second = {name: torch.zeros_like(leaf) for name, leaf in model.leaves.items()}
        self._count = 0

    def step(self, gradients: Mapping[str, Tensor], rate: float) -> float:
        """Change the leaves in place; the norm before the clip."""
        self._count += 1
        norm = sum(float(each.square().sum()) for each in gradients.values()) ** 0.5
        shorten = min(1.0, self._clip / (norm + 1e-6))
        one, two = self._betas
        with torch.no_grad():
            for name, leaf in self._model.leaves.items():
                gradient = shorten * gradients[name]
                self._first[name] = one * self._first[name] + (1 - one) * gradient
                self._second[name] = two * self._second[name] + (1 - two) * gradient**2
                first, second = self._first[name] / (1 - one**self._count), self._second[name] / (1 - two**self._count)
                leaf -= rate * self._decay * leaf + rate * first / (second.sqrt() + 1e-8)
        return norm


def parts(samples: int, seed: int, step: int, count: int) -> list[list[int]]:
    """Which samples each of `count` optimizer batches has (docs of `training.batches`): numpy's permutation of (seed, step), cut evenly."""
    order = np.random.default_rng([seed, step]).permutation(samples)
    return [part.tolist() for part in np.array_split(order, count)]


def completion_loss(model: PlainModel, answers: Sequence[Answer]) -> tuple[Tensor, float]:
    """Cross-entropy, the mean over the completion tokens of all answers together; and the mean entropy."""
    tokens = sum(len(answer.places) for answer in answers)
    lost, spread = [], 0.0
    for answer in answers:
        scores = model.scores(answer)
        chosen = torch.tensor(answer.tokens)[answer.places]
        lost.append(-scores.gather(1, chosen[:, None]).sum())
        spread -= float((scores.exp() * scores).sum().detach())
    return torch.stack(lost).sum() / tokens, spread / tokens


def policy_loss(
    model: PlainModel,
    answers: Sequence[Answer],
    advantages: Sequence[Sequence[float]],
    batches: Sequence[Sequence[int]],
) -> Tensor:
    """The policy gradient's loss with the weights that sampled: -sum of A_t log p_t by the batch's tokens, the sum over batches."""
    total = torch.zeros((), dtype=torch.float64)
    for batch in batches:
        tokens = sum(len(answers[number].places) for number in batch)
        for number in batch:
            if answers[number].places:
                weights = torch.tensor(advantages[number], dtype=torch.float64)
                total = total - (weights * model.logprobs(answers[number])).sum() / tokens
    return total


def outcome_loss(
    model: PlainModel,
    base: Callable[[int], Tensor],
    answers: Sequence[Answer],
    outcomes: Sequence[float],
    numbers: Sequence[int],
    beta: float,
) -> tuple[Tensor, int]:
    """PRIME's equation 4: binary cross-entropy of sigmoid(beta sum of log pi_prm / pi_ref), the mean over completions; how many are judged right."""
    losses, right = [], 0
    for number in numbers:
        score = beta * (model.logprobs(answers[number]) - base(number)).sum()
        outcome = outcomes[number]
        losses.append(-(outcome * torch.sigmoid(score).log() + (1 - outcome) * torch.sigmoid(-score).log()))
        right += bool(score.detach() > 0) == (outcome > 0.5)
    return torch.stack(losses).mean(), right
