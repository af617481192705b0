"""Whether a node has anything left to do for its run. Pure; asked by the agent of a joined machine, which goes when it has not.

The orchestrator says it with a heartbeat. Where it ended before that, its silence says it, but only after the last version is out.
"""

from shoal.contracts.protocol import HeartbeatReply
from shoal.contracts.run import AgentState

SILENT_SECONDS = 60.0
"""Of an orchestrator after the last version: it may be restarted to score that one, but has no reason to be away for long."""


def why_over(reply: HeartbeatReply | None, state: AgentState, replied_unix: float | None, now_unix: float) -> str:
    """Why nothing more is to be done, in words; empty while there may be. `replied_unix` is when the last heartbeat was answered."""
    if reply is None or replied_unix is None:
        return ""
    if reply.run_complete:
        return "the run is complete"
    public, latest, silent = state.public, state.latest_version, now_unix - replied_unix
    is_out = public is not None and public.mode == "Train" and latest is not None and latest >= public.steps
    if is_out and silent > SILENT_SECONDS:
        return f"the run's last version is published, and the orchestrator has not answered for {silent:.0f} s"
    return ""
