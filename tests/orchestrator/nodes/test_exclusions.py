"""Who relays may serve no more: what the orchestrator tells them, and nobody else."""

from collections.abc import Callable
from pathlib import Path

import pytest

from protocol_stack import Node, Stack, verdict_on
from run_states import Orchestrator
from servers import Redis
from shoal.contracts.protocol import Exclusions
from shoal.orchestrator.nodes import membership
from shoal.transport import Refused, SignedClient


def _ask(stack: Stack, role: str) -> Exclusions | None:
    client = SignedClient(stack.addresses.orchestrator, stack.role_keys[role])
    return client.call("GET", "/v1/exclusions", None, Exclusions)


def test_relays_learn_of_exclusions_and_nobody_else(new_stack: Callable[..., Stack]) -> None:
    stack = new_stack()
    found = _ask(stack, "relay")
    assert found is not None
    assert found.nodes == []
    for role in ("trainer", "validator"):
        with pytest.raises(Refused, match="403 Wrong role"):
            _ask(stack, role)
    with pytest.raises(Refused, match="403"):
        Node(stack).orchestrator.call("GET", "/v1/exclusions", None, Exclusions)


def test_an_evicted_node_is_on_the_list_also_when_redis_is_lost(tmp_path: Path, redis_server: Redis) -> None:
    run = Orchestrator(tmp_path, redis_server.url)
    run.announce(0)
    honest, other = run.join(), run.join()
    run.hand_in(other)
    run.judge(verdict_on(run.claimed(), "reject", "sampling"))
    assert membership.exclusions(run.state).nodes == [other]
    run.lose_redis()
    assert membership.exclusions(run.state).nodes == [other]
    assert honest not in membership.exclusions(run.state).nodes
