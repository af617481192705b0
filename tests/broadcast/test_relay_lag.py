"""What a relay says of how far it is behind, while a transfer goes on and after it."""

import time
from pathlib import Path

import pytest
from broadcast_run import Keys
from prometheus_client import REGISTRY

from shoal.broadcast.relay import Relay
from shoal.broadcast.transfer import TransferOutcome
from shoal.broadcast.tree import Tree
from shoal.contracts.relays import RelayConfig


def told() -> float:
    found = REGISTRY.get_sample_value("shoal_relay_sync_lag_seconds")
    assert found is not None
    return found


def test_the_lag_grows_while_a_version_is_being_pulled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = Keys()
    relay = Relay(keys.config(), RelayConfig(kept_versions=3), keys.roles["relay"], Tree(tmp_path), lambda: None)
    seen: list[float] = []

    def long_transfer(wanted: object) -> TransferOutcome:
        for _ in range(2):
            time.sleep(0.05)
            seen.append(told())
        return TransferOutcome.STALLED

    monkeypatch.setattr(relay, "_index", lambda: [4])
    monkeypatch.setattr(relay, "_missing", lambda available: list(available))
    monkeypatch.setattr(relay, "_sync", long_transfer)
    assert told() == 0.0
    relay.turn()
    assert 0.05 <= seen[0] < seen[1] <= told()

    # An origin that cannot be asked any more is no reason to stand still.
    before = told()
    time.sleep(0.01)
    assert told() > before
