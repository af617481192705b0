"""Supervised fine-tuning, PRIME and VinePPO are their papers' formulas in float64, on one, two and four ranks; in bfloat16 within a stated bound."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from method_gaps import BRIEF, LAYOUTS, METHODS, REWARD_MODEL

from forked_python import TRAINER, run_python

BOUNDS = {"sft": 1e-9, "prime": 1e-6, REWARD_MODEL: 1e-9, "vineppo": 1e-6}
"""Relative. Advantages are float32 on their way to the policy's loss, 6e-8 of each; nothing else is rounded to less than float64."""
HALVES = {"sft": 2e-2, "prime": 4e-2, REWARD_MODEL: 2e-2, "vineppo": 3e-2}
"""The same of whole vectors in norm, with passes in bfloat16, whose numbers have 8 bits: 4e-3 each."""


@pytest.fixture(scope="module")
def measured() -> dict[str, Any]:
    program = Path(__file__).parent / "method_gaps.py"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    done = run_python([str(program), "--brief", *METHODS], TRAINER, env=environment, timeout=450)
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("method", BOUNDS)
def test_losses_gradients_and_updates_are_those_of_the_formulas(
    measured: dict[str, Any], method: str, layout: str
) -> None:
    found = measured["gaps"][method][layout]
    assert set(found) == set(BRIEF)
    for case, gap in found.items():
        assert gap <= (HALVES if case == "bfloat16" else BOUNDS)[method], case


GOLDEN: dict[str, dict[str, list[float]]] = {
    "sft": {
        "means": [4.292400366, 4.002401689, 4.239443115],
        "norms": [2.150458553, 3.939519283, 2.125819572],
        "rest": [35.22043326],
    },
    "prime": {"means": [0.6888498356, 0.5], "norms": [1.352034298, 3.562971947], "rest": [32.38083723]},
    "vineppo": {"rest": [7.085544618]},
}


def test_the_formulas_themselves_give_what_they_gave(measured: dict[str, Any]) -> None:
    assert measured["reference"].keys() == GOLDEN.keys()
    for method, figures in GOLDEN.items():
        for name, values in figures.items():
            assert measured["reference"][method][name] == pytest.approx(values, rel=1e-6), (method, name)
