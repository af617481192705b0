"""Processes of Python that begin where their imports end: each is forked from a process that has imported what takes long.

`start_python` is for what a test would start with `python -m ...`, `python -c ...` or `python file.py`: torch and vLLM cost each process 5 to 20 s
of a core. A process that is started here has its own environment, folder, log, session and pid, imports the rest by itself, and ends as any other.
`python forked_python.py SOCKET MODULE...` is the process that imports and forks; it ends, with all that it forked, when its test run does.
"""

import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

TRAINER = ("shoal.training.loop",)
VALIDATOR = ("shoal.validation.service",)
WORKER = ("worker_imports",)
PROGRAMS: Mapping[str, tuple[str, ...]] = {
    "shoal.training": TRAINER,
    "shoal.validation": VALIDATOR,
    "shoal.inference": WORKER,
    "shoal.orchestrator": ("shoal.orchestrator.http.service",),
    "shoal.discovery": ("shoal.discovery.discovery",),
    "shoal.agent": ("shoal.agent.agent",),
    "shoal.broadcast.fetch": ("shoal.broadcast.transfer", "shoal.broadcast.weights_folder", "shoal.transport.restarts"),
    "shoal.broadcast.relay": ("shoal.broadcast.relay_target", "shoal.broadcast.transfer", "shoal.broadcast.traffic"),
    "shoal.broadcast.origin": ("shoal.broadcast.publishing", "shoal.broadcast.bases", "shoal.broadcast.gate"),
}
"""What programs of a run import by themselves, and nothing else: a metric belongs to the program that imports its module."""
IMPORT_SECONDS, STOP_SECONDS = 300.0, 10.0
OF_A_PROCESS = ("SHOAL_", "PYTEST_", "PYTHONPATH", "HOME", "TMPDIR", "no_proxy")
"""Beginnings of variables that processes forked from one importer may have as they like: nothing reads them as it is imported."""
PR_SET_PDEATHSIG = 1
MOST_BYTES = 1 << 17  # of a request: an environment and a program


# What a test calls.


class Importer:
    """A process that has imported `modules`."""

    def __init__(self, modules: Sequence[str], environment: dict[str, str]) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `end`
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(theirs.fileno()), *modules],
            env=environment | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},  # what this process finds by now
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )
        theirs.close()

    def start(self, request: dict[str, Any], files: Sequence[int]) -> int:
        """Pid of a process that does what the request says, with these as its standard output, its errors, and the pipe for its exit code."""
        try:
            socket.send_fds(self._socket, [json.dumps(request).encode()], list(files))
            self._socket.settimeout(IMPORT_SECONDS)
            answer = self._socket.recv(MOST_BYTES)
        except OSError as error:
            answer = str(error).encode()
        if not answer.isdigit():
            self._log.seek(0)
            raise RuntimeError(f"no process could be forked ({answer!r}):\n{self._log.read()[-4000:].decode()}")
        return int(answer)

    def end(self) -> None:
        """End it, and all that it forked."""
        self._socket.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_SECONDS)
        self._process.kill()
        self._process.wait()
        self._log.close()


IMPORTERS: dict[tuple[tuple[str, ...], frozenset[tuple[str, str]]], Importer] = {}


@atexit.register
def end_importers() -> None:
    """End them; this is done when the test run ends."""
    for importer in IMPORTERS.values():
        importer.end()
    IMPORTERS.clear()


@dataclass
class ForkedProcess:
    """What tests do with a `subprocess.Popen`, for a process that was forked by another one."""

    pid: int
    args: Sequence[str]
    _exit: int  # the pipe that its exit code comes through
    returncode: int | None = field(default=None, init=False)

    def poll(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, when it has one; `subprocess.TimeoutExpired` after so many seconds without."""
        if self.returncode is None:
            if not select.select([self._exit], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            said = os.read(self._exit, 32)
            os.close(self._exit)
            self.returncode = int(said) if said else -signal.SIGKILL  # the importer has died, and it with it
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)


def start_python(
    arguments: Sequence[str],
    imported: tuple[str, ...],
    *,
    env: Mapping[str, str],
    stdout: int,
    stderr: int | None = None,
    cwd: Path | None = None,
    start_new_session: bool = False,
) -> ForkedProcess:
    """`python *arguments` with this environment, forked from a process that has imported these modules. `stdout` and `stderr` are descriptors;
    without `stderr` errors go to `stdout`."""
    shared = {name: value for name, value in env.items() if not name.startswith(OF_A_PROCESS)}
    key = (imported, frozenset(shared.items()))
    importer = IMPORTERS.get(key) or IMPORTERS.setdefault(key, Importer(imported, shared))
    read, write = os.pipe()
    request = {
        "arguments": list(arguments),
        "environment": dict(env),
        "folder": str(cwd or Path.cwd()),
        "session": start_new_session,
    }
    try:
        pid = importer.start(request, [stdout, stdout if stderr is None else stderr, write])
    finally:
        os.close(write)
    return ForkedProcess(pid, [sys.executable, *arguments], read)


def imports_of(command: Sequence[str]) -> tuple[str, ...]:
    """What a command of a program of ours (`python -m PROGRAM ...`) may be forked behind; empty for any other. Outside a test run nothing is forked:
    a benchmark with the same servers measures what a user starts."""
    ours = "PYTEST_VERSION" in os.environ and list(command[:2]) == [sys.executable, "-m"]
    return PROGRAMS.get(command[2], ()) if ours else ()


def run_python(
    arguments: Sequence[str],
    imported: tuple[str, ...],
    *,
    env: Mapping[str, str],
    timeout: float,
    cwd: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """`subprocess.run([sys.executable, *arguments], capture_output=True, text=True)` by `start_python`."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        process = start_python(arguments, imported, env=env, stdout=out.fileno(), stderr=errors.fileno(), cwd=cwd)
        try:
            code = process.wait(timeout)
        finally:
            process.kill()
            process.wait()
        out.seek(0)
        errors.seek(0)
        return subprocess.CompletedProcess(process.args, code, out.read().decode(), errors.read().decode())


# The process that imports and forks.


def serve(control: socket.socket, added: Mapping[str, str]) -> list[str] | None:
    """Fork for each request, and pass exit codes on. In a forked process: its arguments, once everything else is as they want it. None: nobody asks
    any more."""
    exits: dict[int, int] = {}  # pipes by pid
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    while True:
        ready = select.select([control, woken], [], [])[0]
        if woken in ready:
            os.read(woken, 4096)
            with contextlib.suppress(ChildProcessError):
                while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                    pipe = exits.pop(ended[0])
                    with contextlib.suppress(BrokenPipeError):  # nobody waits for it
                        os.write(pipe, str(os.waitstatus_to_exitcode(ended[1])).encode())
                    os.close(pipe)
        if control not in ready:
            continue
        asked, files, *_ = socket.recv_fds(control, MOST_BYTES, 3)
        if not asked:
            return None
        request = json.loads(asked)
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for one in (woken, wakes, *exits.values(), files[2]):
                os.close(one)
            begin(request, files[:2], added)
            control.send(str(os.getpid()).encode())  # from here on a signal for its session reaches it
            control.close()
            return cast(list[str], request["arguments"])
        exits[pid] = files[2]
        for one in files[:2]:
            os.close(one)


def begin(request: dict[str, Any], files: Sequence[int], added: Mapping[str, str]) -> None:
    """Be the process that was asked for, up to its first line. `added` are the variables that imports, or the interpreter, have set."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    for number, file in enumerate(files, 1):
        os.dup2(file, number)
    for file in files:
        os.close(file)
    if request["session"]:
        os.setsid()
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"] | added)
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:] = list(dict.fromkeys([*filter(None, given), *sys.path]))
    tempfile.tempdir = None  # TMPDIR is its own
    if "torch" in sys.modules:
        torch: Any = sys.modules["torch"]
        torch.set_num_threads(torch.get_num_threads())  # a fork leaves the pool of threads to be made anew


def run(arguments: Sequence[str]) -> None:
    """What the interpreter does with its arguments. Its module `__main__` is a new one."""
    kind, *others = arguments
    if kind == "-m":
        sys.argv = others
        sys.path.insert(0, os.getcwd())
        runpy.run_module(others[0], run_name="__main__", alter_sys=True)
    elif kind == "-c":
        sys.argv = ["-c", *others[1:]]
        sys.path.insert(0, "")
        sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(others[0], "<string>", "exec"), sys.modules["__main__"].__dict__)
    else:
        sys.argv = list(arguments)
        sys.path.insert(0, str(Path(kind).resolve().parent))
        runpy.run_path(kind, run_name="__main__")


def main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    given = dict(each.split("=", 1) for each in Path("/proc/self/environ").read_text().split("\0") if each)
    for module in sys.argv[2:]:
        importlib.import_module(module)
    asks = [sys.executable, "-c", "import json, sys; print(json.dumps(sys.path[1:]))"]
    sys.path[:] = json.loads(subprocess.check_output(asks, env=given | {"PYTHONPATH": ""}))  # what any process has
    sys.stdout.flush()
    gc.freeze()  # or each collection of a forked process would look at all that was imported, 0.6 s for vLLM
    arguments = serve(control, {name: value for name, value in os.environ.items() if given.get(name) != value})
    if arguments is not None:
        run(arguments)


if __name__ == "__main__":
    main()
