"""The first and only process of a sandbox: locks itself in, waits for one program, and becomes it.

Standard input brings one frame (4 bytes of length, then `marshal`: the source, what to call, the limits), and after it the program's own input on the
same descriptor. Standard output is the program's; its first two bytes are ours and say that the walls are up (`R`; `E` and why, if
they are not) and that the program has come in (`T`): whoever dies before that was killed by the machine, not by the program.
For a function test the descriptor carries the returned value as JSON instead, and what the program prints goes to standard error.

What a program should answer is not in here: nothing that it reads, patches or overrides can tell it. Standard library only, and little of it: json,
re, typing and the like would double the time that a sandbox takes to start. Started by `process`.
"""

import marshal
import os
import resource
import sys

from shoal.rewards.sandbox.inside import fixed, lockdown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

READY, FAILED, TAKEN = b"R", b"E", b"T"
PROGRAM_NAME = "program.py"


def main() -> None:
    settings: dict[str, Any] = marshal.loads(bytes.fromhex(sys.argv[1]))  # noqa: S302 - from our own parent
    try:
        lock_in(settings)
        fixed.fix()
    except (OSError, ValueError) as error:
        os.write(1, FAILED + f"{type(error).__name__}: {error}".encode())
        os._exit(1)
    os.write(1, READY)
    frame = marshal.loads(read_exactly(int.from_bytes(read_exactly(4), "big")))  # noqa: S302 - from our own parent
    os.write(1, TAKEN)
    for name, value in frame["limits"].items():
        lockdown.limit(getattr(resource, name), value)
    del settings
    _run(frame)


def lock_in(settings: "dict[str, Any]") -> None:
    """Layers in the order in which they can still be put up. OSError or ValueError when one cannot."""
    os.chdir(settings["folder"])
    os.umask(0o077)
    lockdown.limit(resource.RLIMIT_CORE, 0)
    if settings["first"]:
        lockdown.leave_first_process()
    lockdown.no_new_privileges()
    if settings["landlock"]:
        lockdown.only_these_files(settings["readable"], settings["writable"])
    if settings["uid"] is not None:
        lockdown.become(settings["uid"])
    lockdown.end_with_parent()
    if settings["parent"] not in (None, os.getppid()):
        os._exit(1)  # the parent ended before the kernel knew
    if settings["seccomp"]:
        lockdown.only_these_calls()


def read_exactly(count: int) -> bytes:
    """From the descriptor itself: a buffered reader would swallow the program's input."""
    data = b""
    while len(data) < count:
        more = os.read(0, count - len(data))
        if not more:
            os._exit(0)  # the pool has closed an idle sandbox
        data += more
    return data


def _run(frame: "dict[str, Any]") -> None:
    module = type(sys)("__main__")
    module.__dict__["__file__"] = PROGRAM_NAME
    sys.modules["__main__"] = module
    sys.argv = [PROGRAM_NAME]
    call = frame["call"]
    if call is not None:
        result = os.dup(1)
        os.dup2(2, 1)
        import json  # before the program, which may leave no memory for it
    exec(compile(frame["source"], PROGRAM_NAME, "exec"), module.__dict__)  # noqa: S102
    if call is None:
        return
    function: Any = module
    *owners, name = call[0].split(".")
    for owner in owners:
        function = getattr(function, owner)
        if isinstance(function, type):
            function = function()
    value = getattr(function, name)(*call[1])
    data = json.dumps(value).encode()
    while data:
        data = data[os.write(result, data) :]
    os._exit(0)  # threads that the program left behind end here
