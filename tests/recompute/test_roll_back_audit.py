"""A run that went back on signs of instability is recomputed as its reports say: limits are of the release that trained, not of the auditor's."""

from pathlib import Path

import pytest
from tampering import Copy
from tiny_world import STEPS, World

from servers import Redis
from shoal.contracts import keys
from shoal.contracts.failures import Stability
from shoal.contracts.steps import StepMetrics

BACK_AT, TO = STEPS - 1, 1


@pytest.fixture(scope="module")
def gone_back(tmp_path_factory: pytest.TempPathFactory, redis_server: Redis) -> World:
    """Three steps of a run, whose trainer went back to version 1 in place of the last."""
    made = World(tmp_path_factory.mktemp("back") / "run", redis_server.url, stability=Stability(action="RollBack"))
    trainer = made.trainer()
    ahead = trainer.advance
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer, "advance", lambda: trainer.go_back(TO) if trainer.version == BACK_AT else ahead())
        made.play(trainer)
    return made


def test_a_run_that_went_back_is_recomputed_bit_for_bit(gone_back: World, tmp_path: Path) -> None:
    copy = Copy(gone_back, tmp_path)
    assert StepMetrics.from_json(copy.store.get(keys.step_metrics(BACK_AT))).rolled_back_to == TO
    result = copy.audit("batches", "steps")
    assert result.findings == []
    assert result.steps_equal == STEPS


def test_a_report_that_names_another_version_is_found_out(gone_back: World, tmp_path: Path) -> None:
    copy = Copy(gone_back, tmp_path)
    key = keys.step_metrics(BACK_AT)
    told = StepMetrics.from_json(copy.store.get(key))
    copy.store.put(key, told.model_copy(update={"rolled_back_to": 0}).to_json())
    assert any("is not what its step makes" in finding.what for finding in copy.audit("steps").findings)


def test_a_run_that_may_not_go_back_is_not_believed(world: World, tmp_path: Path) -> None:
    copy = Copy(world, tmp_path)
    key = keys.step_metrics(BACK_AT)
    told = StepMetrics.from_json(copy.store.get(key))
    copy.store.put(key, told.model_copy(update={"rolled_back_to": TO}).to_json())
    assert copy.audit("steps").steps_equal == STEPS  # trained again, as the manifest demands, and equal
