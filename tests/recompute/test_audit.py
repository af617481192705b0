"""A run recomputed: an honest one in full, and each of many changes by those who hold all keys named with its place."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tampering import TAMPERINGS, Copy
from tiny_world import STEPS, World

EVERYTHING = ("batches", "steps", "draws", "rewards", "proofs")


def test_an_honest_run_is_recomputed_bit_for_bit(world: World, tmp_path: Path) -> None:
    result = Copy(world, tmp_path).audit(*EVERYTHING)
    assert result.findings == []
    assert result.steps_equal == STEPS
    assert {stage: dict(totals.unchecked) for stage, totals in result.stages.items()} == dict.fromkeys(
        ("ledger", *EVERYTHING), {}
    )
    assert all(totals.done == totals.of > 0 for totals in result.stages.values())


@pytest.mark.parametrize(("change", "stages", "stage", "words"), TAMPERINGS, ids=[t[0].__name__ for t in TAMPERINGS])
def test_a_change_is_found_and_named(
    world: World, tmp_path: Path, change: Callable[[Copy], None], stages: tuple[str, ...], stage: str, words: str
) -> None:
    copy = Copy(world, tmp_path)
    change(copy)
    found = copy.audit(*stages).findings
    assert any(stage in ("", each.stage) and words in each.what for each in found), found
