"""Discovery: where a node says that it exists, and waits for an invite. Knows no orchestrator address until an invite names one.

Comes in: registrations signed by nodes, invites signed by the orchestrator. Goes out: registrations, to the orchestrator only; to each node its
own invite, by long poll, so that nodes only ever dial out. All state is in Redis and may be lost: agents register again when they find themselves
unknown.
"""

import math
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated

import redis.asyncio
from fastapi import FastAPI, Query, Request, Response

from shoal.contracts.newer import from_newer_json
from shoal.contracts.problems import ProblemCode, Refusal
from shoal.contracts.protocol import Invite, KnownNode, KnownNodes, Registered, Registration
from shoal.contracts.roster import Roster
from shoal.contracts.run import JoinOffer, OpenPool, RunConfig, home, load_run_config
from shoal.contracts.signed import BadSignature, Signed
from shoal.contracts.trust import KeysNotice, TrustedKeys
from shoal.contracts.uplink import UplinkRequest
from shoal.crypto.http_signatures import names_digest
from shoal.crypto.keys import PrivateKey
from shoal.discovery.invite_watch import InviteWatch
from shoal.discovery.pool_page import PAGE_HEADERS, pool_page
from shoal.discovery.uplink_check import LARGEST_BYTES, UplinkCheck
from shoal.telemetry import every_line, get_logger, start
from shoal.transport import api_pages
from shoal.transport.keys_watch import KeysWatch
from shoal.transport.pace import Pace
from shoal.transport.peers import add_peer_answers
from shoal.transport.problems import add_problem_answers
from shoal.transport.redis_access import RedisNonces, connect_async
from shoal.transport.server import BodyLimit, SignatureGate, serve
from shoal.transport.service import (
    OFFERS_AT_ONCE,
    OFFERS_PER_SECOND,
    Gate,
    add_health,
    add_keys_route,
    address_of,
    hold_back,
    json_answer,
    parse,
    poll_seconds,
    query_seconds,
    read_secret,
    require_same,
)

PORT = 8081
MAX_BODY_BYTES = 64 << 10  # a registration has some hundred bytes
MAX_NODES = 100_000
"""Keys are free, so registrations are bounded: at 0.3 to 1.7 kB each this is 30 to 170 MB of Redis, and 20 MB for their order."""
LATEST_SINCE = 1e11  # seconds since 1970
AT_ONCE = 1000  # registrations that are forgotten with one request
ROWS_OF_ANSWER = 5000
"""Registrations in one answer to the orchestrator. A stranger can make one of 1.7 kB: all of a full book would be more than is taken."""
FORGET_SECONDS = 86_400.0
"""A registration that was not renewed for a day makes room: a node that lives registers again whenever it needs an invite."""
LATELY_SECONDS = 60.0
"""When all places are taken, a registration that was not answered with an invite for this long makes room: the orchestrator looks every few
seconds."""


def invite_prefix(prefix: str) -> str:
    """Prefix of the key of a node's waiting invite."""
    return f"{prefix}:invite:"


class NodeBook:
    """Registrations and waiting invites in Redis."""

    def __init__(self, client: redis.asyncio.Redis, prefix: str) -> None:
        self._redis = client
        self._nodes = f"{prefix}:nodes"
        self._invites = invite_prefix(prefix)
        self._times = f"{prefix}:times"  # of the newest registration
        self._unanswered = f"{prefix}:unanswered"  # by time; registrations that no invite was left for

    async def register(self, known: KnownNode) -> None:
        """Note a registration, newer than any before; an invite that still waits was not wanted and is dropped.

        Raises `Refusal` when all places are taken by nodes that were invited, or registered just now.
        """
        node = known.registration.node
        if not await self._redis.hexists(self._nodes, node) and await self._redis.hlen(self._nodes) >= MAX_NODES:
            await self._make_room(known.seen_unix)
        async with self._redis.pipeline(transaction=True) as together:
            together.delete(self._invites + node)
            together.zadd(self._times, {node: known.seen_unix})
            together.zadd(self._unanswered, {node: known.seen_unix})
            together.hset(self._nodes, node, known.to_json())
            await together.execute()

    async def _make_room(self, now_unix: float) -> None:
        """Forget the oldest registration without an invite: keys are free, so whoever floods the book pays with rows of their own.

        An honest node among them gets 404 when it asks for its invite, and registers again.
        """
        oldest = await self._redis.zrangebyscore(self._unanswered, "-inf", now_unix - LATELY_SECONDS, start=0, num=1)
        if not oldest:
            raise Refusal(
                ProblemCode.TOO_MANY_NODES, f"{MAX_NODES} nodes are registered; try again later", retry_after_seconds=60
            )
        await self._forget(str(oldest[0]))

    async def _forget(self, *nodes: str) -> None:
        async with self._redis.pipeline(transaction=True) as together:
            together.hdel(self._nodes, *nodes)
            together.zrem(self._unanswered, *nodes)
            together.zrem(self._times, *nodes)
            await together.execute()

    async def known(self, node: str) -> KnownNode:
        """A node's registration; raises `Refusal` where there is none."""
        row = await self._redis.hget(self._nodes, node)
        found = await self._readable({node: row}) if row is not None else []
        if not found:
            raise Refusal(ProblemCode.NOT_REGISTERED, f"node {node[:12]}... is not registered: POST /v1/nodes first")
        return found[0]

    async def _readable(self, rows: Mapping[str | bytes, str | bytes]) -> list[KnownNode]:
        """Rows as this release reads them. One of another release that this one does not take is forgotten: its node learns that and registers
        again."""
        found: list[KnownNode] = []
        strange: list[str] = []
        for node, row in rows.items():
            try:
                found.append(KnownNode.from_json(row))
            except ValueError as error:
                get_logger().warning("could not read a registration", node=str(node), problem=str(error)[:300])
                strange.append(str(node))
        if strange:
            await self._forget(*strange)
        return found

    async def unanswered(self, now_unix: float, since_unix: float = 0.0) -> KnownNodes:
        """The first registrations that no invite was left for, from `since_unix` on. Those of a day are forgotten, answered or not."""
        old = await self._redis.zrangebyscore(
            self._times, "-inf", f"({now_unix - FORGET_SECONDS}", start=0, num=AT_ONCE
        )
        if old:
            await self._forget(*(str(node) for node in old))
        if since_unix == 0.0:
            await self._note_times()
        first = await self._redis.zrangebyscore(self._unanswered, since_unix, "+inf", start=0, num=ROWS_OF_ANSWER + 1)
        names = [str(node) for node in first[:ROWS_OF_ANSWER]]
        rows = await self._redis.hmget(self._nodes, names) if names else []
        there: dict[str | bytes, str | bytes] = {
            node: row for node, row in zip(names, rows, strict=True) if row is not None
        }
        return KnownNodes(nodes=await self._readable(there), more=len(first) > ROWS_OF_ANSWER)

    async def _note_times(self) -> None:
        """Give those a time that were registered by a release that kept none, so that they are forgotten too."""
        if await self._redis.hlen(self._nodes) <= await self._redis.zcard(self._times):
            return
        if rows := await self._readable(await self._redis.hgetall(self._nodes)):
            await self._redis.zadd(self._times, {row.registration.node: row.seen_unix for row in rows}, nx=True)

    async def leave_invite(self, node: str, invite: Signed[Invite], seconds: int) -> None:
        async with self._redis.pipeline(
            transaction=True
        ) as together:  # else a registration between the two would be taken for answered
            together.set(self._invites + node, invite.to_json(), ex=seconds)
            together.zrem(self._unanswered, node)
            await together.execute()


class ConfigFile:
    """`config/run.json`, read again when it changes: addresses and pools may, and strangers must hear of it without a restart of ours."""

    def __init__(self, path: Path, config: RunConfig) -> None:
        self._path = path
        self._config = config
        self._stamp = self._now()

    def __call__(self) -> RunConfig:
        """The newest that is complete and of the same run."""
        stamp = self._now()
        if stamp != self._stamp:
            self._stamp = stamp
            try:
                found = from_newer_json(RunConfig, self._path.read_bytes())
                if (found.run, found.run_key) == (self._config.run, self._config.run_key):
                    self._config = found
            except (OSError, ValueError) as error:
                get_logger().warning("could not load config/run.json", problem=str(error)[:300])
        return self._config

    def _now(self) -> tuple[int, int] | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_ino


def offer(config: RunConfig, roster: Signed[Roster]) -> JoinOffer:
    """The public description of a run for a stranger's machine: nothing that is secret, and no list of who may join."""
    return JoinOffer(
        run=config.run,
        run_key=config.run_key,
        roster=roster,
        model_id=config.model_id,
        pools=[
            OpenPool(
                name=pool.name,
                requirements=pool.requirements,
                listed=bool(pool.admission.nodes),
                codes=bool(pool.admission.codes),
                quantization=pool.quantization,
                engine=pool.engine,
            )
            for pool in config.pools
            if pool.open
        ],
    )


def make_app(
    config: RunConfig,
    client: redis.asyncio.Redis,
    newest: Callable[[], RunConfig] | None = None,
    keys: TrustedKeys | None = None,
) -> FastAPI:
    """The application over one run's configuration and Redis; `newest` gives the configuration as it is by now, `keys` whom to believe by now."""
    newest = newest or (lambda: config)
    keys = keys or config.trust
    prefix = f"shoal:{config.run}:discovery"
    book = NodeBook(client, prefix)
    watch = InviteWatch(client, invite_prefix(prefix))
    nonces = RedisNonces(client, prefix)
    gate = Gate(SignatureGate(config.addresses.discovery, nonces, lambda: [newest().addresses.public_discovery]), keys)
    app = FastAPI(title="Shoal discovery", docs_url=None, redoc_url=None)
    app.add_middleware(BodyLimit, max_bytes=MAX_BODY_BYTES, by_path={"/v1/uplink": LARGEST_BYTES})
    add_problem_answers(app)
    add_peer_answers(app, lambda: None)
    add_health(app, alive=lambda: None, ready=lambda: None)

    newcomers = Pace(OFFERS_PER_SECOND, OFFERS_AT_ONCE)

    @app.get("/v1/join")
    async def join(request: Request) -> Response:
        hold_back(
            newcomers,
            address_of(request),
            f"an address has {OFFERS_AT_ONCE} at once and {OFFERS_PER_SECOND:.0f} a second",
        )
        return json_answer(offer(newest(), keys.notice.roster))

    @app.get("/", include_in_schema=False)
    async def public_page(request: Request) -> Response:
        hold_back(newcomers, address_of(request), "this page is asked for too often")
        found = newest()
        return Response(
            pool_page(found, offer(found, keys.notice.roster)), media_type="text/html", headers=PAGE_HEADERS
        )

    add_keys_route(app, keys, lambda: KeysNotice(roster=keys.notice.roster))

    uplinks = UplinkCheck(client, prefix, lambda: newest().pools)

    @app.post("/v1/uplink-tests")
    async def uplink_test(request: Request) -> Response:
        wanted = await gate.speaks_for(request, UplinkRequest)
        return json_answer(await uplinks.give(wanted, address_of(request)))

    @app.put("/v1/uplink")
    async def uplink(request: Request, test: Annotated[str, Query(pattern="^[0-9a-f]{32}$")]) -> Response:
        node = await gate.node_of_head(request)

        answer = json_answer(
            await uplinks.receive(node, test, request.stream(), partial(names_digest, request.headers))
        )
        answer.headers["Connection"] = "close"  # what a slow line has not sent would be taken for the next request
        return answer

    @app.post("/v1/nodes")
    async def register(request: Request) -> Response:
        registration = await gate.speaks_for(request, Registration)
        if registration.run != config.run:
            raise Refusal(
                ProblemCode.ANOTHER_RUN, f"this discovery serves run {config.run!r}, not {registration.run!r}"
            )
        registration = await uplinks.with_measured(registration)
        address = request.client.host if request.client is not None else ""
        await book.register(KnownNode(registration=registration, address=address, seen_unix=time.time()))
        return json_answer(Registered(node=registration.node, invited=False))

    @app.get("/v1/nodes")
    async def nodes(request: Request) -> Response:
        await gate.role(request, "orchestrator")
        return json_answer(await book.unanswered(time.time(), query_seconds(request, "since", LATEST_SINCE)))

    @app.get("/v1/nodes/{node}/invite")
    async def invite(node: str, request: Request) -> Response:
        require_same(await gate.node(request), node)
        await uplinks.require_still((await book.known(node)).registration)
        found = await watch.wait(node, poll_seconds(request))
        return Response(status_code=204) if found is None else Response(found, media_type="application/json")

    @app.put("/v1/nodes/{node}/invite")
    async def leave_invite(node: str, request: Request) -> Response:
        orchestrator = await gate.role(request, "orchestrator")
        signed = await parse(request, Signed[Invite])
        try:
            document = signed.verified(orchestrator)
        except BadSignature as error:
            raise Refusal(ProblemCode.INVITE_NOT_SIGNED, str(error)) from error
        if document.node != node or document.run != config.run:
            raise Refusal(
                ProblemCode.INVITE_OF_ANOTHER_NODE,
                f"invite is for node {document.node[:12]}... of run {document.run!r}",
            )
        seconds = math.ceil(document.expires_unix - time.time())
        if seconds <= 0:
            raise Refusal(
                ProblemCode.INVITE_EXPIRED, "create a new one, and check that the clocks of both machines agree"
            )
        await book.known(node)
        await book.leave_invite(node, signed, seconds)
        return Response(status_code=204)

    api_pages.describe(app, api_pages.DISCOVERY)
    return app


def main() -> None:
    """Entry point of the discovery container."""
    log = start("discovery")
    config = load_run_config()
    every_line(run=config.run)
    key = PrivateKey.from_pem(read_secret("role.pem"))
    if config.trusted_roster().keys["discovery"] != key.public:
        sys.exit("secrets/role.pem is not discovery's key in the roster of config/run.json")
    log.info("discovery starts", port=PORT)
    newest, keys = ConfigFile(home() / "config" / "run.json", config), config.trust
    KeysWatch(keys, config.addresses.orchestrator, mounted=lambda: newest().roster).start()
    serve(make_app(config, connect_async(config.addresses.redis), newest, keys), PORT)
