"""The output of a running `shoal up`: a live view on a terminal, or plain lines. Both get the same snapshots."""

from dataclasses import replace
from typing import Protocol

from rich.console import Console
from rich.live import Live
from rich.text import Text

from shoal.cli.lines import STATUS_SECONDS, events, stamped, status_line
from shoal.cli.screen import render
from shoal.report.snapshot import Snapshot
from shoal.report.view import SnapshotHistory, view_model
from shoal.text import plain


class Output(Protocol):
    """The interface of both outputs for `up`."""

    def show(self, snapshot: Snapshot) -> None: ...

    def say(self, text: str, unix: float) -> None:
        """One line that stays."""

    def close(self) -> None: ...


class PlainOutput:
    """A line for every event, and a status line each `STATUS_SECONDS`."""

    def __init__(self, console: Console, history: SnapshotHistory) -> None:
        self._console = console
        self._history = history
        self._before: Snapshot | None = None
        self._last_status = 0.0

    def show(self, snapshot: Snapshot) -> None:
        self._history.add(snapshot)
        for line in events(self._before, snapshot):
            self.say(line, snapshot.unix)
        # While the orchestrator is away its last answer stands, so that what happened meanwhile is told when it is back.
        known = snapshot.progress or (self._before.progress if self._before else None)
        self._before = replace(snapshot, progress=known)
        if snapshot.unix - self._last_status >= STATUS_SECONDS:
            self._last_status = snapshot.unix
            self.say(status_line(snapshot, self._history, view_model(snapshot, self._history)), snapshot.unix)

    def say(self, text: str, unix: float) -> None:
        print_plain(self._console, stamped(unix, text))

    def close(self) -> None:
        return


class LiveOutput:
    """The live view; lines said while it runs appear above it."""

    def __init__(self, console: Console, history: SnapshotHistory) -> None:
        self._history = history
        self._live = Live(
            console=console, auto_refresh=False, vertical_overflow="crop", redirect_stdout=False, redirect_stderr=False
        )
        self._live.start()

    def show(self, snapshot: Snapshot) -> None:
        self._history.add(snapshot)
        self._live.update(render(view_model(snapshot, self._history)), refresh=True)

    def say(self, text: str, unix: float) -> None:
        print_plain(self._live.console, stamped(unix, text))

    def close(self) -> None:
        self._live.stop()


def print_plain(console: Console, text: str) -> None:
    """Print lines as they are: no markup, no wrapping, no control codes except our line ends."""
    for line in text.split("\n"):
        console.print(Text(plain(line, 2000)), soft_wrap=True)
