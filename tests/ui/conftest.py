"""A small run with hostile text in it, its page served by the real service, and one browser for all tests of this folder."""

import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import uvicorn

sys.path.insert(0, str(Path(__file__).parents[1] / "report"))

from ui_browser import Browser
from ui_run import UiRun

from servers import Loopback, wait_until
from shoal.report.snapshot import Snapshot
from shoal.ui.access import Access, access_for
from shoal.ui.app import make_app
from shoal.ui.watch import RunWatch


@pytest.fixture(scope="session")
def ui_run(tmp_path_factory: pytest.TempPathFactory) -> UiRun:
    """The run; tests read it, and add nothing."""
    return UiRun(tmp_path_factory.mktemp("ui-run"))


class Page:
    """The service on an address of its own. `snapshot` may be replaced: the page shall follow."""

    def __init__(self, run: UiRun, address: str, access: Access | None = None) -> None:
        self.snapshot: Snapshot = run.snapshot
        self.watch = RunWatch(run.source, lambda: self.snapshot)
        self.watch.start()
        config = uvicorn.Config(
            make_app(self.watch, access or access_for(address, None)), host=address, port=0, log_level="error",
            timeout_graceful_shutdown=1,
        )  # fmt: skip
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        wait_until("the page to be served", lambda: self._server.started, 30.0)
        port = self._server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://{address}:{port}/"

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(20)


@pytest.fixture(scope="session")
def page(ui_run: UiRun, loopback: Loopback) -> Iterator[Page]:
    served = Page(ui_run, loopback.address())
    yield served
    served.stop()


@pytest.fixture
def serve_page(loopback: Loopback) -> Iterator[Callable[..., Page]]:
    """`serve_page(run, access)`: a page of one test."""
    made: list[Page] = []

    def serve(run: UiRun, access: Access | None = None) -> Page:
        made.append(Page(run, loopback.address(), access))
        return made[-1]

    yield serve
    for each in made:
        each.stop()


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    found = Browser(tmp_path_factory.mktemp("chromium"))
    yield found
    found.close()
