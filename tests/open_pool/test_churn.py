"""Nodes that come, work and go for minutes while the orchestrator is killed once: nothing is lost, nothing is counted twice, nothing piles up."""

import asyncio

import pytest
from benchmarks.protocol import churn
from benchmarks.protocol.churn import Churn

from servers import Loopback

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1200)]

NODES, MINUTES = 100, 4.0
BYTES_KEPT = 64 << 10
"""For each node that came and each file, some kilobytes stay (docs/open-pool.md); connections and buffers are in it, too."""


@pytest.fixture(scope="module")
def churned(tmp_path_factory: pytest.TempPathFactory, loopback: Loopback) -> Churn:
    return asyncio.run(churn.run(tmp_path_factory.mktemp("stack"), loopback.address(), NODES, MINUTES))


def test_no_confirmed_file_is_lost_or_counted_twice(churned: Churn) -> None:
    assert churned.joined > NODES, "nobody went and came anew"
    assert churned.accepted > NODES // 2
    assert churned.steps > 1
    assert (churned.lost, churned.doubled) == (0, 0)


def test_memory_grows_by_what_is_kept_and_no_more(churned: Churn) -> None:
    assert churned.memory_growth_bytes < BYTES_KEPT * (churned.joined + churned.confirmed)
