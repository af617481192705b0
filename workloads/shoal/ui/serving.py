"""The HTTP server of the page, as `shoal ui` and the page's pod start it: no access log, no name of the software, limits on what is open, in all and
of one address, and on what a client that says nothing may hold."""

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
    """A connection too many of an address is refused. Where all places are taken, whoever holds most of them gives up one that asks for nothing."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        open_ones = [
            each for each in self.connections if isinstance(each, FairProtocol) and not each.transport.is_closing()
        ]
        held = Counter(each.address for each in open_ones)
        if held[self.address] > MOST_OF_ONE_ADDRESS:
            self._refuse(*TOO_MANY)
        elif held.total() > MOST_CONNECTIONS:
            idle = [each for each in open_ones if each is not self and each.is_idle]
            most = max(idle, key=lambda each: held[each.address], default=self)
            # One that holds as many as the others gets no place by taking theirs.
            (most if held[most.address] > held[self.address] else self)._refuse(*TOO_MANY)

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
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=CLOSE_SECONDS,
        **further,
    )
    return uvicorn.Server(config)
