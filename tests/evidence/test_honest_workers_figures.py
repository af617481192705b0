"""The committed figures of honest workers: a thousand files of all modes without a reject, and swaps as the engine's own benchmark has them."""

import json
from pathlib import Path

from benchmarks.workers.honest import ASKED

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"


def test_no_honest_file_of_any_mode_was_rejected_among_a_thousand() -> None:
    found = json.loads((RESULTS / "workers.json").read_text())["false_rejects"]
    assert found["rejected"] == 0
    assert sum(found["files"].values()) == found["total_files"] >= 1000
    assert set(found["files"]) >= {each.kind for each in ASKED} | {"rests_by_another_node"}
    assert found["files_of_two_versions"] >= 50


def test_the_seconds_of_a_swap_are_those_of_the_engines_own_benchmark() -> None:
    workers, inference = (json.loads((RESULTS / name).read_text()) for name in ("workers.json", "inference.json"))
    assert workers["swap_seconds"] == inference["swap_seconds"]
    assert set(workers["swap_seconds_by_ranks"]) == {"1", "2", "4"}
