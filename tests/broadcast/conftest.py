"""One made-up run for the broadcast's tests, and pods that end with their test."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from broadcast_pods import Announcements, ClientPod, Keys, OddRelay, OriginPod, Pod, RelayPod

from servers import Loopback


@pytest.fixture(scope="session")
def run_keys() -> Keys:
    return Keys()


class Pods:
    """Makes pods, and stops them all."""

    def __init__(self, run_keys: Keys, loopback: Loopback, folder: Path) -> None:
        self._keys = run_keys
        self._loopback = loopback
        self._folder = folder
        self._made: list[Pod | OddRelay | Announcements] = []
        self.announcements = Announcements(run_keys, loopback)

    def _home(self, kind: str) -> Path:
        home = self._folder / f"{kind}-{len(self._made)}"
        home.mkdir()
        return home

    def origin(self, **changes: object) -> OriginPod:
        """Not started."""
        pod = OriginPod(self._home("o"), self._loopback.address(), self._keys, self.announcements.url, **changes)
        self._made.append(pod)
        return pod

    def relay(self, origin: Pod, **changes: object) -> RelayPod:
        """Not started."""
        pod = RelayPod(self._home("r"), self._loopback.address(), self._keys, origin.address, **changes)
        self._made.append(pod)
        return pod

    def client(self) -> ClientPod:
        """Not started."""
        pod = ClientPod(self._home("c"), self._loopback.address(), self._keys)
        self._made.append(pod)
        return pod

    def odd_relay(self, www: Path, twist: Callable[[str, bytes], bytes | None] | None = None) -> OddRelay:
        """Running."""
        relay = OddRelay(www, self._loopback, twist)
        self._made.append(relay)
        return relay

    def stop(self) -> None:
        for made in self._made:
            made.close() if isinstance(made, OddRelay) else made.stop()  # type: ignore[union-attr]
        self.announcements.close()


@pytest.fixture
def pods(run_keys: Keys, loopback: Loopback, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pods]:
    """Pods of one test. Their folders have short names: a Unix socket's path has 107 bytes at most."""
    made = Pods(run_keys, loopback, tmp_path_factory.mktemp("b"))
    yield made
    made.stop()
