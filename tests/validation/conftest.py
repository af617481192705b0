"""What the validation tests share: facts of the tiny run, and an honest file of a real engine."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "inference"))

import tiny_policy
from court import DIGEST, VERSION, Court, OnePolicy, facts_of

from shoal.contracts.rollouts import Rollout
from shoal.validation.policies import LoadedPolicy


@pytest.fixture(scope="session")
def court(tmp_path_factory: pytest.TempPathFactory) -> Court:
    made = tiny_policy.scenario()
    facts = facts_of(tiny_policy.ENVIRONMENT, tiny_policy.TASKS, made.tokenizer, tiny_policy.PUBLIC)
    policies = OnePolicy(LoadedPolicy(VERSION, DIGEST, made.model["old"]))
    return Court(made, facts, policies, tmp_path_factory.mktemp("court"))


@pytest.fixture
def honest(court: Court) -> list[Rollout]:
    return court.rows(court.made.old)
