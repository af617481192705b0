"""Has nginx take up its configuration again when one of some files changes: the mark of the sync agent, a certificate.

`python reload.py MASTER FILE...`, started by `nginx` just before it becomes nginx, whose process id is MASTER. The standard library alone, so that it
is small. It ends with its nginx. FILE as `awaited:PATH` is one that is not there, without which the configuration is not what it should be: when it
comes nginx is ended in peace, and its pod starts it with a new one.
"""

import os
import signal
import sys
import time

LOOK_SECONDS = 1.0
AWAITED = "awaited:"


def states(paths: list[str]) -> list[tuple[int, int, int] | None]:
    """The mark that shows whether a file has changed; None for a file that is not there."""
    found: list[tuple[int, int, int] | None] = []
    for path in paths:
        try:
            status = os.stat(path)
        except OSError:
            found.append(None)
            continue
        found.append((status.st_mtime_ns, status.st_ino, status.st_size))
    return found


def main() -> None:
    master = int(sys.argv[1])
    paths = [path for path in sys.argv[2:] if not path.startswith(AWAITED)]
    awaited = [path.removeprefix(AWAITED) for path in sys.argv[2:] if path.startswith(AWAITED)]
    known = states(paths)
    while os.getppid() == master:
        time.sleep(LOOK_SECONDS)
        if any(os.path.isfile(path) for path in awaited) and os.getppid() == master:
            os.kill(master, signal.SIGQUIT)
            return
        now = states(paths)
        if now != known and os.getppid() == master:
            known = now
            os.kill(master, signal.SIGHUP)


if __name__ == "__main__":
    main()
