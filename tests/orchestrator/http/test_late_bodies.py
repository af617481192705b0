"""A nonce is remembered for as long as its head can be sent again, with a body that comes as late as a body may."""

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from shoal.contracts.problems import ProblemCode, Refusal
from shoal.crypto.http_signatures import CLOCK_WINDOW_SECONDS, sign_request
from shoal.crypto.keys import PrivateKey
from shoal.transport import server
from shoal.transport.patience import BODY_SECONDS
from shoal.transport.server import SignatureGate

BASE, PATH, BODY = "http://orchestrator:8080", "/v1/leases", b"{}"


class World:
    """A clock, the nonces that are remembered, and requests whose body takes its time."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0
        self._until: dict[tuple[str, str], float] = {}

    async def first_use(self, key: str, nonce: str, seconds: int) -> bool:
        if self._until.get((key, nonce), 0.0) > self.now:
            return False
        self._until[key, nonce] = self.now + seconds
        return True

    def request(self, headers: Mapping[str, str], body_seconds: float) -> Any:
        async def body() -> bytes:
            self.now += body_seconds
            return BODY

        named = {name.lower(): value for name, value in headers.items()}
        return SimpleNamespace(
            method="POST", scope={"raw_path": PATH.encode(), "query_string": b""}, headers=named, body=body
        )


@pytest.mark.parametrize("ahead", [-CLOCK_WINDOW_SECONDS, 0, 31, CLOCK_WINDOW_SECONDS])
def test_a_request_of_a_clock_that_is_ahead_is_taken_once(ahead: int, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    monkeypatch.setattr(server, "time", SimpleNamespace(time=lambda: world.now))
    gate = SignatureGate(BASE, cast(Any, world))
    created = int(world.now) + ahead
    headers = sign_request(
        method="POST", url=BASE + PATH, body=BODY, key=PrivateKey.generate(), created_unix=created, nonce="a" * 32
    )
    asyncio.run(gate.signer(world.request(headers, 0.0)))
    world.now = created + CLOCK_WINDOW_SECONDS  # the last moment in which its head fits
    with pytest.raises(Refusal) as refused:
        asyncio.run(gate.signer(world.request(headers, BODY_SECONDS)))
    assert refused.value.code == ProblemCode.SEEN_BEFORE
