"""The committed figures of workers: a thousand honest files of all modes, swaps as the engine's own benchmark has them, and faults."""

import json
from pathlib import Path

from benchmarks.workers.honest import ASKED, ROUNDED

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


def test_no_honest_file_of_rounded_weights_was_rejected_and_published_weights_were_found() -> None:
    found = json.loads((RESULTS / "workers.json").read_text())["false_rejects_fp8"]
    assert found["rejected"] == 0
    assert found["total_files"] >= sum(each.files for each in ROUNDED) >= 100
    assert found["published_weights_found"] == found["published_weights_judged"] > 0


def test_rounding_moves_more_than_the_noise_of_decoding() -> None:
    found = json.loads((RESULTS / "workers.json").read_text())["rounded_weights"]
    assert found["tokens"] == found["decoding_noise"]["tokens"] >= 1000
    assert found["mean_kl_nats_a_token"] > found["decoding_noise"]["mean_kl_nats_a_token"] >= 0


def test_no_fault_at_any_point_of_a_lease_lost_or_doubled_a_file() -> None:
    """`WRITE_RESULTS=1 pytest tests/faults -m soak` writes these."""
    found = json.loads((RESULTS / "workers.json").read_text())
    assert found["lease_fault_cells"] == 42
    assert (found["lease_faults_lost"], found["lease_faults_doubled"]) == (0, 0)


def test_sized_leases_spare_a_slow_node_and_take_nothing_from_a_fast_one() -> None:
    """`python -m benchmarks.workers --sized` writes these."""
    found = json.loads((RESULTS / "workers.json").read_text())["sized_leases"]
    before, sized = found["steady_all_groups"], found["steady_sized"]
    assert sized["slow"]["seconds_between_files_p95"] < before["slow"]["seconds_between_files_p95"] / 2
    assert sized["slow"]["tokens_lost_share"] <= 0 < before["slow"]["tokens_lost_share"]
    assert sized["slow"]["tokens_a_second"] > before["slow"]["tokens_a_second"]
    assert sized["fast"]["slot_occupancy"] >= before["fast"]["slot_occupancy"] - 0.001
    killed = [found[f"killed_every_minute_{name}"] for name in ("sized", "all_groups")]
    assert killed[0]["slow"]["tokens_lost_share"] <= killed[1]["slow"]["tokens_lost_share"]


def test_where_rows_are_kept_a_kill_a_minute_loses_a_twentieth_of_the_tokens_at_most() -> None:
    """`python -m benchmarks.workers --killed` writes these: rows of 200, 1,000 and 9,000 tokens, by kill -9 and by SIGTERM."""
    shares = json.loads((RESULTS / "workers.json").read_text())["tokens_lost_share"]
    kept = {name: share for name, share in shares.items() if name.endswith("_kept_rows")}
    assert len(kept) == 6
    assert max(kept.values()) <= 0.05 < shares["mean_9000_kill_parts_10_s"]
