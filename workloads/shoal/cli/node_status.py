"""`shoal node status`: asks the agent on its socket, or reads the status file of an agent that does not run."""

import fcntl
import time
from collections.abc import Callable
from pathlib import Path

from shoal.cli.node_lending import lending_lines, read_lending
from shoal.cli.node_text import read_status, status_lines
from shoal.contracts.run import AgentStatus
from shoal.errors import InputWrong
from shoal.transport import Refused, SignedClient, Unavailable

ASK_SECONDS = 2.0


def print_status(folder: Path, run: str | None, say: Callable[[str], None], *, as_json: bool) -> None:
    """Print the status of the node of a run; raises `InputWrong` when this machine joined none, or several and none was named."""
    home = find_home(folder, run)
    status = ask_agent(home) or read_status(home / "run" / "status.json")
    if status is None:
        raise InputWrong(f"{home}: the agent is not running and left no status; `shoal node join URL` starts it")
    if as_json:
        say(status.model_dump_json(indent=2))
        return
    for line in (*status_lines(status, time.time()), *lending_lines(read_lending(home))):
        say(line)


def find_home(folder: Path, run: str | None) -> Path:
    """The folder of a run that this machine joined."""
    joined = sorted(path.parent.parent for path in folder.glob("*/config/node.json"))
    names = ", ".join(path.name for path in joined) or "none"
    if run is not None:
        found = next((path for path in joined if path.name == run), None)
        if found is None:
            raise InputWrong(f"{run}: this machine has not joined that run; runs under {folder}: {names}")
        return found
    if len(joined) != 1:
        raise InputWrong(f"name one run; runs under {folder}: {names}")
    return joined[0]


def is_running(home: Path) -> bool:
    """Whether a `shoal node join` has this folder: from before its agent answers until after the last of its processes is gone."""
    try:
        with (home / "lock").open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    return False


def ask_agent(home: Path) -> AgentStatus | None:
    """The agent's own answer, or None while it does not run."""
    socket = home / "run" / "agent.sock"
    if not socket.exists():
        return None
    client = SignedClient("http://agent", unix_socket=socket)
    try:
        return client.call("GET", "/v1/status", reply=AgentStatus, deadline_seconds=ASK_SECONDS)
    except (Unavailable, Refused):
        return None
    finally:
        client.close()
