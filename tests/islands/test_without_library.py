"""On arm64 there is no torchft: a trainer without islands does not miss it, and whoever needs it says so in plain words."""

import subprocess
import sys

MISSING = "import sys; sys.modules['torchft'] = None; "
"""What a program sees of a package that is not installed."""


def run(program: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", MISSING + program]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)


def test_a_trainer_without_islands_starts_without_the_library() -> None:
    done = run("import shoal.training.loop; import shoal.training.extensions.enabled; assert 'torch' in sys.modules")
    assert done.returncode == 0, done.stderr


def test_a_trainer_that_is_an_island_says_what_is_missing_and_where_it_is_not() -> None:
    done = run(
        "from types import SimpleNamespace as N; from shoal.training.extensions.islands import membership;"
        "membership.own_island(N(islands=N()), None, None)"
    )
    assert done.returncode == 1
    assert "NoLibrary: islands meet through torchft, which is not installed here" in done.stderr
    assert "kubernetes.io/arch: amd64" in done.stderr


def test_a_lighthouse_says_it_in_one_line() -> None:
    done = run("from shoal.islands import lighthouse; lighthouse.main(['127.0.0.1', '0'])")
    assert done.returncode == 1
    assert done.stderr.startswith("islands meet through torchft")
    assert len(done.stderr.splitlines()) == 1
