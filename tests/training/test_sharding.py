"""One, two and four ranks train alike: the same loss curve, the same norms, the same weights, whatever is sharded how.

Tolerance: sums over ranks are taken in another order, which float32 rounds differently (1e-5 of a norm, after four updates); weights that are
computed with in bfloat16 see those roundings as whole steps of 2^-8 now and then (1e-2).
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_run import write_base

from forked_python import TRAINER, run_python

WORLDS = (1, 2, 4)
CASES = {
    "plain": 1e-5, "recomputed and offloaded": 1e-5, "in host memory": 1e-5, "adapters": 1e-5, "bfloat16": 1e-2,
    "Muon": 1e-5, "Muon, all offloaded": 1e-5,
}  # fmt: skip


@pytest.fixture(scope="module")
def curves(tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("sharded")
    write_base(folder / "base")
    here = Path(__file__).parent
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(here), str(here.parent), *sys.path]),
        "OMP_NUM_THREADS": "1",
    }
    command = [str(here / "sharded_curves.py"), str(folder / "base"), str(folder)]
    done = run_python(command, TRAINER, env=environment, timeout=450)
    assert done.returncode == 0, done.stderr[-4000:]
    return {world: json.loads((folder / f"{world}.json").read_text()) for world in WORLDS}


@pytest.mark.parametrize("world", WORLDS[1:])
@pytest.mark.parametrize(("case", "tolerance"), CASES.items())
def test_any_number_of_ranks_gives_the_same_curve(
    curves: dict[int, dict[str, Any]], case: str, tolerance: float, world: int
) -> None:
    alone, together = curves[1][case], curves[world][case]
    for figure in ("loss", "kl", "entropy", "mismatch", "norms"):
        np.testing.assert_allclose(together[figure], alone[figure], rtol=tolerance, atol=tolerance / 10, err_msg=figure)
    np.testing.assert_allclose(together["clipped"], alone["clipped"], atol=2e-2 if case == "bfloat16" else 0.0)
    assert any(alone["clipped"])


@pytest.mark.parametrize("world", WORLDS[1:])
@pytest.mark.parametrize(("case", "tolerance"), CASES.items())
def test_any_number_of_ranks_gives_the_same_weights(
    curves: dict[int, dict[str, Any]], case: str, tolerance: float, world: int
) -> None:
    alone, together = (np.array(curves[size][case]["weights"]) for size in (1, world))
    assert np.linalg.norm(together - alone) <= tolerance * np.linalg.norm(alone)


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("case", CASES)
def test_a_gradient_that_is_not_finite_on_one_rank_skips_the_update_on_all(
    curves: dict[int, dict[str, Any]], case: str, world: int
) -> None:
    found = curves[world][case]
    assert found["applied"] == [True, True, False, True, True, True]
    assert found["finite"]
    assert np.isfinite(found["weights"]).all()


def test_offloading_and_recomputation_change_no_bit(curves: dict[int, dict[str, Any]]) -> None:
    assert curves[2]["plain"] == curves[2]["recomputed and offloaded"] == curves[2]["in host memory"]
    assert curves[2]["Muon"] == curves[2]["Muon, all offloaded"]


@pytest.mark.parametrize("world", WORLDS[1:])
def test_muon_makes_the_same_update_to_the_bit_on_any_number_of_ranks(
    curves: dict[int, dict[str, Any]], world: int
) -> None:
    assert curves[world]["muon"] == curves[1]["muon"]


@pytest.mark.parametrize("world", WORLDS[1:])
def test_each_layer_asks_for_the_next_one_s_weights_and_backward_for_the_one_before(
    curves: dict[int, dict[str, Any]], world: int
) -> None:
    found = curves[world]["prefetch"]
    first, last = "model.model.layers.0", "model.model.layers.1"
    assert found["forward"] == {"root": [first], first: [last], last: []}
    assert found["backward"] == {"root": [last], last: [first], first: []}
    assert found["same"]
    assert curves[1]["prefetch"]["forward"] == {}


@pytest.mark.parametrize("world", WORLDS[1:])
def test_supervised_fine_tuning_is_the_same_on_any_number_of_ranks(
    curves: dict[int, dict[str, Any]], world: int
) -> None:
    alone, together = curves[1]["supervised"], curves[world]["supervised"]
    assert together["tokens"] == alone["tokens"]
    for figure in ("loss", "entropy", "held_out", "norms"):
        np.testing.assert_allclose(together[figure], alone[figure], rtol=1e-4, err_msg=figure)
    ours, theirs = np.array(together["weights"]), np.array(alone["weights"])
    assert np.linalg.norm(ours - theirs) <= 1e-4 * np.linalg.norm(theirs)


@pytest.mark.parametrize("world", WORLDS[1:])
def test_prime_is_the_same_on_any_number_of_ranks(curves: dict[int, dict[str, Any]], world: int) -> None:
    alone, together = curves[1]["prime"], curves[world]["prime"]
    for figure in ("loss", "prm_loss", "norms"):
        np.testing.assert_allclose(together[figure], alone[figure], rtol=1e-4, atol=1e-5, err_msg=figure)
    assert together["accuracy"] == alone["accuracy"]
    assert len(set(alone["prm_loss"])) == len(alone["prm_loss"])
    ours, theirs = np.array(together["weights"]), np.array(alone["weights"])
    assert np.linalg.norm(ours - theirs) <= 1e-4 * np.linalg.norm(theirs)
