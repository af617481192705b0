"""The parts of `python -m benchmarks.gpu` about trust, as they run on a GPU, at tiny sizes on a CPU; and models that travel in pieces."""

from pathlib import Path

import pytest
from benchmarks.gpu import carried, gaps, proofs, sampling
from benchmarks.gpu.part import Asked


def asked(tmp_path: Path) -> Asked:
    return Asked(device="cpu", seconds=60.0, tiny=True, result=tmp_path / "result.json")


def test_the_rule_draws_the_same_on_both_devices(tmp_path: Path) -> None:
    given = asked(tmp_path)
    sampling.measure(given)
    assert given.figures["uniforms_equal_cpu"] == given.figures["uniforms"]
    for words in (200, 2_000):
        assert given.figures[f"draws_at_{words}_words"] == {"draws": 64, "equal_cpu": 64, "largest_gap_nats": 0.0}
    assert "Triton" in given.figures["left_out"][0]


def test_proofs_have_the_same_bytes(tmp_path: Path) -> None:
    given = asked(tmp_path)
    proofs.measure(given)
    assert set(given.figures["hidden_128_tiny"]["proofs_equal"].values()) == {8}


def test_honest_rows_pass_and_those_of_cheap_weights_are_counted(tmp_path: Path) -> None:
    given = asked(tmp_path)
    gaps.measure(given)
    for case in ("demo_bfloat16", "demo_float32"):
        found = given.figures[case]
        looks = [look for batch in found["honest"].values() for look in batch.values()]
        assert all(look["files_rejected_calibrated_budget"] == look["files_rejected_by_proofs"] == 0 for look in looks)
        assert found["no_time_for"] == []
    exact = given.figures["demo_float32"]
    assert all(look["tokens_not_drawn"] == 0 for batch in exact["honest"].values() for look in batch.values())
    int4 = exact["cheap_weights"]["int4"]["by_these_weights_alone"]
    assert int4["mean_mantissa_error"] > 1.0
    assert int4["proofs_rejected_calibrated"] > 0


def test_pieces_that_are_missing_or_spoilt_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pieces = tuple(tmp_path / name for name in "abc")
    for name, value in {"ROOT": tmp_path, "HOME": tmp_path, "PIECES": pieces, "LAST": pieces[-1]}.items():
        monkeypatch.setattr(carried, name, value)
    monkeypatch.setattr(carried, "DEMO", tmp_path / "models" / "demo")
    monkeypatch.setattr(carried, "REAL", tmp_path / "models" / "smollm2")
    with pytest.raises(SystemExit, match=r"a/smollm2\.gguf is missing"):
        carried.join()
    for piece in pieces:
        piece.mkdir()
        (piece / carried.PART).write_bytes(b"part")
    (pieces[-1] / carried.DIGEST).write_text("0" * 64)
    (pieces[-1] / "demo").mkdir()
    with pytest.raises(SystemExit, match="not those of one file"):
        carried.join()
    assert carried.DEMO.is_dir()
    assert not carried.REAL.exists()
