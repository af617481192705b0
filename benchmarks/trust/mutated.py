"""Damaged files before the validators' own code: what becomes of thousands of mutations of an honest file.

In: a run on paper and an honest file. Out: outcomes, counted. Some damage changes nothing that a file says: padding, statistics that nobody
reads, the writer's name. Such a file says what the honest one said and is accepted like it. What an accepted file may say otherwise is named
in `UNBOUND`.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.trust.engine_client import EngineProcess
from benchmarks.trust.in_process import PaperRun, paper_config
from benchmarks.trust.models import TrainedModels
from benchmarks.trust.mutations import damaged
from shoal.contracts.protocol import Lease
from shoal.contracts.rollouts import Rollout, RolloutMetadata, read_rollouts

MUTATIONS = 10_000
UNBOUND = {
    "software_version": "says what the node runs; nothing depends on it",
    "completion_logprobs": "compared with ours, for a metric only; a few may be off",
    "task_reward": "a claim that may be left out, and is never used",
    "length_penalty": "a claim that may be left out, and is never used",
    "reward": "a claim that may be left out, and is never used",
}


class Fooled(AssertionError):
    """A damaged file had no verdict, or was accepted though it says something else; the message names the mutation."""


def measure(made: TrainedModels, home: Path) -> dict[str, Any]:
    """Some six minutes on one core."""
    run = PaperRun(home / "mutated", paper_config(), made.base, made.current)
    lease, planned = run.lease(0)
    with EngineProcess(made.current, max_sequence_length=run.config.recipe.max_sequence_length, batch=48) as engine:
        completions = engine.generate(made.current, [row.request for row in planned]).completions
    outcomes = judge_damaged(run, lease, run.write(run.rows(lease, planned, completions)), range(MUTATIONS))
    return {"mutations": MUTATIONS, "accepted_with_other_content": 0, "crashes": 0, "outcomes": dict(outcomes)}


def judge_damaged(run: PaperRun, lease: Lease, honest: bytes, seeds: Iterable[int]) -> Counter[str]:
    """Outcomes of the mutations with these seeds; raises Fooled."""
    wanted = said(*read_rollouts(honest))
    outcomes: Counter[str] = Counter()
    for seed in seeds:
        data = damaged(honest, seed)
        verdict = run.judge(data, lease)
        if verdict.outcome == "inconclusive":
            raise Fooled(f"mutation {seed} broke a check: {verdict.evidence}")
        if verdict.outcome == "accept" and said(*read_rollouts(data)) != wanted:
            raise Fooled(f"mutation {seed} is accepted though it says something else")
        outcomes[verdict.reason or ("accept, says the same" if verdict.outcome == "accept" else verdict.outcome)] += 1
    return outcomes


def said(rows: list[Rollout], metadata: RolloutMetadata) -> list[dict[str, Any]]:
    """What a file says, without what it may say otherwise."""
    plain = [{name: value for name, value in asdict(row).items() if name not in UNBOUND} for row in rows]
    return [*plain, {name: value for name, value in asdict(metadata).items() if name not in UNBOUND}]
