"""`shoal ledger` on copies that lack something: objects without a byte, and a kept checkpoint that the store has no more."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from ledger_copies import FILES, HONEST, make_copy

from samples import RUN_KEY
from shoal.cli.main import main
from shoal.contracts import keys

Ledger = Callable[..., tuple[int, str]]


@pytest.fixture
def ledger(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Ledger:
    """Runs a verb; returns exit code and standard error."""

    def run(*arguments: object) -> tuple[int, str]:
        words = ["shoal", "ledger", *map(str, arguments), "--run-key", RUN_KEY.public]
        monkeypatch.setattr(sys, "argv", words)
        capsys.readouterr()
        code = main()
        return code, capsys.readouterr().err

    return run


@pytest.fixture
def gapped(tmp_path: Path) -> Path:
    return make_copy(tmp_path / "gapped")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (keys.ledger_entry(3), "entry 3 is not signed by this run's orchestrator"),
        (keys.ledger_checkpoint(10), f"{keys.ledger_checkpoint(10)} is not signed by this run's orchestrator"),
        (keys.verdict(HONEST, FILES[HONEST]), "entry 5 (accepted): its document is not signed by the role that makes it"),
        (keys.step_batch(0), "entry 6 (batch-sealed): the batch of step 0 is not the one that was sealed"),
        (keys.version_weights(0), "entry 1 (version-published): its document is not signed by the role"),
    ],
    ids=["entry", "checkpoint", "verdict", "batch", "weights"],
)  # fmt: skip
def test_an_empty_object_is_a_finding(ledger: Ledger, gapped: Path, name: str, words: str) -> None:
    (gapped / name).write_bytes(b"")
    code, said = ledger("verify", gapped, "--documents")
    assert (code, words in said) == (1, True), said


@pytest.mark.parametrize("verb", [("verify", "--keep", "new.json", "--kept"), ("proof", "--since")], ids=["keep", "since"])  # fmt: skip
def test_a_kept_checkpoint_that_the_store_lost_is_reported(
    ledger: Ledger, gapped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    (gapped / keys.ledger_checkpoint(10)).rename(tmp_path / "kept.json")
    code, said = ledger(verb[0], gapped, *verb[1:], "kept.json")
    assert code == 2
    assert "the checkpoint over 10 entries that was kept fits, but is not in the store" in said
    assert "Traceback" not in said
    assert not Path("new.json").exists()
