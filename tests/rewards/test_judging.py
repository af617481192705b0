"""The pool of processes that judge: it keeps its size whatever happens to a process or to the machine."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from shoal.rewards.cpu_time import Took
from shoal.rewards.judging import Judges, JudgeWorker, NoReply

ECHO = """
import os, sys, time
print("ready", flush=True)
for line in sys.stdin:
    if line.strip() == '"spin"':
        while time.process_time() < 0.5:
            pass
    if line.strip() == '"end"':
        os._exit(3)
    print(line.strip(), flush=True)
"""


@pytest.fixture
def judges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Judges]:
    """A pool of one with its spare, whose processes say what they are asked."""
    (tmp_path / "echo_worker.py").write_text(ECHO)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    made = Judges(JudgeWorker("echo_worker", "an echo", "is it there?"), workers=1, question_seconds=30.0)
    yield made
    made.close()


class Machine:
    """Starts processes, or has none to spare."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.full = False
        self._start = subprocess.Popen
        monkeypatch.setattr(subprocess, "Popen", self._popen)

    def _popen(self, *arguments: Any, **named: Any) -> Any:
        if self.full:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        return self._start(*arguments, **named)


def test_a_question_says_what_it_took_of_a_process_that_ended_too(judges: Judges) -> None:
    took = Took()
    judges.ask("warm")
    assert judges.ask("spin", took) == "spin"
    assert took.seconds > 0.15
    ended = Took()
    assert isinstance(judges.ask("end", ended), NoReply)
    assert ended.seconds > 0.0


def test_a_pool_keeps_its_size_when_no_process_can_be_started_for_a_while(
    judges: Judges, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(monkeypatch)
    machine.full = True
    for _ in range(4):  # more questions than there are places
        assert isinstance(judges.ask("end"), NoReply)
    told = judges.ask("anything")
    assert isinstance(told, NoReply)
    assert "Resource temporarily unavailable" in told.reason
    machine.full = False
    meet = threading.Barrier(2, timeout=60)

    def at_once(question: str) -> Any:
        meet.wait()
        return judges.ask(question)

    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(at_once, ["one", "two"])) == ["one", "two"]


def test_a_pool_that_is_made_while_no_process_can_be_started_answers_later(
    judges: Judges, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(monkeypatch)
    machine.full = True
    late = Judges(JudgeWorker("echo_worker", "an echo", "is it there?"), workers=1, question_seconds=30.0)
    try:
        assert isinstance(late.ask("early"), NoReply)
        machine.full = False
        assert late.ask("now") == "now"
    finally:
        late.close()


def test_a_closed_pool_says_so_and_starts_nothing(judges: Judges) -> None:
    assert judges.ask("before") == "before"
    judges.close()
    assert judges.ask("after") == NoReply("an echo: its pool is closed")


def test_a_judge_reads_nothing_of_the_folder_that_it_is_started_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine that joined a run that is the node's folder, with its key."""
    (tmp_path / "node.pem").write_text("a key")
    (tmp_path / "snooping.py").write_text("raise SystemExit('the judge imports from where it is started')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "path", [*sys.path, str(Path(__file__).parent)])
    judges = Judges(JudgeWorker("snooping", "a snooping worker", "is it there?"), workers=1)
    try:
        assert judges.ask(str(tmp_path / "node.pem")) == "PermissionError"
        assert judges.ask(json.__file__) == "read"
    finally:
        judges.close()
