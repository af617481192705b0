"""What dishonest workers do to rows: each function takes an honest row, or what one asks of an engine, and gives a false one.

Whoever holds the right weights can make proofs and log-probabilities for any tokens (`RightModel.prove`), so the cheats that matter do.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from benchmarks.trust.right_model import RightModel

from shoal.contracts.rollouts import Rollout
from shoal.inference.completions import Completion, Request
from shoal.toploc import codec

SEED_BITS = 63


def unclaimed(row: Rollout) -> Rollout:
    """The row without reward claims, which must not be what gives a cheat away."""
    return replace(row, task_reward=None, length_penalty=None, reward=None)


def with_tokens(row: Rollout, tokens: Sequence[int], finish_reason: str) -> Rollout:
    """Other completion tokens; proofs and log-probabilities are left as they are, as far as they reach."""
    count = len(tokens)
    logprobs = [*row.completion_logprobs, *[-0.1] * count][:count]
    return unclaimed(
        replace(
            row,
            completion_tokens=list(tokens),
            completion_logprobs=logprobs,
            completion_mask=[True] * count,
            finish_reason=finish_reason,
            proofs=resized(row.proofs, count),
        )
    )


def resized(proofs: bytes, tokens: int) -> bytes:
    """As many proofs as `tokens` tokens need: the first ones, the last of them again where more are needed."""
    parts = [proofs[start : start + codec.PROOF_BYTES] for start in range(0, len(proofs), codec.PROOF_BYTES)]
    wanted = codec.proof_count(tokens)
    return b"".join([*parts, *[parts[-1]] * wanted][:wanted])


def cut(row: Rollout, keep: int, eos: int) -> Rollout:
    """The completion ended with an end-of-sequence token after `keep` tokens; one that is as short already stays as it is."""
    if len(row.completion_tokens) <= keep + 1:
        return row
    return with_tokens(row, [*row.completion_tokens[:keep], eos], "stop")


def likeliest_end(row: Rollout, model: RightModel, eos: int) -> Rollout:
    """The completion ended where the policy thinks an end least unlikely, its own end apart: the best early stop that there is."""
    chances = model.look(row).logprobs[:, eos]
    place = int(np.argmax(chances[2:-1])) + 2
    return with_tokens(row, [*row.completion_tokens[:place], eos], "stop")


def edited(row: Rollout, place: int, tokens: Sequence[int]) -> Rollout:
    """Tokens from `place` (negative: from the end) replaced."""
    changed = list(row.completion_tokens)
    start = place % len(changed)
    changed[start : start + len(tokens)] = tokens
    return with_tokens(row, changed, row.finish_reason)


def certain_of_less(row: Rollout, tokens: int) -> Rollout:
    """The first `tokens` tokens claimed to have been improbable."""
    return replace(row, completion_logprobs=[*[-3.0] * tokens, *row.completion_logprobs[tokens:]])


def other_seeds(requests: Sequence[Request], samples: int) -> list[Request]:
    """`samples` requests in place of each, with seeds that nobody drew. Low bits differ: torch's generator takes 32 bits of a seed."""
    return [
        replace(request, seed=(request.seed + number) % (1 << SEED_BITS))
        for request in requests
        for number in range(1, samples + 1)
    ]


def best_of(completions: Sequence[Completion], samples: int, scores: Sequence[float]) -> list[Completion]:
    """Of each `samples` completions the one with the greatest score."""
    best = []
    for start in range(0, len(completions), samples):
        group = range(start, start + samples)
        best.append(completions[max(group, key=lambda number: scores[number])])
    return best


def forged_proofs(row: Rollout, words: Sequence[int]) -> Rollout:
    """The same 129 words (modulus, 128 coefficients) as the proof of every chunk."""
    proof = np.array(words, dtype=">u2").tobytes()
    return replace(row, proofs=proof * codec.proof_count(len(row.completion_tokens)))


def typical_states(rows: Sequence[Rollout], model: RightModel) -> np.ndarray:
    """The mean state of a policy over honest rows, float32 [hidden size]: what one knows without a forward pass over the row in hand."""
    return np.concatenate([model.look(row).states for row in rows]).mean(axis=0)


def prior_proofs(row: Rollout, mean: np.ndarray, model: RightModel) -> Rollout:
    """Proofs of mean states: large values at the dimensions that are always large."""
    states = np.repeat(mean[None], len(row.completion_tokens), axis=0).astype(np.float32)
    return replace(row, proofs=codec.encode(states, model.masked))


def sign_flipped(row: Rollout, model: RightModel) -> Rollout:
    """Proofs of the negative of every state: absolute values and exponents all fit."""
    return replace(row, proofs=codec.encode(-model.look(row).states, model.masked))


def low_degree(row: Rollout, model: RightModel) -> Rollout:
    """Proofs cut to degree 125, which interpolate nothing and evaluate to something."""
    words = np.frombuffer(row.proofs, dtype=">u2").reshape(-1, 1 + codec.TOP_K).copy()
    words[:, -2:] = 0
    return replace(row, proofs=words.tobytes())
