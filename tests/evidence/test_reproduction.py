"""`make reproduce`: one small arm end to end, what a second call does, and the numbers that the page is made of."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from benchmarks.reproduce.__main__ import compact, digest
from benchmarks.reproduce.arms import ARMS, EXPERIMENTS, SEEDS, needed
from benchmarks.reproduce.base import hard_tasks, padded_addition
from benchmarks.reproduce.page import BEGIN, END, HOW, tables, write_page
from benchmarks.reproduce.summary import at_end, column, curve, each, interval, paired

from shoal.environments.arithmetic import Arithmetic
from shoal.environments.base import Score

ROOT = Path(__file__).resolve().parents[2]


def reproduce(out: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.reproduce", "--quick", "--out", str(out), *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=240)


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("reproduction")
    reproduce(out)
    return out


def seed_of(out: Path) -> dict[str, list[float | None]]:
    return json.loads((out / "reproduction.json").read_text())["arms"]["default"]["seeds"]["1"]


def test_an_arm_runs_with_the_trainers_own_functions_and_an_exact_async_level(quick: Path) -> None:
    columns = seed_of(quick)
    assert columns["step"] == [0, 1, 2, 3, 4]
    assert columns["version"] == [0, 0, 0, 1, None]  # async level 2: step s is sampled with version s - 2
    assert all(value > 0 for value in columns["gradient_norm"][:4] if value is not None)
    assert columns["held_out_reward"][0] is not None
    assert columns["held_out_reward"][4] is not None
    assert columns["held_out_reward"][1] is None  # measured every few steps, and at the end


def test_a_policy_without_any_signal_is_trained_on_what_there_is(quick: Path) -> None:
    columns = seed_of(quick)
    assert columns["task_reward"][0] == 0  # random weights add nothing up
    assert columns["groups_used"][:4] == [3] * 4


def test_a_second_call_runs_nothing_and_writes_the_same(quick: Path) -> None:
    before = (quick / "reproduction.json").read_bytes()
    assert " seed " not in reproduce(quick).stdout
    assert (quick / "reproduction.json").read_bytes() == before


def test_a_changed_arm_is_another_arm() -> None:
    assert len({digest(arm) for arm in ARMS.values()}) == len(ARMS)


def test_every_arm_is_in_a_figure_and_every_curve_has_a_place_in_the_table() -> None:
    assert set(needed()) == set(ARMS)
    assert {name for experiment in EXPERIMENTS.values() for name in experiment.curves} <= set(HOW)
    assert len(SEEDS) >= 3


def test_a_padded_addition_is_right_whenever_its_unpadded_twin_is() -> None:
    class Chance:
        """No slips, and as much padding as there is."""

        def random(self) -> float:
            return 0.99

        def randint(self, low: int, high: int) -> int:
            return high

    environment = Arithmetic()
    task = environment.tasks(1, 3)[0]
    left, right = (int(number) for number in str(task.prompt).removesuffix("=").split("+"))
    text = padded_addition(left, right, Chance())
    assert environment.score(task, text) == Score(1.0, "the sum is right")
    assert text.count(",") == 3


def test_hard_tasks_are_three_digit_additions_with_their_answers() -> None:
    for task in hard_tasks(20, seed=1):
        left, right = (int(number) for number in str(task.prompt).removesuffix("=").split("+"))
        assert 100 <= left <= 999
        assert 100 <= right <= 999
        assert task.verification_info == {"answer": str(left + right)}


def seeds(*ends: float) -> dict[str, dict[str, list[float | None]]]:
    return {
        str(number): {"step": [0, 5, 10], "held_out_reward": [0.3, None, end], "kl": [0.0, 1.0, 2.0]}
        for number, end in enumerate(ends)
    }


def test_a_missing_value_is_no_point_of_a_curve() -> None:
    steps, values = column(seeds(0.7)["0"], "held_out_reward")
    assert steps.tolist() == [0, 10]
    assert values.tolist() == [0.3, 0.7]


def test_a_band_is_students_interval_over_seeds() -> None:
    found = interval([1.0, 2.0, 3.0])
    assert found.mean == 2
    assert found.half == pytest.approx(4.303 / np.sqrt(3))
    band = curve(seeds(0.5, 0.6, 0.7), "held_out_reward", extremes=False)
    assert band.high[-1] - band.mean[-1] == pytest.approx(4.303 * 0.1 / np.sqrt(3))
    extremes = curve(seeds(0.5, 0.6, 0.7), "held_out_reward", extremes=True)
    assert (extremes.low[-1], extremes.high[-1]) == (0.5, 0.7)


def test_differences_are_paired_by_seed_so_that_what_seeds_share_cancels() -> None:
    apart = paired(seeds(0.5, 0.7, 0.9), seeds(0.4, 0.6, 0.8), at_end, "held_out_reward")
    assert apart.mean == pytest.approx(0.05)  # of ends that are means of the last measurements
    assert apart.half == pytest.approx(0.0, abs=1e-12)
    assert not apart.holds_zero
    assert each(seeds(0.5), at_end, "held_out_reward").count == 1


def test_columns_have_four_digits_and_none_where_a_step_has_no_value() -> None:
    assert compact([{"a": 0.123456}, {"b": 2}]) == {"a": [0.1235, None], "b": [None, 2]}


def test_the_page_keeps_its_prose_and_gets_new_tables(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    write_page({}, page)
    assert page.read_text() == f"before\n{BEGIN}\n\n\n{END}\nafter\n"


def test_the_committed_results_are_of_the_arms_as_they_are() -> None:
    found = json.loads((ROOT / "benchmarks" / "results" / "reproduction.json").read_text())["arms"]
    stale = [name for name, run in found.items() if name not in ARMS or run["digest"] != digest(ARMS[name])]
    assert not stale, f"run `make reproduce` for {stale}"
    assert tables(found) in (ROOT / "docs" / "reproduction.md").read_text(), (
        "run `python -m benchmarks.reproduce --page`"
    )
