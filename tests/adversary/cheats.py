"""What a cheat is, and the hands that make its file: what is asked of the engine, and what is written of what it made.

In: an `Entry` (a lease with its completions) and a `Scene` (what the worker has beside them). Out: the bytes of a file. `cheat_table` puts
these together, row by row.
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import forging
import numpy as np
from arena import CPU_POOL, Entry
from benchmarks.trust.right_model import RightModel

from shoal.contracts.rollouts import Rollout
from shoal.contracts.verdicts import RejectReason
from shoal.inference.completions import Request
from shoal.toploc import codec
from shoal.validation.checks import replay

replace = dataclasses.replace
SAMPLES = 4
EASY = "11+11="
COLDEST = 0.02
"""A temperature at which the likeliest token is taken nearly always; vLLM takes 0 for another way of sampling, without noise."""


@dataclass(frozen=True)
class Scene:
    """What a dishonest worker has beside its own lease: another node's accepted rows, the right weights, its own earlier file."""

    stranger: list[Rollout]
    model: RightModel
    own_file: bytes = b""
    own_rows: Sequence[Rollout] = ()


def honest_requests(entry: Entry) -> list[Request]:
    """What an honest worker asks of its engine."""
    return entry.requests


def nothing(entry: Entry) -> list[Request]:
    """No completions are needed."""
    return []


@dataclass(frozen=True)
class Cheat:
    """One dishonest worker. `reason` is None where the orchestrator already refuses the file.

    `files`: how many it hands in at most until one is rejected. More than one where a statistic is near its border: it shows in nearly every file.
    """

    name: str
    does: str
    reason: RejectReason | None
    evidence: str
    forge: Callable[[Entry, Scene], bytes]
    weights: str = "current"
    ask: Callable[[Entry], list[Request]] = honest_requests
    veteran: bool = False
    pool: str = CPU_POOL
    files: int = 1


def plainly(entry: Entry, scene: Scene) -> bytes:
    """The file as an honest worker writes it: the lie is in how its completions were made."""
    return entry.write(entry.rows())


def every(change: Callable[[Rollout], Rollout]) -> Callable[[Entry, Scene], bytes]:
    """Each row changed, with the proofs that it had."""
    return lambda entry, scene: entry.write([change(row) for row in entry.rows()])


def one(number: int, change: Callable[[Rollout], Rollout]) -> Callable[[Entry, Scene], bytes]:
    """One row changed, with the proofs that it had."""

    def forge(entry: Entry, scene: Scene) -> bytes:
        rows = entry.rows()
        return entry.write([*rows[:number], change(rows[number]), *rows[number + 1 :]])

    return forge


def proven(change: Callable[[Entry, Scene, Rollout], Rollout]) -> Callable[[Entry, Scene], bytes]:
    """Each row changed, with proofs and log-probabilities made anew with the right weights."""
    return lambda entry, scene: entry.write([scene.model.prove(change(entry, scene, row)) for row in entry.rows()])


def eos(entry: Entry) -> int:
    return min(entry.arena.workshop.eos_token_ids)


def tokens_of(entry: Entry, text: str) -> list[int]:
    found: list[int] = entry.arena.workshop.tokenizer.encode(text, add_special_tokens=False)
    return found


def hinted(entry: Entry) -> list[Request]:
    """Another problem in place of the one drawn."""
    easy = tokens_of(entry, EASY)
    return [replace(request, prompt_tokens=[*easy, *request.prompt_tokens[len(easy) :]]) for request in entry.requests]


def colder(entry: Entry) -> list[Request]:
    return [replace(request, temperature=request.temperature / 2) for request in entry.requests]


def greedy(entry: Entry) -> list[Request]:
    return [replace(request, temperature=COLDEST) for request in entry.requests]


def gold(entry: Entry, scene: Scene, row: Rollout) -> Rollout:
    """The right answer, written by hand."""
    workshop = entry.arena.workshop
    answer = tokens_of(entry, workshop.environment.gold(workshop.tasks[row.prompt_index]))
    return forging.with_tokens(row, [*answer, eos(entry)], "stop")


def best_samples(entry: Entry, scene: Scene) -> bytes:
    """Of several completions of each row the one with the best reward, its own proofs with it."""
    workshop = entry.arena.workshop
    made = entry.completions
    scores = [
        workshop.score(entry.planned[number // SAMPLES].task, completion.tokens, [True] * len(completion.tokens)) or 0.0
        for number, completion in enumerate(made)
    ]
    entry.completions = forging.best_of(made, SAMPLES, scores)
    return entry.write(entry.rows())


def one_cut(entry: Entry, scene: Scene) -> bytes:
    rows = entry.rows()
    number = max(range(len(rows)), key=lambda place: len(rows[place].completion_tokens))
    rows[number] = scene.model.prove(forging.likeliest_end(rows[number], scene.model, eos(entry)))
    return entry.write(rows)


def some_cut(entry: Entry, scene: Scene) -> bytes:
    """Every sixth completion ended where an end is least unlikely."""
    rows = entry.rows()
    for number in range(0, len(rows), 6):
        rows[number] = scene.model.prove(forging.likeliest_end(rows[number], scene.model, eos(entry)))
    return entry.write(rows)


def one_sample_many_times(entry: Entry, scene: Scene) -> bytes:
    """The least likely completion of each group that may be drawn twice (`replay.check`) handed in as all of the group."""
    rows, size = entry.rows(), entry.arena.config.recipe.group_size
    copied = []
    for start in range(0, len(rows), size):
        group = rows[start : start + size]
        believed = [row for row in group if sum(row.completion_logprobs) >= replay.LEAST_LOG_PROBABILITY]
        rarest = min(believed, key=lambda row: sum(row.completion_logprobs))
        copied += [replace(rarest, seed=row.seed, sample_index=row.sample_index) for row in group]
    return entry.write(copied)


def renamed(rows: Sequence[Rollout], entry: Entry) -> list[Rollout]:
    """Rows of another lease under the names of this one."""
    names = {
        "node": entry.node.id,
        "step": entry.lease.step,
        "submission": entry.lease.submission,
        "policy_version": entry.arena.version,
    }
    return [replace(row, **names) for row in rows]


def as_mine(rows: Sequence[Rollout], entry: Entry) -> bytes:
    """The file of renamed rows."""
    return entry.write(renamed(rows, entry))


def dimension_prior(entry: Entry, scene: Scene) -> bytes:
    rows = entry.rows()
    mean = forging.typical_states(scene.stranger, scene.model)
    return entry.write([forging.prior_proofs(row, mean, scene.model) for row in rows])


def neighbours_proofs(entry: Entry, scene: Scene) -> bytes:
    """Honest proofs, each of another row of the same length in chunks."""
    rows = entry.rows()
    return entry.write(
        [
            replace(row, proofs=forging.resized(rows[number - 1].proofs, len(row.completion_tokens)))
            for number, row in enumerate(rows)
        ]
    )


def random_words() -> list[int]:
    return [codec.PRIME, *np.random.default_rng(0).integers(1, codec.PRIME, codec.TOP_K).tolist()]


def as_sampled(entry: Entry, scene: Scene, row: Rollout) -> Rollout:
    """The tokens as they are: it is only the proofs that are made anew."""
    return row
