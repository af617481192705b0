"""Processes that are forked from one with its imports done, against those that the interpreter starts itself."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import forked_python
from forked_python import PROGRAMS, Importer, imports_of, run_python, start_python

SAYS = """
import json, os, sys, threading, atexit
atexit.register(lambda: print("at exit", flush=True))
threading.Thread(target=lambda: print("in a thread", flush=True)).start()
main = sys.modules["__main__"]
print(json.dumps([__name__, sys.argv, os.getcwd(), main.__name__, getattr(main, "__spec__", None) and main.__spec__.name, "said" in dir(main)]))
print(sys.path)
print(sorted(os.environ.items()), os.getsid(0) == os.getpid(), file=sys.stderr)
said = True
sys.exit(json.loads(os.environ["SHOAL_CODE"]))
"""
MODULES = ("json", "threading", "atexit")


@pytest.fixture
def program(tmp_path: Path) -> Path:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").touch()
    (tmp_path / "package" / "__main__.py").write_text(SAYS)
    (tmp_path / "file.py").write_text(SAYS)
    return tmp_path


@pytest.mark.parametrize("code", ["0", "3", "null", '"why"'])
@pytest.mark.parametrize("how", ["-m", "-c", "file"])
def test_it_is_what_the_interpreter_makes_of_its_arguments(how: str, code: str, program: Path) -> None:
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(program), "SHOAL_CODE": code, "SHOAL_OTHER": "x"}
    arguments = {"-m": ["-m", "package", "a"], "-c": ["-c", SAYS, "a"], "file": [str(program / "file.py"), "a"]}[how]
    ours = run_python(arguments, MODULES, env=environment, timeout=60)
    theirs = subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True)
    assert (ours.returncode, ours.stdout, ours.stderr) == (theirs.returncode, theirs.stdout, theirs.stderr)


def start(program: str, tmp_path: Path) -> forked_python.ForkedProcess:
    with (tmp_path / "log").open("ab") as log:
        return start_python(["-c", program], MODULES, env={"PATH": os.environ["PATH"]}, stdout=log.fileno())


def test_an_uncaught_error_is_told_and_ends_it(tmp_path: Path) -> None:
    assert start("import sys\nraise ValueError('wrong')", tmp_path).wait(60) == 1
    assert (tmp_path / "log").read_text().endswith("ValueError: wrong\n")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_signal_ends_it_and_is_its_exit_code(number: int, tmp_path: Path) -> None:
    process = start("import time; time.sleep(600)", tmp_path)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.2)
    assert process.poll() is None
    process.send_signal(number)
    assert process.wait(60) == process.poll() == -number
    process.kill()  # of one that has ended: nothing


def test_processes_of_one_importer_do_not_wait_for_each_other(tmp_path: Path) -> None:
    long = start("import time; time.sleep(600)", tmp_path)
    assert [start(f"import sys; sys.exit({code})", tmp_path).wait(60) for code in (1, 2)] == [1, 2]
    assert long.poll() is None
    long.kill()
    assert long.wait(60) == -signal.SIGKILL


def test_what_was_forked_ends_with_its_importer(tmp_path: Path) -> None:
    importer = Importer(MODULES, {"PATH": os.environ["PATH"]})
    read, write = os.pipe()
    request = {"arguments": ["-c", "import time; time.sleep(600)"], "environment": {}, "folder": "/", "session": True}
    with (tmp_path / "log").open("ab") as log:
        pid = importer.start(request, [log.fileno(), log.fileno(), write])
    os.close(write)
    importer.end()
    end = time.monotonic() + 60
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < end
        time.sleep(0.02)
    os.close(read)


def test_an_importer_that_cannot_import_says_why() -> None:
    with pytest.raises(RuntimeError, match="No module named 'nowhere'"):
        run_python(["-c", ""], ("nowhere",), env={"PATH": os.environ["PATH"]}, timeout=60)


@pytest.mark.parametrize("program", sorted(set(PROGRAMS) - {"shoal.training", "shoal.validation", "shoal.inference"}))
def test_what_a_program_is_forked_behind_is_what_it_imports_by_itself(program: str) -> None:
    """Another module would bring its metrics along. The three others import what they need once they have read their configuration."""
    main = program if program.startswith("shoal.broadcast.") else f"{program}.__main__"
    asks = f"import sys, {main}; print(*(name for name in {PROGRAMS[program]!r} if name not in sys.modules))"
    done = subprocess.run([sys.executable, "-c", asks], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.split() == []


def test_programs_of_benchmarks_are_started_as_a_user_does(monkeypatch: pytest.MonkeyPatch) -> None:
    command = [sys.executable, "-m", "shoal.orchestrator"]
    assert imports_of(command) == PROGRAMS["shoal.orchestrator"]
    assert imports_of([sys.executable, "-c", "shoal.orchestrator"]) == imports_of(["redis-server"]) == ()
    monkeypatch.delenv("PYTEST_VERSION")
    assert imports_of(command) == ()
