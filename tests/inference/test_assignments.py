"""A node that lacks what a benchmark alone needs trains all the same; what its training needs is named in the refusal, with its extra."""

from collections.abc import Sequence

import pytest
import tiny_policy

from shoal.contracts.completions import Sampling
from shoal.contracts.evaluation import BenchmarkTerms
from shoal.contracts.tasks import Task
from shoal.environments import digest
from shoal.environments.harness import Harness
from shoal.inference.assignments import WrongEnvironmentError, benchmarks_here, work_on
from shoal.validation.setup import WrongSetupError, _pinned

NAME = "lm-eval:gsm8k"
EXTRA = r"needs lm-eval-of-nobody, which is not installed: install the extra `lm-eval` of shoal-rl"


def terms(name: str, environment: str, environment_digest: str) -> BenchmarkTerms:
    return BenchmarkTerms(
        name=name,
        environment=environment,
        environment_digest=environment_digest,
        tasks_digest="cd" * 32,
        task_count=7,
        samples=3,
        sampling=Sampling(temperature=0.6, max_completion_tokens=30, groups_per_submission=4),
    )


SUMS = terms("sums", "arithmetic", tiny_policy.PUBLIC.environment_digest)
HARNESS = terms("gsm8k", NAME, digest(Harness("gsm8k")))
PUBLIC = tiny_policy.PUBLIC.model_copy(update={"benchmarks": [SUMS, HARNESS]})


def table(sha256: str) -> list[Task]:
    return list(tiny_policy.TASKS[:7])


@pytest.fixture
def without_harness(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Harness, "requires", ("lm-eval-of-nobody",))


def served(benchmarks: Sequence[BenchmarkTerms]) -> list[str]:
    return list(benchmarks_here(PUBLIC.model_copy(update={"benchmarks": list(benchmarks)}), table))


def test_a_node_with_every_environment_serves_every_benchmark() -> None:
    assert served([SUMS, HARNESS]) == ["sums", "gsm8k"]


@pytest.mark.usefixtures("without_harness")
def test_a_node_without_the_environment_of_a_benchmark_trains_and_serves_none() -> None:
    assert served([SUMS, HARNESS]) == []
    assert served([SUMS]) == ["sums"]
    assert work_on(PUBLIC, table).environment.name == "arithmetic"


def test_a_node_with_another_version_of_a_benchmark_s_environment_serves_none() -> None:
    assert served([SUMS, terms("gsm8k", NAME, "00" * 32)]) == []
    assert served([terms("riddles", "riddles", "00" * 32)]) == []


@pytest.mark.usefixtures("without_harness")
def test_the_run_s_own_environment_is_needed_and_the_refusal_names_the_extra() -> None:
    public = PUBLIC.model_copy(update={"environment": NAME, "environment_digest": HARNESS.environment_digest})
    with pytest.raises(WrongEnvironmentError, match=EXTRA):
        work_on(public, table)


@pytest.mark.usefixtures("without_harness")
def test_a_validator_without_a_benchmark_s_environment_says_which_extra_it_wants() -> None:
    with pytest.raises(WrongSetupError, match=EXTRA + r".*; a validator needs every environment of the run"):
        _pinned(None, HARNESS)  # the environment is looked at before the store
