"""The study of islands and rounds: what it trains, and its table."""

from pathlib import Path

import pytest
from benchmarks.diloco import study
from benchmarks.diloco.study import SEEDS, SETTINGS, Setting


def test_one_island_that_never_meets_others_but_at_its_end_takes_the_outer_step_alone(tmp_path: Path) -> None:
    """Nesterov's first step is 1.33 times the island's own way (0.7 * 1.9), so it ends elsewhere than data parallel training of one."""
    plain = study.trained(Setting(1), 1, 2, tmp_path)
    assert study.trained(Setting(1), 1, 2, tmp_path) == plain
    assert study.trained(Setting(1, 2), 1, 2, tmp_path) != plain


def test_updates_that_are_no_whole_rounds_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="5 updates are no whole rounds of 2"):
        study.trained(Setting(2, 2), 1, 5, tmp_path)


def test_what_is_held_out_is_never_drawn_for_training() -> None:
    assert len(study.text(held_out=True)) > 100_000
    assert study.text(held_out=True)[:2000].tobytes() not in study.text(held_out=False).tobytes()


def test_the_table_has_a_row_a_setting_with_paired_differences() -> None:
    losses = {
        each.name: [1.0 + seed / 10 + 0.05 * (each.inner_steps is not None) for seed in SEEDS] for each in SETTINGS
    }
    made = {"updates": 1000, "rows": 8, "hidden": 64, "layers": 2, "loss": losses}
    rows = [line for line in study.table({"study": made}).splitlines() if line.startswith("| ")][1:]
    assert len(rows) == sum(each.inner_steps is not None for each in SETTINGS)
    assert rows[0] == "| 1 | 50 | 20 | float32 | 1.300 | 1.250 | 0.050 ± 0.000 |"
    assert study.table({}) == ""
