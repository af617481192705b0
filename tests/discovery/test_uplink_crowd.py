"""Who is given a measurement of its line, and how large: in process over a real Redis, with a clock that is moved by hand."""

import asyncio
import hashlib
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from run_states import Clock
from samples import REGISTRATION
from servers import Redis
from shoal.contracts.pools import PoolTerms, Requirements
from shoal.contracts.problems import Refusal
from shoal.contracts.protocol import Registration
from shoal.contracts.uplink import UplinkRequest, UplinkTest
from shoal.discovery import uplink_check
from shoal.discovery.uplink_check import (
    LARGEST_BYTES,
    LIMIT_SECONDS,
    MOST_AT_ONCE,
    MOST_OF_ADDRESS,
    SMALLEST_BYTES,
    START_SECONDS,
    UplinkCheck,
    limit_for,
    size_for,
)
from shoal.transport.redis_access import connect_async

POOLS = [
    PoolTerms(name=f"of{wanted}", open=True, requirements=Requirements(uplink_mbps=wanted))
    for wanted in (0, 1, 20, 100)
]


def played(url: str, story: Callable[[UplinkCheck, Clock], Awaitable[None]]) -> None:
    async def inside() -> None:
        client = connect_async(url)
        clock = Clock()
        try:

            async def told() -> float:
                return clock()

            await story(UplinkCheck(client, f"test:{uuid.uuid4().hex}", lambda: POOLS, told, lambda: 0.0), clock)
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
        clock.now += 5.0
        signed = hashlib.sha256(bytes(test.size)).digest()
        result = await check.receive(name(1), test.test, bytes_of(test.size), signed.__eq__)
        assert (result.mbps, result.seconds) == (12.0, 5.0)
        assert await check.measured(name(1)) == result
        assert await check.measured(name(2)) is None

    played(redis_server.url, story)


def test_a_body_that_comes_when_its_time_is_over_is_no_measurement(redis_server: Redis) -> None:
    async def story(check: UplinkCheck, clock: Clock) -> None:
        test = await ask(check, 1)
        clock.now += test.limit_seconds
        with pytest.raises(Refusal, match="no-such-test"):
            await check.receive(name(1), test.test, bytes_of(test.size), lambda _: True)
        assert await check.measured(name(1)) is None

    played(redis_server.url, story)


def test_an_upload_is_cut_off_once_its_line_cannot_be_half_of_what_is_wanted() -> None:
    limits = {wanted: limit_for(wanted) for wanted in (0, 1, 2, 20, 100)}
    assert limits == pytest.approx({0: 6.0, 1: LIMIT_SECONDS, 2: 8.39, 20: 6.0, 100: 6.0}, abs=0.01)
    for wanted in range(1, 101):
        assert (
            size_for(wanted) * 8 / 1e6 / limit_for(wanted) <= wanted * 0.56
        )  # at 1 Mbit/s 15 s end it a little earlier


def test_a_short_test_for_another_pool_shows_no_fast_line(redis_server: Redis) -> None:
    """On a line that is fast for a megabyte: a pool that asks for less, or for nothing, gives a shorter test."""

    def wants(pool: str) -> Registration:
        return REGISTRATION.model_copy(update={"node": name(1), "pool": pool})

    async def story(check: UplinkCheck, clock: Clock) -> None:
        for pool in ("of0", "none"):
            test = await ask(check, 1, pool=pool)
            clock.now += 0.01
            await check.receive(name(1), test.test, bytes_of(test.size), lambda _: True)
            with pytest.raises(
                Refusal, match=r"uplink-not-measured.* it was measured with 1048576 bytes, which are too few"
            ):
                await check.with_measured(wants("of20"))
            assert (await check.with_measured(wants("of1"))).hardware.uplink_mbps == pytest.approx(838.86)
        test = await ask(check, 1, pool="of20")
        clock.now += 3.0
        await check.receive(name(1), test.test, bytes_of(test.size), lambda _: True)
        assert (await check.with_measured(wants("of20"))).hardware.uplink_mbps == 20.0

    played(redis_server.url, story)


def test_a_machine_that_waits_while_more_is_asked_for_is_sent_to_register_anew(redis_server: Redis) -> None:
    def row(pool: str, mbps: float | None) -> Registration:
        hardware = REGISTRATION.hardware.model_copy(update={"uplink_mbps": mbps})
        return REGISTRATION.model_copy(update={"pool": pool, "hardware": hardware})

    async def story(check: UplinkCheck, clock: Clock) -> None:
        for good in (row("of0", None), row("of0", 0.5), row("of20", 20.0), row("none", None)):
            await check.require_still(good)
        await check.require_still(row("of20", None).model_copy(update={"proof": "0" * 64}))
        with pytest.raises(
            Refusal, match=r"uplink-outdated: pool 'of20' requires .* 20 Mbit/s by now, 19.5 were measured"
        ):
            await check.require_still(row("of20", 19.5))
        with pytest.raises(Refusal, match=r"uplink-outdated.* it was not measured"):
            await check.require_still(row("of20", None))
        test = await ask(check, 1, pool="of1")
        clock.now += 0.05
        await check.receive(name(1), test.test, bytes_of(test.size), lambda _: True)
        await check.require_still(row("of1", 167.77).model_copy(update={"node": name(1)}))
        with pytest.raises(Refusal, match=r"uplink-outdated.* measured with 1048576 bytes, which are too few"):
            await check.require_still(row("of20", 167.77).model_copy(update={"node": name(1)}))

    played(redis_server.url, story)


def test_a_crowd_is_put_off_and_places_that_nobody_takes_are_free_again(redis_server: Redis) -> None:
    async def story(check: UplinkCheck, clock: Clock) -> None:
        given = [await ask(check, n) for n in range(MOST_AT_ONCE)]
        with pytest.raises(Refusal, match="too-many-uploads") as caught:
            await ask(check, 99)
        assert caught.value.retry_after_seconds == 3
        clock.now += 1.0
        await check.receive(name(0), given[0].test, bytes_of(given[0].size), lambda _: True)
        await ask(check, 99)
        with pytest.raises(Refusal, match="too-many-uploads"):
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
            with pytest.raises(Refusal, match="too-many-uploads"):
                await ask(check, 99)
        clock.now += START_SECONDS
        for _ in range(uplink_check.PER_KEY[1]):
            await ask(check, 99)  # each in the place of the one before
        with pytest.raises(Refusal, match="too-many-requests: a key has 3 tests at once") as caught:
            await ask(check, 99)
        assert 1 <= (caught.value.retry_after_seconds or 0) <= 30

    played(redis_server.url, story)


def test_keys_are_free_so_an_address_has_a_pace_too(redis_server: Redis) -> None:
    async def story(check: UplinkCheck, clock: Clock) -> None:
        for n in range(uplink_check.PER_ADDRESS[1]):
            await ask(check, n, address="192.0.2.7")
            clock.now += START_SECONDS  # places of those that never upload
        with pytest.raises(Refusal, match="too-many-requests: an address has 10 tests at once"):
            await ask(check, 99, address="192.0.2.7")
        await ask(check, 99, address="192.0.2.8")

    played(redis_server.url, story)


def test_an_address_has_two_places_and_its_neighbours_the_others(redis_server: Redis) -> None:
    async def story(check: UplinkCheck, clock: Clock) -> None:
        first = [await ask(check, n, address="192.0.2.7") for n in range(MOST_OF_ADDRESS)]
        for _ in range(uplink_check.PER_ADDRESS[1] * 2):  # which costs the address none of its tests
            with pytest.raises(Refusal, match="too-many-uploads"):
                await ask(check, 99, address="192.0.2.7")
        for n in range(50, 50 + MOST_AT_ONCE - MOST_OF_ADDRESS):
            await ask(check, n)
        await check.receive(name(0), first[0].test, bytes_of(first[0].size), lambda _: True)
        await ask(check, 99, address="192.0.2.7")

    played(redis_server.url, story)


def test_a_key_has_a_place_for_each_of_its_uploads(redis_server: Redis) -> None:
    """One that uploads while it asks again is counted as two."""

    async def story(check: UplinkCheck, clock: Clock) -> None:
        uploads = []
        for _ in range(MOST_OF_ADDRESS):
            test = await ask(check, 1, address="192.0.2.7")
            never = asyncio.Event()

            async def held(until: asyncio.Event = never, size: int = test.size) -> AsyncIterator[bytes]:
                await until.wait()
                yield bytes(size)

            uploads.append((never, asyncio.ensure_future(check.receive(name(1), test.test, held(), lambda _: True))))
            await asyncio.sleep(0.1)
        with pytest.raises(Refusal, match="too-many-uploads"):
            await ask(check, 1, address="192.0.2.7")
        for event, upload in uploads:
            event.set()
            await upload
        await ask(check, 1, address="192.0.2.7")

    played(redis_server.url, story)


def test_a_short_test_is_no_figure_for_who_says_to_be_a_pod_of_the_pool(redis_server: Redis) -> None:
    """Discovery cannot check the proof; the orchestrator, which can, goes by the figure where it is forged."""
    claims = REGISTRATION.model_copy(update={"node": name(1), "pool": "of20", "proof": "0" * 64})

    async def story(check: UplinkCheck, clock: Clock) -> None:
        for pool, seconds, figure in (("none", 0.01, None), ("of20", 3.0, 20.0)):
            test = await ask(check, 1, pool=pool)
            clock.now += seconds
            await check.receive(name(1), test.test, bytes_of(test.size), lambda _: True)
            assert (await check.with_measured(claims)).hardware.uplink_mbps == figure

    played(redis_server.url, story)


def test_who_begins_an_upload_late_takes_a_place_that_is_free(redis_server: Redis) -> None:
    """Else an address would collect tests, and begin them all at once."""

    async def story(check: UplinkCheck, clock: Clock) -> None:
        late = [await ask(check, n, address="192.0.2.7", pool="of1") for n in range(MOST_OF_ADDRESS)]
        clock.now += limit_for(1) / 2 + 1.1
        others = [await ask(check, n, address="192.0.2.7", pool="of1") for n in range(10, 10 + MOST_OF_ADDRESS)]
        with pytest.raises(Refusal, match="too-many-uploads"):
            await check.receive(name(0), late[0].test, bytes_of(late[0].size), lambda _: True)
        clock.now += 1.0
        await check.receive(name(10), others[0].test, bytes_of(others[0].size), lambda _: True)
        result = await check.receive(name(1), late[1].test, bytes_of(late[1].size), lambda _: True)
        assert result.seconds == pytest.approx(limit_for(1) / 2 + 2.1)

    played(redis_server.url, story)


def test_who_is_refused_takes_no_place_for_a_moment_either(redis_server: Redis) -> None:
    async def story(check: UplinkCheck, clock: Clock) -> None:
        for n in range(MOST_OF_ADDRESS):
            await ask(check, n, address="192.0.2.7")
        flood = [asyncio.ensure_future(ask(check, 1000 + n, address="192.0.2.7")) for n in range(200)]
        for n in range(50, 50 + MOST_AT_ONCE - MOST_OF_ADDRESS):
            await ask(check, n)  # none of them is put off
        refused = await asyncio.gather(*flood, return_exceptions=True)
        assert all(isinstance(each, Refusal) for each in refused)

    played(redis_server.url, story)


def test_two_discoveries_time_an_upload_by_one_clock(redis_server: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of them is minutes ahead: the line is as fast as it is."""

    async def story() -> None:
        client, prefix = connect_async(redis_server.url), f"test:{uuid.uuid4().hex}"
        try:
            gives, counts = (UplinkCheck(client, prefix, lambda: POOLS, ticks=lambda: 0.0) for _ in range(2))
            test = await ask(gives, 1, pool="of1")
            now = time.time()
            monkeypatch.setattr(time, "time", lambda: now + 300.0)
            result = await counts.receive(name(1), test.test, bytes_of(test.size), lambda _: True)
            assert 0.0 < result.seconds < 5.0
        finally:
            await client.aclose()

    asyncio.run(story())


def test_a_body_that_a_proxy_holds_back_keeps_its_place_for_as_long_as_a_line_that_is_good_enough_needs(
    redis_server: Redis,
) -> None:
    """A megabyte on a line of 1.5 Mbit/s, for a pool that wants one: the proxy has it after 5.6 s."""

    async def story(check: UplinkCheck, clock: Clock) -> None:
        test = await ask(check, 1, "192.0.2.7", pool="of1")
        await ask(check, 2, "192.0.2.7", pool="of1")
        clock.now += 5.6
        with pytest.raises(Refusal, match="too-many-uploads"):
            await ask(check, 3, "192.0.2.7", pool="of1")
        result = await check.receive(name(1), test.test, bytes_of(test.size), lambda _: True)
        assert result.mbps == pytest.approx(1.5, abs=0.01)

    played(redis_server.url, story)


def test_who_asks_again_and_finds_no_place_keeps_the_test_that_it_has(redis_server: Redis) -> None:
    async def story(check: UplinkCheck, clock: Clock) -> None:
        test = await ask(check, 1, "192.0.2.7")
        clock.now += START_SECONDS + 0.1  # its place is free again
        for number in (2, 3):
            await ask(check, number, "192.0.2.7")
        with pytest.raises(Refusal, match="too-many-uploads"):
            await ask(check, 1, "192.0.2.7")
        clock.now += 0.1
        await check.receive(name(2), (await again(check, 2)).test, bytes_of(test.size), lambda _: True)
        await check.receive(name(1), test.test, bytes_of(test.size), lambda _: True)

    async def again(check: UplinkCheck, number: int) -> UplinkTest:
        """In place of the one before, whose place is no neighbour's."""
        return await ask(check, number, "192.0.2.7")

    played(redis_server.url, story)


def test_a_new_test_does_not_take_the_place_of_an_upload_that_has_begun(
    redis_server: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both at once: the upload begins between two steps of the question for a new test."""

    async def story(check: UplinkCheck, clock: Clock) -> None:
        test = await ask(check, 1, "192.0.2.7")
        goes_on = asyncio.Event()

        async def slowly() -> AsyncIterator[bytes]:
            await goes_on.wait()
            async for part in bytes_of(test.size):
                yield part

        take, upload = check._take_place, []

        async def begins_before(*told: Any) -> None:
            if not upload:
                monkeypatch.setattr(check, "_take_place", take)
                upload.append(asyncio.ensure_future(check.receive(name(1), test.test, slowly(), lambda _: True)))
                while await check._redis.exists(check._test(name(1))):  # noqa: ASYNC110 - no event tells that it has begun
                    await asyncio.sleep(0.01)
            await take(*told)

        monkeypatch.setattr(check, "_take_place", begins_before)
        await ask(check, 1, "192.0.2.7")
        assert await check._redis.zcard(check._running) == 2
        clock.now += 1.0
        goes_on.set()
        await asyncio.gather(*upload)

    played(redis_server.url, story)


def test_a_clock_that_is_set_back_makes_no_line_fast_and_holds_no_place(redis_server: Redis) -> None:
    async def story(check: UplinkCheck, clock: Clock) -> None:
        given = [await ask(check, n, "192.0.2.7") for n in range(MOST_OF_ADDRESS)]
        clock.now -= 3600.0
        with pytest.raises(Refusal, match="no-such-test"):
            await check.receive(name(0), given[0].test, bytes_of(given[0].size), lambda _: True)
        await ask(check, 9, "192.0.2.7")

    played(redis_server.url, story)
