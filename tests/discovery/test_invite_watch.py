"""Long polls for invites share one look at Redis, and each hears of its own node only."""

import asyncio
import uuid

import redis.asyncio
from redis.exceptions import RedisError

from servers import Redis
from shoal.discovery.invite_watch import InviteWatch
from shoal.transport.redis_access import connect_async

WAITING = 600  # more than one call takes


async def looks(client: redis.asyncio.Redis) -> int:
    stats = await client.info("commandstats")
    return int(stats.get("cmdstat_mget", {}).get("calls", 0))


def test_each_waiting_node_hears_of_its_own_invite_and_all_share_the_looking(redis_server: Redis) -> None:
    prefix = f"watch-{uuid.uuid4().hex}:"

    async def story() -> tuple[list[str | None], int]:
        client = connect_async(redis_server.url)
        watch = InviteWatch(client, prefix)
        before = await looks(client)
        polls = [asyncio.create_task(watch.wait(f"node-{number}", 60.0)) for number in range(WAITING)]
        twice = asyncio.create_task(watch.wait("node-7", 60.0))
        await asyncio.wait(polls, timeout=0.3)  # they wait by now; one that does not yet finds its invite at once
        for number in range(WAITING):
            await client.set(f"{prefix}node-{number}", f"invite {number}", ex=60)
        found = await asyncio.gather(*polls, twice)
        made = await looks(client) - before
        await client.aclose()
        assert not watch._waiting
        return found, made

    found, made = asyncio.run(story())
    assert found == [*(f"invite {number}" for number in range(WAITING)), "invite 7"]
    assert made < WAITING / 4  # each of 600 polls would have looked for itself


def test_a_poll_ends_without_an_invite_when_its_time_is_over_and_finds_one_that_is_there(redis_server: Redis) -> None:
    async def story() -> tuple[str | None, str | None, str | None]:
        client = connect_async(redis_server.url)
        prefix = f"watch-{uuid.uuid4().hex}:"
        watch = InviteWatch(client, prefix)
        nothing, at_once = await watch.wait("a", 0.05), await watch.wait("a", 0.0)
        await client.set(f"{prefix}a", "invite", ex=60)
        there = await watch.wait("a", 0.0)
        await client.aclose()
        return nothing, at_once, there

    assert asyncio.run(story()) == (None, None, "invite")


def test_a_redis_that_goes_away_is_told_to_all_who_wait(redis_server: Redis) -> None:
    async def story() -> list[object]:
        client = connect_async(redis_server.url)
        watch = InviteWatch(client, f"watch-{uuid.uuid4().hex}:")
        polls = [asyncio.create_task(watch.wait(name, 60.0)) for name in ("a", "b")]
        await asyncio.wait(polls, timeout=0.1)

        async def gone(*names: object) -> None:
            raise redis.exceptions.ConnectionError("no Redis there")

        client.mget = gone
        found = await asyncio.gather(*polls, return_exceptions=True)
        await client.aclose()
        return list(found)

    assert all(isinstance(each, RedisError) for each in asyncio.run(story()))
