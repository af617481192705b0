"""Environments of others, in a sandbox: each attack is harmless to this machine and is named, and the next question is answered."""

import os
import resource
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from importlib.util import cache_from_source
from pathlib import Path
from py_compile import PycInvalidationMode
from py_compile import compile as compile_to_cache

import pytest
from typer.testing import CliRunner

from servers import ROOT
from shoal.cli.main import app
from shoal.contracts.mixture import SourceTerms
from shoal.contracts.tasks import Task
from shoal.environments import apart, base
from shoal.environments.apart import Apart
from shoal.environments.base import BadEnvironment, Environment, digest, load
from shoal.environments.mixture import environment_of
from shoal.environments.results import EnvironmentBroke, Score, Unscorable
from shoal.rewards.cpu_time import cpu_seconds
from shoal.rewards.sandbox import service

TASK = Task(problem_id="0", task_type="hostile", prompt="?")
SECRET = "the node's key"


@pytest.fixture(scope="module", params=["bubblewrap", "landlock"])
def machine(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A folder that every user may read, so that the walls alone keep its key: with the package `hostile` installed beside it."""
    folder = Path(tempfile.mkdtemp(prefix="shoal-hostile-"))
    package = folder / "packages" / "hostile_of_others"
    metadata = folder / "packages" / "hostile-1.dist-info"
    for each in (package, metadata):
        each.mkdir(parents=True)
    key = folder / "node.key"
    key.write_text(SECRET)
    source = (ROOT / "tests" / "environments" / "hostile_package.py").read_text()
    (package / "__init__.py").write_text(source.replace("@KEY@", str(key)))
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: hostile\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text(
        "[shoal.environments]\nhostile = hostile_of_others:Hostile\nabsent = hostile_of_others:Absent\n"
        "escapes = hostile_of_others:Escapes\nfaulty = hostile_of_others:Faulty\nmain = __main__:X\n"
        "arithmetic = hostile_of_others:Hostile\n"
    )
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o777 if path.is_dir() else 0o666)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SHOAL_SANDBOX", request.param)
        patch.setenv("SHOAL_SECRET", SECRET)
        patch.setattr(sys, "path", [*sys.path, str(folder / "packages")])
        service.isolation_here.cache_clear()
        load.cache_clear()
        assert service.isolation_here().kind == request.param
        yield folder
    service.isolation_here.cache_clear()
    load.cache_clear()
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def hostile(machine: Path) -> Environment:
    return load("hostile")


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apart, "QUESTION_SECONDS", 2.0)


REFUSED = {
    "key": "FileNotFoundError|PermissionError",
    "parent": "FileNotFoundError|PermissionError",
    "first process": "FileNotFoundError|PermissionError",
    "write the key": "FileNotFoundError|PermissionError|OSError",
    "write at home": "PermissionError|OSError",
    "write in /tmp": "FileNotFoundError|PermissionError|OSError",
    "write its package": "PermissionError|OSError",
    "remove": "FileNotFoundError|PermissionError|OSError",
    "chmod": "PermissionError",
    "socket": "PermissionError",
    "unix socket": "PermissionError",
    "fork": "PermissionError",
    "command": "PermissionError",
    "kill": "PermissionError",
    "kill all": "PermissionError",
    "trace": "PermissionError",
    "grow": "MemoryError",
    "an object": "TypeError",
    "wrong detail": "TypeError",
}
ENDED = {
    "spin": "score() gave no answer within 2 s of CPU time",
    "sleep": "score() gave no answer within 2 s, and did not compute",
    "unfinished": "score() gave no answer within 2 s, and did not compute",
    "exit": "score() ended by itself (code 0)",
    "leave": "score() ended by itself (code 3)",
    "close": "score() ended by itself (code 120)",
    "long": "score() gave an answer of 335",
    "gigabyte": "score() gave an answer of 1073741824 bytes; allowed: 16777216",
    "pickle": "score() gave no answer of its kind",
    "deep": "score() gave no answer of its kind",
    "bytes": "score() gave no answer of its kind",
    "number": "score() gave no answer of its kind",
    "keys": "score() gave no answer of its kind: neither a value nor an error",
    "text": "score() gave no answer of its kind",
    "none": "score() gave no answer of its kind",
    "truth": "score() gave no answer of its kind",
    "five": "score() gave no answer of its kind: SaidScore.task_reward: Input should be less than or equal to 1",
    "nan": "score() gave no answer of its kind",
}


def unharmed(machine: Path, hostile: Environment) -> None:
    assert (machine / "node.key").read_text() == SECRET
    assert sorted(path.name for path in machine.rglob("*") if path.is_file()) == [
        "METADATA", "__init__.py", "entry_points.txt", "node.key",
    ]  # fmt: skip
    assert not Path("left").exists()
    assert not Path("/tmp/left-by-hostile").exists()
    assert hostile.score(TASK, "right") == Score(1.0)
    assert hostile.score(TASK, "wrong") == Score(0.0)


@pytest.mark.parametrize("attack", REFUSED)
def test_what_it_tries_is_refused_and_named(machine: Path, hostile: Environment, attack: str) -> None:
    found = hostile.score(TASK, attack)
    assert isinstance(found, EnvironmentBroke), found
    assert any(f"environment 'hostile': score() raised {name}" in found.reason for name in REFUSED[attack].split("|"))
    unharmed(machine, hostile)


@pytest.mark.parametrize("machine", ["bubblewrap"], indirect=True)
@pytest.mark.parametrize("attack", ENDED)
def test_a_process_that_gives_no_score_is_replaced(machine: Path, hostile: Environment, attack: str) -> None:
    found = hostile.score(TASK, attack)
    assert isinstance(found, EnvironmentBroke), found
    assert f"environment 'hostile': {ENDED[attack]}" in found.reason
    unharmed(machine, hostile)


def test_what_is_honest_but_long_is_cut_and_ends_nothing(hostile: Apart) -> None:
    assert hostile.score(TASK, "right") == Score(1.0)
    before = [each._process.pid for each in hostile._processes._idle]
    assert hostile.score(TASK, "long detail") == Score(0.0, "x" * 4096)
    assert hostile.score(TASK, "true score") == Score(1.0)
    assert hostile.score(TASK, "long reason") == Unscorable("x" * 4096)
    assert isinstance(hostile.score(TASK, "text"), EnvironmentBroke)
    assert [each._process.pid for each in hostile._processes._idle] == before


def test_a_machine_that_starts_no_process_makes_no_score(machine: Path, hostile: Apart) -> None:
    hostile._processes.close()
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
    try:
        found = hostile.score(TASK, "right")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert isinstance(found, EnvironmentBroke), found
    assert "score() could not start a process: " in found.reason
    unharmed(machine, hostile)


@pytest.mark.parametrize("attack", ["exit", "spin", "key"])
def test_only_what_it_says_of_a_task_counts_as_a_task_without_a_proof(hostile: Apart, attack: str) -> None:
    with pytest.raises(RuntimeError, match=r"environment 'hostile': flaw\(\) "):
        hostile.flaw(TASK.model_copy(update={"prompt": attack}))
    with pytest.raises(ValueError, match="it has no gold answer"):
        hostile.flaw(TASK.model_copy(update={"prompt": "no gold"}))
    assert hostile.flaw(TASK) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="threads are counted where the user of a sandbox is its own")
def test_its_threads_are_bounded(machine: Path, hostile: Environment) -> None:
    found = hostile.score(TASK, "threads")
    assert isinstance(found, EnvironmentBroke), found
    assert "score() raised RuntimeError: can't start new thread" in found.reason
    hostile.score(TASK, "exit")  # with its threads
    unharmed(machine, hostile)


def test_it_computes_only_while_a_question_is_open(machine: Path, hostile: Apart) -> None:
    for _ in range(2):
        assert hostile.score(TASK, "spin after") == Score(1.0, "started")
        group = hostile._processes._idle[-1]._process.pid
        before = cpu_seconds(group)
        time.sleep(0.5)
        assert cpu_seconds(group) - before < 0.05
    unharmed(machine, hostile)
    hostile._processes.close()
    assert not Path(f"/proc/{group}").exists()
    unharmed(machine, hostile)


@pytest.mark.parametrize("attack", ["variables", "walk", "at import"])
def test_what_it_sees_has_no_secret(machine: Path, hostile: Environment, attack: str) -> None:
    found = hostile.score(TASK, attack)
    assert isinstance(found, Score)
    assert SECRET not in found.detail
    assert "node.key" not in found.detail
    unharmed(machine, hostile)


def test_nothing_of_its_package_is_imported_here(hostile: Environment) -> None:
    assert isinstance(hostile, Apart)
    assert "hostile_of_others" not in sys.modules
    assert len(digest(hostile)) == 64
    assert "hostile_of_others" not in sys.modules


def test_its_digest_covers_every_file_and_is_that_of_a_trusted_one(
    machine: Path, hostile: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = digest(hostile), digest(mixture_of_one())
    with monkeypatch.context() as trusted:
        trusted.setenv(base.TRUSTED_VARIABLE, "hostile")
        trusted.setattr(sys, "dont_write_bytecode", True)
        load.cache_clear()
        try:
            assert not isinstance(load("hostile"), Apart)
            assert (digest(load("hostile")), digest(mixture_of_one())) == before
        finally:
            sys.modules.pop("hostile_of_others", None)
            load.cache_clear()
            (machine / "node.key").write_text(SECRET)  # a trusted one may write
    words = machine / "packages" / "hostile_of_others" / "words.txt"
    words.write_text("one\n")
    try:
        assert digest(hostile) != before[0]
        assert digest(mixture_of_one()) != before[1]
    finally:
        words.unlink()


def mixture_of_one() -> Environment:
    return environment_of("mixture", [SourceTerms(name="theirs", environment="hostile", task_count=1, weight=1)])


def test_caches_beside_its_source_are_not_run(machine: Path, hostile: Environment) -> None:
    module = machine / "packages" / "hostile_of_others" / "__init__.py"
    before = digest(hostile)
    text = module.read_text()
    spoilt = machine / "spoilt.py"
    spoilt.write_text(text.replace('completion == "right"', 'completion == "wrong"'))
    cache = Path(cache_from_source(str(module)))
    try:
        compile_to_cache(str(spoilt), str(cache), invalidation_mode=PycInvalidationMode.UNCHECKED_HASH)
        cache.parent.chmod(0o755)
        cache.chmod(0o644)
        assert digest(hostile) == before
        assert Apart("hostile", "hostile_of_others:Hostile").score(TASK, "wrong") == Score(0.0)
    finally:
        spoilt.unlink()
        shutil.rmtree(cache.parent)


def test_its_digest_covers_its_package(machine: Path, hostile: Environment) -> None:
    before = digest(hostile)
    module = machine / "packages" / "hostile_of_others" / "__init__.py"
    text = module.read_text()
    try:
        module.write_text(text + "# another\n")
        assert digest(hostile) != before
    finally:
        module.write_text(text)


@pytest.mark.parametrize(
    ("seed", "reason"),
    [
        (1, "tasks() gave 4 tasks"),
        (2, "tasks() raised AttributeError"),
        (3, "tasks() gave no answer of its kind: 0.problem_id"),
    ],
)
def test_tasks_that_are_none_are_refused(hostile: Environment, seed: int, reason: str) -> None:
    with pytest.raises(ValueError, match="environment 'hostile'") as refused:
        hostile.tasks(3, seed)
    assert reason in str(refused.value)
    assert [task.problem_id for task in hostile.tasks(3, 0)] == ["0", "1", "2"]


def test_a_prompt_that_is_no_text_is_refused(hostile: Environment) -> None:
    with pytest.raises(BadEnvironment, match=r"environment 'hostile': prompt\(\) gave no answer of its kind"):
        hostile.prompt(TASK.model_copy(update={"problem_id": "1"}), None)
    assert hostile.prompt(TASK, None) == "?"


def test_many_threads_may_ask(hostile: Environment) -> None:
    found: list[object] = []
    threads = [
        threading.Thread(target=lambda: found.extend(hostile.score(TASK, "right") for _ in range(50))) for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [Score(1.0)] * 300


def test_one_that_cannot_be_loaded_is_named(machine: Path) -> None:
    with pytest.raises(BadEnvironment, match=r"environment 'absent': AttributeError: .*Absent"):
        load("absent")


def test_processes_of_one_that_cannot_be_used_end(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[service.Service] = []
    real = apart._Processes._keep
    monkeypatch.setattr(apart._Processes, "_keep", lambda self, each: (begun.append(each), real(self, each)))
    for name, attribute in (("absent", "Absent"), ("other", "Hostile")):
        with pytest.raises(BadEnvironment):
            Apart(name, f"hostile_of_others:{attribute}")
    assert [each._process.returncode for each in begun] == [-9, -9]


def test_a_module_of_the_caller_is_none_of_an_environment(machine: Path) -> None:
    with pytest.raises(BadEnvironment, match="environment 'main': __main__ is no package"):
        load("main")


@pytest.mark.parametrize("machine", ["bubblewrap"], indirect=True)
def test_what_it_says_of_itself_does_not_reach_a_terminal(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_ENVIRONMENTS", str(machine / "packages"))  # which another process sees too
    for arguments in (["list"], ["check", "faulty"]):
        shown = CliRunner().invoke(app, ["env", *arguments]).output
        assert "\x1b" not in shown
        assert "\x07" not in shown
        assert r"\x1b" in shown


def test_the_name_of_one_of_shoals_own_cannot_be_taken(machine: Path) -> None:
    assert not isinstance(load("arithmetic"), Apart)


def test_sources_of_a_mixture_are_apart_too(machine: Path) -> None:
    mixed = environment_of("mixture", [SourceTerms(name="theirs", environment="hostile", task_count=1, weight=1)])
    task = TASK.model_copy(update={"task_type": "theirs"})
    assert isinstance(mixed.score(task, "key"), EnvironmentBroke)
    assert mixed.score(task, "right") == Score(1.0)
    assert len(digest(mixed)) == 64


def test_a_package_in_a_folder_of_its_own_is_found_and_nothing_of_it_is_on_our_path(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside = digest(load("hostile"))
    folder = str(machine / "packages")
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry != folder])
    assert "hostile" not in base.installed()
    monkeypatch.setenv("SHOAL_ENVIRONMENTS", os.pathsep.join([folder, "/nowhere"]))
    load.cache_clear()
    found = load("hostile")
    assert isinstance(found.score(TASK, "key"), EnvironmentBroke)
    assert found.score(TASK, "right") == Score(1.0)
    assert digest(found) == beside
    assert not isinstance(load("arithmetic"), Apart)


def test_an_owner_may_trust_one(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(base.TRUSTED_VARIABLE, "others, hostile")
    assert base.in_process(base.installed()["hostile"])
    monkeypatch.setenv(base.TRUSTED_VARIABLE, "others")
    assert not base.in_process(base.installed()["hostile"])


def test_one_that_an_owner_trusts_is_loaded_from_a_folder_of_its_own(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = str(machine / "packages")
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry != folder])
    monkeypatch.setenv("SHOAL_ENVIRONMENTS", folder)
    monkeypatch.setenv(base.TRUSTED_VARIABLE, "hostile absent")
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    load.cache_clear()
    try:
        with pytest.raises(BadEnvironment, match=r"environment 'absent' cannot be loaded: AttributeError: .*Absent"):
            load("absent")
        assert load("hostile").score(TASK, "right") == Score(1.0)
    finally:
        sys.modules.pop("hostile_of_others", None)
        load.cache_clear()
        (machine / "node.key").write_text(SECRET)  # a trusted one may write


def test_without_walls_it_does_not_run(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", os.devnull)
    monkeypatch.setenv("SHOAL_SANDBOX", "bubblewrap")
    service.isolation_here.cache_clear()
    try:
        with pytest.raises(
            BadEnvironment, match="is not Shoal's own, and must run in a sandbox: programs cannot be isolated"
        ):
            Apart("hostile", "hostile_of_others:Hostile")
    finally:
        service.isolation_here.cache_clear()
