"""What orchestrators say of their runs, read beside reconcile: no worker waits for the network, however an orchestrator behaves.

One thread runs an asyncio loop with one task a run. Each reads `GET /v1/run` at its own pace and queues the run's key when the answer is another
one; `progress` returns at once what was said last. A tenant chooses its orchestrator's image, so an answer is bounded as a whole: in seconds, in
bytes with its head, without redirects. Who is silent is asked more and more rarely, who answers slowly in proportion. Places are given out by
namespace. Used by `KubernetesCluster.run_progress`.

Cost: a run is read each 5 s and queued for its figures each 15 s; from 1,000 and 75 runs on all share 200 reads and 5 such keys a second. What
limits them is the API server: a write of a run's status is 24 ms of its CPU time, in whichever form it is sent.
"""

import asyncio
import contextlib
import http.client
import io
import logging
import random
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, cast
from urllib.parse import urlsplit
from weakref import WeakValueDictionary

from shoal.contracts.newer import from_newer_json
from shoal.contracts.protocol import RunProgress
from shoal.retries import Backoff
from shoal_operator.engine.cluster import NOT_HEARD, NotHeard
from shoal_operator.engine.kinds import Key

log = logging.getLogger(__name__)

MAX_BYTES = 1 << 17
"""Of an answer with its head. An honest one has about 5 KB; 64 evaluations, 64 commits and samples of answers are below 100 KB."""
READS_PER_SECOND, FIGURES_PER_SECOND = 200, 5
"""Of all runs together: with more than 1,000 of them each is read more rarely, and with more than 75 its figures are told more rarely."""
PATIENCE = 8.0
"""An orchestrator is asked again after this many times the time that its answer took, if that is later: its share of a place stays small."""
PLACES, PLACES_A_NAMESPACE = 64, 16
"""Reads at the same time. Silent orchestrators that hold them all still end 43 reads a second."""
NAME_SECONDS = 60.0
"""How long an address is kept; after a failure it is looked up again."""


@dataclass(frozen=True)
class ReadTiming:
    """Seconds; shorter ones are for tests."""

    answer: float = 1.5
    """For a whole answer, from the look-up of the name to the last byte."""
    pace: float = 5.0
    """Between two answers of a run."""
    silent: float = 20.0
    """How long an answer holds while no other comes: one that is late says nothing about the run."""
    first_retry: float = 2.0
    longest_retry: float = 30.0
    figures: float = 15.0
    """A change of figures alone queues the run's key no sooner than this after the last: a status that counts files needs no second."""
    forgotten: float = 900.0
    """A run that reconcile has not asked for this long is not read any more. Longer than the engine's resync."""


FIGURES = frozenset(
    {
        "accepted_groups", "needed_groups", "pending_groups", "judged_groups", "groups_accepted_total", "groups_dropped_total",
        "files_accepted", "files_rejected", "files_expired", "files_inconclusive", "files_pending", "completion_tokens_accepted",
        "reject_reasons", "nodes", "learning", "dataset", "islands",
    }
)  # fmt: skip
"""Fields of an answer that change all the time. All others are news."""


@dataclass
class _Known:
    """What is known of one run's orchestrator. Written by the loop's thread, except `asked_at`."""

    url: str
    uid: str
    asked_at: float
    body: bytes | None = None
    """The last answer, kept as it came: many parsed ones would need much memory. None: silent."""
    news: bytes = b""
    settled: bool = False
    """The first read has ended."""
    edited: bool = True
    """The run waits for its first answer with an edit that was not applied."""
    answered_at: float = float("-inf")
    read_at: float = float("-inf")
    told_at: float = float("-inf")
    untold: bool = False
    failures: int = 0
    addresses: list[str] = field(default_factory=list)
    named_at: float = float("-inf")
    naming: Future[Any] | None = None
    """The look-up of its name. A thread is in it until it ends, also when nobody waits for it any more."""
    soon: asyncio.Event = field(default_factory=asyncio.Event)
    task: "asyncio.Task[None] | None" = None


class RunProgressReader:
    """Reads the progress of runs until `close`. Safe for threads; its own thread starts with the first question."""

    def __init__(
        self,
        enqueue: Callable[[Key], None],
        timing: ReadTiming = ReadTiming(),
        *,
        routine: Callable[[Key], None] | None = None,
    ) -> None:
        """A run with an edit that waits for its orchestrator's answer goes to `enqueue`. All other news goes to `routine`, if it is given.

        An operator that starts receives a thousand first answers, and a thousand runs open eight steps a second. Nobody waits for these.
        """
        self._enqueue, self._timing = enqueue, timing
        self._enqueue_routine = routine or enqueue
        self._backoff = Backoff(timing.first_retry, timing.longest_retry)
        self._lock = threading.Lock()
        self._known: dict[Key, _Known] = {}
        # By namespace, for as long as one of its runs is read: namespaces come and go.
        self._places: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self._all_places = asyncio.Semaphore(PLACES)
        # Not the loop's own, which has four threads more than there are CPUs.
        self._names = ThreadPoolExecutor(PLACES, "names")
        self._loop = asyncio.new_event_loop()
        self._thread: threading.Thread | None = None
        self._closed = False

    def progress(self, url: str, key: Key, uid: str = "", *, edited: bool = True) -> RunProgress | NotHeard | None:
        """What the orchestrator at `url` said last, without waiting; None when it has not answered for 20 s. `key` is queued when there is news.

        `uid`: of the run. What was said of an earlier one of this name holds for no other. `edited`: its spec is not applied yet.
        """
        now = time.monotonic()
        with self._lock:
            if self._closed:
                return None
            known = self._known.get(key)
            if known is None or (known.url, known.uid) != (url, uid):
                if known is not None:
                    self._end(known)
                known = self._known[key] = _Known(url, uid, now)
                self._start_thread()
                self._loop.call_soon_threadsafe(self._begin, key, known)
            elif known.failures and now - known.read_at > self._timing.pace:
                # Something of the run has changed, perhaps its orchestrator was started again.
                self._loop.call_soon_threadsafe(known.soon.set)
            known.asked_at, known.edited = now, edited
        if not known.settled:
            return NOT_HEARD
        body = known.body
        return None if body is None else from_newer_json(RunProgress, body)

    def forget(self, key: Key) -> None:
        """The run is gone."""
        with self._lock:
            known = self._known.pop(key, None)
            if known is not None:
                self._end(known)

    @property
    def alive(self) -> bool:
        """False when the thread has ended unexpectedly."""
        return self._thread is None or self._thread.is_alive() or self._closed

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed, thread, self._known = True, self._thread, {}
        if thread is None:
            self._loop.close()
        else:
            self._loop.call_soon_threadsafe(self._loop.stop)
            thread.join(2.0)
        self._names.shutdown(wait=False, cancel_futures=True)

    def _start_thread(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="progress", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.close()

    def _begin(self, key: Key, known: _Known) -> None:
        known.task = self._loop.create_task(self._follow(key, known))

    def _end(self, known: _Known) -> None:
        self._loop.call_soon_threadsafe(lambda: known.task.cancel() if known.task is not None else None)

    async def _follow(self, key: Key, known: _Known) -> None:
        """Read one run's progress until nobody asks for it."""
        while time.monotonic() - known.asked_at < self._timing.forgotten:
            body, seconds = await self._read(key, known)
            try:
                self._take(key, known, body)
            except Exception:
                # Whatever it is, it must not be the last time that this run is asked.
                log.exception("%s: could not take the answer of its orchestrator", key)
            known.soon.clear()
            try:
                async with asyncio.timeout(self._pause(known, seconds)):
                    await known.soon.wait()
            except TimeoutError:
                pass
        with self._lock:
            if self._known.get(key) is known:
                del self._known[key]

    async def _read(self, key: Key, known: _Known) -> tuple[bytes | None, float]:
        """The body of one answer and the seconds that it took; None for whatever is not an answer of 200."""
        own = self._places.setdefault(key.namespace, asyncio.Semaphore(PLACES_A_NAMESPACE))
        await own.acquire()
        try:
            async with self._all_places:
                began = self._loop.time()
                try:
                    async with asyncio.timeout(self._timing.answer):
                        body = await self._fetch(known)
                except (OSError, ValueError, EOFError, OverflowError, http.client.HTTPException):
                    body = None
                except Exception:
                    log.exception("%s: could not read the answer of its orchestrator", key)
                    body = None
                return body, self._loop.time() - began
        finally:
            self._give_back(own, known)

    def _give_back(self, own: asyncio.Semaphore, known: _Known) -> None:
        """End a read's hold of its namespace's place, but not before its look-up has ended: the threads of others must not run out."""

        def ended(_: Future[Any]) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(own.release)

        naming, known.naming = known.naming, None
        if naming is None or naming.done():
            own.release()
        else:
            naming.add_done_callback(ended)

    async def _fetch(self, known: _Known) -> bytes | None:
        place = urlsplit(known.url)
        host, port = place.hostname, place.port or 80
        if not host:
            return None
        now = self._loop.time()
        if known.failures or now - known.named_at > NAME_SECONDS:
            known.naming = self._names.submit(socket.getaddrinfo, host, port)
            found = await asyncio.wrap_future(known.naming)
            known.addresses, known.named_at = list(dict.fromkeys(str(each[4][0]) for each in found)), now
        address = known.addresses[known.failures % len(known.addresses)]
        reader, writer = await asyncio.open_connection(address, port)
        try:
            head = f"GET {place.path}/v1/run HTTP/1.1\r\nHost: {place.netloc}\r\nAccept: application/json\r\n"
            writer.write(f"{head}Connection: close\r\n\r\n".encode("ascii"))
            data = bytearray()
            while piece := await reader.read(1 << 16):
                data += piece
                if len(data) > MAX_BYTES:
                    return None
        finally:
            writer.transport.abort()
        return body_of(bytes(data))

    def _take(self, key: Key, known: _Known, body: bytes | None) -> None:
        """What a read brought: keep it, and queue the run when it is news."""
        now = known.read_at = time.monotonic()
        first, known.settled = not known.settled, True
        news = known.news
        if body is not None and body != known.body:
            try:
                answer = from_newer_json(RunProgress, body)  # the run may be as a later release made it
                news = answer.model_dump_json(exclude=set(FIGURES)).encode()
            except ValueError:
                body = None
        if body is not None:
            known.answered_at, known.failures = now, 0
        else:
            known.failures += 1
            if known.failures < 2 or now - known.answered_at < self._timing.silent:
                body = known.body
        known.untold |= body != known.body
        told = first or (known.body is None) != (body is None) or (body is not None and news != known.news)
        known.body = body
        known.news = b"" if body is None else news
        figures = max(self._timing.figures, len(self._known) / FIGURES_PER_SECOND)
        if told or (known.untold and now - known.told_at >= figures):
            known.told_at, known.untold = now, False
            (self._enqueue if told and known.edited else self._enqueue_routine)(key)

    def _pause(self, known: _Known, seconds: float) -> float:
        """Seconds until the next read, after one that took some."""
        if not known.failures:
            pace = max(self._timing.pace, len(self._known) / READS_PER_SECOND, PATIENCE * seconds)
            return pace * random.uniform(0.9, 1.1)
        wait = self._backoff.after(known.failures)
        silent_in = known.answered_at + self._timing.silent - time.monotonic()
        return wait if known.body is None else min(wait, max(0.5, silent_in))


class _Received:
    """Bytes instead of a socket, for `http.client`."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def makefile(self, mode: str) -> io.BytesIO:
        return io.BytesIO(self._data)


def body_of(data: bytes) -> bytes | None:
    """The body of a whole HTTP answer; None for another status than 200. Raises http.client.HTTPException or ValueError for what is none."""
    answer = http.client.HTTPResponse(cast(socket.socket, _Received(data)))
    answer.begin()
    return answer.read() if answer.status == 200 else None
