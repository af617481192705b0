"""An honest worker's material and the judge, for the validation tests; the policies are the tiny ones of
tests/inference.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tiny_policy

from shoal.contracts.protocol import ValidationJob
from shoal.contracts.rollouts import Rollout, RolloutMetadata, write_rollouts
from shoal.contracts.run import PublicRun
from shoal.contracts.tasks import Task
from shoal.contracts.thresholds import ProofThresholds
from shoal.contracts.validation import Validation
from shoal.contracts.verdicts import Verdict
from shoal.environments import Environment, Score
from shoal.environments.tokens import Tokenizer, completion_text
from shoal.inference.completions import Completion
from shoal.inference.rollouts import assemble
from shoal.validation.facts import Facts
from shoal.validation.judge import judge
from shoal.validation.policies import LoadedPolicy

VERSION = 3
DIGEST = "cd" * 32
JOB = ValidationJob(
    claim="aa" * 16,
    run="tiny",
    node=tiny_policy.NODE,
    lease=tiny_policy.LEASE.lease,
    step=4,
    submission=2,
    sha256="ef" * 32,
    size=1,
    beacon=tiny_policy.BEACON.hex(),
    min_version=2,
    max_version=4,
    accepted_files=1000,
    on_probation=False,
    sampler="gumbel-murmur3-1",
)
"""A file of a node that has earned trust, whose tokens can be drawn again."""
STATISTICAL = JOB.model_copy(update={"sampler": None})
"""The same of a pool whose tokens nobody draws again: what was sampled is for statistics to say."""
METADATA = RolloutMetadata(
    model="tiny-model",
    weights_digest=DIGEST,
    environment_digest=tiny_policy.PUBLIC.environment_digest,
    software_version="0.1.0",
)
CALIBRATED = ProofThresholds(max_exponent_mismatches=2, max_mantissa_error_mean=0.1, max_mantissa_error_median=0.0)
"""For float32: 2,744 honest proofs of this model had no mismatch and mean errors of at most 0.016; after one update
of 1e-4 the\nleast mean error is 0.18.
"""


def facts_of(
    environment: Environment, tasks: Sequence[Task], tokenizer: Tokenizer, public: PublicRun, **more: Any
) -> Facts:
    """What a validator knows of the tiny run; it looks at 8 rows of each file. `more`: fields that the run has of its own."""
    facts = Facts(
        run="tiny",
        model_id="tiny-model",
        environment=environment,
        environment_digest=public.environment_digest,
        tasks=tasks,
        tokenizer=tokenizer,
        eos_token_ids=frozenset({tiny_policy.EOS}),
        vocabulary=258,
        hidden_size=128,
        group_size=public.group_size,
        max_sequence_length=public.max_sequence_length,
        sampling=public.sampling,
        length_reward=public.length_reward,
        validation=Validation(proof_rows_share=0.5, proof_rows_floor=8, thresholds=CALIBRATED),
    )
    return replace(facts, **more)


@dataclass
class OnePolicy:
    """A policy source that holds one version."""

    policy: LoadedPolicy
    loads: int = 0

    def digest(self, version: int) -> str:
        if version != self.policy.version:
            raise KeyError(f"version {version} is not published")
        return self.policy.weights_digest

    def get(self, version: int) -> LoadedPolicy:
        self.loads += 1
        if version != self.policy.version:
            raise KeyError(f"version {version} is not published")
        return self.policy


@dataclass
class Court:
    """An honest worker's material and the judge."""

    made: tiny_policy.Scenario
    facts: Facts
    policies: OnePolicy
    folder: Path

    def rows(self, completions: list[Completion], version: int = VERSION) -> list[Rollout]:
        """The file that an honest worker would make of these completions."""

        def score(task: Any, tokens: Any, mask: Any) -> float | None:
            text = completion_text(self.facts.tokenizer, tokens, self.facts.eos_token_ids)
            found = self.facts.environment.score(task, text)
            return found.task_reward if isinstance(found, Score) else None

        return assemble(self.made.planned, completions, tiny_policy.LEASE, tiny_policy.PUBLIC, version, score)

    def judge_bytes(self, data: bytes, job: ValidationJob = JOB) -> Verdict:
        path = self.folder / "upload.parquet"
        path.write_bytes(data)
        return judge(path, job, self.facts, self.policies, random.Random(0))

    def judge(self, rows: list[Rollout], metadata: RolloutMetadata = METADATA, job: ValidationJob = JOB) -> Verdict:
        return self.judge_bytes(write_rollouts(rows, metadata), job)
