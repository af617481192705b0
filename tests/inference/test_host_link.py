"""The link between an engine's hosts where something goes wrong, without an engine."""

import importlib
import json
import os
import socket
import sys
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest

from servers import Loopback
from shoal.contracts.hosts import LINK_PORT, EngineHost
from shoal.contracts.pools import EngineSettings
from shoal.inference.completions import EngineTerms
from shoal.installed import installed

Deadline = Callable[..., object]

SETTINGS = EngineSettings(tensor_parallel_size=3, hosts=3)
HELLO = {"release": installed().version, "settings": SETTINGS.model_dump(mode="json")}
TERMS = EngineTerms(max_sequence_length=64, batch=4)
POLICY = cast(Any, SimpleNamespace(version=3, manifest=SimpleNamespace(sha256="ab" * 32)))


@pytest.fixture
def hosts(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module, behind an engine that is none: importing vLLM takes half a minute."""
    engine = ModuleType("shoal.inference.engine")
    monkeypatch.setitem(sys.modules, engine.__name__, engine)
    monkeypatch.delitem(sys.modules, "shoal.inference.hosts", raising=False)
    monkeypatch.delenv("VLLM_HOST_IP", raising=False)
    yield importlib.import_module("shoal.inference.hosts")
    sys.modules.pop("shoal.inference.hosts")
    os.environ.pop("VLLM_HOST_IP", None)


@pytest.fixture
def address(loopback: Loopback, monkeypatch: pytest.MonkeyPatch) -> str:
    address: str = loopback.address()
    monkeypatch.setenv("SHOAL_BIND", address)
    return address


@pytest.fixture
def exits(hosts: Any) -> list[int]:
    """With which codes the process would have ended; for threads that outlive the test, too."""
    found: list[int] = []
    hosts.os = SimpleNamespace(_exit=found.append, environ=os.environ)
    return found


def joined(address: str, number: int) -> socket.socket:
    connection = socket.create_connection((address, LINK_PORT), timeout=10)
    said = HELLO | {"number": number}
    connection.sendall(json.dumps(said).encode() + b"\n" + b'{"held": {}, "leaving": false}\n')
    return connection


def test_an_engine_does_not_start_without_a_host_that_left_meanwhile(
    hosts: Any, address: str, exits: list[int], deadline: Deadline
) -> None:
    followers = hosts.Followers(EngineHost(0, 3, address), SETTINGS)
    first, second = joined(address, 1), joined(address, 2)
    deadline("both hosts", followers.are_here, seconds=20)
    second.close()
    deadline("the end of one", lambda: not followers.are_here(), seconds=20)
    with pytest.raises(hosts.HostGone, match="the engine does not start: host 2 of it has left"):
        followers.start(TERMS, POLICY)
    assert exits == []
    first.close()


def test_the_end_of_a_line_that_another_replaced_ends_nothing(
    hosts: Any, address: str, exits: list[int], deadline: Deadline
) -> None:
    followers = hosts.Followers(EngineHost(0, 2, address), SETTINGS)
    old = joined(address, 1)
    deadline("the host", followers.are_here, seconds=20)
    before = followers._lines[1]
    new = joined(address, 1)
    deadline("its second line", lambda: followers._lines[1] is not before, seconds=20)
    followers.start(TERMS, POLICY)
    while old.recv(1 << 16):  # the leading host closes it
        pass
    followers._end(1, before, "it closed the link")
    assert exits == []
    new.close()
    deadline("the end of the engine", lambda: exits == [hosts.EXIT_HOST_GONE], seconds=20)


def test_a_line_without_an_end_is_refused(hosts: Any, address: str, exits: list[int], deadline: Deadline) -> None:
    followers = hosts.Followers(EngineHost(0, 2, address), SETTINGS)
    talks = joined(address, 1)
    deadline("the host", followers.are_here, seconds=20)
    talks.sendall(b"x" * (hosts.LINE_BYTES + 1))
    deadline("its end", lambda: not followers.are_here(), seconds=20)
    assert exits == []


def test_a_host_that_cannot_read_its_disk_goes_on_and_offers_nothing(hosts: Any) -> None:
    def held() -> dict[int, str]:
        raise OSError("no such disk")

    ours, theirs = socket.socketpair()
    link = hosts.LeaderLink(hosts._Line(ours), held)
    lines = theirs.makefile("rb")
    assert [json.loads(lines.readline()) for _ in range(2)] == [{"held": {}, "leaving": False}] * 2
    assert link.ended == ""
    theirs.close()
