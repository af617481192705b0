"""What the validation tests share: facts of the tiny run, and an honest file of a real engine."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "inference"))

import tiny_policy
from court import CALIBRATED, DIGEST, VERSION, Court, OnePolicy

from shoal.contracts.recipe import Validation
from shoal.contracts.rollouts import Rollout
from shoal.validation.facts import Facts
from shoal.validation.policies import LoadedPolicy


@pytest.fixture(scope="session")
def court(tmp_path_factory: pytest.TempPathFactory) -> Court:
    made = tiny_policy.scenario()
    public = tiny_policy.PUBLIC
    facts = Facts(
        run="tiny",
        model_id="tiny-model",
        environment=tiny_policy.ENVIRONMENT,
        environment_digest=public.environment_digest,
        tasks=tiny_policy.TASKS,
        tokenizer=made.tokenizer,
        eos_token_ids=frozenset({tiny_policy.EOS}),
        vocabulary=258,
        hidden_size=128,
        group_size=public.group_size,
        max_sequence_length=public.max_sequence_length,
        sampling=public.sampling,
        length_reward=public.length_reward,
        validation=Validation(proof_rows_share=0.5, proof_rows_floor=8, thresholds=CALIBRATED),
    )
    policies = OnePolicy(LoadedPolicy(VERSION, DIGEST, made.model["old"]))
    return Court(made, facts, policies, tmp_path_factory.mktemp("court"))


@pytest.fixture
def honest(court: Court) -> list[Rollout]:
    return court.rows(court.made.old)
