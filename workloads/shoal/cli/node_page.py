"""The page of a lent machine on its own loopback: what `shoal node status` prints, as HTML that loads itself again. Read-only, without any secret.

In: the agent's status, the owner's settings. Who may read: the machine's user whose node it is, and root. The kernel says whose the other end of a
connection is (/proc/net/tcp), and other users of the machine are refused. The name in the Host header must be a loopback one: a page of another site
that rebinds its name to 127.0.0.1 gets nothing. No script, nothing from other hosts; headers and limits are those of a run's page.
"""

import ipaddress
import os
import socket
import struct
import threading
import time
from collections.abc import Awaitable, Callable, Iterable
from html import escape

import uvicorn
from fastapi import FastAPI, Request, Response

from shoal.cli.node_lending import lending_lines
from shoal.cli.node_text import status_lines
from shoal.contracts.machine import Lending
from shoal.contracts.run import AgentStatus
from shoal.text import plain
from shoal.ui.access import HEADERS, access_for, is_loopback
from shoal.ui.serving import server

REFRESH_SECONDS = 5
TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
CLOSE_SECONDS = 5.0
ESTABLISHED = "01"
STYLE = """body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem; color: #1c242c; background: #f6f8f9; }
h1 { font-size: 1.4rem; } table { border-collapse: collapse; background: #fff; width: 100%; }
th, td { text-align: left; padding: .4rem .8rem; border-bottom: 1px solid #dfe4e8; vertical-align: top; overflow-wrap: anywhere; }
th { font-weight: 500; color: #5a6570; white-space: nowrap; } code { background: #e8edf1; padding: .1rem .3rem; }
"""
COMMANDS = (
    ("pause", "stop working and free the GPU; the node stays a member"),
    ("resume", "work again"),
    ("drain", "finish what it holds, then end"),
    ("leave", "end, and remove what the run brought here"),
)


def page(lines: Iterable[str]) -> str:
    """Lines of `status_lines` and `lending_lines` as a page; all text is escaped."""
    rows = "".join(
        f"<tr><th scope=row>{escape(line[:11].strip())}</th><td>{escape(plain(line[11:], 1000))}</td></tr>\n"
        for line in lines
    )
    verbs = "".join(f"<li><code>shoal node {name}</code> {escape(words)}</li>\n" for name, words in COMMANDS)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>Shoal node</title>\n'
        f'<meta http-equiv="refresh" content="{REFRESH_SECONDS}"><link rel="stylesheet" href="/style.css"></head>\n'
        f"<body><h1>This machine, lent to a run</h1>\n<table>\n{rows}</table>\n"
        f"<p>This page changes nothing. In a terminal:</p>\n<ul>\n{verbs}</ul></body></html>\n"
    )


def make_app(
    status: Callable[[], AgentStatus | None], lending: Lending, bind: str, may_read: Callable[[Request], bool]
) -> FastAPI:
    """The page's service; `may_read` judges whose the connection is."""
    access = access_for(bind, None)
    app = FastAPI(title="Shoal node", docs_url=None, redoc_url=None, openapi_url=None)

    @app.middleware("http")
    async def guard(request: Request, go_on: Callable[[Request], Awaitable[Response]]) -> Response:
        if not access.knows_name(request.headers.get("host", "")):
            answer = Response("open this page by a loopback name, such as localhost\n", 403, media_type="text/plain")
        elif not may_read(request):
            answer = Response("this page is for the user whose node it is\n", 403, media_type="text/plain")
        else:
            answer = await go_on(request)
        answer.headers.update(HEADERS)
        return answer

    @app.get("/")
    def _page() -> Response:
        found = status()
        lines = status_lines(found, time.time()) if found is not None else ["state      starting"]
        return Response(page([*lines, *lending_lines(lending)]), media_type="text/html")

    @app.get("/style.css")
    def _style() -> Response:
        return Response(STYLE, media_type="text/css")

    return app


def of_owner(request: Request) -> bool:
    """Whether this node's user, or root, has the other end of the connection."""
    client, here = request.client, request.scope.get("server")
    if client is None or here is None:
        return False
    uid = peer_uid((client.host, client.port), (here[0], here[1]), _rows())
    return uid is not None and uid in (0, os.geteuid())


def peer_uid(peer: tuple[str, int], here: tuple[str, int], rows: Iterable[str]) -> int | None:
    """The user of the connected socket at `peer` that leads to `here`, by lines of /proc/net/tcp; None: there is none, or several users have one.

    Addresses count as well as ports: somebody can take the port of another user's connection to another address. A socket that its process has
    closed counts as root's there. It is not in this state any more, and nobody reads from it.
    """
    ends = list(zip(_forms(*peer), _forms(*here), strict=True))
    users = set()
    for row in rows:
        parts = row.split()
        if len(parts) > 7 and (parts[1], parts[2]) in ends and parts[3] == ESTABLISHED:
            users.add(int(parts[7]))
    return users.pop() if len(users) == 1 else None


def _forms(host: str, port: int) -> tuple[str, str]:
    """How the kernel writes an address, as words in the machine's order: of IPv4 also as a socket of IPv6 has it."""
    address = ipaddress.ip_address(host)
    mapped = address if address.version == 6 else ipaddress.ip_address(f"::ffff:{host}")
    return _words(address.packed, port), _words(mapped.packed, port)


def _words(packed: bytes, port: int) -> str:
    return "".join(f"{word:08X}" for (word,) in struct.iter_unpack("=I", packed)) + f":{port:04X}"


def _rows() -> Iterable[str]:
    for table in TABLES:
        try:
            with open(table, encoding="ascii", errors="replace") as file:
                next(file, None)
                yield from file
        except OSError:
            continue


class NodePage:
    """A page that is served from a thread until it is closed."""

    def __init__(self, status: Callable[[], AgentStatus | None], lending: Lending, bind: str, port: int) -> None:
        """Raises OSError when the address is taken. A node whose health is on another address has its page on 127.0.0.1."""
        self.host = bind if is_loopback(bind) else "127.0.0.1"
        self._listener = socket.socket(socket.AF_INET6 if ":" in self.host else socket.AF_INET)
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listener.bind((self.host, port))
        self.port = self._listener.getsockname()[1]
        self._server: uvicorn.Server = server(make_app(status, lending, self.host, of_owner))
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._listener]}, name="page", daemon=True
        )
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}/"

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join(CLOSE_SECONDS)
        self._listener.close()
