"""One made-up run for the broadcast's tests, and pods that end with their test."""

from collections.abc import Iterator

import pytest
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
