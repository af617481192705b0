"""The page of a lent machine: read-only, escaped, without scripts; refused to other names and to other users of the machine."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator

import httpx
import pytest

from samples import DOCUMENTS
from servers import PLAIN, Loopback, wait_until
from shoal.cli.node_page import NodePage, page, peer_uid
from shoal.contracts.machine import Lending
from shoal.contracts.run import AgentStatus

STATUS = next(each for each in DOCUMENTS if isinstance(each, AgentStatus))
LENT = Lending(upload_bits=20_000_000, hours="22:00-07:00")
ROW = "   0: 0100007F:{port:04X} 0100007F:2396 {state} 00000000:00000000 00:00000000 00000000  {uid}        0 1"


@pytest.fixture
def served(loopback: Loopback) -> Iterator[NodePage]:
    made = NodePage(
        lambda: STATUS.model_copy(update={"waits_for": "<script>alert(1)</script>", "owner": "paused"}),
        LENT,
        loopback.address(),
        0,
    )
    wait_until("the page", lambda: _answers(made), 30)
    yield made
    made.close()


def _answers(made: NodePage) -> bool:
    try:
        return httpx.get(made.url, **PLAIN).status_code in (200, 403)
    except httpx.HTTPError:
        return False


def get(made: NodePage, path: str = "", **headers: str) -> httpx.Response:
    return httpx.get(made.url + path, headers=headers, **PLAIN)


def test_the_page_shows_state_limits_and_commands_and_loads_nothing_from_elsewhere(served: NodePage) -> None:
    answer = get(served)
    assert answer.status_code == 200
    for words in (STATUS.node, "upload 20 Mbit/s", "22:00-07:00", "paused", "shoal node pause", "shoal node leave"):
        assert words in answer.text
    assert "<script" not in answer.text
    assert "&lt;script&gt;" in answer.text
    assert re.findall(r'(?:src|href|action)="([^"]*)"', answer.text) == ["/style.css"]
    assert get(served, "style.css").headers["content-type"].startswith("text/css")
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert answer.headers["cache-control"] == "no-store"


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_nothing_can_be_changed_through_it(served: NodePage, method: str) -> None:
    assert httpx.request(method, served.url, **PLAIN).status_code == 405
    assert get(served, "v1/status").status_code == 404


@pytest.mark.parametrize("host", ["evil.example", "evil.example:9110", "127.0.0.1.evil.example", "10.0.0.1", ""])
def test_a_site_that_rebinds_its_name_to_this_machine_reads_nothing(served: NodePage, host: str) -> None:
    answer = get(served, Host=host)
    assert answer.status_code in (400, 403)
    assert STATUS.node not in answer.text
    assert get(served, Host="localhost:9110").status_code == 200


def test_another_user_of_the_machine_reads_nothing(served: NodePage) -> None:
    if os.geteuid() != 0:
        pytest.skip("becoming another user needs root")
    program = (
        "import os, sys, http.client; from urllib.parse import urlsplit\n"
        "'loaded while it can be read'.encode('idna'); os.setgid(12345); os.setuid(12345)\n"
        "c = http.client.HTTPConnection(urlsplit(sys.argv[1]).netloc); c.request('GET', '/')\n"
        "a = c.getresponse(); print(a.status, a.read().decode())"
    )
    done = subprocess.run([sys.executable, "-c", program, served.url], capture_output=True, text=True, timeout=30)
    assert done.stdout.startswith("403 this page is for the user whose node it is"), done.stdout + done.stderr


def test_whose_a_connection_is_says_the_kernel_of_live_ones_only() -> None:
    def row(uid: int, state: str = "01", port: int = 50000) -> str:
        return ROW.format(port=port, state=state, uid=uid)

    peer, here = ("127.0.0.1", 50000), ("127.0.0.1", 0x2396)
    assert peer_uid(peer, here, [row(1000), row(0, port=50001)]) == 1000
    assert peer_uid(peer, here, [row(0, state="06")]) is None  # a closed socket counts as root's
    assert peer_uid(peer, here, [row(1000), row(1001)]) is None  # of two namespaces, say
    assert peer_uid(peer, ("127.0.0.1", 0x2397), [row(1000)]) is None
    assert peer_uid(peer, here, ["", "rubbish", "0: x y"]) is None
    assert peer_uid(("127.0.0.2", 50000), here, [row(1000)]) is None  # the owner's connection has that port elsewhere
    mapped = "0000000000000000FFFF00000100007F"
    assert peer_uid(peer, here, [row(1000).replace("0100007F", mapped)]) == 1000
    loopback6 = "00000000000000000000000001000000"
    assert peer_uid(("::1", 50000), ("::1", 0x2396), [row(1000).replace("0100007F", loopback6)]) == 1000


def test_a_node_whose_health_is_on_another_address_has_its_page_on_loopback() -> None:
    made = NodePage(lambda: None, LENT, "0.0.0.0", 0)
    try:
        assert made.host == "127.0.0.1"
    finally:
        made.close()
    assert "starting" in page(["state      starting"])
