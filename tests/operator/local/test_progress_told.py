"""What the local cluster reads of an orchestrator's progress."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from local_bench import Bench

from shoal.contracts.protocol import RunProgress

TOLD = RunProgress(run="sums", steps_total=4, open_step=1, latest_version=1)


@pytest.fixture
def newer_orchestrator() -> Iterator[str]:
    """URL of one that tells a key more than this release knows."""
    body = json.dumps({**json.loads(TOLD.to_json()), "told_by_a_later_release": 1}).encode()

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *told: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Answer)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def test_progress_of_a_later_release_is_read_without_keys_that_this_one_does_not_know(
    bench: Bench, newer_orchestrator: str
) -> None:
    assert bench.cluster.run_progress(newer_orchestrator) == TOLD
