"""Who may read: tokens of nodes at relays, the relays' own at the origin and at relays; clocks that disagree."""

import itertools
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from broadcast_run import RUN, Keys

from shoal.broadcast import exclusions
from shoal.broadcast.exclusions import Exclusion
from shoal.broadcast.gate import TokenGate
from shoal.contracts.protocol import Exclusions, RelayToken
from shoal.contracts.relay_token import BadToken, encode

NODE = "a" * 64


def _relay_gate(run_keys: Keys, skew_seconds: float = 0.0) -> TokenGate:
    roles = run_keys.roles
    return TokenGate(
        RUN,
        lambda: [roles["relay"].public],
        lambda: [roles["orchestrator"].public],
        clock=lambda: time.time() + skew_seconds,
    )


def _own(run_keys: Keys, node: str | None = None) -> str:
    key = run_keys.roles["relay"]
    return encode(RelayToken(run=RUN, node=node or key.public, expires_unix=int(time.time()) + 30), key)


def test_a_relay_takes_nodes_and_further_relays(run_keys: Keys) -> None:
    gate = _relay_gate(run_keys)
    assert gate.node_of(f"Bearer {run_keys.token()}") == NODE
    assert gate.node_of(f"Bearer {_own(run_keys)}") == run_keys.roles["relay"].public


def test_a_relays_key_speaks_for_no_node(run_keys: Keys) -> None:
    with pytest.raises(BadToken):
        _relay_gate(run_keys).node_of(f"Bearer {_own(run_keys, NODE)}")


def test_the_origin_takes_relays_only(run_keys: Keys) -> None:
    gate = TokenGate(RUN, lambda: [run_keys.roles["relay"].public])
    assert gate.node_of(f"Bearer {_own(run_keys)}") == run_keys.roles["relay"].public
    for word in (run_keys.token(), _own(run_keys, NODE), "rubbish"):
        with pytest.raises(BadToken):
            gate.node_of(f"Bearer {word}")


@pytest.mark.parametrize("skew", [-20.0, -2.0, 0.0, 15.0])
def test_a_relay_whose_clock_is_off_by_less_than_a_tokens_life_still_serves(run_keys: Keys, skew: float) -> None:
    """Tokens live 30 s and are renewed every 10 s: an honest one has 20 s left at least."""
    assert _relay_gate(run_keys, skew).node_of(f"Bearer {run_keys.token(seconds=20)}") == NODE


def test_a_relay_whose_clock_is_ahead_by_more_refuses_and_says_so(run_keys: Keys) -> None:
    with pytest.raises(BadToken, match="expired"):
        _relay_gate(run_keys, 40.0).node_of(f"Bearer {run_keys.token(seconds=30)}")


def test_evictions_in_a_row_do_not_put_off_the_end_of_the_first(
    run_keys: Keys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node is evicted every second, which is sooner than nginx forgets the one before."""
    clock, evicted = [100.0], [f"{number:064x}" for number in range(12)]
    monkeypatch.setattr(exclusions, "time", SimpleNamespace(monotonic=lambda: clock[0], time=time.time))
    gate, mark, told = _relay_gate(run_keys), tmp_path / "reload", list[str]()
    signer = run_keys.roles["orchestrator"]
    for node in evicted:
        gate.node_of(f"Bearer {encode(RelayToken(run=RUN, node=node, expires_unix=int(time.time()) + 30), signer)}")
    client: Any = SimpleNamespace(call=lambda *_, **__: Exclusions(nodes=list(told)))
    exclusion = Exclusion(client, gate, mark)
    exclusion.turn()
    marks = []
    for second in range(20):
        told += evicted[second : second + 1]
        exclusion.turn()
        if mark.exists():
            marks.append(second)
            mark.unlink()
        clock[0] += 1
    assert marks[0] <= exclusions.SETTLE_SECONDS + 1
    assert all(later - earlier <= exclusions.SETTLE_SECONDS + 1 for earlier, later in itertools.pairwise(marks))
    assert len(evicted) - 1 + exclusions.SETTLE_SECONDS <= marks[-1] <= len(evicted) + exclusions.SETTLE_SECONDS
