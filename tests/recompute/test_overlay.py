"""The store as the repeated trainer sees it: what a range of the base model costs."""

from pathlib import Path

from read_counter import ReadCounter
from shoal.contracts import keys
from shoal.recompute.overlay import Overlay


def test_a_range_of_the_base_model_is_read_without_a_look_at_the_object_first(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "ours").mkdir()
    theirs = ReadCounter(tmp_path / "run")
    theirs.put(keys.BASE_MODEL + "model.safetensors", b"weights of the run")
    seen = Overlay(theirs, tmp_path / "ours")
    assert seen.get_range(keys.BASE_MODEL + "model.safetensors", 11, 18) == b"the run"
    assert theirs.reads == 0
