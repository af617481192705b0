"""What environments of others ask their parent for: judgements and programs as Shoal's own have them; and how they end with their parent."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import shoal
from servers import ROOT
from shoal.contracts.tasks import Task
from shoal.environments import apart
from shoal.environments.apart import Apart
from shoal.environments.base import Environment, load, runs_programs
from shoal.environments.episodes import has_tools
from shoal.environments.mixture import Mixture
from shoal.environments.probe import probe
from shoal.environments.results import EnvironmentBroke, Score, is_repeatable
from shoal.environments.scored_once import ProgramTime, ScoredOnce
from shoal.environments.turns import TURN_END
from shoal.rewards import calls, parent
from shoal.rewards.sandbox.service import ServiceFailed

RUNS = Task(problem_id="0", task_type="runs", prompt="?")
TELLS = Task(problem_id="1", task_type="tells", prompt="?")


@pytest.fixture(scope="module", autouse=True)
def machine() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="shoal-asking-"))
    metadata = folder / "asking-1.dist-info"
    metadata.mkdir()
    shutil.copy(ROOT / "tests" / "environments" / "asking_package.py", folder / "asking_of_others.py")
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: asking\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text(
        "[shoal.environments]\nasking = asking_of_others:Asking\ntheir-math = asking_of_others:TheirMath\ntheir-code = asking_of_others:TheirCode\n"
        "by-turn = asking_of_others:ByTurn\njudged = asking_of_others:Judged\n"
    )
    (folder / "spinner.py").write_text(SPINNER)
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [*sys.path, str(folder)])
        load.cache_clear()
        yield folder
    load.cache_clear()
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def asking() -> Environment:
    return load("asking")


@pytest.fixture(autouse=True)
def _bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apart, "QUESTION_SECONDS", 1.0)
    monkeypatch.setattr(calls, "MOST_JUDGEMENTS", 8)
    monkeypatch.setattr(calls, "MOST_PROGRAMS", 8)


def test_a_judge_of_mathematics_is_used_as_shoals_own_use_it() -> None:
    theirs = load("their-math")
    assert isinstance(theirs, Apart)
    task = Task(problem_id="0", task_type="math", prompt="?", verification_info={"answer": r"\sqrt{8}"})
    for answer in (r"2\sqrt{2}", r"3\sqrt{2}", "8"):
        completion = rf"\boxed{{{answer}}}"
        assert theirs.score(task, completion) == load("math").score(task, completion)
    assert theirs.flaw(task) is None
    assert theirs.problems() == []


def test_programs_run_and_their_time_counts_as_for_shoals_own() -> None:
    theirs = load("their-code")
    task = theirs.tasks(1, 0)[0]
    assert theirs.score(task, theirs.gold(task)) == load("code").score(task, theirs.gold(task))
    assert theirs.score(task, theirs.gold(task)).program_seconds > 0
    assert theirs.problems() == []
    programs = ProgramTime(1e-6)
    once = ScoredOnce(theirs, programs)
    assert once.reward(task, theirs.gold(task)) == 1.0
    assert programs.over
    assert once.reward(task, theirs.gold(task) + "\n") is None


def test_the_part_that_judges_a_task_is_told(asking: Environment) -> None:
    assert runs_programs(asking)
    assert runs_programs(asking, RUNS)
    assert not runs_programs(asking, TELLS)
    assert asking.part_of(RUNS).name == "runs"
    assert asking.part_of(TELLS).score(TELLS, "right") == Score(1.0)
    unknown = TELLS.model_copy(update={"task_type": "unknown"})
    assert runs_programs(asking, unknown), "without a part the whole counts"


def test_only_an_environment_that_says_so_runs_programs(asking: Environment) -> None:
    assert asking.score(RUNS, "run") == Score(1.0, "7\n")
    found = asking.score(TELLS, "run")
    assert isinstance(found, EnvironmentBroke)
    assert "SandboxFailed: an environment that runs programs must say so: set runs_programs = True" in found.reason


def test_a_call_back_does_not_use_the_time_of_the_answer(asking: Environment) -> None:
    assert asking.score(RUNS, "wait") == Score(1.0, "7\n")


ATTACKS = {
    "flood": "score() asked for more judgements than one question may; allowed: 8",
    "flood of programs": "score() asked for more programs than one question may; allowed: 8",
    "too long": f"score() called back with {1 << 30} bytes; allowed: {parent.CALL_BYTES}",
    "malformed": "score() called back with no call of its kind: ",
    "large": "SandboxFailed: a program's limit memory_bytes is 1073741824; allowed: at most 536870912",
    "spin after": "score() gave no answer within 1 s of CPU time",
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_call_back_that_is_none_is_refused_and_named(asking: Environment, attack: str) -> None:
    found = asking.score(RUNS, attack)
    assert isinstance(found, EnvironmentBroke), found
    assert ATTACKS[attack] in found.reason
    if attack in ("flood of programs", "spin after"):
        assert found.program_seconds > 0, "what ran is paid for"
    assert asking.score(RUNS, "right") == Score(1.0)


@pytest.mark.parametrize(
    "said",
    [
        b"\xff[", b'{"judge": ' + b"[" * 1_000_000, b'{"judge": []}, "more": {}', b'{"judge": [], "run": []}', b'{"judge": [["1"]]}', b'{"run": []}',
        b'{"judge": [[1, 2]]}', b'{"run": ["{}"]}', b'{"judge": [["1", "' + b"2" * 20_001 + b'"]]}', b'{"judge": {"proof": []}}', b"7", b"",
    ],
)  # fmt: skip
def test_a_call_back_of_another_form_is_none(said: bytes) -> None:
    with pytest.raises(ServiceFailed, match=r"called back with no call of its kind: .+") as refused:
        calls.Calls(programs=True).answer(said)
    assert len(str(refused.value)) < 400


@pytest.mark.parametrize("attack", ["later", "from another thread"])
def test_what_is_said_while_no_question_is_open_has_no_effect(
    asking: Environment, attack: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bytes] = []
    monkeypatch.setattr(calls.Calls, "answer", lambda self, call: asked.append(call) or b"{}")
    assert isinstance(asking.score(RUNS, attack), Score)
    time.sleep(0.3)
    assert asked == []
    for _ in range(3):  # its thread speaks now, in time that counts
        asking.score(RUNS, "right")
    assert len(asked) <= 1
    asking._processes.close()
    assert asking.score(RUNS, "right") == Score(1.0)


def test_a_download_of_tasks_is_refused_with_what_to_do_instead(asking: Environment) -> None:
    with pytest.raises(ValueError, match=r"the hub is away; nothing can be downloaded in a sandbox: .*tasks\.dataset"):
        asking.tasks(1, 0)


SPINNER = """
import os

def serve(questions, answers, arguments):
    os.write(answers, b"\\0\\0\\0\\1x")
    while True:
        pass
"""
PARENT = """
import os
import sys

from shoal.rewards.sandbox import service

real, begun = service._started, []

def started(isolation, place):
    process = real(isolation, place)
    begun.append(process)
    if len(begun) == 2:
        print(*(each.pid for each in begun), flush=True)
        sys.stdin.read()
    return process

service._started = started
served = service.ServedModule("spinner", {}, {"spinner": sys.argv[1], "shoal": sys.argv[2]}, ())
spins = service.Service(served)
spins.ask(b"", 10, 60.0)
starts = service.Service(served)
"""


@pytest.mark.parametrize("kind", ["bubblewrap", "landlock", "none"])
def test_no_process_outlives_its_parent(machine: Path, kind: str) -> None:
    own = os.path.dirname(os.path.realpath(shoal.__file__))
    owner = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(machine / "spinner.py"), own],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"SHOAL_SANDBOX": kind},
    )
    try:
        assert owner.stdout is not None
        spins, starts = map(int, owner.stdout.readline().split())
        assert living(spins)
    finally:
        owner.kill()
        owner.wait()
    until = time.monotonic() + 10
    while left := living(spins) + living(starts):
        assert time.monotonic() < until, left
        time.sleep(0.05)


def living(session: int) -> list[str]:
    """Processes of a session that have not ended."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            words = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(words[3]) == session and words[0] not in "ZX":
            found.append(path.parent.name)
    return found


def test_rewards_of_turns_come_through_the_walls_and_none_that_is_no_number() -> None:
    theirs = load("by-turn")
    assert getattr(theirs, "rewards_turns", False)
    assert has_tools(theirs)
    assert not getattr(load("their-math"), "rewards_turns", False)
    found = theirs.score(TELLS, TURN_END.join(("yes", "no", "yes")))
    assert isinstance(found, Score)
    assert (found.task_reward, found.turn_rewards) == (0.5, (0.25, 0.0, 0.25))
    assert isinstance(theirs.score(TELLS, "nan"), EnvironmentBroke)


def test_the_check_of_an_environment_looks_at_the_rewards_of_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = load("by-turn")
    assert probe(theirs, 2, 0)["faults"] == []
    monkeypatch.setattr(theirs, "score", lambda task, text: Score(float(text == theirs.gold(task))), raising=False)
    faults = probe(theirs, 2, 0)["faults"]
    assert "task-0: the gold answer: 0 turns have a reward, and the episode has 4" in faults


def test_an_environment_whose_scores_cannot_be_made_again_says_so_through_the_walls() -> None:
    assert not is_repeatable(load("judged"))
    assert is_repeatable(load("by-turn"))
    found = probe(load("judged"), 3, 0)
    assert found["faults"] == []
    assert found["scores_digest"] == probe(load("judged"), 3, 0)["scores_digest"]
    mixed = Mixture({"judged": load("judged"), "math": load("their-math")})
    assert not is_repeatable(mixed)
    assert [is_repeatable(mixed, TELLS.model_copy(update={"task_type": name})) for name in ("judged", "math")] == [
        False, True,
    ]  # fmt: skip
