"""What an admin may do about nodes: look at them, restart what they do, read their logs, let them in, ban them and take a ban back.

Called by `admin_routes` once the token is checked. A ban is written to the ledger with its reason before anything else, as an eviction is; so is its
end. Restart and logs are wishes in the node's record, which it learns with its next heartbeat: nodes are never dialled.
"""

import secrets
from collections import Counter

from shoal.contracts.admin import LogsTicket, NodeList, NodeView
from shoal.contracts.node_states import EXCLUDED, MEMBERS
from shoal.contracts.problems import ProblemCode, Refusal
from shoal.contracts.protocol import Assignment, NodeLogs
from shoal.ledger.entries import NodeBanned, NodeUnbanned
from shoal.ledger.view import Files
from shoal.orchestrator.doubts import NodeInDoubt
from shoal.orchestrator.nodes.registry import NodeRecord
from shoal.orchestrator.run_state import RunState
from shoal.orchestrator.work import program_time
from shoal.orchestrator.work.lease_returns import give_up_leases
from shoal.orchestrator.work.leases import is_open
from shoal.telemetry import get_logger

PAGE = 500
"""Nodes in one answer: about 250 KiB."""
LOGS_SECONDS = 600
"""Logs that a node sent are kept this long, and so is the question."""


def list_nodes(state: RunState, *, node_state: str = "", pool: str = "", after: str = "") -> NodeList:
    """A page of nodes: those in a state, of a pool, after a key."""
    open_leases = _open_leases(state)
    found = [
        record
        for record in sorted(state.nodes.all(), key=lambda record: record.node)
        if record.node > after and (not node_state or record.state == node_state) and (not pool or record.place == pool)
    ]
    page = found[:PAGE]
    views = [view(state, record, open_leases[record.node]) for record in page]
    return NodeList(nodes=views, next=page[-1].node if len(found) > PAGE else None)


def one_node(state: RunState, node: str) -> NodeView:
    """One node; raises `Refusal`."""
    return view(state, require(state, node), _open_leases(state)[node])


def view(state: RunState, record: NodeRecord, open_leases: int = 0) -> NodeView:
    files = state.view.files_of.get(record.node, Files())
    return NodeView(
        node=record.node,
        state=record.state,
        pool=record.place or None,
        outside=record.outside,
        address=record.address,
        refused=record.refused,
        last_heartbeat_unix=record.last_heartbeat_unix,
        policy_version=record.policy_version,
        files_accepted=files.accepted,
        files_rejected=files.rejected,
        leases_open=open_leases,
        leases_abandoned=record.abandoned_leases,
        program_seconds=round(program_time.used(record, state.clock()), 1),
        uplink_mbps=record.uplink_mbps,
        gflops=record.gflops,
        metrics=record.metrics,
        assignment=assignment_of(record),
    )


def assignment_of(record: NodeRecord) -> Assignment | None:
    """A node's assignment; None for one that is not a member."""
    return Assignment(restarts=record.restarts) if record.state in MEMBERS else None


def restart(state: RunState, node: str) -> NodeView:
    """Have a member start its work again, within a heartbeat; raises `Refusal`."""
    record = require_member(state, node)
    # Milliseconds, so that the number grows even when Redis has lost the last one.
    newer = max(int(state.clock() * 1000), record.restarts + 1)
    get_logger().info("an admin restarted a node", node=node)
    return view(state, state.nodes.change(record, restarts=newer))


def ask_logs(state: RunState, node: str) -> LogsTicket:
    """Ask a member for its logs; it sends them with its next heartbeat. Raises `Refusal`."""
    record = require_member(state, node)
    ticket = LogsTicket(request=secrets.token_hex(16))
    state.redis.set(_logs_key(state, ticket.request), "", ex=LOGS_SECONDS)
    state.nodes.change(record, logs_wanted=ticket.request)
    return ticket


def take_logs(state: RunState, logs: NodeLogs) -> None:
    """Keep the logs that a node sends; raises `Refusal` for logs without a request."""
    record = state.nodes.require_known(logs.node)
    if record.logs_wanted != logs.request or not state.redis.exists(_logs_key(state, logs.request)):
        if record.logs_wanted == logs.request:
            state.nodes.change(record, logs_wanted="")
        raise Refusal(ProblemCode.LOGS_NOT_WANTED, "nobody asked for them, or the request has expired")
    state.redis.set(_logs_key(state, logs.request), logs.to_json(), ex=LOGS_SECONDS)
    state.nodes.change(record, logs_wanted="")


def logs(state: RunState, node: str, request: str) -> NodeLogs | None:
    """Logs that a node sent, None until it has; raises `Refusal` for a request that was never made, or has expired."""
    data = state.redis.get(_logs_key(state, request))
    if data is None:
        raise Refusal(ProblemCode.NO_SUCH_QUESTION, "ask with POST .../logs; an answer is kept for ten minutes")
    if not data:
        return None
    found = NodeLogs.from_json(data)
    if found.node != node:
        raise Refusal(ProblemCode.NO_SUCH_QUESTION, "these logs are another node's")
    return found


def invite(state: RunState, node: str) -> NodeView:
    """Let a node in whatever its pool's admission says; what the pool requires of machines stands. It need not have registered yet."""
    record = state.nodes.get(node) or NodeRecord(node=node)
    if record.state in EXCLUDED:
        raise Refusal(ProblemCode.NODE_EXCLUDED, f"node {node[:12]}... is {record.state.lower()}: lift the ban first")
    get_logger().info("an admin admitted a node", node=node)
    return view(state, state.nodes.change(record, welcome=True))


def ban(state: RunState, node: str, reason: str) -> NodeView:
    """Exclude a node, known or not: the ledger first, then its record, then its leases. The same again changes nothing."""
    with state.settle_lock, state.doubts.about(NodeInDoubt(node)):
        if node not in state.view.banned:
            state.ledger.append(NodeBanned(node=node, reason=reason))
            get_logger().warning("an admin banned a node", node=node, reason=reason)
        record = state.nodes.change(state.nodes.get(node) or NodeRecord(node=node), "ban", welcome=False)
        give_up_leases(state, node)
    return view(state, record)


def unban(state: RunState, node: str, reason: str) -> NodeView:
    """Take a ban back; raises `Refusal` for a node that is not banned, or was evicted besides. It registers again like a stranger."""
    with state.settle_lock:
        if node in state.view.slashed:
            raise Refusal(
                ProblemCode.NODE_EXCLUDED,
                f"node {node[:12]}... was evicted for a rejected file, which is final; see the ledger",
            )
        record = state.nodes.get(node)
        if node in state.view.banned:
            state.ledger.append(NodeUnbanned(node=node, reason=reason))
            get_logger().info("an admin lifted a ban", node=node, reason=reason)
        elif record is None or record.state != "Banned":
            raise Refusal(ProblemCode.NOT_BANNED, f"node {node[:12]}... is not banned")
        return view(state, state.nodes.change(record or NodeRecord(node=node, state="Banned"), "unban"))


def require(state: RunState, node: str) -> NodeRecord:
    record = state.nodes.get(node)
    if record is None:
        raise Refusal(
            ProblemCode.NO_SUCH_NODE,
            f"node {node[:12]}... never registered with this run: GET /v1/admin/nodes lists them",
        )
    return record


def require_member(state: RunState, node: str) -> NodeRecord:
    record = require(state, node)
    if record.state not in MEMBERS:
        raise Refusal(ProblemCode.NODE_NOT_A_MEMBER, f"node {node[:12]}... is {record.state}, so it gets no requests")
    return record


def _open_leases(state: RunState) -> Counter[str]:
    now = state.clock()
    return Counter(record.lease.node for record in state.leases.all() if is_open(record, now))


def _logs_key(state: RunState, request: str) -> str:
    return f"{state.prefix}:logs:{request}"
