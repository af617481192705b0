"""Who is given a measurement of its line, and how large: in process over a real Redis, with a clock that is moved by hand."""

import asyncio
import hashlib
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from run_states import Clock

from servers import Redis
from shoal.contracts.pools import PoolTerms, Requirements
from shoal.contracts.uplink import UplinkRequest, UplinkTest
from shoal.protocol import uplink_check
from shoal.protocol.redis_access import connect_async
from shoal.protocol.uplink_check import LARGEST_BYTES, MOST_AT_ONCE, SMALLEST_BYTES, START_SECONDS, UplinkCheck
from shoal.transport.server import Problem

POOLS = [
    PoolTerms(name=f"of{wanted}", open=True, requirements=Requirements(uplink_mbps=wanted))
    for wanted in (0, 1, 20, 100)
]


def played(url: str, story: Callable[[UplinkCheck, Clock], Awaitable[None]]) -> None:
    async def inside() -> None:
        client = connect_async(url)
        clock = Clock()
        try:
            await story(UplinkCheck(client, f"test:{uuid.uuid4().hex}", lambda: POOLS, clock, lambda: 0.0), clock)
        finally:
            await client.aclose()

    asyncio.run(inside())


def name(number: int) -> str:
    return f"{number:064x}"


async def ask(check: UplinkCheck, number: int, address: str = "", pool: str = "of20") -> UplinkTest:
    return await check.give(UplinkRequest(node=name(number), pool=pool), address or f"192.0.2.{number}")


async def bytes_of(size: int) -> AsyncIterator[bytes]:
    for at in range(0, size, 1 << 16):
        yield bytes(min(1 << 16, size - at))


def test_an_upload_is_as_long_as_the_pool_wants_it_fast_within_bounds(redis_server: Redis) -> None:
    async def story(check: UplinkCheck, _: Clock) -> None:
        sizes = [
            (await ask(check, n, pool=pool)).size for n, pool in enumerate(("of0", "of1", "of20", "of100", "none"))
        ]
        assert sizes == [SMALLEST_BYTES, SMALLEST_BYTES, 7_500_000, LARGEST_BYTES, SMALLEST_BYTES]

    played(redis_server.url, story)


def test_the_time_runs_from_the_giving_of_the_test(redis_server: Redis) -> None:
    """A proxy that keeps the body until it is whole, or a node that waits, is not faster by that."""

    async def story(check: UplinkCheck, clock: Clock) -> None:
        test = await ask(check, 1)
        clock.now += 6.0
        signed = hashlib.sha256(bytes(test.size)).digest()
        result = await check.receive(name(1), test.test, bytes_of(test.size), signed.__eq__)
        assert (result.mbps, result.seconds) == (10.0, 6.0)
        assert await check.measured(name(1)) == 10.0
        assert await check.measured(name(2)) is None

    played(redis_server.url, story)


def test_a_crowd_is_put_off_and_places_that_nobody_takes_are_free_again(redis_server: Redis) -> None:
    async def story(check: UplinkCheck, clock: Clock) -> None:
        given = [await ask(check, n) for n in range(MOST_AT_ONCE)]
        with pytest.raises(Problem, match="429 Many uploads at once") as caught:
            await ask(check, 99)
        assert caught.value.headers == {"Retry-After": "3"}
        clock.now += 1.0
        await check.receive(name(0), given[0].test, bytes_of(given[0].size), lambda _: True)
        await ask(check, 99)
        with pytest.raises(Problem, match="429 Many uploads at once"):
            await ask(check, 98)
        clock.now += START_SECONDS
        for n in range(50, 50 + MOST_AT_ONCE):
            await ask(check, n)

    played(redis_server.url, story)


def test_a_crowd_costs_a_machine_none_of_its_own_tests(redis_server: Redis) -> None:
    async def story(check: UplinkCheck, clock: Clock) -> None:
        for n in range(MOST_AT_ONCE):
            await ask(check, n)
        for _ in range(uplink_check.PER_KEY[1] + 2):
            with pytest.raises(Problem, match="Many uploads at once"):
                await ask(check, 99)
        clock.now += START_SECONDS
        for _ in range(uplink_check.PER_KEY[1]):
            await ask(check, 99)
        with pytest.raises(Problem, match="429 Too many requests: a key has 3 tests at once") as caught:
            await ask(check, 99)
        assert 1 <= int(caught.value.headers["Retry-After"]) <= 30

    played(redis_server.url, story)


def test_keys_are_free_so_an_address_has_a_pace_too(redis_server: Redis) -> None:
    async def story(check: UplinkCheck, clock: Clock) -> None:
        for n in range(uplink_check.PER_ADDRESS[1]):
            await ask(check, n, address="192.0.2.7")
            clock.now += START_SECONDS  # places of those that never upload
        with pytest.raises(Problem, match="429 Too many requests: an address has 10 tests at once"):
            await ask(check, 99, address="192.0.2.7")
        await ask(check, 99, address="192.0.2.8")

    played(redis_server.url, story)
