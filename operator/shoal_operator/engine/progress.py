"""What orchestrators say of their runs, read beside reconcile and not in it: one that does not answer must not hold a worker up.

The first question about a run waits a moment for its answer. From then on each answers at once with what is known, and has it read again; when that
is different, the run's key is queued. Used by `KubernetesCluster.run_progress`.
"""

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from dataclasses import dataclass, field

import httpx

from shoal.contracts.protocol import RunProgress
from shoal_operator.engine.kinds import Key

log = logging.getLogger(__name__)

TIMEOUT_SECONDS = 1.5
FRESH_SECONDS = 1.0
"""An answer this young is not asked for again; the reconcile that it caused finds it."""
SILENT_SECONDS = 20.0
"""How long an answer holds while no other comes: one that is late says nothing about the run."""
FORGOTTEN_SECONDS = 600.0
MAX_BYTES = 1 << 20
THREADS = 8


@dataclass
class _Known:
    answer: RunProgress | None = None
    read_at: float = float("-inf")
    answered_at: float = float("-inf")
    asked_at: float = 0.0
    reading: Future[None] | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)


class RunProgressReader:
    """Reads `GET /v1/run` of orchestrators. Safe for threads."""

    def __init__(self, enqueue: Callable[[Key], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._enqueue, self._clock = enqueue, clock
        self._client = httpx.Client(timeout=TIMEOUT_SECONDS, trust_env=False, follow_redirects=False)
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="progress")
        self._lock = threading.Lock()
        self._known: dict[str, _Known] = {}

    def progress(self, url: str, key: Key) -> RunProgress | None:
        """What the orchestrator at `url` said last; None when it has not answered for 20 s. `key` is queued when the next answer is another one."""
        now = self._clock()
        with self._lock:
            known = self._known.get(url)
            first = known is None
            if known is None:
                self._forget(now)
                known = self._known[url] = _Known()
        with known.lock:
            known.asked_at = now
            if known.reading is None and now - known.read_at > FRESH_SECONDS:
                known.reading = self._threads.submit(self._read, url, known, key, quiet=first)
            reading = known.reading
        if first and reading is not None:
            try:
                reading.result(TIMEOUT_SECONDS + 0.5)
            except NotYet:
                pass
        return known.answer

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._client.close()

    def _read(self, url: str, known: _Known, key: Key, *, quiet: bool) -> None:
        answer = None
        try:
            answer = self._fetch(url)
        except Exception:
            # Whatever it is, it must not be the last time that this run is asked.
            log.exception("%s: could not read the answer from %s", key, url)
        with known.lock:
            known.read_at, known.reading = self._clock(), None
            if answer is not None:
                known.answered_at = known.read_at
            elif known.read_at - known.answered_at < SILENT_SECONDS:
                answer = known.answer
            changed = answer != known.answer
            known.answer = answer
        if changed and not quiet:
            self._enqueue(key)

    def _fetch(self, url: str) -> RunProgress | None:
        try:
            with self._client.stream("GET", f"{url}/v1/run") as answer:
                if answer.status_code != 200:
                    return None
                data = b""
                for piece in answer.iter_bytes():
                    data += piece
                    if len(data) > MAX_BYTES:
                        return None
            return RunProgress.from_json(data)
        except (httpx.HTTPError, httpx.InvalidURL, ValueError):
            return None

    def _forget(self, now: float) -> None:
        for url in [url for url, known in self._known.items() if now - known.asked_at > FORGOTTEN_SECONDS]:
            del self._known[url]
