"""Asks the orchestrator's `/v1/run` each second, in a thread of its own, so that a slow answer never holds up supervision or the view."""

import threading
import time
from collections.abc import Callable

import httpx
from pydantic import ValidationError

from shoal.contracts.newer import from_newer_json
from shoal.contracts.protocol import RunProgress
from shoal.transport.authorities import well_known

ASK_SECONDS = 1.0
TIMEOUT_SECONDS = 3.0
STALE_SECONDS = 15.0
"""An older answer is not shown as the present: the orchestrator is away, and the view says so."""


class ProgressReader:
    """The newest `RunProgress`. `url` gives the orchestrator's base URL, or None while it has no address."""

    def __init__(self, url: Callable[[], str | None]) -> None:
        self._url = url
        self._ended = threading.Event()
        self._newest: tuple[float, RunProgress] | None = None
        self._thread = threading.Thread(target=self._loop, name="progress", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()

    def newest(self) -> RunProgress | None:
        """The last answer, unless it is stale. A complete run stays complete."""
        if self._newest is None:
            return None
        at, progress = self._newest
        return progress if progress.complete or time.monotonic() - at < STALE_SECONDS else None

    def ask(self, client: httpx.Client) -> None:
        """Ask once; no answer, or one that is no `RunProgress`, leaves the last one standing until it is stale."""
        url = self._url()
        if url is None:
            return
        try:
            response = client.get(f"{url}/v1/run")
            if response.status_code == 200:
                self._newest = (time.monotonic(), from_newer_json(RunProgress, response.content))
        except (httpx.HTTPError, ValidationError):
            return

    def ask_once(self) -> None:
        """Ask with a connection of its own, from the caller's thread; `TIMEOUT_SECONDS` at most."""
        with _client() as client:
            self.ask(client)

    def _loop(self) -> None:
        with _client() as client:
            while not self._ended.wait(ASK_SECONDS):
                self.ask(client)


def _client() -> httpx.Client:
    return httpx.Client(verify=well_known(), trust_env=False, timeout=TIMEOUT_SECONDS, follow_redirects=False)
