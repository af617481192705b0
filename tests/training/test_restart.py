"""A restart: each rank reads its own rows, on as many ranks as before or on others; memory stays near its share; who is killed is missed at once.

Tolerance of a run that moves: that of `test_sharding`, since sums over other numbers of ranks are rounded otherwise. What is read is what was saved.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from restart_ranks import WORLDS

from forked_python import TRAINER, run_python
from shoal.training.state_files import BLOCK_BYTES, REQUEST_BLOCKS

pytestmark = pytest.mark.soak  # 40 s of a processor
TOLERANCE = 1e-5
PARAMETERS = 35_000_000
SLACK_BYTES = 128 << 20
"""Of sixteen threads, the pieces in their hands and what libraries take when they are first used; model and file have 280 MB."""
READERS_BYTES = 16 * 2 * REQUEST_BLOCKS * BLOCK_BYTES


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("restart")
    here = Path(__file__).parent
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(here), str(here.parent), *sys.path]),
        "OMP_NUM_THREADS": "1",
    }
    done = run_python([str(here / "restart_ranks.py"), str(folder)], TRAINER, env=environment, timeout=450)
    assert done.returncode == 0, done.stderr[-4000:]
    return folder


def told(root: Path, case: str) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(root.glob(f"{case}-?.json"))]


def test_a_state_is_read_to_the_bit_on_any_number_of_ranks(root: Path) -> None:
    for step in range(1, len(WORLDS)):
        saved = {one["saved"] for one in told(root, f"moved{step - 1}")}
        restored = [one["restored"] for one in told(root, f"moved{step}")]
        assert len(restored) == WORLDS[step]
        assert set(restored) == saved


def test_a_run_that_moves_from_one_rank_to_two_to_four_and_back_goes_on_as_if_it_had_not(root: Path) -> None:
    [alone] = told(root, "undisturbed")
    losses = [told(root, f"moved{step}")[0]["loss"] for step in range(len(WORLDS))]
    np.testing.assert_allclose(losses, alone["loss"], rtol=TOLERANCE, atol=TOLERANCE / 10)
    ours, theirs = np.array(told(root, f"moved{len(WORLDS) - 1}")[0]["weights"]), np.array(alone["weights"])
    assert np.linalg.norm(ours - theirs) <= TOLERANCE * np.linalg.norm(theirs)


def test_a_rank_that_loads_has_its_share_in_memory_and_not_the_model(root: Path) -> None:
    for world in (4, 2):
        for one in told(root, f"reading{world}"):
            assert one["loading"] < 4 * PARAMETERS / world + SLACK_BYTES


@pytest.mark.parametrize("world", [4, 2])
def test_a_rank_that_restores_has_its_share_in_memory_and_not_the_state(root: Path, world: int) -> None:
    for one in told(root, f"reading{world}"):
        # Host copies of all, and the moments that are put into the optimizer: 700 MB of the whole.
        assert one["restoring"] < (12 + 8) * PARAMETERS / world + READERS_BYTES + SLACK_BYTES / 4


@pytest.mark.parametrize("world", [4, 2])
def test_a_rank_reads_the_bytes_of_its_rows(root: Path, world: int) -> None:
    found = told(root, f"reading{world}")
    assert sum(one["base_bytes"] for one in found) < 4 * PARAMETERS * 1.1 + world * (1 << 20)
    for one in found:
        assert 0.9 * 12 * PARAMETERS / world < one["state_bytes"] < 1.1 * 12 * PARAMETERS / world + (8 << 20)


@pytest.mark.parametrize("what", ["model", "state"])
def test_a_rank_that_is_killed_while_it_reads_is_missed_by_the_others_at_once(root: Path, what: str) -> None:
    assert (root / f"killed-{what}.txt").read_text() == "of 2 ranks these failed, by exit code: {1: -9}"
    [other] = told(root, f"killed-{what}")
    assert other["error"].startswith("PeerLost: rank 0 waited ")
    assert "\n" not in other["error"]
    assert other["seconds"] < 60
