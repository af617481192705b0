"""Committed figures that reached their aims still do, and a rehearsal is held against the plan that is committed now."""

import json
import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
AT_MOST, AT_LEAST = operator.le, operator.ge
AIMS: dict[str, dict[str, tuple[Callable[[float, float], bool], float]]] = {
    "size": {
        "publish_to_announce_seconds_65gb": (AT_MOST, 40),
        "state_share_of_step": (AT_MOST, 0.02),
        "restart_seconds_32b_16_ranks": (AT_MOST, 300),
        "full_downloads_by_holders": (AT_MOST, 0),
        "recovery_gets_at_1e6": (AT_MOST, 1000),
        "delta_ratio_bf16_real_updates": (AT_LEAST, 30),
        "rehearsal_hours": (AT_MOST, 3),
        "rehearsal_lost_or_doubled": (AT_MOST, 0),
    },
    "workers": {
        "slot_occupancy": (AT_LEAST, 0.9),
        "engine_idle_share": (AT_MOST, 0.05),
        "expired_share": (AT_MOST, 0.03),
    },
    "trust": {
        "verify_to_generate_compute": (AT_LEAST, 25),
    },
}


def results(name: str) -> Any:
    return json.loads((BENCHMARKS / "results" / f"{name}.json").read_text())


@pytest.mark.parametrize(
    ("name", "key", "holds", "aim"),
    [(name, key, *aim) for name, aims in AIMS.items() for key, aim in aims.items()],
)
def test_what_was_reached_is_kept(name: str, key: str, holds: Callable[[float, float], bool], aim: float) -> None:
    assert holds(results(name)[key], aim)


def test_rehearsals_are_of_committed_plans_and_add_up() -> None:
    size = results("size")
    shapes = size["rehearsal"]
    plans = {name: json.loads((BENCHMARKS / "plans" / f"{name}.json").read_text()) for name in shapes}
    stale = [name for name in shapes if shapes[name]["planned_step_seconds"] != plans[name]["step_seconds"]]
    assert stale == [], "the plan changed since: rehearse the shape again, or take its figures out"
    assert size["plan_error_max"] == max(abs(each["plan_error"]) for each in shapes.values())
    assert size["rehearsal_lost_or_doubled"] == sum(each["lost"] + each["doubled"] for each in shapes.values())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_of_three_thousand_honest_files_hardly_one_in_a_thousand_may_be_rejected(dtype: str) -> None:
    trust = results("trust")
    assert trust["honest_files"][dtype] >= 3000
    assert trust["honest_false_reject_rate_upper_95"][dtype] < 1e-3
