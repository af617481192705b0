"""The admin's side of `shoal node`: asks an orchestrator about its nodes, with the run's admin token from a file (docs/nodes.md).

Text of nodes (metrics, logs, reasons of refusals) is escaped before it is printed.
"""

import time
from pathlib import Path
from typing import TypeVar

import httpx
from pydantic import ValidationError

from shoal.contracts.admin import LogsTicket, NodeList, NodeView, ReasonRequest
from shoal.contracts.base import Contract
from shoal.contracts.problems import ProblemDocument
from shoal.contracts.protocol import NodeLogs
from shoal.errors import InputWrong, RunFailed
from shoal.text import plain
from shoal.transport.authorities import authorities, well_known

LOGS_SECONDS = 40.0
"""A node gets the question with its next heartbeat, ten seconds away, and may have missed one."""
MOST_PAGES = 1000

Reply = TypeVar("Reply", bound=Contract)


class Admin:
    """Client of an orchestrator's admin routes."""

    def __init__(self, url: str | None, token_file: Path | None, ca_file: Path | None) -> None:
        if not url:
            raise InputWrong("give the orchestrator's address: --orchestrator URL, or SHOAL_ORCHESTRATOR")
        if token_file is None:
            raise InputWrong("give the admin's token in a file: --token-file FILE, or SHOAL_ADMIN_TOKEN_FILE")
        try:
            token = token_file.read_text().strip()
            tls = authorities(ca_file) if ca_file is not None else well_known()
        except (OSError, ValueError) as error:
            raise InputWrong(str(error)) from None
        if tls is None:
            raise InputWrong(f"--ca-file {ca_file}: no such file")
        self._http = httpx.Client(
            base_url=url.rstrip("/"),
            headers={"Authorization": f"Bearer {token}"},
            verify=tls,
            trust_env=False,
            follow_redirects=False,
            timeout=30.0,
        )

    def ask(self, method: str, path: str, reply: type[Reply], body: Contract | None = None) -> Reply | None:
        """The answer, None for 204; raises `InputWrong` with the orchestrator's words, `RunFailed` when it does not answer."""
        try:
            answer = self._http.request(
                method,
                f"/v1/admin/{path}",
                content=body.to_json() if body is not None else None,
                headers={"Content-Type": "application/json"} if body is not None else None,
            )
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise RunFailed(f"the orchestrator does not answer: {plain(str(error), 300)}") from None
        if answer.status_code == 204:
            return None
        try:
            if answer.status_code >= 400:
                problem = ProblemDocument.model_validate_json(answer.content)
                words = plain(f"{problem.title}: {problem.detail}", 1000)
                raise (InputWrong if answer.status_code < 500 else RunFailed)(words)
            return reply.from_json(answer.content)
        except ValidationError:
            raise RunFailed(
                f"{method} /v1/admin/{path}: status {answer.status_code}, not an orchestrator's answer"
            ) from None

    def nodes(self, state: str = "", pool: str = "") -> list[NodeView]:
        """All nodes, page by page."""
        found: list[NodeView] = []
        after = ""
        for _ in range(MOST_PAGES):
            query = httpx.QueryParams({"state": state, "pool": pool, "after": after})
            page = self.ask("GET", f"nodes?{query}", NodeList)
            found += page.nodes if page is not None else []
            if page is None or page.next is None:
                break
            after = page.next
        return found

    def find(self, beginning: str) -> str:
        """The node whose key has this prefix; raises `InputWrong` for none or several. A whole key may be unknown to the orchestrator."""
        if len(beginning) == 64 and set(beginning) <= set("0123456789abcdef"):
            return beginning
        found = [view.node for view in self.nodes() if view.node.startswith(beginning)] if beginning else []
        if len(found) != 1:
            raise InputWrong(
                f"{len(found)} nodes have a key that starts with {plain(beginning, 64)!r}; `shoal node list` shows them"
            )
        return found[0]

    def logs(self, node: str, wait_seconds: float = LOGS_SECONDS) -> NodeLogs:
        """Ask for a node's logs and wait for them; raises `RunFailed` when none arrive."""
        ticket = self.ask("POST", f"nodes/{node}/logs", LogsTicket)
        assert ticket is not None  # it has no 204
        ends = time.monotonic() + wait_seconds
        while time.monotonic() < ends:
            found = self.ask("GET", f"nodes/{node}/logs/{ticket.request}", NodeLogs)
            if found is not None:
                return found
            time.sleep(1.0)
        raise RunFailed(
            f"node {node[:12]}... sent no logs within {wait_seconds:.0f} s; `shoal node list` shows whether it is alive"
        )


def node_lines(views: list[NodeView], now_unix: float) -> list[str]:
    """`shoal node list`."""
    lines = [
        f"{'node':<16}  {'state':<10}  {'pool':<16}  {'heartbeat':>9}  {'version':>7}  {'accepted':>8}  {'rejected':>8}  remarks"
    ]
    for view in views:
        beat = f"{now_unix - view.last_heartbeat_unix:.0f} s" if view.last_heartbeat_unix else "-"
        version = "-" if view.policy_version is None else str(view.policy_version)
        remarks = [plain(view.refused, 300)] if view.refused else []
        remarks += [f"{view.leases_abandoned} leases abandoned"] if view.leases_abandoned else []
        remarks += [f"programs took {view.program_seconds:.0f} s"] if view.program_seconds >= 1 else []
        lines.append(
            f"{view.node[:16]}  {view.state:<10}  {plain(view.pool or '-', 16):<16}  {beat:>9}  {version:>7}  {view.files_accepted:>8}"
            f"  {view.files_rejected:>8}  {'; '.join(remarks)}".rstrip()
        )
    return lines


def log_lines(logs: NodeLogs) -> list[str]:
    """A node's logs, part by part."""
    return [f"{name}: {plain(line, 2000)}" for name, text in logs.parts.items() for line in text.splitlines()]


def reason_of(text: str) -> ReasonRequest:
    """A reason for the ledger; raises `InputWrong`."""
    try:
        return ReasonRequest(reason=text)
    except ValidationError:
        raise InputWrong("--reason: 3 to 1000 characters in one line; everybody can read it in the ledger") from None
