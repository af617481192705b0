"""Progress of runs: read beside reconcile, so that an orchestrator that hangs, drips, floods or points elsewhere holds up nobody but its own run."""

import gc
import itertools
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hostile_orchestrators import (
    HostileOrchestrators,
    Rule,
    dripping,
    endless_head,
    gigabytes,
    informing,
    saying,
    silent,
)

from servers import Loopback, wait_until
from shoal.contracts.protocol import RunProgress
from shoal_operator.engine import progress
from shoal_operator.engine.cluster import NOT_HEARD, NotHeard
from shoal_operator.engine.kinds import Key
from shoal_operator.engine.progress import MAX_BYTES, PLACES, PLACES_A_NAMESPACE, ReadTiming, RunProgressReader
from shoal_operator.engine.queue import WorkQueue

KEY = Key("TrainingRun", "a", "sums")
SHORT = ReadTiming(answer=0.5, pace=0.05, silent=0.4, first_retry=0.05, longest_retry=0.1, figures=0.2)
"""Each wait of the reader in a tenth of a second or so; what is asserted is order and counts, never a time."""
PATIENT = ReadTiming(answer=60.0)
"""A silent orchestrator holds its place for longer than any test."""


def told(step: int = 1, **figures: Any) -> bytes:
    return RunProgress(run="sums", steps_total=4, open_step=step, latest_version=step, **figures).to_json()


def at(step: int = 1, **figures: Any) -> Rule:
    return saying(told(step, **figures))


class Rig:
    """A reader, real servers, and the keys that were queued."""

    def __init__(self, address: str) -> None:
        self.servers = HostileOrchestrators(address)
        self.queued: list[Key] = []
        self.readers: list[RunProgressReader] = []

    def reader(self, timing: ReadTiming = SHORT) -> RunProgressReader:
        self.readers.append(RunProgressReader(self.queued.append, timing))
        return self.readers[-1]

    def heard(self, reader: RunProgressReader, url: str, key: Key = KEY) -> RunProgress | None:
        """What is known once the first read has ended."""
        found: list[RunProgress | None] = []

        def known() -> bool:
            answer = reader.progress(url, key)
            if not isinstance(answer, NotHeard):
                found.append(answer)
            return bool(found)

        wait_until("the end of the first read", known, 30.0, interval=0.01)
        return found[0]


@pytest.fixture
def rig(loopback: Loopback) -> Iterator[Rig]:
    made = Rig(loopback.address())
    yield made
    for reader in made.readers:
        reader.close()
    made.servers.close()


def steps(*rules: Rule) -> Iterator[Rule]:
    """One rule after the other, the last for ever."""
    return itertools.chain(rules, itertools.repeat(rules[-1]))


def is_step(reader: RunProgressReader, url: str, step: int | None) -> Callable[[], bool]:
    def holds() -> bool:
        found = reader.progress(url, KEY)
        return found is None if step is None else isinstance(found, RunProgress) and found.open_step == step

    return holds


def test_the_first_question_does_not_wait_and_its_answer_queues_the_run(rig: Rig) -> None:
    reader, url = rig.reader(), rig.servers.serve(at(1))
    assert reader.progress(url, KEY) is NOT_HEARD
    wait_until("the run to be queued", lambda: rig.queued == [KEY])
    found = reader.progress(url, KEY)
    assert isinstance(found, RunProgress)
    assert found.open_step == 1


def test_a_first_question_without_an_answer_queues_the_run_too(rig: Rig) -> None:
    reader, url = rig.reader(), rig.servers.serve(silent)
    assert reader.progress(url, KEY) is NOT_HEARD
    wait_until("the run to be queued", lambda: rig.queued == [KEY])
    assert reader.progress(url, KEY) is None


@pytest.mark.parametrize("rule", [silent, dripping])
def test_a_hundred_silent_orchestrators_delay_nobodys_reconcile_and_nobodys_answer(rig: Rig, rule: Rule) -> None:
    """Workers as the engine has them; the healthy run is the last in the queue, behind silent ones of its own. No read of theirs ever ends."""
    quiet, healthy = rig.servers.serve(rule), rig.servers.serve(at(3))
    queue, seen = WorkQueue(), dict[Key, int]()
    reader = RunProgressReader(queue.add, PATIENT)
    rig.readers.append(reader)

    def work() -> None:
        while (key := queue.get(30)) is not None:
            found = reader.progress(healthy if key == KEY else quiet, key)
            if isinstance(found, RunProgress):
                seen[key] = found.open_step or 0
            queue.done(key)

    for number in range(100):
        queue.add(Key("TrainingRun", f"tenant-{number % 3}", f"r{number}"))
    for number in range(12):
        queue.add(KEY._replace(name=f"r{number}"))
    queue.add(KEY)
    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    wait_until("the healthy run's answer", lambda: seen == {KEY: 3})
    wait_until("every place that they may have", lambda: rig.servers.asked[quiet] == 3 * PLACES_A_NAMESPACE + 12)
    assert rig.servers.asked[quiet] < PLACES
    queue.close()
    for worker in workers:
        worker.join()


def test_a_namespace_whose_names_are_never_found_takes_no_thread_of_others(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, ended, looking = socket.getaddrinfo, threading.Event(), itertools.count(1)
    most = [0]

    def getaddrinfo(host: str, *more: Any) -> Any:
        if not host.startswith("slow"):
            return real(host, *more)
        most[0] = next(looking)
        ended.wait(60)
        raise socket.gaierror("nobody answered")

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    reader = rig.reader()
    for number in range(100):
        reader.progress(f"http://slow-{number}.tenant.svc:8080", Key("TrainingRun", "tenant", f"r{number}"))
    try:
        wait_until("every thread that it may have", lambda: most[0] == PLACES_A_NAMESPACE)
        time.sleep(3 * SHORT.answer)
        assert most[0] == PLACES_A_NAMESPACE
        assert rig.heard(reader, rig.servers.serve(at(1))) is not None
    finally:
        ended.set()
    wait_until("the others to be looked up then", lambda: most[0] >= 100)


def test_another_answer_queues_the_run_and_the_same_does_not(rig: Rig) -> None:
    reader, url = rig.reader(), rig.servers.serve(steps(at(1), at(1), at(1), at(2)))
    rig.heard(reader, url)
    assert rig.queued == [KEY]
    wait_until("the other answer", is_step(reader, url, 2))
    wait_until("the run to be queued", lambda: rig.queued == [KEY, KEY])
    asked = rig.servers.asked[url]
    wait_until("three more reads", lambda: rig.servers.asked[url] > asked + 3)
    assert rig.queued == [KEY, KEY], "the same answer is no news"


def test_figures_that_change_all_the_time_queue_the_run_now_and_then(rig: Rig) -> None:
    reader = rig.reader(ReadTiming(pace=0.01, figures=3600.0))
    url = rig.servers.serve(steps(*(at(1, files_accepted=number) for number in range(20)), at(2, files_accepted=20)))
    wait_until("the step after twenty counts", is_step(reader, url, 2))
    wait_until("it to be told", lambda: len(rig.queued) > 1)
    assert rig.queued == [KEY, KEY], "for the first answer and for the step"
    reader = rig.reader()
    url = rig.servers.serve(steps(at(1), at(1, files_accepted=1)))
    wait_until("the first answer", lambda: rig.heard(reader, url, KEY) is not None)
    wait_until("figures to be told in the end", lambda: rig.queued == [KEY] * 4)


def test_news_of_a_run_is_urgent_where_an_edit_waits_for_it_and_routine_elsewhere(rig: Rig) -> None:
    routine: list[Key] = []
    reader = RunProgressReader(rig.queued.append, SHORT, routine=routine.append)
    rig.readers.append(reader)
    url = rig.servers.serve(steps(at(1), at(1), at(2)))
    reader.progress(url, KEY, edited=False)
    wait_until("the first answer and the step to be told", lambda: routine == [KEY, KEY])
    assert not rig.queued
    routine.clear()
    edited = KEY._replace(name="edited")
    reader.progress(rig.servers.serve(at(1)), edited)
    wait_until("the first answer to be told", lambda: rig.queued == [edited])
    assert not routine


def test_one_late_answer_is_no_silence_and_a_lasting_one_is(rig: Rig) -> None:
    reader, url = rig.reader(), rig.servers.serve(steps(at(1), saying(b"", b"HTTP/1.1 503 Away"), at(2), silent))
    said = rig.heard(reader, url)
    assert said is not None
    wait_until("the answer after the refusal", is_step(reader, url, 2))
    wait_until("it to be told", lambda: len(rig.queued) > 1)
    assert rig.queued == [KEY, KEY], "never silent in between"
    wait_until("it to count as silent", is_step(reader, url, None))
    wait_until("the run to be queued", lambda: rig.queued == [KEY] * 3)


def test_who_is_silent_is_asked_more_and_more_rarely_and_heard_again_when_it_is_back(rig: Rig) -> None:
    answers = [saying(b"", b"HTTP/1.1 503 Away")] * 4
    reader = rig.reader(ReadTiming(pace=0.05, silent=0.1, first_retry=0.02, longest_retry=0.2))
    url = rig.servers.serve(steps(*answers, at(2)))
    assert rig.heard(reader, url) is None
    wait_until("its answer", is_step(reader, url, 2))
    pauses = [reader._backoff.after(failures) for failures in (1, 2, 3, 20)]
    assert pauses[0] <= 0.02
    assert 0.1 <= pauses[3] <= 0.2


@pytest.mark.parametrize(
    "rule",
    [silent, dripping, gigabytes, endless_head, informing],
    ids=["silent", "dripping", "gigabytes", "endless head", "informing"],
)
def test_whatever_a_hostile_orchestrator_does_counts_as_silence_and_ends(rig: Rig, rule: Rule) -> None:
    reader = rig.reader()
    assert rig.heard(reader, rig.servers.serve(rule)) is None
    assert reader.alive


@pytest.mark.parametrize(
    "answer",
    [
        saying(b"", b"HTTP/1.1 503 Away"),
        saying(b"no json"),
        saying(b"{}"),
        saying(told() + b" " * MAX_BYTES),
        saying(b"\xff\xfe"),
        saying(told(), b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nX: " + b"y" * 70_000),
        saying(told(), b"SSH-2.0"),
        saying(told(), b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked"),
        saying(b"f" * 20 + b"\r\n", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked"),
    ],
    ids=[
        "refused",
        "no JSON",
        "no progress",
        "too long",
        "no text",
        "long field",
        "no HTTP",
        "no chunks",
        "long chunk",
    ],
)
def test_what_is_no_progress_is_none(rig: Rig, answer: Rule, caplog: pytest.LogCaptureFixture) -> None:
    assert rig.heard(rig.reader(), rig.servers.serve(answer)) is None
    assert not caplog.records, "a hostile orchestrator writes no tracebacks into the log"


def test_an_answer_that_points_elsewhere_is_not_followed(rig: Rig) -> None:
    elsewhere = rig.servers.serve(at(1))
    head = f"HTTP/1.1 302 Found\r\nLocation: {elsewhere}/v1/run".encode()
    assert rig.heard(rig.reader(), rig.servers.serve(saying(told(), head))) is None
    assert rig.servers.asked[elsewhere] == 0


def test_an_answer_in_chunks_of_a_later_release_is_understood(rig: Rig) -> None:
    body = told().replace(b"{", b'{"of_a_later_release":1,', 1)

    def chunked(connection: Any, ended: threading.Event) -> None:
        head = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        connection.sendall(head + b"5\r\n" + body[:5] + b"\r\n")
        connection.sendall(b"%x\r\n" % (len(body) - 5) + body[5:] + b"\r\n0\r\n\r\n")

    found = rig.heard(rig.reader(), rig.servers.serve(chunked))
    assert found is not None
    assert found.open_step == 1


@pytest.mark.parametrize("url", ["http://", "http://absent.invalid:1", "http://127.0.0.1:99999", "nothing"])
def test_an_address_that_is_none_is_none(rig: Rig, url: str) -> None:
    assert rig.heard(rig.reader(), url) is None


def test_runs_that_are_gone_or_that_nobody_asks_for_are_not_read_any_more(rig: Rig) -> None:
    reader, url = rig.reader(ReadTiming(pace=0.01, forgotten=0.3)), rig.servers.serve(at(1))
    other = KEY._replace(name="other")
    for key in (KEY, other):
        rig.heard(reader, url, key)
    reader.forget(KEY)
    wait_until("the other to be forgotten", lambda: not reader._known)
    wait_until("the places of a namespace without runs to go", lambda: gc.collect() >= 0 and not reader._places)
    asked = rig.servers.asked[url]
    reader.progress(url, KEY)
    wait_until("it to be asked anew", lambda: rig.servers.asked[url] > asked)


def test_a_run_whose_orchestrator_moved_is_asked_there(rig: Rig) -> None:
    reader = rig.reader()
    assert rig.heard(reader, rig.servers.serve(at(1))) is not None
    moved = rig.heard(reader, rig.servers.serve(at(3)))
    assert moved is not None
    assert moved.open_step == 3


def test_what_an_earlier_run_of_the_same_name_said_is_no_word_about_its_successor(rig: Rig) -> None:
    reader, url = rig.reader(PATIENT), rig.servers.serve(steps(at(4), silent))
    wait_until("the first answer", lambda: reader.progress(url, KEY, "earlier") is not NOT_HEARD)
    assert reader.progress(url, KEY, "earlier") is not None
    assert reader.progress(url, KEY, "successor") is NOT_HEARD


def test_a_defect_in_taking_one_answer_does_not_end_the_asking(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    real, defects = progress.body_of, iter([RuntimeError("a defect")])

    def body_of(data: bytes) -> bytes | None:
        for defect in defects:
            raise defect
        return real(data)

    monkeypatch.setattr(progress, "body_of", body_of)
    reader, url = rig.reader(), rig.servers.serve(at(1))
    wait_until("the next answer", is_step(reader, url, 1))
    assert not list(defects)


def test_a_reader_that_is_closed_knows_nothing_and_its_thread_ends(rig: Rig) -> None:
    reader, url = rig.reader(), rig.servers.serve(silent)
    reader.progress(url, KEY)
    reader.close()
    assert reader.progress(url, KEY) is None
    assert reader._thread is not None
    assert not reader._thread.is_alive()
