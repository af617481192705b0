"""`GET /v1/run` costs a flood of strangers little, and whoever asks now and then hears of this moment."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import Response

from protocol_stack import RUN, Stack
from run_states import Orchestrator
from servers import PLAIN, Redis
from shoal.crypto.http_signatures import sign_request
from shoal.crypto.keys import PrivateKey
from shoal.orchestrator.background import Background
from shoal.orchestrator.http import service
from shoal.transport import SignedClient
from shoal.transport.redis_access import RedisNonces, connect_async
from shoal.transport.shared_answer import KEPT_SECONDS, READINGS_AT_ONCE, READINGS_PER_SECOND, KeptAnswers, SharedAnswer


class Counted:
    """A source whose readings are numbered, and a clock that is moved by hand."""

    def __init__(self) -> None:
        self.now, self.readings, self.fails = 100.0, 0, False

    async def read(self) -> bytes:
        self.readings += 1
        number = self.readings
        await asyncio.sleep(0)
        if self.fails:
            raise RuntimeError("Redis is away")
        return str(number).encode()


def played(story: Callable[[Counted, SharedAnswer], Coroutine[Any, Any, None]]) -> Counted:
    source = Counted()
    asyncio.run(story(source, SharedAnswer(source.read, lambda: source.now)))
    return source


def test_whoever_asks_now_and_then_gets_a_reading_of_that_moment() -> None:
    async def story(source: Counted, answer: SharedAnswer) -> None:
        for number in range(1, 100):
            assert await answer.get() == str(number).encode()
            source.now += 1 / READINGS_PER_SECOND

    played(story)


def test_a_flood_is_answered_with_few_readings_none_older_than_a_second() -> None:
    async def story(source: Counted, answer: SharedAnswer) -> None:
        times: dict[bytes, float] = {}
        for _ in range(10_000):
            found = await answer.get()
            assert source.now - times.setdefault(found, source.now) < KEPT_SECONDS
            source.now += 0.001

    allowed = 1 + READINGS_AT_ONCE + 10 * (READINGS_PER_SECOND + 1 / KEPT_SECONDS)
    assert READINGS_AT_ONCE < played(story).readings <= allowed


def test_those_who_ask_while_one_is_read_share_it() -> None:
    async def story(_: Counted, answer: SharedAnswer) -> None:
        assert set(await asyncio.gather(*(answer.get() for _ in range(500)))) == {b"1"}

    assert played(story).readings == 1


def test_one_who_goes_away_takes_the_answer_from_nobody() -> None:
    async def story(_: Counted, answer: SharedAnswer) -> None:
        first, second = asyncio.create_task(answer.get()), asyncio.create_task(answer.get())
        await asyncio.sleep(0)
        first.cancel()
        assert await second == b"1"

    played(story)


def test_a_failure_is_said_to_those_who_waited_and_kept_for_nobody() -> None:
    async def story(source: Counted, answer: SharedAnswer) -> None:
        source.fails = True
        found = await asyncio.gather(*(answer.get() for _ in range(3)), return_exceptions=True)
        assert [str(each) for each in found] == ["Redis is away"] * 3
        source.fails = False
        assert await answer.get() == b"2"

    played(story)


def built_questions(stack: Stack) -> int:
    """How often Redis was asked whether the state is whole: once for each reading, and by little else."""
    return int(stack.client().info("commandstats").get("cmdstat_exists", {}).get("calls", 0))


def test_a_crowd_at_the_orchestrators_door_is_not_sent_on_to_redis(stack: Stack) -> None:
    before, began, asked = built_questions(stack), time.monotonic(), 600
    with httpx.Client(**PLAIN) as http:
        for _ in range(asked):
            answer = http.get(f"{stack.addresses.orchestrator}/v1/run")
            assert answer.headers["content-type"] == "application/json"
            assert answer.json()["run"] == RUN
    seconds = time.monotonic() - began
    assert built_questions(stack) - before < READINGS_AT_ONCE + 10 * seconds + 50


def test_a_large_answer_is_held_once_for_all_who_are_being_sent_it() -> None:
    async def story() -> None:
        source = Counted()
        source.fails = True
        kept = KeptAnswers(lambda name: source.read())
        found = await asyncio.gather(*(kept.get("a") for _ in range(3)), return_exceptions=True)
        assert [str(each) for each in found] == ["Redis is away"] * 3
        source.fails = False
        first, *others = await asyncio.gather(*(kept.get("a") for _ in range(100)))
        assert all(other is first for other in [*others, await kept.get("a")])
        assert (source.readings, await kept.get("b")) == (2, b"3")

    asyncio.run(story())


def test_nodes_that_ask_for_the_tasks_are_sent_the_same_bytes(
    tmp_path: Path, redis_server: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them may take its time, and a table has up to 64 MiB."""
    run = Orchestrator(tmp_path, redis_server.url)
    run.clock.now = time.time()
    key = PrivateKey.generate()
    run.beat(key.public, run.invite(key.public))
    sent: list[bytes] = []

    class Told(Response):
        def __init__(self, content: bytes, **further: Any) -> None:
            sent.append(content)
            super().__init__(content, **further)

    monkeypatch.setattr(service, "Response", Told)

    async def story() -> None:
        nonces = RedisNonces(connect_async(redis_server.url), run.state.prefix)
        background = Background(run.state, SignedClient("http://127.0.0.1:1", run.role_keys["orchestrator"]))
        app, url = service.make_app(run.state, background, nonces, tmp_path), "http://127.0.0.1:2/v1/tasks"
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app)) as client:
            for nonce in ("a" * 32, "b" * 32):
                headers = sign_request(
                    method="GET", url=url, body=b"", key=key, created_unix=int(time.time()), nonce=nonce
                )
                assert (await client.get(url, headers=headers)).status_code == 200

    asyncio.run(story())
    assert len(sent) == 2
    assert sent[0] is sent[1]
