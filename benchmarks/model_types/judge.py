"""What a validator finds in an engine's completions: whether their seeds draw their tokens, and whether their proofs are of the policy's states.

In: a loaded model, requests and completions. Out: `Judged`. Called by `benchmarks.model_types`, of each type, and by
`tests/inference/test_swapped_types.py`. It is the validator's own forward pass and its own bounds for float32 weights without a calibrated profile.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shoal.contracts.pools import SAMPLER
from shoal.contracts.proof_profile import DRAWN_GAPS, thresholds_in_force
from shoal.contracts.rollouts import Rollout
from shoal.inference.completions import Completion, Request
from shoal.toploc import codec
from shoal.validation.prefill import prefill_rows

BUDGET = DRAWN_GAPS["float32"]


@dataclass(frozen=True)
class Judged:
    """Of all completions: sampled tokens, those that are farther behind what their seeds draw than one may be, and the farthest (nats at
    temperature 1); proofs, and those that are not of the model's states."""

    tokens: int
    others: int
    farthest: float
    proofs: int
    refused: int

    @property
    def redraw(self) -> str:
        """`yes`, or how far the tokens are from those that are drawn again."""
        if self.tokens and not self.others:
            return "yes"
        return f"no: {self.others} of {self.tokens} tokens are not those drawn again, by up to {self.farthest:.1e} nats"

    @property
    def proved(self) -> str:
        """`yes`, or how many proofs a validator refuses."""
        return "yes" if self.proofs and not self.refused else f"no: {self.refused} of {self.proofs} are refused"


def judged(model: Any, eos: frozenset[int], requests: Sequence[Request], made: Sequence[Completion]) -> Judged:
    """Judge completions by a transformers model of the same weights. Raises `codec.MalformedProofError` for proofs that are none."""
    rows = {number: _row(request, made[number]) for number, request in enumerate(requests)}
    thresholds = thresholds_in_force(None, None)
    behind: list[float] = []
    accepted: list[bool] = []
    for batch in prefill_rows(model, rows, eos, SAMPLER):
        for number, ours in batch.items():
            assert ours.gaps is not None, "the sampler can be redone"
            row, states = rows[number], ours.states
            behind += (ours.gaps * min(1.0, row.temperature)).tolist()
            errors = codec.compare(codec.parse(row.proofs, *states.shape), states)
            accepted += [codec.accept(each, thresholds) for each in errors]
    far = np.array(behind)
    others = int((~(far <= BUDGET.largest)).sum())
    return Judged(far.size, others, float(far.max(initial=0.0)), len(accepted), accepted.count(False))


def _row(request: Request, made: Completion) -> Rollout:
    """A row of a file with what the two checks read of it."""
    count = len(made.tokens)
    return Rollout(
        run="tiny", step=0, policy_version=0, node="0" * 64, submission=0, problem_id="tiny", prompt_index=0, sample_index=0,
        prompt_tokens=list(request.prompt_tokens), completion_tokens=made.tokens, completion_logprobs=made.logprobs,
        completion_mask=[True] * count, finish_reason="length", task_type="tiny", target_length=None, task_reward=0.0,
        length_penalty=0.0, reward=0.0, seed=request.seed, temperature=request.temperature, proofs=made.proofs,
    )  # fmt: skip
