"""What the machine's owner lets its node do now: work, finish what it holds, rest, or end. The run has no say in it.

In: `config/owner.json`, as `shoal node pause`, `resume` and `drain` write it; the hours of `config/lending.json`; the leases that are held. Out: a
`Allowance`. Asked by the agent twice a second, and before it asks for a lease. A pool's pod has no owner but the run, and none of these files.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from shoal.agent import hours
from shoal.agent.hours import Window
from shoal.contracts.machine import OwnersRequest
from shoal.contracts.newer import from_newer_json
from shoal.contracts.protocol import LEAVE_SECONDS
from shoal.telemetry import get_logger

Request = Literal["work", "pause", "drain"]

STOP_SECONDS = LEAVE_SECONDS + 10.0
"""Before the end of the hours a worker that is not done is asked to end: it finishes or gives back, and is gone when the hours are over."""


@dataclass(frozen=True)
class Allowance:
    """`works`: the processes run; `leases`: the worker may ask for more; `ends`: the node is to end. `words` say why, empty while all is allowed."""

    works: bool = True
    leases: bool = True
    ends: bool = False
    words: str = ""


def standing(request: Request, window: Window | None, held: int, lease_seconds: float, now_unix: float) -> Allowance:
    """What is allowed. `held`: leases that are held; `lease_seconds`: how long one is expected to take, from its request to the end of its upload."""
    if request == "pause":
        return Allowance(False, False, words="paused by its owner until `shoal node resume`")
    if request == "drain":
        if held:
            return Allowance(leases=False, words=f"drains: takes no lease, finishes the {held} that it holds")
        return Allowance(False, False, ends=True, words="drained: holds no lease, and ends")
    if window is None:
        return Allowance()
    until = time.strftime("%H:%M", time.localtime(window.until_unix))
    if not window.is_open:
        return Allowance(False, False, words=f"outside its hours until {until}")
    left = window.until_unix - now_unix
    if left >= lease_seconds:
        return Allowance()
    if held and left > STOP_SECONDS:
        return Allowance(
            leases=False, words=f"drains: its hours end at {until}; finishes the {held} leases that it holds"
        )
    return Allowance(False, False, words=f"its hours end at {until}: no lease would be done by then")


class Owner:
    """The owner of this machine, as its files speak for them."""

    def __init__(self, home: Path, ranges: Sequence[tuple[int, int]] = ()) -> None:
        self._path = request_file(home)
        self._ranges = ranges
        self._stamp: tuple[int, int] | None = None
        self._request: Request = "work"

    def standing(self, held: int, lease_seconds: float) -> Allowance:
        """What is allowed now."""
        now = time.time()
        window = hours.window(self._ranges, now) if self._ranges else None
        return standing(self.request(), window, held, lease_seconds, now)

    def request(self) -> Request:
        """The newest request. A file that cannot be read leaves the one before in force."""
        try:
            found = self._path.stat()
        except OSError:
            self._stamp, self._request = None, "work"
            return "work"
        stamp = found.st_mtime_ns, found.st_ino
        if stamp != self._stamp:
            try:
                self._request = from_newer_json(OwnersRequest, self._path.read_bytes()).request
            except (OSError, ValueError) as error:
                get_logger().warning("cannot read the owner's request", path=str(self._path), problem=str(error)[:300])
            self._stamp = stamp
        return self._request


def request_file(home: Path) -> Path:
    """Where the owner's newest request lies; its folder is the owner's alone."""
    return home / "config" / "owner.json"
