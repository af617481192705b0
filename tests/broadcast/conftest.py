"""One made-up run for the broadcast's tests, and pods that end with their test."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from broadcast_client import Client, Published
from broadcast_peers import OddRelay
from broadcast_pods import Pods
from broadcast_run import Keys

from servers import Loopback


@pytest.fixture(scope="session")
def run_keys() -> Keys:
    return Keys()


@pytest.fixture
def pods(run_keys: Keys, loopback: Loopback, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pods]:
    """Pods of one test. Their folders have short names: a Unix socket's path has 107 bytes at most."""
    made = Pods(run_keys, loopback, tmp_path_factory.mktemp("b"))
    yield made
    made.stop()


@pytest.fixture
def published(tmp_path: Path, run_keys: Keys) -> Published:
    made = Published(tmp_path, run_keys)
    made.publish(7)
    return made


@pytest.fixture
def client(tmp_path: Path, run_keys: Keys) -> Client:
    return Client(tmp_path / "weights", run_keys)


@pytest.fixture
def relay(loopback: Loopback) -> Iterator[Callable[..., OddRelay]]:
    made: list[OddRelay] = []

    def make(www: Path, twist: Callable[[str, bytes], bytes | None] | None = None) -> OddRelay:
        made.append(OddRelay(www, loopback, twist))
        return made[-1]

    yield make
    for one in made:
        one.close()
