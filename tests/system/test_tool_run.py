"""The tiny example of a tool, for real: a model learns to call the calculator, and the run's own scores of unseen sums say so.

What the same recipe gains without the calculator is in `tool_reward` of benchmarks/results/agents.json.
"""

from pathlib import Path

import pytest
from local_system import LocalSystem

from shoal.contracts import keys
from shoal.evaluation.versions import VersionEvaluation

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600)]

EXAMPLE = Path(__file__).parents[2] / "examples" / "tool" / "tiny.yaml"
RISE = 0.3


def test_a_tiny_model_learns_to_have_its_sums_calculated(tmp_path: Path) -> None:
    system = LocalSystem(EXAMPLE, tmp_path / "runs")
    system.start()
    try:
        system.until("the run is complete", lambda: system.local.finished() == "complete", 3000)
        first, last = (
            VersionEvaluation.from_json(system.store.get(keys.evaluation(version, "unseen"))).short
            for version in (0, system.local.steps)
        )
        assert first.complete
        assert last.complete
        assert first.avg_at_k is not None
        assert last.avg_at_k is not None
        assert last.avg_at_k - first.avg_at_k >= RISE
        assert not [entry for entry in system.ledger() if entry.kind == "rejected"], "honest calls pass every check"
    finally:
        system.stop()
