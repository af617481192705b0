"""Discovery's place in tests of the orchestrator's rounds: what is registered, what is asked for, and the invites that are left."""

import time
from collections.abc import Callable

from protocol_stack import RUN, SECRET
from run_states import Orchestrator
from shoal.contracts.pools import membership_proof, pool_ticket
from shoal.contracts.protocol import Hardware, Invite, KnownNode, KnownNodes, Registration
from shoal.contracts.signed import Signed
from shoal.orchestrator.nodes.inviting import Inviter
from shoal.orchestrator.nodes.registry import NodeRecord

MACHINE = Hardware(cpus=8, memory_bytes=64 << 30, disk_free_bytes=100 << 30)


class Book:
    """Discovery's place: registrations, and the invites that were left. Who registers for pool `own` is one of its pods."""

    def __init__(self, run: Orchestrator) -> None:
        self._run = run
        self.seen = 0.0
        self.rows: dict[str, KnownNode] = {}
        self.invites: dict[str, Signed[Invite]] = {}
        self.answered: set[str] = set()
        self.asked: list[float] = []
        self.rows_of_answer = 100

    def call(self, method: str, path: str, body: object = None, reply: type | None = None, **_: float) -> object:
        if method == "GET":
            assert reply is KnownNodes
            since = float(path.removeprefix("/v1/nodes?since="))
            self.asked.append(since)
            waiting = [row for node, row in self.rows.items() if node not in self.answered]
            found = [row for row in waiting if row.seen_unix >= since]
            return KnownNodes(nodes=found[: self.rows_of_answer], more=len(found) > self.rows_of_answer)
        assert isinstance(body, Signed)
        self.invites[path.split("/")[3]] = body
        self.answered.add(path.split("/")[3])
        return None

    def register(self, node: str, pool: str = "pool", address: str = "192.0.2.7") -> None:
        self.seen += 1.0
        self.answered.discard(node)
        proof = membership_proof(pool_ticket(SECRET, pool), node) if pool == "own" else None
        registration = Registration(
            node=node, run=RUN, pool=pool, software_version="test", hardware=MACHINE, proof=proof
        )
        self.rows[node] = KnownNode(registration=registration, address=address, seen_unix=self.seen)

    def round(self) -> int:
        return self.inviter(time.monotonic).round()

    def inviter(self, clock: Callable[[], float] = lambda: 100.0) -> Inviter:
        return Inviter(self._run.state, self, clock)  # it is asked as discovery's client is


def known(run: Orchestrator, node: str) -> NodeRecord:
    record = run.state.nodes.get(node)
    assert record is not None
    return record
