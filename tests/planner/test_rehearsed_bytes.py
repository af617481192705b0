"""The rehearsal counts a version's bytes as the plan does: a delta for who holds the one before, and anchors in full for relays and store."""

import pytest
from benchmarks.plans.__main__ import SHAPES
from benchmarks.rehearse.__main__ import shape_of

from shoal.planner import step_parts


@pytest.mark.parametrize("name", SHAPES)
def test_bytes_of_versions_are_those_of_the_plan(name: str) -> None:
    shape, _ = shape_of(name, 1)
    run, around = shape.run, shape.around
    assert shape.fetched_bytes == step_parts.delta_bytes(run, around)
    cycle = [shape.fetched_bytes + shape.in_full_bytes(version) for version in range(1, run.anchor_every + 1)]
    assert sum(cycle) / len(cycle) == pytest.approx(step_parts.mean_version_bytes(run, around))
