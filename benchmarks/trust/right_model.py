"""Proofs, log-probabilities and chances of given tokens under given weights, as any worker that holds the weights can make them.

In: a checkpoint folder and rows. Out: rows whose proofs and log-probabilities fit their tokens, wherever those tokens came from. It is
what makes a cheat good: nothing that a forward pass shows is wrong with its file.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from transformers import AutoModelForCausalLM

from shoal.contracts.proof_profile import read_profile
from shoal.contracts.rollouts import Rollout
from shoal.models.head import logits_of
from shoal.toploc import codec

Float32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Seen:
    """Float32 over the n completion tokens: `states` [n, hidden size] and `logprobs` [n, vocabulary] from which each was drawn."""

    states: Float32
    logprobs: Float32


class RightModel:
    """One checkpoint in transformers."""

    def __init__(self, folder: Path) -> None:
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto").eval()
        profile = read_profile(folder, self._model.config.hidden_size)
        self.masked = profile.mask() if profile is not None else None

    @torch.inference_mode()
    def look(self, row: Rollout) -> Seen:
        """One forward pass over prompt and completion."""
        tokens = torch.tensor([[*row.prompt_tokens, *row.completion_tokens]])
        first, count = len(row.prompt_tokens) - 1, len(row.completion_tokens)
        states = self._model.model(input_ids=tokens, use_cache=False).last_hidden_state[0, first : first + count]
        logprobs = torch.log_softmax(logits_of(self._model, states) / row.temperature, dim=-1)
        return Seen(states.float().numpy(), logprobs.numpy())

    def prove(self, row: Rollout) -> Rollout:
        """The row with proofs and log-probabilities that fit its tokens, and without rewards, which the validator then computes."""
        seen = self.look(row)
        chosen = seen.logprobs[np.arange(len(seen.logprobs)), list(row.completion_tokens)]
        return replace(
            row,
            proofs=codec.encode(seen.states, self.masked),
            completion_logprobs=np.minimum(chosen, 0.0).tolist(),
            completion_mask=[True] * len(row.completion_tokens),
            task_reward=None,
            length_penalty=None,
            reward=None,
        )
