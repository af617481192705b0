"""Ten thousand members that do nothing but say that they live, each over a connection of its own: what does that cost the orchestrator?

The nodes' records are put into Redis as they are after a join, because the door is not what is measured here (`churn` goes through it). Heartbeats
are real: signed, with metrics, evenly spread over the interval. The cost is the processor time of the orchestrator's process, its background work
on so many nodes included; latency is what the nodes see.
"""

import asyncio
import statistics
import time
from dataclasses import dataclass

from benchmarks.protocol.usage import cpu_seconds, resident_bytes
from benchmarks.protocol.wire import Answer, Wire
from protocol_stack import Stack
from shoal.contracts.protocol import HEARTBEAT_SECONDS, Heartbeat, HeartbeatReply
from shoal.crypto.keys import PrivateKey
from shoal.orchestrator.nodes.registry import NodeRecord, NodeRegistry

METRICS = {"worker_tokens_per_second": 1234.5, "worker_rows_total": 321.0, "fetch_bytes_total": 1e9}
WARM_SECONDS = 2 * HEARTBEAT_SECONDS
AHEAD_SECONDS = 60.0


@dataclass
class Beats:
    """What was measured. Bytes a node: the orchestrator's and Redis' growth from no node to all of them."""

    nodes: int
    seconds: float
    heartbeats: int
    refused: int
    orchestrator_cpu_seconds: float
    redis_cpu_seconds: float
    per_second_per_core: float
    p50_ms: float
    p99_ms: float
    orchestrator_bytes_per_node: int
    redis_bytes_per_node: int


@dataclass(frozen=True)
class Beat:
    """One heartbeat: when it was answered on the loop's clock, how, and after how long."""

    done: float
    status: int
    seconds: float


def seed(stack: Stack, nodes: int) -> list[PrivateKey]:
    """Members' records in Redis, as if of a heartbeat that is yet to come: none is late before its first."""
    keys = [PrivateKey.generate() for _ in range(nodes)]
    registry = NodeRegistry(stack.client(), f"shoal:{stack.config.run}:orchestrator", set())
    soon = time.time() + AHEAD_SECONDS
    for key in keys:
        registry.put(
            NodeRecord(
                node=key.public,
                state="Healthy",
                pool="pool",
                outside=True,
                address="192.0.2.1",
                last_heartbeat_unix=soon,
            )
        )
    return keys


async def measure(stack: Stack, nodes: int, seconds: float) -> Beats:
    """Every node beats at the usual interval, from a place in it of its own; the first `WARM_SECONDS` (connections open) are not counted."""
    process, server = stack.orchestrator.process, stack.redis.process
    assert process is not None
    assert server is not None
    client = stack.client()
    before = resident_bytes(process.pid), int(client.info("memory")["used_memory"])
    wires = [Wire(stack.addresses.orchestrator, key) for key in seed(stack, nodes)]
    loop = asyncio.get_running_loop()
    start = loop.time() + 1.0
    begin, end = start + WARM_SECONDS, start + WARM_SECONDS + seconds

    async def counters(at: float) -> tuple[float, float, float]:
        await asyncio.sleep(at - loop.time())
        return loop.time(), cpu_seconds(process.pid), cpu_seconds(server.pid)

    marks = asyncio.gather(counters(begin), counters(end))
    try:
        found = await asyncio.gather(
            *(_beats(wire, start + HEARTBEAT_SECONDS * place / nodes, end) for place, wire in enumerate(wires))
        )
        first, last = await marks
        after = resident_bytes(process.pid), int(client.info("memory")["used_memory"])
    finally:
        for wire in wires:
            wire.close()
    answers = [beat for each in found for beat in each if first[0] <= beat.done < last[0]]
    times = sorted(beat.seconds for beat in answers)
    return Beats(
        nodes=nodes,
        seconds=round(last[0] - first[0], 1),
        heartbeats=len(answers),
        refused=sum(beat.status != 200 for beat in answers),
        orchestrator_cpu_seconds=round(last[1] - first[1], 2),
        redis_cpu_seconds=round(last[2] - first[2], 2),
        per_second_per_core=round(len(answers) / (last[1] - first[1]), 1),
        p50_ms=round(1000 * statistics.median(times), 2),
        p99_ms=round(1000 * times[int(0.99 * len(times))], 2),
        orchestrator_bytes_per_node=(after[0] - before[0]) // nodes,
        redis_bytes_per_node=(after[1] - before[1]) // nodes,
    )


async def _beats(wire: Wire, at: float, until: float) -> list[Beat]:
    """Heartbeats of one node from `at` to `until`, on the loop's clock."""
    found: list[Beat] = []
    loop = asyncio.get_running_loop()
    while at < until:
        await asyncio.sleep(at - loop.time())
        answer = await beat(wire)
        found.append(Beat(loop.time(), answer.status, answer.seconds))
        at += HEARTBEAT_SECONDS
    return found


async def beat(wire: Wire) -> Answer:
    """One heartbeat; raises when a member is told that it is none."""
    answer = await wire.ask(
        "POST", "/v1/heartbeats", Heartbeat(node=wire.key.public, policy_version=3, metrics=METRICS)
    )
    if answer.status == 200:
        reply = HeartbeatReply.from_json(answer.body)
        if reply.state != "Healthy" or reply.relay_token is None:
            raise RuntimeError(f"a member's heartbeat was answered with {reply}")
    return answer
