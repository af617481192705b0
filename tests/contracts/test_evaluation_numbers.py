"""Numbers of evaluation work: each stands for one slice of one benchmark of one version, above every step and within 32 bits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.contracts.evaluation import MOST_SLICES, Benchmark, BenchmarkTasks, BenchmarkTerms, sampling_of
from shoal.contracts.recipe import Sampling
from shoal.contracts.work import FIRST_NUMBER, drawn_for, first_number, located, numbers_of, slices_of

DIGEST = "ab" * 32


def terms(name: str, tasks: int, groups: int) -> BenchmarkTerms:
    return BenchmarkTerms(
        name=name, environment="math", environment_digest=DIGEST, tasks_digest=DIGEST, task_count=tasks, samples=2,
        sampling=Sampling(groups_per_submission=groups),
    )  # fmt: skip


sizes = st.lists(st.tuples(st.integers(1, 60), st.integers(1, 60)), min_size=1, max_size=4)


@given(sizes, st.integers(0, 999_999))
def test_numbers_and_slices_follow_from_one_another(found: list[tuple[int, int]], version: int) -> None:
    benchmarks = [terms(f"b{place}", tasks, min(tasks, groups)) for place, (tasks, groups) in enumerate(found)]
    for each in benchmarks:
        rows: list[int] = []
        for place, number in enumerate(numbers_of(version, each.name, benchmarks)):
            work = located(number, benchmarks)
            assert (work.version, work.benchmark.name, work.slice) == (version, each.name, place)
            assert len(work.drawn) == each.sampling.groups_per_submission
            assert set(work.own) <= set(work.drawn)
            rows += work.own
        assert rows == list(range(each.task_count)), "each task is some slice's own, once"
    assert first_number(version + 1, benchmarks) - first_number(version, benchmarks) == slices_of(benchmarks)


def test_the_largest_number_is_a_step_of_a_rollout_file() -> None:
    benchmarks = [terms("all", MOST_SLICES, 1)]
    assert max(numbers_of(999_999, "all", benchmarks)) < 2**31
    assert min(numbers_of(0, "all", benchmarks)) == FIRST_NUMBER > 999_999


@pytest.mark.parametrize("number", [0, 999_999, -1])
def test_a_step_is_no_number_of_an_evaluation(number: int) -> None:
    with pytest.raises(ValueError, match=f"{number} is no number of an evaluation of this run"):
        located(number, [terms("sums", 8, 2)])
    with pytest.raises(ValueError, match="is no number of an evaluation of this run"):
        located(FIRST_NUMBER, [])


def test_a_file_of_a_slice_is_about_as_large_as_one_of_a_step() -> None:
    tasks, run = BenchmarkTasks(environment="math"), Sampling(groups_per_submission=4, max_completion_tokens=900)
    few = Benchmark(name="few", tasks=tasks, samples=4)
    many = Benchmark(name="many", tasks=tasks, samples=100)
    short = Benchmark(name="short", tasks=tasks, samples=1, max_completion_tokens=50)
    made = [sampling_of(each, 30, run, 16) for each in (few, many, short)]
    assert [each.groups_per_submission for each in made] == [16, 1, 30]
    assert [each.max_completion_tokens for each in made] == [900, 900, 50]


def test_the_draw_of_a_slice_is_the_same_for_every_node_and_attempt_and_that_of_a_step_is_not() -> None:
    assert drawn_for(FIRST_NUMBER, DIGEST, 3) == drawn_for(FIRST_NUMBER, "cd" * 32, 0)
    assert drawn_for(FIRST_NUMBER - 1, DIGEST, 3) == (DIGEST, 3)
