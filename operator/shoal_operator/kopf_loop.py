"""Runs kopf and the engine in one process: kopf watches our four kinds, and is started again whenever it ends, while the engine continues.

kopf ends on a 404, as after a CRD was deleted, and on errors within a watch. It looks for kinds only when it starts, so `engine/relist.py` has it
started again when a CRD is back. Used by `__main__.py`.
"""

import asyncio
import contextlib
import logging
import signal
import threading

import kopf
from kubernetes.client import Configuration

from shoal.retries import Backoff
from shoal_operator import handlers
from shoal_operator.engine.api_server import read_deep_json
from shoal_operator.engine.manager import Manager, Options

log = logging.getLogger(__name__)

FIRST_RESTART_SECONDS, MAX_RESTART_SECONDS = 0.5, 30.0

WELL_SECONDS = 60.0
"""kopf that ran for this long is started again soon when it ends."""


class KopfLoop:
    """Runs kopf repeatedly until SIGTERM, SIGINT or `stop`."""

    def __init__(self, manager: Manager, configuration: Configuration, options: Options) -> None:
        self._manager, self._configuration, self._options = manager, configuration, options
        self._backoff = Backoff(FIRST_RESTART_SECONDS, MAX_RESTART_SECONDS)
        self._stopped = asyncio.Event()
        self._end = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def run(self) -> None:
        """Start the engine, run kopf until told to stop, stop the engine."""
        read_deep_json()
        self._loop = asyncio.get_running_loop()
        self._take_signals()
        self._manager.restart_kopf = self.restart
        self._manager.start()
        try:
            while not self._stopped.is_set():
                began = self._loop.time()
                why = await self._once()
                if self._stopped.is_set():
                    break
                if self._loop.time() - began > WELL_SECONDS:
                    self._backoff.reset()
                wait = self._backoff.next()
                log.warning("kopf ended (%s); restarting it in %.1f s; children are still reconciled", why, wait)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._stopped.wait(), wait)
                self._manager.kopf_restarted()
        finally:
            await asyncio.to_thread(self._manager.stop)

    def stop(self) -> None:
        """Stop; call it from the loop's own thread."""
        self._stopped.set()
        self._end.set()

    def restart(self, why: str) -> None:
        """Restart kopf; callable from any thread."""
        log.warning("restarting kopf: %s", why)
        if self._loop is not None:
            self._loop.call_soon_threadsafe(lambda: self._end.set())

    async def _once(self) -> str:
        """Run kopf with handlers and tasks of its own until it ends; returns why it did."""
        self._end = asyncio.Event()
        if self._stopped.is_set():
            return "stopped"
        settings = kopf.OperatorSettings()
        handlers.configure(settings)
        ignored = asyncio.all_tasks()
        try:
            tasks = await kopf.spawn_tasks(
                registry=handlers.registry(self._manager, self._configuration),
                settings=settings,
                standalone=True,
                # Otherwise kopf asks the system for the name of the user, and that of an image has none.
                identity=self._options.identity,  # type: ignore[arg-type]  # a NewType that kopf does not export
                clusterwide=not self._options.namespaces,
                namespaces=self._options.namespaces,
                stop_flag=self._end,
            )
            self._take_signals()  # kopf took them
            await kopf.run_tasks(tasks, ignored=ignored)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return "it was asked to stop"

    def _take_signals(self) -> None:
        if self._loop is not None and threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._loop.add_signal_handler(number, self.stop)
