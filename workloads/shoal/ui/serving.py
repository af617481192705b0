"""The HTTP server of the page, as `shoal ui` and the page's pod start it: no access log, no name of the software; limits on what is open, in all and
of one address; and on what a client that says nothing may hold."""

import asyncio
from collections import Counter
from typing import Any

import uvicorn
from fastapi import FastAPI

from shoal.transport.patience import PatientProtocol

CLOSE_SECONDS = 2
"""Open streams are cut after this when the page is stopped."""
MOST_CONNECTIONS = 256
MOST_OF_ONE_ADDRESS = 64
"""Ten browsers behind one proxy, of six connections each. The kubelet has an address of its own, so that nobody else takes its probes' place."""
TOO_MANY = (429, b"Too Many Requests")


class FairProtocol(PatientProtocol):
    """A connection too many of an address is refused. Where all places are taken, whoever holds most of them loses one, an idle one if it has any."""

    _given_up = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's own
        super().connection_made(transport)
        # Those that end but have not sent everything yet are counted: a client that does not read holds them.
        there = [each for each in self.connections if isinstance(each, FairProtocol) and not each._given_up]
        held = Counter(each.address for each in there)
        if held[self.address] > MOST_OF_ONE_ADDRESS:
            self._give_up()
        elif held.total() > MOST_CONNECTIONS:
            most = max(there, key=lambda each: (held[each.address], each.is_idle))
            # One that holds as many as the others gets no place by taking theirs.
            (most if held[most.address] > held[self.address] else self)._give_up()

    def _give_up(self) -> None:
        """Let this connection go: a new one is told why, of another one nothing is sent any more, so that it is gone at once."""
        self._given_up = True
        if self.cycle is None:
            self._refuse(*TOO_MANY)
        else:
            self._stop_timer()
            self.transport.abort()

    @property
    def address(self) -> str:
        """Who is connected; empty where there is no network between (a Unix socket)."""
        return self.client[0] if self.client else ""

    @property
    def is_idle(self) -> bool:
        """No request is being answered."""
        return self.cycle is None or self.cycle.response_complete


def server(app: FastAPI, **further: Any) -> uvicorn.Server:
    """A server of the page; `further` are settings of uvicorn (address, certificate). It ends by SIGTERM or Ctrl-C."""
    config = uvicorn.Config(
        app,
        http=FairProtocol,
        ws="none",
        log_config=None,  # its lines go where all of this process go
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=CLOSE_SECONDS,
        **further,
    )
    return uvicorn.Server(config)
