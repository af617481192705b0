"""Where islands meet: torchft's lighthouse as a process, `python -m shoal.islands.lighthouse HOST PORT [WAIT_SECONDS]`.

It keeps nothing that outlives it: when it is gone, islands train on without exchanging and meet again once another listens at the same
address. It says who meets whom and sees no weights. Logs go to standard error; SIGTERM ends it.
"""

import signal
import sys
import threading
from typing import TYPE_CHECKING

from shoal.islands import library

if TYPE_CHECKING:
    from torchft.coordination import LighthouseServer

SILENCE_SECONDS = 20.0
"""Without a sign of life an island counts as gone: twenty missed beats (`members.BEAT_SECONDS`). Islands that are taken for dead by one another,
on machines that are out of breath, make the same round apart; then one side's is lost."""
TICK_MILLISECONDS = 100
WAIT_SECONDS = 60.0


def serve(
    host: str, port: int, wait_seconds: float = WAIT_SECONDS, silence_seconds: float = SILENCE_SECONDS
) -> "LighthouseServer":
    """Listen at `host:port` (0: any free port). A round waits `wait_seconds` for islands that are alive and not there, once most are.
    Raises NoLibrary."""
    library.check()
    from torchft.coordination import LighthouseServer

    return LighthouseServer(
        bind=f"{host}:{port}",
        min_replicas=1,  # one survivor continues; that no minority does beside living others is the lighthouse's own rule
        join_timeout_ms=round(wait_seconds * 1000),
        quorum_tick_ms=TICK_MILLISECONDS,
        heartbeat_timeout_ms=round(silence_seconds * 1000),
    )


def main(arguments: list[str]) -> None:
    if len(arguments) not in (2, 3):
        raise SystemExit("usage: python -m shoal.islands.lighthouse HOST PORT [WAIT_SECONDS]")
    try:
        port, wait_seconds = int(arguments[1]), float(arguments[2]) if len(arguments) == 3 else WAIT_SECONDS
    except ValueError as error:
        raise SystemExit(f"PORT is a whole number and WAIT_SECONDS a number: {error}") from error
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    try:
        server = serve(arguments[0], port, wait_seconds)
    except library.NoLibrary as error:
        raise SystemExit(str(error)) from error
    print(f"lighthouse listens at {arguments[0]}:{server.address().rsplit(':', 1)[1]}", flush=True)
    while not stopped.wait(1.0):  # a wait with an end, so that signals are heard
        pass
    server.shutdown()


if __name__ == "__main__":
    main(sys.argv[1:])
