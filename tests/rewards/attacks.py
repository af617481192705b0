"""Programs that attack the machine that runs them: it may be a stranger's, with keys, files and an agent of its owner.

Each program prints `escaped` when it got what it wanted. `OwnersMachine` has something to get: a home with a private key, the node's key, an agent
with secrets in its environment and a socket, a server on loopback. `survived` runs all of them under one isolation. As a program,
`python attacks.py KIND LANDLOCK`, it prints what survived as JSON; `benchmarks.trust.system` starts it as a user without rights.
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from shoal.rewards.sandbox import Limits, Outcome, Program, SandboxPool, choose
from shoal.rewards.sandbox import pool as pool_module
from shoal.rewards.sandbox.inside import lockdown
from shoal.rewards.sandbox.pool import trial

REFUSED_BY = {
    "PermissionError", "FileNotFoundError", "MemoryError", "OSError", "ValueError", "AssertionError", "ProcessLookupError",
    "BlockingIOError", "RuntimeError",
}  # fmt: skip
"""The last line of a program that was refused what it wanted."""
SECRET = "the owner's secret"
LIMITS = Limits(cpu_seconds=10, wall_seconds=60.0)
SHORT = Limits(cpu_seconds=1, wall_seconds=3.0)

ESCAPES = {
    "a socket": "import socket\nsocket.socket()",
    "a socket pair": "import socket\nsocket.socketpair()",
    "a process": "import os\nos.fork()",
    "another program": "import subprocess\nsubprocess.run(['/bin/true'])",
    "becoming root": "import os\nos.setuid(0)",
    "a signal to others": "import os\nos.kill(-1, 9)",
    "a signal to the parent": "import os\nos.kill(os.getppid() or 1 << 20, 9)",
    "the accounts": "open('/etc/passwd').read()",
    "another process's memory": "open(f'/proc/{__import__(\"os\").getppid()}/mem').read()",
    "its own command line": "open('/proc/self/cmdline').read()",
    "writing beside its folder": "open('/tmp/shoal-sandbox-escape', 'w')",
    "writing to its interpreter": "import os\nopen(os.__file__, 'a')",
    "a link to a file outside": "import os\nos.symlink('/etc/passwd', 'link')\nopen('link').read()",
    "a hard link to a file outside": "import os\nos.link('/etc/passwd', 'link')",
    "raising its own limits": "import resource\nresource.setrlimit(resource.RLIMIT_AS, (1 << 40, 1 << 40))",
    "a new namespace": "import ctypes\nl = ctypes.CDLL(None, use_errno=True)\nassert l.unshare(0x10000000) == 0",
    "tracing": "import ctypes\nl = ctypes.CDLL(None, use_errno=True)\nassert l.ptrace(0, 0, 0, 0) == 0",
    "mounting": "import ctypes\nl = ctypes.CDLL(None, use_errno=True)\nassert l.mount(b'x', b'/', b'tmpfs', 0, 0) == 0",
    "the mode of its guest's folder": "import os, sys\nos.chmod(os.path.dirname(sys.path[0] or '/'), 0)",
    "the mode of a file that it makes": "import os\nos.chmod(open('a', 'w').name, 0)",
    "the mode of an open file": "import os\nos.fchmod(open('a', 'w').fileno(), 0)",
    "the owner of a file": "import os\nos.chown(open('a', 'w').name, os.getuid(), os.getgid())",
    "the times of its guest's files": "import os, sys\nos.utime(sys.path[0] or '/', (0, 0))",
    "cutting a file by its name": "import os\nopen('a', 'w').write('1')\nos.truncate('a', 0)",
    "a lock that others wait for": "import fcntl, os\nfcntl.flock(open(os.__file__), fcntl.LOCK_EX)",
    "a descriptor that signals its parent": "import fcntl, os\nr, w = os.pipe()\nfcntl.fcntl(r, fcntl.F_SETOWN, os.getppid())",
    "a descriptor with a signal of its choice": "import fcntl, os\nr, w = os.pipe()\nfcntl.fcntl(r, fcntl.F_SETSIG, 9)",
    "a descriptor that signals a thread of others": "import fcntl, os\nr, w = os.pipe()\nfcntl.fcntl(r, 15, b'\\1' + bytes(7))",
    "a lease on its interpreter": "import fcntl, os\nfcntl.fcntl(open(os.__file__), fcntl.F_SETLEASE, fcntl.F_RDLCK)",
    "input and output by another process": "import ctypes\nl = ctypes.CDLL(None, use_errno=True)\nassert l.syscall(425, 1, 0) >= 0",
    "memory shared by key": "import ctypes\nl = ctypes.CDLL(None, use_errno=True)\nassert l.shmget(1, 4096, 0o1600) >= 0",
    "a message queue": "import ctypes\nl = ctypes.CDLL(None, use_errno=True)\nassert l.msgget(1, 0o1600) >= 0",
    "a queued signal to its parent": "import ctypes\nl = ctypes.CDLL(None, use_errno=True)\nassert l.syscall(129, 1, 9, bytes(128)) == 0",
    "another process's descriptor": "import ctypes, os\nl = ctypes.CDLL(None, use_errno=True)\nassert l.syscall(434, os.getppid(), 0) >= 0",
    "watching files": "import ctypes\nl = ctypes.CDLL(None, use_errno=True)\nassert l.inotify_init1(0) >= 0",
    "the kernel's keys": "import ctypes\nl = ctypes.CDLL(None, use_errno=True)\nassert l.syscall(250, 0, -3, 1) >= 0",
    "a user of its own namespace": "import ctypes\nl = ctypes.CDLL(None, use_errno=True)\nassert l.syscall(272, 0x10000000) == 0",
    "10 GB of memory": "x = bytearray(10 << 30)",
    "memory bit by bit": "x = []\nwhile True:\n    x.append(bytearray(10 << 20))",
}

ON_THE_OWNER = {
    "the owner's SSH key": "print(open('{home}/.ssh/id_ed25519').read())",
    "the owner's home": "import os\nprint(os.listdir('{home}'))",
    "the node's key": "print(open('{home}/node/key/node.pem').read())",
    "the node's key by its folder": "import os\nprint(os.listdir('{home}/node/key'))",
    "the node's key through a link": "import os\nos.symlink('{home}/node/key/node.pem', 'k')\nprint(open('k').read())",
    "a new authorized key": "open('{home}/.ssh/authorized_keys', 'a').write('mine')",
    "the owner's shell start": "open('{home}/.bashrc', 'a').write('mine')",
    "the folder above its own": "import os\nassert os.listdir('..') and '{secret}' in open('../../secret').read()",
    "its own environment's secrets": "import os\nassert '{secret}' in str(os.environ)",
    "its environment as the kernel has it": "assert b'{secret}' in open('/proc/self/environ', 'rb').read()",
    "the agent's environment": "print(open('/proc/{agent}/environ').read())",
    "the agent's memory": "open('/proc/{agent}/mem', 'rb').read(1)",
    "the agent's open files": "import os\nprint(os.listdir('/proc/{agent}/fd'))",
    "the agent's folder": "import os\nprint(os.listdir('/proc/{agent}/cwd'))",
    "the agent's command line": "print(open('/proc/{agent}/cmdline').read())",
    "a signal to the agent": "import os\nos.kill({agent}, 9)",
    "tracing the agent": "import ctypes\nl = ctypes.CDLL(None, use_errno=True)\nassert l.ptrace(16, {agent}, 0, 0) == 0",
    "writing into the agent": "import ctypes\nl = ctypes.CDLL(None, use_errno=True)\nassert l.syscall(311, {agent}, 0, 0, 0, 0, 0) >= 0",
    "the agent's priority": "import os\nos.setpriority(os.PRIO_PROCESS, {agent}, 19)",
    "the agent's limits": "import resource\nresource.prlimit({agent}, resource.RLIMIT_NOFILE, (1, 1))",
    "the agent's socket": "import socket\nsocket.socket(socket.AF_UNIX).connect('{home}/node/run/agent.sock')",
    "a server on loopback": "import socket\nsocket.create_connection(('127.0.0.1', {port}), 2)",
    "a cloud's metadata service": "import urllib.request\nurllib.request.urlopen('http://169.254.169.254/', timeout=2)",
    "the names of others": "import socket\nsocket.getaddrinfo('example.org', 443)[0][4]\nraise OSError",
    "a raw socket": "import socket\nsocket.socket(socket.AF_PACKET, socket.SOCK_RAW)",
    "a kernel's socket": "import socket\nsocket.socket(socket.AF_NETLINK, socket.SOCK_RAW)",
    "descriptors that it was left": "import os\nassert len([f for f in range(3, 64) if not os.system is None and os.fstat(f)]) > 0",
    "memory shared with others": "open('/dev/shm/shoal-attack', 'w')",
    "the machine's memory": "open('/dev/mem', 'rb')",
    "a disk": "import os\n[os.open('/dev/' + d, os.O_RDONLY) for d in ('vda', 'sda', 'nvme0n1')]",
    "a device of its own": "import os\nos.mknod('d', 0o20600, os.makedev(1, 1))",
    "the terminal": "open('/dev/tty', 'w')",
    "the kernel's settings": "open('/proc/sys/kernel/hostname', 'w').write('mine')",
    "a list of processes": "import os\nassert [p for p in os.listdir('/proc') if p.isdigit()]",
    "other programs' folders": "import os, glob\nassert [p for p in glob.glob('/tmp/shoal-sandbox-*/*')]",
    "a program with the owner's rights": "import os\nos.execv('/usr/bin/id', ['id'])",
    "a root of its own": "import os\nos.chroot('.')",
    "another user": "import os\nos.setresuid(0, 0, 0)",
    "the machine's clock": "import time\ntime.clock_settime(time.CLOCK_REALTIME, 0)",
    "a kernel module": "import ctypes\nl = ctypes.CDLL(None, use_errno=True)\nassert l.syscall(313, 0, b'', 0) == 0",
    "a program in the kernel": "import ctypes\nl = ctypes.CDLL(None, use_errno=True)\nassert l.syscall(321, 0, 0, 0) >= 0",
    "handling of page faults": "import ctypes\nl = ctypes.CDLL(None, use_errno=True)\nassert l.syscall(323, 0) >= 0",
    "performance counters": "import ctypes\nl = ctypes.CDLL(None, use_errno=True)\nassert l.syscall(298, 0, 0, -1, -1, 0) >= 0",
    "a process by its other name": "import ctypes\nl = ctypes.CDLL(None, use_errno=True)\nassert l.syscall(435, 0, 0) > 0",
}
"""Formatted with what there is on the owner's machine. What prints a secret has it."""

BOUNDED = {
    "a fork bomb": "import os\nn = 0\nwhile n < 2000:\n    n += 1\n    try:\n        os.fork()\n        print('escaped')\n    except OSError: pass",
    "a thread bomb": "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(60,)).start()",
    "a full disk": "for i in range(4000): open(f'f{i}', 'wb').write(b'x' * 1_000_000)\nprint('escaped')",
    "a million files": "for i in range(1_000_000): open(f'f{i}', 'w')\nprint('escaped')",
    "deep folders": "import os\nfor _ in range(1_000_000):\n    os.mkdir('d')\n    os.chdir('d')\nprint('escaped')",
    "one large file": "f = open('f', 'wb')\nfor _ in range(4000): f.write(b'x' * 1_000_000)\nprint('escaped')",
    "a hole of a terabyte": "open('f', 'wb').truncate(1 << 40)\nprint('escaped')",
    "all memory": "x = [bytearray(50 << 20) for _ in range(1000)]\nprint('escaped')",
    "all processor time": "while True: pass",
    "endless output": "while True: print('x' * 10_000)",
    "endless errors": "import sys\nwhile True: sys.stderr.write('x' * 10_000)",
    "sleep": "import time\nwhile True: time.sleep(60)",
    "signals that it ignores": "import signal\nfor s in {1, 2, 3, 6, 13, 15, 24}:\n    signal.signal(s, signal.SIG_IGN)\nwhile True: pass",
    "all descriptors": "x = [open('/dev/null') for _ in range(100_000)]\nprint('escaped')",
    "all pipes": "import os\nx = [os.pipe() for _ in range(100_000)]\nprint('escaped')",
}
"""What takes all that there is: each must end by a limit."""


@dataclass(frozen=True)
class OwnersMachine:
    """What a program might want of it."""

    home: Path
    agent: int
    port: int

    def program(self, source: str) -> str:
        for name in ("home", "agent", "port"):
            source = source.replace(f"{{{name}}}", str(getattr(self, name)))
        return source.replace("{secret}", SECRET.replace("'", "\\'")) + "\nprint('escaped')\n"


@contextmanager
def owners_machine() -> Iterator[OwnersMachine]:
    """A home, an agent and a server of this user, for as long as the block runs."""
    with (
        tempfile.TemporaryDirectory(prefix="owner-") as folder,
        socket.socket() as server,
        socket.socket(socket.AF_UNIX) as agent_socket,
    ):
        home = Path(folder)
        for path in (".ssh/id_ed25519", "node/key/node.pem", "secret", ".bashrc"):
            (home / path).parent.mkdir(parents=True, exist_ok=True)
            (home / path).write_text(SECRET)
        (home / "node" / "run").mkdir()
        agent_socket.bind(str(home / "node" / "run" / "agent.sock"))
        agent_socket.listen()
        server.bind(("127.0.0.1", 0))
        server.listen()
        os.environ["OWNERS_PASSWORD"] = SECRET
        agent = subprocess.Popen(
            [sys.executable, "-c", "import time; time.sleep(600)"], env={**os.environ, "KEY": SECRET}, cwd=home
        )
        try:
            yield OwnersMachine(home, agent.pid, server.getsockname()[1])
            assert agent.poll() is None, "a program ended the agent"
        finally:
            del os.environ["OWNERS_PASSWORD"]
            agent.kill()
            agent.wait()


def as_attacked(outcome: Outcome, *, bounded: bool) -> str:
    """Why an attack counts as one that succeeded; empty when it was refused, or ended by a limit."""
    if b"escaped" in outcome.stdout or SECRET.encode() in outcome.stdout:
        return f"it had what it wanted: {outcome.stdout[-200:]!r}"
    if bounded:
        return ""
    last = outcome.stderr.strip().splitlines()[-1:] or ["nothing"]
    if (
        outcome.ended == "exited"
        and outcome.exit_code != 0
        and last[0].split(":")[0].split(".")[-1] in REFUSED_BY | {"URLError", "gaierror"}
    ):
        return ""
    return f"it was not refused: {outcome.reason()}"


def attacks(machine: OwnersMachine) -> dict[str, tuple[Program, bool]]:
    """All programs by what they want, and whether a limit is to end them."""
    refused = {**ESCAPES, **ON_THE_OWNER}
    found = {name: (Program(machine.program(source), limits=LIMITS), False) for name, source in refused.items()}
    return found | {name: (Program(source, limits=SHORT), True) for name, source in BOUNDED.items()}


def survived(pool: SandboxPool) -> dict[str, str]:
    """By attack: what it got, or nothing. Afterwards the pool still runs programs."""
    with owners_machine() as machine:
        made = attacks(machine)
        outcomes = pool.run_all([program for program, _ in made.values()])
    found = {
        name: as_attacked(outcome, bounded=bounded)
        for (name, (_, bounded)), outcome in zip(made.items(), outcomes, strict=True)
    }
    after = pool.run(Program("print(1)"))
    return found | ({} if after.stdout == b"1\n" else {"the next program": after.reason()})


def as_landlock(version: int) -> None:
    """From now on sandboxes use no more of Landlock than this version of its interface has."""
    copy = pool_module.copy_guest

    def older(target: Path) -> None:
        copy(target)
        path = target / "shoal" / "rewards" / "sandbox" / "inside" / "lockdown.py"
        path.write_text(
            path.read_text()
            + f"\n_newest = landlock_version\n\n\ndef landlock_version() -> int:\n    return min({version}, _newest())\n"
        )

    pool_module.copy_guest = older


def main() -> None:
    kind, version = sys.argv[1], int(sys.argv[2])
    if version:
        as_landlock(version)
    pool = SandboxPool(choose(trial, kind), slots=2)
    try:
        found = survived(pool)
    finally:
        pool.close()
    used = min(version or 99, lockdown.landlock_version()) if kind == "landlock" else 0
    print(json.dumps({"isolation": pool.isolation.describe(), "landlock": used, "attacks": found}))


if __name__ == "__main__":
    main()
