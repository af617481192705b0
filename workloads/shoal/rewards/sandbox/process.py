"""One sandbox from its start to its end: started early, given one program, watched, ended as a group.

In: an isolation and a place. Out: an `Outcome`. Everything that comes from inside is bounded: bytes, seconds, files. Called by `pool`, which
keeps some of these waiting.
"""

import marshal
import os
import resource
import secrets
import selectors
import signal
import stat
import subprocess
import time
from dataclasses import dataclass, field

from shoal.rewards.cpu_time import cpu_seconds
from shoal.rewards.sandbox.inside.guest import READY, TAKEN
from shoal.rewards.sandbox.isolation import Isolation, SandboxPlace, command, environment, folder_bytes
from shoal.rewards.sandbox.program import FILE_BYTES, Ended, Limits, Outcome, Program, SandboxFailed

START_SECONDS = 20.0
"""A sandbox is up after 30 ms; a machine that is busy with other things takes longer, one that needs this long does not work."""
ENDED_EARLY = "a sandbox ended before it received its program"
"""It says nothing about the program: an idle sandbox was killed (memory ran short), or the machine is too busy."""
STDERR_BYTES = 4096
"""Of standard error the end is kept: a traceback's last lines say what happened."""
CHUNK = 1 << 16
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
FOLDER_CHECK_SECONDS = 0.05
"""How often files are counted where the file system is not the program's own; it may write about 100 MB until it is seen."""
AWAKE_SHARE = 0.03
"""A program that has had this share of its wall time in CPU time computes; one that sleeps or waits has next to nothing."""
MOST_WALLS = 5
ABOUT_THE_CPU_LIMIT = 0.5
"""The kernel ends a program at its limit by ticks; what it reports is measured finer, and on a busy virtual machine is less."""


class Box:
    """One sandbox. `start` returns at once, `run` may be called once, `close` always."""

    def __init__(self, isolation: Isolation, place: SandboxPlace) -> None:
        self.place = place
        self._watch_folder = isolation.kind != "bubblewrap"
        if self._watch_folder:
            place.folder.mkdir(mode=0o700)
            if isolation.own_user:
                os.chown(place.folder, place.uid, place.uid)
        self._process = subprocess.Popen(
            command(isolation, place),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(isolation, place),
            start_new_session=True,  # its own group, so that all of it can be ended at once
            bufsize=0,
        )

    def run(self, program: Program) -> Outcome:
        """Give the sandbox its program and wait until it has ended. SandboxFailed when the walls did not go up, or it ended before the program."""
        self._wait_until_ready()
        began = time.monotonic()
        call = None if program.call is None else (program.call.function, program.call.arguments)
        frame = marshal.dumps(
            {"source": program.source, "call": call, "limits": _resource_limits(program.limits)},
        )
        flow = _Flow(len(frame).to_bytes(4, "big") + frame + program.stdin, program.limits.output_bytes)
        forced, seen = self._watch(flow, began, program.limits)
        wall = time.monotonic() - began
        self._kill()  # what is left of the group
        _, status, used = os.wait4(self._process.pid, 0)
        self._process.returncode = code = os.waitstatus_to_exitcode(status)
        if flow.stdout[:1] != TAKEN:
            raise SandboxFailed(ENDED_EARLY)
        # Of a program that we ended bwrap cannot tell the CPU time; what was seen last is.
        cpu = max(used.ru_utime + used.ru_stime, seen)
        ended, exit_code = _how_it_ended(forced, code, cpu, program.limits)
        return Outcome(
            ended=ended,
            exit_code=exit_code,
            stdout=bytes(flow.stdout[len(TAKEN) :]),
            stderr=bytes(flow.stderr).decode(errors="replace"),
            cpu_seconds=cpu,
            wall_seconds=wall,
        )

    def close(self) -> None:
        """End whatever runs and remove the program's folder."""
        if self._process.returncode is None:
            self._kill()
            self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            assert pipe is not None
            pipe.close()
        if self._watch_folder:
            _remove(self.place)

    def _kill(self) -> None:
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass

    def _wait_until_ready(self) -> None:
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            if not selector.select(START_SECONDS):
                raise SandboxFailed(f"a sandbox did not start within {START_SECONDS:.0f} s; this machine is too busy")
        first = os.read(self._process.stdout.fileno(), CHUNK)
        if first != READY:
            assert self._process.stderr is not None
            os.set_blocking(self._process.stderr.fileno(), False)
            try:
                said = os.read(self._process.stderr.fileno(), STDERR_BYTES)
            except BlockingIOError:
                said = b""
            if not first and not said:  # killed while it came up or waited: nothing is wrong with its isolation
                raise SandboxFailed(ENDED_EARLY)
            raise SandboxFailed(f"a sandbox did not start: {(first[1:] + said).decode(errors='replace').strip()}")

    def _watch(self, flow: "_Flow", began: float, limits: Limits) -> tuple[Ended | None, float]:
        """Feed and read until the process has ended (None) or has gone too far; with the CPU seconds that were seen at a deadline.

        A program that computes when its wall clock runs out is not asleep, but short of a busy machine's time: it continues, a few times over.
        """
        process = self._process
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None  # noqa: PT018
        ended = os.pidfd_open(process.pid)
        try:
            with selectors.DefaultSelector() as selector:
                for pipe in (process.stdin, process.stdout, process.stderr):
                    os.set_blocking(pipe.fileno(), False)
                selector.register(process.stdin, selectors.EVENT_WRITE, "in")
                selector.register(process.stdout, selectors.EVENT_READ, flow.stdout)
                selector.register(process.stderr, selectors.EVENT_READ, flow.stderr)
                selector.register(ended, selectors.EVENT_READ, "ended")
                checked, deadline, seen = began, began + limits.wall_seconds, cpu_seconds(process.pid)
                while True:
                    now = time.monotonic()
                    if now >= deadline:
                        used = cpu_seconds(process.pid)
                        busy = used - seen >= AWAKE_SHARE * limits.wall_seconds
                        seen = used
                        if not busy or now >= began + MOST_WALLS * limits.wall_seconds:
                            return "wall", seen
                        deadline = now + limits.wall_seconds
                    left = deadline - now
                    if self._watch_folder and now - checked >= FOLDER_CHECK_SECONDS:
                        checked = now
                        if folder_bytes(self.place.folder, FILE_BYTES) > FILE_BYTES:
                            return "files", seen
                    done = False
                    for key, _ in selector.select(min(left, FOLDER_CHECK_SECONDS) if self._watch_folder else left):
                        if key.data == "ended":
                            done = True
                        elif key.data == "in":
                            if flow.feed(process.stdin.fileno()):
                                selector.unregister(process.stdin)
                                process.stdin.close()
                        elif not flow.take(key.fd, key.data):
                            selector.unregister(key.fileobj)
                    if done:
                        flow.drain(process.stdout.fileno(), flow.stdout)
                        flow.drain(process.stderr.fileno(), flow.stderr)
                    if flow.too_much:
                        return "output", seen
                    if done:
                        return None, seen
        finally:
            os.close(ended)


@dataclass
class _Flow:
    """A program's input, and its output so far."""

    waiting: bytes
    output_bytes: int
    stdout: bytearray = field(default_factory=bytearray)
    stderr: bytearray = field(default_factory=bytearray)
    stderr_total: int = 0
    sent: int = 0

    @property
    def too_much(self) -> bool:
        return len(self.stdout) > self.output_bytes + len(TAKEN) or self.stderr_total > self.output_bytes

    def feed(self, descriptor: int) -> bool:
        """Write what the pipe takes; True when all is written, or nobody reads any more."""
        try:
            self.sent += os.write(descriptor, memoryview(self.waiting)[self.sent : self.sent + CHUNK])
        except BlockingIOError:
            return False
        except BrokenPipeError:
            return True
        return self.sent >= len(self.waiting)

    def take(self, descriptor: int, into: bytearray) -> bool:
        """Read once; False at the end of the stream."""
        try:
            data = os.read(descriptor, CHUNK)
        except BlockingIOError:
            return True
        into += data
        if into is self.stderr:
            self.stderr_total += len(data)
            del into[:-STDERR_BYTES]
        return bool(data)

    def drain(self, descriptor: int, into: bytearray) -> None:
        """Read the bytes that are left in the pipe after the process has ended; nobody can write more."""
        while not self.too_much:
            try:
                data = os.read(descriptor, CHUNK)
            except BlockingIOError:
                return
            if not data:
                return
            into += data
            if into is self.stderr:
                self.stderr_total += len(data)
                del into[:-STDERR_BYTES]


def _resource_limits(limits: Limits) -> dict[str, int]:
    """Names of `resource` and their values, set by the guest for good."""
    wanted = {
        "RLIMIT_CPU": limits.cpu_seconds,
        "RLIMIT_AS": limits.memory_bytes,
        "RLIMIT_FSIZE": FILE_BYTES,
        "RLIMIT_NOFILE": limits.open_files,
    }
    if os.geteuid() == 0:
        # The kernel counts the processes of a user: of use where the user is the sandbox's own.
        wanted["RLIMIT_NPROC"] = limits.threads
    assert all(hasattr(resource, name) for name in wanted)
    return wanted


def _how_it_ended(forced: Ended | None, code: int, cpu: float, limits: Limits) -> tuple[Ended, int | None]:
    """`code` as Python gives it (negative: a signal); bwrap and shells say 128 + signal for what they started."""
    if forced is not None:
        return forced, None
    number = -code if code < 0 else code - 128 if code > 128 else 0
    if number == signal.SIGKILL and cpu >= limits.cpu_seconds * ABOUT_THE_CPU_LIMIT:
        return "cpu", None
    if number:
        return "signal", number
    return "exited", code


def _remove(place: SandboxPlace) -> None:
    """The folder with everything in it, as deep as a program may have made it: without recursion, and without long paths."""
    try:
        top = os.open(place.folder, FOLDER)
        try:
            _empty(top)
        finally:
            os.close(top)
        place.folder.rmdir()
    except OSError:
        pass  # bytes that stay behind in a folder of ours; the next start of the machine clears it


def _empty(top: int) -> None:
    """Delete all below an open folder, from which nobody writes any more: what is in a folder is moved up first."""
    moved, mark = 0, secrets.token_hex(8)
    while names := os.listdir(top):
        for name in names:
            if not _is_folder(name, top):
                os.unlink(name, dir_fd=top)
                continue
            os.chmod(name, 0o700, dir_fd=top)  # its program may have locked it
            inner = os.open(name, FOLDER, dir_fd=top)
            try:
                for child in os.listdir(inner):
                    if _is_folder(child, inner):
                        os.chmod(child, 0o700, dir_fd=inner)
                    moved += 1
                    os.rename(child, f"{mark}-{moved}", src_dir_fd=inner, dst_dir_fd=top)
            finally:
                os.close(inner)
            os.rmdir(name, dir_fd=top)


def _is_folder(name: str, folder: int) -> bool:
    return stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
