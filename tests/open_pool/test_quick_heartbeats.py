"""The short way of heartbeats on a real Redis: it writes only over what it has read, takes a nonce once, and survives a Redis without memory."""

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest
import redis.exceptions

from servers import Redis
from shoal.orchestrator.http.heartbeats import BATCH, Swap, SwapQueue
from shoal.orchestrator.nodes.registry import NodeRecord, NodeRegistry
from shoal.orchestrator.recovery import BUILT
from shoal.transport.redis_access import connect, connect_async

NODE, OTHER = "ab" * 32, "cd" * 32
Result = TypeVar("Result")


class Place:
    """A prefix of its own on the shared Redis, marked as whole."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.prefix = f"test:{uuid.uuid4().hex}"
        self.client = connect(url)
        self.client.set(f"{self.prefix}:{BUILT}", "1")
        self.registry = NodeRegistry(self.client, self.prefix, set())

    def text(self, node: str = NODE) -> str:
        found = self.client.hget(f"{self.prefix}:nodes", node)
        assert isinstance(found, str)
        return found

    def with_queue(self, work: Callable[[SwapQueue], Awaitable[Result]]) -> Result:
        async def inside() -> Result:
            client = connect_async(self.url)
            try:
                return await work(SwapQueue(client, self.prefix))
            finally:
                await client.aclose()

        return asyncio.run(inside())


@pytest.fixture
def place(redis_server: Redis) -> Place:
    made = Place(redis_server.url)
    made.registry.put(NodeRecord(node=NODE, state="Healthy"))
    return made


def beaten(text: str, unix: float) -> str:
    return NodeRecord.from_json(text).model_copy(update={"last_heartbeat_unix": unix}).to_json().decode()


def test_a_heartbeat_is_written_and_its_nonce_is_good_once(place: Place) -> None:
    before = place.text()
    after = beaten(before, 7.0)
    again = beaten(before, 8.0)

    async def work(queue: SwapQueue) -> list[str]:
        return [
            await queue.put(Swap(NODE, "nonce-0123456789", before, after)),
            await queue.put(Swap(NODE, "nonce-0123456789", after, again)),
        ]

    assert place.with_queue(work) == ["done", "seen"]
    assert place.text() == after


def test_a_call_that_is_repeated_because_its_answer_was_lost_is_no_replay(place: Place) -> None:
    before = place.text()
    after = beaten(before, 7.0)
    lost = Swap(NODE, "nonce-0123456789", before, after)

    async def work(queue: SwapQueue) -> list[str]:
        found = [await queue.put(lost), await queue.put(lost)]
        found.append(await queue.put(Swap(NODE, "nonce-9876543210", after, beaten(before, 8.0))))
        return [*found, await queue.put(lost)]

    assert place.with_queue(work) == ["done"] * 4
    assert place.text() == beaten(before, 8.0), "nothing is written twice"


def test_a_heartbeat_does_not_undo_an_eviction(place: Place) -> None:
    before = place.text()
    place.registry.change(NodeRecord(node=NODE), "evict")
    evicted = place.text()

    async def work(queue: SwapQueue) -> list[str]:
        swap = Swap(NODE, "nonce-0123456789", before, beaten(before, 7.0))
        return [await queue.put(swap), await queue.put(swap)]

    # The record that is there is the answer, no nonce is taken, and nothing is written.
    assert place.with_queue(work) == [evicted, evicted]
    assert place.text() == evicted
    assert NodeRecord.from_json(evicted).state == "Evicted"


def test_nothing_is_written_for_an_unknown_node_or_while_the_state_is_rebuilt(place: Place) -> None:
    before = place.text()
    after = beaten(before, 7.0)

    async def work(queue: SwapQueue) -> list[str]:
        found = [await queue.put(Swap(OTHER, "nonce-0123456789", "", after))]
        place.client.delete(f"{place.prefix}:{BUILT}")
        return [*found, await queue.put(Swap(NODE, "nonce-0123456789", before, after))]

    assert place.with_queue(work) == ["absent", "absent"]
    assert place.text() == before
    assert not place.client.hexists(f"{place.prefix}:nodes", OTHER)


def test_many_at_once_each_get_their_own_answer(place: Place) -> None:
    nodes = [f"{number:064x}" for number in range(3 * BATCH)]
    for node in nodes[::2]:
        place.registry.put(NodeRecord(node=node, state="Healthy"))
    texts = {node: place.text(node) for node in nodes[::2]}

    async def work(queue: SwapQueue) -> list[str]:
        swaps = [Swap(node, "nonce-0123456789", texts.get(node, ""), beaten(texts[nodes[0]], 1.0)) for node in nodes]
        return list(await asyncio.gather(*(queue.put(swap) for swap in swaps)))

    assert place.with_queue(work) == ["done", "absent"] * (len(nodes) // 2)


def test_a_redis_that_was_restarted_is_told_the_script_again(place: Place) -> None:
    before = place.text()
    first, second = beaten(before, 1.0), beaten(before, 2.0)

    async def work(queue: SwapQueue) -> list[str]:
        found = [await queue.put(Swap(NODE, "nonce-0123456789", before, first))]
        place.client.script_flush()
        return [*found, await queue.put(Swap(NODE, "nonce-9876543210", first, second))]

    assert place.with_queue(work) == ["done", "done"]
    assert place.text() == second


def test_a_redis_that_is_away_is_an_error_for_each_and_not_a_wait_without_end(place: Place) -> None:
    place.url = "redis://127.0.0.1:1/0"  # nobody listens there

    async def work(queue: SwapQueue) -> list[object]:
        swaps = [Swap(NODE, f"nonce-{number:010}", "", "") for number in range(3)]
        return list(await asyncio.gather(*(queue.put(swap) for swap in swaps), return_exceptions=True))

    found = place.with_queue(work)
    assert len(found) == 3
    assert all(isinstance(each, redis.exceptions.ConnectionError) for each in found)


def test_two_orchestrators_change_one_record_without_losing_either(place: Place) -> None:
    """What one has read and the other has changed meanwhile is read again."""
    one, two = place.registry, NodeRegistry(connect(place.url), place.prefix, set())
    one.get(NODE)
    two.change(NodeRecord(node=NODE), policy_version=5)
    changed = one.change(NodeRecord(node=NODE), abandoned_leases=2)
    assert (changed.policy_version, changed.abandoned_leases) == (5, 2)
    assert [record.policy_version for record in two.all()] == [5]
    assert [record.abandoned_leases for record in two.all()] == [2]
