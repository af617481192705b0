"""What docs/diloco.md says of the benchmark is what benchmarks/results/diloco.json holds, and that is what the program writes."""

import json
import statistics
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
METHODS = {"data_parallel": "data parallel", "float32": "float32", "float16": "float16", "int8": "int8"}


@pytest.fixture
def figures() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / "benchmarks" / "results" / "diloco.json").read_text())
    return found


@pytest.fixture
def page() -> str:
    return (ROOT / "docs" / "diloco.md").read_text()


def test_the_page_says_by_how_much_seeds_of_each_method_differ(figures: dict[str, Any], page: str) -> None:
    by_seed = figures["loss"]["by_seed"]
    assert by_seed.keys() == METHODS.keys()
    for method, (first, second) in by_seed.items():
        assert f"{abs(first - second):.3f} ({METHODS[method]})" in page
    deviation = statistics.stdev(by_seed["data_parallel"])
    assert f"the standard deviation of data parallel training is {deviation:.3f}" in page
    assert figures["loss_noise"] == pytest.approx(deviation, abs=1e-4)


@pytest.mark.parametrize("kind", ["float16", "int8"])
def test_the_page_says_how_far_each_seed_is_from_data_parallel_training(
    kind: str, figures: dict[str, Any], page: str
) -> None:
    by_seed = figures["loss"]["by_seed"]
    gaps = [one - plain for one, plain in zip(by_seed[kind], by_seed["data_parallel"], strict=True)]
    mean, first, second = statistics.mean(gaps), *gaps
    assert f"{mean:.3f}: {first:+.3f} for one seed and {second:+.3f} for the other" in page


def test_the_figures_hold_nothing_that_the_program_does_not_write(figures: dict[str, Any]) -> None:
    program = (ROOT / "benchmarks" / "diloco" / "__main__.py").read_text()

    def keys_of(value: Any) -> set[str]:
        return set() if not isinstance(value, dict) else set(value).union(*map(keys_of, value.values()))

    gaps = {"formula_gap": None}  # its keys are encodings and counts of ranks, of `island_gaps`
    assert [key for key in sorted(keys_of(figures | gaps)) if f'"{key}"' not in program] == []
