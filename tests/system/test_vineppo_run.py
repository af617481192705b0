"""A run with algorithm `vineppo` for real: a vLLM worker makes continuations, a validator judges them, the trainer learns from values."""

from pathlib import Path

import pytest
from local_system import LocalSystem, write_manifest

from shoal.contracts import keys
from shoal.contracts.rollouts import read_rollouts
from shoal.contracts.signed import Signed
from shoal.contracts.verdicts import Verdict
from shoal.contracts.vine import VineSettings, continuations

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]

EXAMPLE = Path(__file__).parents[2] / "examples" / "vineppo" / "trainingrun.yaml"
STEPS, GROUPS, SIZE = 3, 2, 4
VINE = VineSettings(segments=3, continuations=4)
COMPLETIONS = GROUPS * SIZE


def test_every_accepted_file_has_its_continuations_and_the_trainer_learns_from_completions(tmp_path: Path) -> None:
    system = LocalSystem(write_manifest(EXAMPLE, tmp_path / "run.yaml", steps=STEPS), tmp_path / "runs")
    system.start()
    try:
        system.until("the run is complete", lambda: _is_complete(system), 1500)
        store = system.store
        verdicts = [Signed[Verdict].from_json(store.get(info.key)).document for info in store.list("verdicts/")]
        assert verdicts
        assert {verdict.outcome for verdict in verdicts} <= {"accept", "expired"}, [v.evidence for v in verdicts]
        for verdict in verdicts:
            if verdict.outcome != "accept":
                continue
            rows, _ = read_rollouts(store.get(keys.upload(verdict.node, verdict.sha256)))
            assert len(rows) == len(verdict.rewards) == COMPLETIONS * VINE.rows_each
            for each in continuations(COMPLETIONS, VINE):
                row, parent = rows[each.row], rows[each.parent]
                position = VINE.positions(len(parent.completion_tokens))[each.boundary - 1]
                assert list(row.prompt_tokens) == [*parent.prompt_tokens, *parent.completion_tokens[:position]]
        for step in range(STEPS):
            metrics = system.metrics()[step]
            assert metrics.rows == 24 * SIZE
            assert metrics.rows_left_out == 0
            assert len(metrics.value_by_boundary) == VINE.segments + 1
            assert all(0.0 < value < 1.0 for value in metrics.value_by_boundary)
            assert metrics.gradient_norm > 0
            assert metrics.completion_length_mean <= 32
    finally:
        system.stop()


def _is_complete(system: LocalSystem) -> bool:
    ended = system.local.finished()
    assert ended is None or ended == "complete", ended
    return ended == "complete"
