"""Ends what evicted nodes read: the orchestrator's list of them, held against this relay's gate and its nginx.

In: `GET /v1/exclusions`, asked for every few seconds. Out: the gate refuses these nodes (403); if one of them was served here, it writes a mark in
`www/` upon which the process beside nginx has it restart: new workers take all new connections, the old ones finish what they serve and are ended
after `RelayConfig.eviction_seconds`. So a slow reader does not outlive its eviction, and who is cut with it goes on by Range. While the
orchestrator is away the last list stands, and tokens run out by themselves. A thread of `relay`.
"""

import random
import time
from pathlib import Path

from shoal import telemetry
from shoal.broadcast.gate import TokenGate
from shoal.broadcast.nginx import ANSWERS_SECONDS
from shoal.contracts.protocol import Exclusions
from shoal.files import write_atomically
from shoal.transport import Refused, SignedClient, Unavailable

ASK_SECONDS = 2.5
DEADLINE_SECONDS = 2.0
SETTLE_SECONDS = ANSWERS_SECONDS + 0.5
"""Between the gate's refusal and the mark: this long nginx may still let a node in by an answer that it remembers."""


class Exclusion:
    """Follows the orchestrator's list."""

    def __init__(self, client: SignedClient, gate: TokenGate, mark: Path) -> None:
        self._client = client
        self._gate = gate
        self._mark = mark
        self._due: float | None = None
        self._last = 0.0
        """When nginx remembers nobody of the newest evicted nodes any more; later than `_due` where more were evicted while it was awaited."""
        self._away = False
        self._log = telemetry.get_logger()

    def follow(self) -> None:
        """Until the process ends."""
        while not telemetry.STOP.is_set():
            self.turn()
            telemetry.STOP.wait(0.5 if self._due is not None else ASK_SECONDS * random.uniform(0.8, 1.2))

    def turn(self) -> None:
        """Ask once, and leave the mark when it is time."""
        self._ask()
        if self._due is not None and (now := time.monotonic()) >= self._due:
            self._due = self._last if self._last > now else None
            write_atomically(self._mark, f"{time.time()}".encode())

    def _ask(self) -> None:
        try:
            found = self._client.call("GET", "/v1/exclusions", None, Exclusions, deadline_seconds=DEADLINE_SECONDS)
        except (Unavailable, Refused) as error:
            if not self._away:
                self._log.warning(
                    "cannot read the list of evicted nodes; their tokens still expire", reason=str(error)[:200]
                )
            self._away = True
            return
        self._away = False
        assert found is not None
        ended = self._gate.exclude(found.nodes)
        if ended:
            self._log.warning("ending the transfers of evicted nodes", nodes=sorted(ended))
            self._last = time.monotonic() + SETTLE_SECONDS
            if self._due is None:  # else many evictions, one after the other, would put it off forever
                self._due = self._last
