"""The figures of VinePPO beside GRPO follow from the curves that are kept with them, and the page says them."""

import json
from pathlib import Path

import pytest
from benchmarks.vineppo.__main__ import SEEDS, at, interval, summary
from benchmarks.vineppo.curves import Curve

ROOT = Path(__file__).resolve().parents[2]
RESULT = ROOT / "benchmarks" / "results" / "vineppo.json"


def test_a_place_between_two_measurements_is_on_the_line_between_them() -> None:
    assert at([0, 10, 20], [0.2, 0.4, 0.3], 5) == pytest.approx(0.3)
    assert at([0, 10, 20], [0.2, 0.4, 0.3], 20) == pytest.approx(0.3)
    assert at([0, 10, 20], [0.2, 0.4, 0.3], 0) == pytest.approx(0.2)


def test_the_interval_of_three_seeds_is_students() -> None:
    assert interval([0.1, 0.2, 0.3]) == {"mean": 0.2, "low": -0.048, "high": 0.448}  # 4.303 x 0.1 / sqrt(3)
    assert interval([0.1]) == {"mean": 0.1, "low": None, "high": None}


def test_the_kept_figures_are_those_of_the_kept_curves_and_stand_on_the_page() -> None:
    kept = json.loads(RESULT.read_text())
    assert sorted(map(int, kept["seeds"])) == sorted(SEEDS)
    curves = {seed: {arm: Curve(**curve) for arm, curve in arms.items()} for seed, arms in kept["seeds"].items()}
    page = (ROOT / "docs" / "vineppo.md").read_text()
    for name, value in summary(curves).items():
        assert kept[name] == value, name
        for number in value.values() if name.startswith("vineppo_less") else []:
            assert f"{number:+.3f}" in page, f"{name}: {number:+.3f}"
