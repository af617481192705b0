"""`shoal node pause`, `resume`, `drain` and `leave`: what the owner of a machine asks of its node, whether it runs or not.

A request is a file that the agent looks at twice a second (`agent.owner`), in a folder that only the owner can open: it outlives restarts, needs no
listener, and no other user of the machine can make one. Each verb then waits until the node has done it, and says what it waits for.
"""

import contextlib
import errno
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from shoal.agent.owner import Request, request_file
from shoal.cli.node_status import ask_agent, find_home, is_running
from shoal.contracts.machine import OwnersRequest
from shoal.contracts.run import AgentStatus
from shoal.errors import InputWrong, RunFailed
from shoal.files import replace_file
from shoal.text import Say, plain
from shoal_operator.local.processes import ProcessTable

POLL_SECONDS = 0.5
PAUSE_SECONDS = 60.0
"""A worker has 20 s to finish or give back, and is killed 5 s later."""
LEFT_OVER_SECONDS = 5.0
"""For processes of a node that was killed: their agent is away, so that they can hand in nothing."""
KEPT = ("key", "config/node.json", "config/ca.pem", "lock")
"""What `leave` does not remove unless asked: who this node is, and the key of the run, so that `shoal node earned` can be asked later."""


def pause(folder: Path, run: str | None, say: Say, wait_seconds: float = PAUSE_SECONDS) -> None:
    """Ask, and wait until nothing of the work runs any more."""
    home = find_home(folder, run)
    ask(home, "pause")
    _stop_left_over(home)
    _wait(
        home,
        say,
        lambda status: not any(part.state == "running" for part in status.parts) and bool(status.owner),
        "its processes to finish or give back what they hold",
        wait_seconds,
    )
    say("paused: it takes no work and uses no GPU until `shoal node resume`, also after a restart")


def resume(folder: Path, run: str | None, say: Say) -> None:
    home = find_home(folder, run)
    ask(home, "work")
    say("resumed" if is_running(home) else "resumed; the node does not run: `shoal node join URL` starts it")


def drain(folder: Path, run: str | None, say: Say, wait_seconds: float) -> None:
    """Ask, and wait until the node has ended. A node that does not run is asked nothing: the next `join` works."""
    home = find_home(folder, run)
    if not is_running(home):
        _stop_left_over(home)
        say("the node does not run")
        return
    ask(home, "drain")
    _wait(home, say, lambda _: False, "it to finish the leases that it holds", wait_seconds)
    say("drained: the node has ended; `shoal node join URL` starts it again")


def leave(folder: Path, run: str | None, say: Say, wait_seconds: float, *, delete_key: bool) -> None:
    """Drain, then remove what the run brought to this machine."""
    from shoal.cli.node_join import only_one

    home = find_home(folder, run)
    drain(folder, home.name, say, wait_seconds)
    stays: list[str] = []
    with only_one(home):  # nobody starts it again meanwhile
        for path in sorted(home.iterdir()):
            if path.name not in ("key", "config", "lock"):
                _remove(path, stays)
        for path in sorted((home / "config").iterdir()):
            if f"config/{path.name}" not in KEPT:
                _remove(path, stays)
        if delete_key:  # by `config` a second call finds this run, after one that was killed
            for name in ("key", "lock", "config"):
                _remove(home / name, stays)
    if stays:
        raise RunFailed(f"{len(stays)} files and folders could not be removed, such as {plain(stays[0], 300)}")
    if delete_key:
        with contextlib.suppress(OSError):
            home.rmdir()
        say(f"left run {home.name}: its files and this node's key are gone; what it earned stays in the run's ledger")
        return
    say(f"left run {home.name}: weights, logs, settings and invite code are gone")
    say(f"kept in {home}: this node's key, and the run's key for `shoal node earned`; --delete-key removes both")


def ask(home: Path, request: Request) -> None:
    """Leave a request; what was asked before is over."""
    path = request_file(home)
    try:
        replace_file(path, OwnersRequest(request=request, unix=time.time()).to_json())
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        hint = "Ctrl-C or SIGTERM ends the node without it" if full else "run this as the user whose node it is"
        raise InputWrong(f"{path}: {error.strerror}; {hint}") from None


def _wait(home: Path, say: Say, done: Callable[[AgentStatus], bool], what: str, seconds: float) -> None:
    """Until the agent's status is `done` or the node has ended; raises `RunFailed` when that takes too long.

    An agent that gives no answer may be busy, not up yet, or almost gone: its node has ended when nobody holds its lock.
    """
    ends, said = time.monotonic() + seconds, ""
    while is_running(home):
        status = ask_agent(home)
        if status is not None and done(status):
            return
        if time.monotonic() > ends:
            raise RunFailed(f"waited {seconds:.0f} s for {what}; the request stands: `shoal node status`")
        owner = status.owner if status is not None else None
        words = plain(owner or what, 200)
        if words != said:
            say(f"waiting for {what}" + (f" ({words})" if owner else ""))
            said = words
        time.sleep(POLL_SECONDS)


def _stop_left_over(home: Path) -> None:
    """End what works on for a node that was killed: nobody else would before its next `join`."""
    from shoal.cli.node_join import only_one

    if is_running(home) or not (home / "run" / "processes").is_dir():
        return
    with only_one(home):
        ProcessTable(home / "run" / "processes").stop_all(LEFT_OVER_SECONDS)


def _remove(path: Path, stays: list[str]) -> None:
    """Remove it; what cannot be is added to `stays`."""

    def failed(_: object, name: str, why: tuple[type[BaseException], BaseException, object]) -> None:
        stays.append(f"{name}: {getattr(why[1], 'strerror', None) or why[1]}")

    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, onerror=failed)
        return
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        stays.append(f"{path}: {error.strerror}")
