"""Heartbeats that somebody overheard and sends again: refused, and not at the expense of the node that sent them first."""

import asyncio
import time
from pathlib import Path

import httpx
import pytest
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from protocol_stack import RUN
from run_states import Orchestrator
from servers import Redis
from shoal.contracts.pools import PoolTerms
from shoal.contracts.protocol import Heartbeat
from shoal.crypto.http_signatures import sign_request
from shoal.crypto.keys import PrivateKey
from shoal.orchestrator.http import heartbeats
from shoal.transport.redis_access import RedisNonces, connect_async
from shoal.transport.server import SignatureGate

URL = "http://service.test"


async def long_way(scope: Scope, receive: Receive, send: Send) -> None:
    await Response("the long way")(scope, receive, send)


Requests = list[tuple[dict[str, str], bytes]]


def responses(run: Orchestrator, redis_url: str, requests: Requests) -> list[httpx.Response]:
    """To each request, one after the other."""

    async def inside() -> list[httpx.Response]:
        client = connect_async(redis_url)
        gate = SignatureGate(URL, RedisNonces(client, run.state.prefix))
        app = heartbeats.QuickHeartbeats(long_way, run.state, gate, client)
        try:
            async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url=URL) as http:
                return [await http.post(heartbeats.PATH, content=body, headers=headers) for headers, body in requests]
        finally:
            await client.aclose()

    return asyncio.run(inside())


def answers(run: Orchestrator, redis_url: str, requests: Requests) -> list[int]:
    return [response.status_code for response in responses(run, redis_url, requests)]


def texts(run: Orchestrator, redis_url: str, requests: Requests) -> list[str]:
    return [response.text for response in responses(run, redis_url, requests)]


def signed(key: PrivateKey, nonce: int, beat: Heartbeat | None = None) -> tuple[dict[str, str], bytes]:
    body = (beat or Heartbeat(node=key.public)).to_json()
    url = URL + heartbeats.PATH
    headers = sign_request(
        method="POST", url=url, body=body, key=key, created_unix=int(time.time()), nonce=f"nonce-{nonce:016}"
    )
    return {**headers, "Content-Type": "application/json"}, body


@pytest.fixture
def run(tmp_path: Path, redis_server: Redis, monkeypatch: pytest.MonkeyPatch) -> Orchestrator:
    monkeypatch.setattr(heartbeats, "BEATS_PER_SECOND", 0.001)
    monkeypatch.setattr(heartbeats, "BEATS_AT_ONCE", 3)
    return Orchestrator(tmp_path, redis_server.url)


def test_replays_do_not_spend_the_pace_of_the_node_that_is_replayed(run: Orchestrator, redis_server: Redis) -> None:
    assert run.config.run == RUN
    key = PrivateKey.generate()
    invite = run.invite(key.public)
    run.beat(key.public, invite)
    overheard = signed(key, 0)
    first = signed(key, 1, Heartbeat(node=key.public, invite=invite))  # the long way refuses it, in its own pace
    found = answers(
        run, redis_server.url, [*[overheard] * 9, *[first] * 9, *(signed(key, number) for number in range(2, 6))]
    )
    assert found[:9] == [200] + [401] * 8
    assert found[9:18] == [200] * 3 + [429] * 6
    assert found[18:] == [200, 200, 429, 429], "three at once were free, of which the first was one"


def test_a_member_whose_pool_was_forgotten_goes_the_long_way_which_refuses_it(
    run: Orchestrator, redis_server: Redis
) -> None:
    key = PrivateKey.generate()
    run.beat(key.public, run.invite(key.public))
    pools = [PoolTerms(name="pool", open=True), PoolTerms(name="own", sampler="none")]
    run.state.config = run.config.model_copy(update={"pools": pools})
    assert texts(run, redis_server.url, [signed(key, 0)])[0] != "the long way"
    run.lose_redis()
    assert texts(run, redis_server.url, [signed(key, 1)]) == ["the long way"]


def test_a_strangers_heartbeats_are_held_back_too(run: Orchestrator, redis_server: Redis) -> None:
    key = PrivateKey.generate()
    found = answers(run, redis_server.url, [signed(key, number) for number in range(5)])
    assert found == [200] * 3 + [429] * 2
