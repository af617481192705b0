"""One folder of versions that several pods share: one of them fetches each version for all, and another takes over when it ends."""

from collections.abc import Callable
from pathlib import Path

import pytest
from broadcast_client import Published, shards_asked
from broadcast_peers import AgentSocket, OddRelay
from broadcast_run import RUN, SHARD, Keys, trained

from shoal import telemetry
from shoal.broadcast.fetch import Agent, Fetcher
from shoal.broadcast.weights_folder import WeightsFolder
from shoal.transport import SignedClient

SIZE = 6 * SHARD


class Pod:
    """A client's own code without its loop, over a folder that others have too."""

    def __init__(self, socket: Path, weights: Path, run_keys: Keys, relay: OddRelay) -> None:
        self.agent = AgentSocket(run_keys, socket)
        self.agent.say(relays=[relay.url])
        client = SignedClient("http://agent", unix_socket=socket)
        self.weights = WeightsFolder(weights, RUN, run_keys.trainer.public)
        self.fetcher = Fetcher(RUN, run_keys.trainer.public, Agent(client), self.weights, telemetry.Liveness(60.0))

    def turn(self, announced: int) -> bool:
        self.agent.say(latest_version=announced)
        return self.fetcher.turn()

    def end(self) -> None:
        """As the end of its process ends it: the kernel gives the lock back."""
        assert self.weights._lock is not None
        self.weights._lock.close()
        self.agent.close()


@pytest.fixture
def made(tmp_path: Path, run_keys: Keys) -> Published:
    found = Published(tmp_path, run_keys)
    for version in (0, 1):
        found.publish(version, trained(version, SIZE))
    return found


def test_one_of_the_pods_fetches_and_another_goes_on_when_it_ends(
    made: Published, relay: Callable[..., OddRelay], run_keys: Keys, tmp_path: Path
) -> None:
    source, shared = relay(made.www), tmp_path / "shared"
    first, second = (Pod(tmp_path / name, shared, run_keys, source) for name in ("first", "second"))
    assert (second.fetcher.not_ready(), second.turn(0)) == ("no version has arrived yet", False)
    assert first.turn(0)
    once = len(shards_asked(source))
    assert second.turn(0) is False, "the version is here: another pod fetched it"
    assert (second.fetcher.not_ready(), second.weights.held()) == (None, [0])
    assert len(shards_asked(source)) == once

    first.end()
    assert second.turn(1)
    assert second.weights.held() == [0, 1]
    second.end()


def test_a_pod_that_does_not_fill_the_folder_removes_nothing_of_it(
    made: Published, relay: Callable[..., OddRelay], run_keys: Keys, tmp_path: Path
) -> None:
    source, shared = relay(made.www), tmp_path / "shared"
    first = Pod(tmp_path / "first", shared, run_keys, source)
    assert first.turn(0)
    other = WeightsFolder(shared, "another-run", run_keys.trainer.public)
    assert (other.hold(), first.weights.held()) == (False, [0])
    first.end()
    assert (other.hold(), other.held()) == (True, []), "whoever fills it removes what another run left"
