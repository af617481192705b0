"""Progress of runs: read beside reconcile, so that an orchestrator that hangs holds nobody up."""

import time
from collections.abc import Iterator

import pytest
from hostile_api import Answer, ScriptedApi, refusal

from servers import wait_until
from shoal.contracts.protocol import RunProgress
from shoal_operator.engine.kinds import Key
from shoal_operator.engine.progress import FRESH_SECONDS, SILENT_SECONDS, TIMEOUT_SECONDS, RunProgressReader

KEY = Key("TrainingRun", "a", "sums")


class Rig:
    """A reader whose clock the test moves."""

    def __init__(self, hostile: ScriptedApi) -> None:
        self.now = 0.0
        self.queued: list[Key] = []
        self.hostile = hostile
        self.url = hostile.configuration.host
        self.reader = RunProgressReader(self.queued.append, clock=lambda: self.now)

    def answers(self, *answers: Answer) -> None:
        self.hostile.script("/v1/run", *answers)

    def ask(self) -> RunProgress | None:
        return self.reader.progress(self.url, KEY)


@pytest.fixture
def rig(hostile: ScriptedApi) -> Iterator[Rig]:
    made = Rig(hostile)
    yield made
    made.reader.close()


def at(step: int) -> Answer:
    return Answer(body=RunProgress(run="sums", steps_total=4, open_step=step, latest_version=step).to_json())


def test_the_first_question_waits_for_its_answer_and_queues_nothing(rig: Rig) -> None:
    rig.answers(at(1))
    found = rig.ask()
    assert found is not None
    assert found.open_step == 1
    assert rig.queued == []


def test_a_fresh_answer_is_not_asked_for_again(rig: Rig) -> None:
    rig.answers(at(1))
    for _ in range(3):
        rig.ask()
    assert len(rig.hostile.asked) == 1


def test_a_later_question_answers_at_once_and_another_answer_queues_the_run(rig: Rig) -> None:
    rig.answers(at(1), at(2))
    rig.ask()
    rig.now += FRESH_SECONDS + 0.1
    found = rig.ask()
    assert found is not None
    assert found.open_step == 1, "what is known"
    wait_until("the run to be queued", lambda: rig.queued == [KEY])
    found = rig.ask()
    assert found is not None
    assert found.open_step == 2
    rig.now += FRESH_SECONDS + 0.1
    rig.ask()
    wait_until("the third reading", lambda: len(rig.hostile.asked) == 3)
    assert rig.queued == [KEY], "the same answer is no news"


def test_one_late_answer_is_no_silence(rig: Rig) -> None:
    rig.answers(at(1), refusal(503, "Away"))
    rig.ask()
    for seconds, silent in ((FRESH_SECONDS + 0.1, False), (SILENT_SECONDS, True)):
        rig.now += seconds
        asked = len(rig.hostile.asked)
        rig.ask()
        wait_until("another reading", lambda asked=asked: len(rig.hostile.asked) > asked)
        wait_until("its end", lambda: rig.reader._known[rig.url].reading is None)
        assert (rig.ask() is None) == silent
    assert rig.queued == [KEY]


def test_an_orchestrator_that_hangs_costs_a_moment_once(rig: Rig) -> None:
    rig.answers(Answer(body=[30.0]))
    assert rig.ask() is None
    rig.now += TIMEOUT_SECONDS + 10
    began = time.monotonic()
    assert rig.ask() is None
    assert time.monotonic() - began < TIMEOUT_SECONDS


@pytest.mark.parametrize(
    "answer",
    [
        refusal(503, "Away"),
        Answer(body=b"no json"),
        Answer(body=b"{}"),
        Answer(body=b"x" * (2 << 20)),
        Answer(302, b"", {"Location": "/"}),
    ],
    ids=["refused", "no JSON", "no progress", "too long", "elsewhere"],
)
def test_what_is_no_progress_is_none(rig: Rig, answer: Answer) -> None:
    rig.answers(answer)
    assert rig.ask() is None


def test_an_address_that_is_none_is_none(rig: Rig) -> None:
    assert rig.reader.progress("http://", KEY) is None
    assert rig.reader.progress("http://absent.invalid:1", KEY) is None


def test_runs_that_nobody_asks_for_are_forgotten(rig: Rig) -> None:
    rig.answers(at(1))
    rig.ask()
    rig.now += 3600
    rig.reader.progress(f"{rig.url}/other", KEY)
    assert list(rig.reader._known) == [f"{rig.url}/other"]


def test_a_defect_in_reading_one_answer_does_not_end_the_asking(rig: Rig) -> None:
    rig.answers(at(1))
    real = rig.reader._fetch

    def defect(url: str) -> RunProgress | None:
        raise RuntimeError("a defect")

    rig.reader._fetch = defect
    assert rig.ask() is None
    rig.reader._fetch = real
    rig.now += FRESH_SECONDS + 1
    rig.ask()
    wait_until("the run to be queued", lambda: rig.queued == [KEY])
    found = rig.ask()
    assert found is not None
    assert found.open_step == 1
