"""Numbers of work: a step is its own; a slice of a benchmark for one version has one above every step and within 32 bits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.contracts.completions import LengthReward, Sampling
from shoal.contracts.evaluation import MOST_SLICES, Benchmark, BenchmarkTasks, BenchmarkTerms, sampling_of
from shoal.contracts.work import (
    FIRST_SLICE,
    EvaluationSlice,
    FileShape,
    TableSlice,
    TrainingStep,
    UnknownWorkError,
    WorkCodec,
    WorkKind,
    kind_of,
    may_share_beacon,
)

DIGEST = "ab" * 32
LENGTHS = LengthReward(targets=[16, 24], alpha=0.003)
SHAPE = FileShape.of(Sampling(groups_per_submission=4, max_completion_tokens=90), 8, LENGTHS, rows_each=5)


def terms(name: str, tasks: int, groups: int, target_length: int | None = None) -> BenchmarkTerms:
    return BenchmarkTerms(
        name=name, environment="math", environment_digest=DIGEST, tasks_digest=DIGEST, task_count=tasks, samples=2,
        sampling=Sampling(groups_per_submission=groups), target_length=target_length,
    )  # fmt: skip


def codec(*benchmarks: BenchmarkTerms, mode: str = "Train") -> WorkCodec:
    return WorkCodec(mode, SHAPE, task_count=10, async_level=2, benchmarks=benchmarks)


sizes = st.lists(st.tuples(st.integers(1, 60), st.integers(1, 60)), min_size=1, max_size=4)


@given(sizes, st.integers(0, 999_999))
def test_numbers_and_slices_follow_from_one_another(found: list[tuple[int, int]], version: int) -> None:
    benchmarks = [terms(f"b{place}", tasks, min(tasks, groups)) for place, (tasks, groups) in enumerate(found)]
    made = codec(*benchmarks)
    expected = made.first_number(version)
    for each in benchmarks:
        rows: list[int] = []
        for place, number in enumerate(made.numbers(version, each.name)):
            work = made.decode(number)
            assert work == EvaluationSlice(expected, version, each, place, made.first_number(version))
            assert work.window == (version, version)
            assert work.beacon_number == made.first_number(version), "one beacon for all slices of a version"
            assert len(work.drawn) == each.sampling.groups_per_submission
            assert set(work.own) <= set(work.drawn)
            rows += work.own
            expected += 1
        assert rows == list(range(each.task_count)), "each task is some slice's own, once"
    assert expected == made.first_number(version + 1), "no number stands for two slices, and none for nothing"


def test_the_largest_number_is_a_step_of_a_rollout_file() -> None:
    made = codec(terms("all", MOST_SLICES, 1))
    assert max(made.numbers(999_999, "all")) < 2**31
    assert min(made.numbers(0, "all")) == FIRST_SLICE > 999_999


@pytest.mark.parametrize("number", [0, 999_999])
def test_a_number_below_all_slices_is_a_step_of_the_run(number: int) -> None:
    train, generate = codec(terms("sums", 8, 2)), codec(mode="Generate")
    assert kind_of(number) is WorkKind.STEP
    assert train.decode(number) == TrainingStep(number, SHAPE, 10, 2)
    assert generate.decode(number) == TableSlice(number, SHAPE, 10)
    with pytest.raises(UnknownWorkError, match=f"{number} is not a number of an evaluation of this run"):
        train.slice(number)


def test_a_run_without_benchmarks_knows_no_slice() -> None:
    assert kind_of(FIRST_SLICE) is WorkKind.EVALUATION
    with pytest.raises(UnknownWorkError, match="1000000 is not a number of an evaluation of this run"):
        codec().decode(FIRST_SLICE)


def test_a_name_of_no_benchmark_has_no_numbers() -> None:
    with pytest.raises(KeyError, match="there is no benchmark 'sums'"):
        codec(terms("math", 8, 2)).numbers(0, "sums")


@pytest.mark.parametrize(("step", "window"), [(0, (0, 0)), (1, (0, 1)), (2, (0, 2)), (7, (5, 7))])
def test_versions_of_the_async_level_feed_a_training_step_and_the_base_model_a_slice_of_the_table(
    step: int, window: tuple[int, int]
) -> None:
    assert codec().decode(step).window == window
    assert codec(mode="Generate").decode(step).window == (0, 0)


def test_a_training_step_draws_from_the_whole_table_and_a_slice_from_its_own_rows() -> None:
    assert codec().decode(5).drawn == range(10)
    assert [codec(mode="Generate").decode(step).drawn for step in range(3)] == [range(4), range(4, 8), range(6, 10)]


def test_files_of_steps_have_the_run_s_shape_and_those_of_slices_their_benchmark_s() -> None:
    assert codec().decode(0).shape.completions == 32
    assert codec().decode(0).shape.rows == 160
    assert codec(terms("sums", 8, 2)).decode(FIRST_SLICE).shape == FileShape(2, 2, 30_720, None, 1)
    assert codec(terms("sums", 8, 2, target_length=40)).decode(FIRST_SLICE).shape.targets == [40]


def test_a_file_of_a_slice_is_about_as_large_as_one_of_a_step() -> None:
    tasks, run = BenchmarkTasks(environment="math"), Sampling(groups_per_submission=4, max_completion_tokens=900)
    few = Benchmark(name="few", tasks=tasks, samples=4)
    many = Benchmark(name="many", tasks=tasks, samples=100)
    short = Benchmark(name="short", tasks=tasks, samples=1, max_completion_tokens=50)
    made = [sampling_of(each, 30, run, 16) for each in (few, many, short)]
    assert [each.groups_per_submission for each in made] == [16, 1, 30]
    assert [each.max_completion_tokens for each in made] == [900, 900, 50]


def test_the_draw_of_a_slice_is_the_same_for_every_node_and_attempt_and_that_of_a_step_is_not() -> None:
    found = codec(terms("sums", 8, 2)).decode(FIRST_SLICE)
    assert found.drawn_for(DIGEST, 3) == found.drawn_for("cd" * 32, 0)
    assert (
        codec().decode(4).drawn_for(DIGEST, 3) == codec(mode="Generate").decode(4).drawn_for(DIGEST, 3) == (DIGEST, 3)
    )


def test_only_slices_share_a_beacon_and_none_has_one_committed_to_under_a_later_number() -> None:
    assert may_share_beacon(FIRST_SLICE + 3, FIRST_SLICE)
    assert may_share_beacon(FIRST_SLICE, FIRST_SLICE)
    assert not may_share_beacon(FIRST_SLICE, FIRST_SLICE + 1)
    assert not may_share_beacon(4, 3)
    assert not may_share_beacon(FIRST_SLICE, 3)
