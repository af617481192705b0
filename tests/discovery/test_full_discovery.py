"""Discovery with all its places taken: a flood of keys costs the flooder's registrations, and newcomers still come in."""

import asyncio
import uuid
from collections.abc import Awaitable, Callable

import pytest

from servers import Redis
from shoal.contracts.problems import Refusal
from shoal.contracts.protocol import Hardware, Invite, KnownNode, Registration
from shoal.contracts.signed import sign
from shoal.crypto.keys import PrivateKey
from shoal.discovery import discovery
from shoal.discovery.discovery import LATELY_SECONDS, NodeBook
from shoal.transport.redis_access import connect_async

MACHINE = Hardware(cpus=1, memory_bytes=1, disk_free_bytes=1)


def row(name: str, seen_unix: float) -> KnownNode:
    registration = Registration(node=name * 64, run="tiny", pool="pool", software_version="test", hardware=MACHINE)
    return KnownNode(registration=registration, address="192.0.2.7", seen_unix=seen_unix)


def with_book(url: str, work: Callable[[NodeBook], Awaitable[None]]) -> str:
    """Names of the nodes that are left after `work`, in a book of three places."""

    async def inside() -> str:
        client = connect_async(url)
        try:
            prefix = f"test:{uuid.uuid4().hex}"
            book = NodeBook(client, prefix)
            await work(book)
            return "".join(sorted(str(node)[0] for node in await client.hkeys(f"{prefix}:nodes")))
        finally:
            await client.aclose()

    return asyncio.run(inside())


@pytest.fixture(autouse=True)
def three_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "MAX_NODES", 3)


def test_a_newcomer_takes_the_place_of_the_oldest_that_was_never_invited(redis_server: Redis) -> None:
    invite = Invite(
        run="tiny", pool="pool", node="a" * 64, orchestrator_url="http://o", nonce="0" * 32, expires_unix=1 << 40
    )

    async def work(book: NodeBook) -> None:
        for at, name in enumerate("abc"):
            await book.register(row(name, float(at)))
        await book.leave_invite("a" * 64, sign(invite, PrivateKey.generate()), 60)
        await book.register(row("b", 5.0))  # heard of again
        await book.register(row("d", 5.0 + LATELY_SECONDS))
        with pytest.raises(Refusal, match="not-registered"):
            await book.known("c" * 64)
        await book.register(row("e", 6.0 + LATELY_SECONDS))

    assert with_book(redis_server.url, work) == "ade"


def test_whoever_was_heard_of_just_now_keeps_his_place(redis_server: Redis) -> None:
    async def work(book: NodeBook) -> None:
        for at, name in enumerate("abc"):
            await book.register(row(name, float(at)))
        with pytest.raises(Refusal, match="too-many-nodes: 3 nodes are registered"):
            await book.register(row("d", LATELY_SECONDS - 1.0))
        await book.register(row("a", LATELY_SECONDS - 1.0))  # no newcomer

    assert with_book(redis_server.url, work) == "abc"


def test_what_was_forgotten_with_time_is_no_place_to_be_made_free(redis_server: Redis) -> None:
    async def work(book: NodeBook) -> None:
        for at, name in enumerate("abc"):
            await book.register(row(name, float(at)))
        await book.unanswered(discovery.FORGET_SECONDS + 1.0)  # a is forgotten
        for name in "de":
            await book.register(row(name, discovery.FORGET_SECONDS + 2.0))

    assert with_book(redis_server.url, work) == "cde"


def test_only_those_without_an_invite_are_listed_and_only_from_a_time_on(redis_server: Redis) -> None:
    invite = Invite(
        run="tiny", pool="pool", node="b" * 64, orchestrator_url="http://o", nonce="0" * 32, expires_unix=1 << 40
    )

    async def work(book: NodeBook) -> None:
        async def names(since: float = 0.0) -> str:
            return "".join(known.registration.node[0] for known in (await book.unanswered(9.0, since)).nodes)

        for at, name in enumerate("cba"):
            await book.register(row(name, float(at)))
        assert await names() == "cba"
        await book.leave_invite("b" * 64, sign(invite, PrivateKey.generate()), 60)
        assert (await names(), await names(2.0), await names(2.5)) == ("ca", "a", "")
        await book.register(row("b", 5.0))  # its invite was lost
        assert await names(3.0) == "b"

    assert with_book(redis_server.url, work) == "abc"


def test_more_than_one_answer_holds_come_in_several(redis_server: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "ROWS_OF_ANSWER", 2)

    async def work(book: NodeBook) -> None:
        for at, name in enumerate("abc"):
            await book.register(row(name, float(at)))
        first, last = await book.unanswered(9.0), await book.unanswered(9.0, 1.0)
        assert ([each.registration.node[0] for each in first.nodes], first.more) == (["a", "b"], True)
        assert ([each.registration.node[0] for each in last.nodes], last.more) == (["b", "c"], False)

    assert with_book(redis_server.url, work) == "abc"


def test_registrations_of_a_release_that_kept_no_times_are_forgotten_too(redis_server: Redis) -> None:
    async def work(book: NodeBook) -> None:
        for at, name in enumerate("ab"):
            await book.register(row(name, float(at)))
        await book._redis.delete(book._times)
        await book.unanswered(2.0)
        await book.unanswered(discovery.FORGET_SECONDS + 0.5)

    assert with_book(redis_server.url, work) == "b"


def test_a_row_that_another_release_left_and_nobody_can_read_keeps_nobody_outside(redis_server: Redis) -> None:
    async def work(book: NodeBook) -> None:
        for at, name in enumerate("abc"):
            await book.register(row(name, float(at)))
        strange = row("b", 1.0).to_json().replace(b'"disk_free_bytes":1', b'"disk_free_bytes":1152921504606846976')
        await book._redis.hset(book._nodes, "b" * 64, strange)
        await book._redis.delete(book._times)  # so that both readers of all rows come to it
        assert [each.registration.node[0] for each in (await book.unanswered(2.0)).nodes] == ["a", "c"]
        with pytest.raises(Refusal, match="not-registered"):  # so that it registers anew
            await book.known("b" * 64)

    assert with_book(redis_server.url, work) == "ac"
