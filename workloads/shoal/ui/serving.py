"""The HTTP server of the page, as `shoal ui` and the page's pod start it: no access log, no name of the software, limits on what is open and on
what a client that says nothing may hold."""

from typing import Any

import uvicorn
from fastapi import FastAPI

from shoal.transport.patience import PatientProtocol

CLOSE_SECONDS = 2
"""Open streams are cut after this when the page is stopped."""
MOST_CONNECTIONS = 200


def server(app: FastAPI, **further: Any) -> uvicorn.Server:
    """A server of the page; `further` are settings of uvicorn (address, certificate). It ends by SIGTERM or Ctrl-C."""
    config = uvicorn.Config(
        app,
        http=PatientProtocol,
        ws="none",
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=CLOSE_SECONDS,
        limit_concurrency=MOST_CONNECTIONS,
        **further,
    )
    return uvicorn.Server(config)
