"""Work beside decoding: a thread that does pieces of work in turn, and one that answers rows at their tools' calls.

Called by `worker`. A piece of work that is stuck is seen by `stuck_seconds`, and ends the process by its liveness.
"""

import threading
import time
from collections.abc import Callable
from queue import SimpleQueue

from shoal.inference.batch import Row


class Beside:
    """One thread; it ends with the process."""

    def __init__(self, name: str, wake: Callable[[], None]) -> None:
        """`wake` is called behind each piece of work."""
        self._wake = wake
        self._work: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._since: float | None = None
        threading.Thread(target=self._serve, name=name, daemon=True).start()

    def put(self, work: Callable[[], None]) -> None:
        """Do this behind all that was put before. It must not raise."""
        self._work.put(work)

    def progress(self) -> None:
        """The piece of work under way is not stuck."""
        self._since = time.monotonic()

    @property
    def idle(self) -> bool:
        """Whether all that was put is done."""
        return self._work.empty() and self._since is None

    @property
    def stuck_seconds(self) -> float:
        """Since the piece of work under way began or made progress; 0 without any."""
        since = self._since
        return time.monotonic() - since if since is not None else 0.0

    def _serve(self) -> None:
        while True:
            work = self._work.get()
            self.progress()
            work()
            self._since = None
            self._wake()


class RowTools:
    """Answers rows that paused at a call, one after the other."""

    def __init__(self, beside: Beside) -> None:
        self._beside = beside
        self._answers: SimpleQueue[tuple[Row, bool | Exception]] = SimpleQueue()

    def ask(self, row: Row) -> None:
        self._beside.put(lambda: self._answers.put((row, self._answer(row))))

    def answers(self) -> list[tuple[Row, bool | Exception]]:
        return [self._answers.get() for _ in range(self._answers.qsize())]

    @staticmethod
    def _answer(row: Row) -> bool | Exception:
        if row.of.dropped:  # the tool is perhaps broken, and others wait for theirs
            return False
        tools = row.of.given.tools
        assert tools is not None
        try:
            return row.episode.goes_on(tools)
        except Exception as error:
            return error
