"""`make bench-trainer`: its gate, its workload, and a small run of all that needs no TRL.

Agreement with TRL itself is tested in tests/training/test_golden_trl.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks.trainer.__main__ import GRADIENT_TOLERANCE, LOSS_TOLERANCE, Disagreement, _differences, check
from benchmarks.trainer.accelerator import SHAPES, check_losses, training_flops
from benchmarks.trainer.memory import peak_bytes, set_peak_back
from benchmarks.trainer.packing import arrival_density, densities
from benchmarks.trainer.passes import RECIPES
from benchmarks.trainer.workload import CPU, QUICK, draw_batch
from safetensors.torch import save_file

ROOT = Path(__file__).resolve().parents[2]
KEYS = (
    "time_ratio_fair_head", "time_ratio_shipped", "peak_memory_ratio_fair_head", "packing_density_32k", "publish_overhead",
    "checkpoint_overhead", "max_loss_difference", "max_grad_difference", "forward_units",
    "context_parallel_exact", "idle_share_batch_ready", "memory_model_error", "bytes_per_rank_32b_16",
)  # fmt: skip


@pytest.mark.parametrize("differences", [(1e-4, 0.0), (0.0, 1e-3), (float("nan"), 0.0)])
def test_no_figures_when_loss_or_gradient_disagree(differences: tuple[float, float]) -> None:
    with pytest.raises(Disagreement, match="relative: no figures"):
        check({"loss": differences[0], "gradient": differences[1]})
    check({"loss": LOSS_TOLERANCE, "gradient": GRADIENT_TOLERANCE})


def test_a_gradient_or_loss_that_is_not_a_number_is_a_difference(tmp_path: Path) -> None:
    good, bad = (
        {"head": torch.ones(3), "norm": torch.ones(2)},
        {"head": torch.ones(3), "norm": torch.full((2,), torch.nan)},
    )
    save_file(good, tmp_path / "ours.safetensors")
    for gradients, loss in ((bad, 0.5), (good, float("nan"))):
        save_file(gradients, tmp_path / "trl.safetensors")
        with pytest.raises(Disagreement, match="by nan"):
            check(_differences(tmp_path, [("ours", 0.5), ("trl", loss)]))
    save_file(good, tmp_path / "trl.safetensors")
    assert _differences(tmp_path, [("ours", 0.5), ("trl", 0.5)]) == {"loss": 0.0, "gradient": 0.0}


def test_no_accelerator_figures_when_losses_are_further_apart_than_bfloat16_explains() -> None:
    check_losses([{"side": "ours", "loss": 0.5}, {"side": "trl", "loss": 0.51}])
    with pytest.raises(Disagreement, match=r"trl has loss 0.6, ours 0.5: no figures"):
        check_losses([{"side": "ours", "loss": 0.5}, {"side": "trl", "loss": 0.6}])
    with pytest.raises(Disagreement, match=r"trl has loss nan, ours 0.5: no figures"):
        check_losses([{"side": "ours", "loss": 0.5}, {"side": "trl", "loss": float("nan")}])


def test_the_batch_is_the_same_each_time_and_forty_percent_of_it_is_real() -> None:
    batch = draw_batch(CPU)
    assert batch == draw_batch(CPU)
    assert batch.real_share == pytest.approx(0.4, abs=0.01)
    assert max(map(len, batch.completions)) == CPU.longest
    assert [len(row) for row in batch.old] == [len(row) for row in batch.completions]


def test_operations_of_a_shape_are_six_a_weight_and_token_and_those_of_attention() -> None:
    shape = SHAPES["1.5B"]
    weights_of_layers = 1.31e9  # Qwen2.5-1.5B without its embedding
    found = training_flops(shape, [1], 0)
    assert found == pytest.approx(6 * weights_of_layers, rel=0.02)
    assert training_flops(shape, [1000], 0) - 1000 * found == pytest.approx(6 * 28 * 1536 * (1000**2 - 1000))
    assert training_flops(shape, [1], 1) - found == 6 * shape.vocabulary * shape.hidden


def test_peak_memory_is_counted_from_when_it_was_set_back() -> None:
    np.ones(40_000_000)  # 320 MB that are gone again
    before = set_peak_back()
    assert peak_bytes() - before < 50_000_000
    held = np.ones(20_000_000)
    assert peak_bytes() - before > 0.9 * held.nbytes


def test_packs_closed_on_arrival_waste_what_first_fit_decreasing_uses() -> None:
    assert arrival_density([60, 60, 40, 40], 100) == pytest.approx(2 / 3)
    for run in densities().values():
        assert run["worst"] >= 0.98
        assert run["in_order_of_arrival"] < 0.92


@pytest.mark.soak
def test_a_small_run_measures_everything_that_needs_no_trl(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.trainer", "--quick", "--out", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=900)
    found = json.loads((tmp_path / "trainer.json").read_text())
    assert found["sides"]["ours"]["peak_bytes"] >= 0
    assert found["shape"]["rows"] == QUICK.rows
    assert 0 <= found["publish_overhead"] <= found["checkpoint_overhead"] < 1
    assert found["checkpoint_overhead"] <= found["idle_share_batch_ready"] < 1
    assert found["overheads"]["published_bytes"] > 0
    assert "time_ratio_fair_head" not in found
    check_units(found)


def test_the_committed_figures_have_every_key_and_passed_the_gate() -> None:
    found = json.loads((ROOT / "benchmarks" / "results" / "trainer.json").read_text())
    assert set(KEYS) <= found.keys()
    assert found["max_loss_difference"] <= LOSS_TOLERANCE
    assert found["max_grad_difference"] <= GRADIENT_TOLERANCE
    assert found["packing_density_32k"] >= 0.98
    assert found["measured_on"]["trl"] == "1.16.0"
    assert found["context_parallel_exact"] is True
    assert found["idle_share_batch_ready"] <= 0.02
    assert found["memory_model_error"] <= 0.10
    assert found["bytes_per_rank_32b_16"] <= 76e9
    assert found["time_ratio_fair_head"] >= 3.0
    check_units(found)


def check_units(found: dict[str, Any]) -> None:
    """Counted passes are the planner's, less the last product of each recomputed layer, a ninth of this one's, of each model that learns."""
    planned = dict(zip(RECIPES, (4.0, 4.0, 5.0, 5.875, 10.0), strict=True))
    assert found["forward_units_by_recipe"].keys() == planned.keys()
    for name, units in found["forward_units_by_recipe"].items():
        assert 0 < planned[name] - units < (0.5 if "PRIME" in name else 0.3), name
    assert found["forward_units"] <= 4.0
