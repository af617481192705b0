"""Docker for kind: the one whose daemon answers, or Debian's, unpacked by tools/kind.sh and started for as long as the cluster lives.

The one that is started here leaves the firewall alone: no rules, no bridge of its own, no forwarding. kind's one network needs neither, for its nodes
and this machine share a bridge. Whatever fails raises RuntimeError with what Docker said.
"""

import os
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from e2e.kind import machine
from e2e.nodes.daemons import Daemon
from e2e.nodes.layout import SYSTEM_PATH, Lacking

UNPACKED = machine.HOME / "docker"
SOCKET = machine.RUN / "docker.sock"
DAEMON = Daemon("dockerd", machine.HOME / "daemons", machine.HOME / "logs")
START_SECONDS = 60.0
CALL_SECONDS = 300.0
SYS_RESOURCE = 24
"""Number of the capability that `docker run --privileged` asks for, and some virtual machines do not give."""


@dataclass(frozen=True)
class DockerEngine:
    """A Docker whose daemon answers."""

    environment: dict[str, str]
    """What docker and kind are called with."""
    own: bool
    """Whether it was started here."""

    def docker(self, *arguments: str, seconds: float = CALL_SECONDS) -> str:
        """What docker prints."""
        done = subprocess.run(
            ["docker", *arguments], env=self.environment, capture_output=True, text=True, check=False, timeout=seconds
        )
        if done.returncode != 0:
            raise RuntimeError(f"docker {' '.join(arguments)[:200]}: {done.stderr.strip()[-1000:]}")
        return done.stdout

    def has(self, kind: str, name: str) -> bool:
        """Whether there is such an `image`, `network` or `container`."""
        command = ["docker", kind, "inspect", name]
        done = subprocess.run(command, env=self.environment, capture_output=True, check=False, timeout=CALL_SECONDS)
        return done.returncode == 0


def somebodys() -> DockerEngine | None:
    """The Docker of this machine, if its daemon answers."""
    try:
        done = subprocess.run(["docker", "info"], capture_output=True, check=False, timeout=30)
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return None
    return DockerEngine(dict(os.environ), own=False) if done.returncode == 0 else None


def running() -> DockerEngine | None:
    """A Docker that answers now; none is started."""
    if DAEMON.pid is not None:
        return DockerEngine(_environment(), own=True)
    return somebodys()


def start() -> DockerEngine:
    """A Docker that answers. Call `machine.remember` before. Raises `Lacking` where there is none and none was unpacked."""
    if (found := running()) is not None and (not found.own or _answers(found)):
        return found
    dockerd = UNPACKED / "usr" / "sbin" / "dockerd"
    if not dockerd.exists():
        raise Lacking("no Docker answers, and none of Debian's is unpacked; `tools/kind.sh` unpacks one")
    if os.geteuid() != 0:
        raise Lacking("no Docker answers, and only root can start one")
    machine.RUN.mkdir(parents=True, exist_ok=True)
    libraries = ":".join({str(each.parent) for each in UNPACKED.glob("**/libdevmapper.so*")})
    DAEMON.start(_command(dockerd), _environment() | {"LD_LIBRARY_PATH": libraries})
    engine = DockerEngine(_environment(), own=True)
    end = time.monotonic() + START_SECONDS
    while not _answers(engine):
        if DAEMON.has_ended or time.monotonic() > end:
            raise RuntimeError(f"waited for dockerd to answer; its log ends:\n{DAEMON.tail()}")
        time.sleep(0.2)
    return engine


def stop() -> None:
    """End the Docker that was started here, if it runs."""
    DAEMON.stop(30.0)


def lacks_capability() -> bool:
    """Whether this machine does not give CAP_SYS_RESOURCE, so that neither `--privileged` nor a kubelet's usual settings work."""
    status = Path("/proc/self/status").read_text()
    bounding = next(line.split()[1] for line in status.splitlines() if line.startswith("CapBnd:"))
    return not int(bounding, 16) >> SYS_RESOURCE & 1


def _command(dockerd: Path) -> list[str]:
    command = [
        str(dockerd),
        f"--host=unix://{SOCKET}",
        f"--data-root={machine.HOME / 'data'}",
        f"--exec-root={machine.RUN / 'exec'}",
        f"--pidfile={machine.RUN / 'dockerd.pid'}",
        f"--cgroup-parent=/{machine.GROUP}",
        "--exec-opt=native.cgroupdriver=cgroupfs",
        "--bridge=none",
        "--iptables=false",
        "--ip-forward=false",
    ]
    if lacks_capability():
        command += [f"--add-runtime=shoal={Path(__file__).with_name('runc.sh')}", "--default-runtime=shoal"]
    return command


def _environment() -> dict[str, str]:
    return {
        "PATH": f"{UNPACKED / 'usr' / 'sbin'}:{UNPACKED / 'usr' / 'bin'}:{SYSTEM_PATH}",
        "HOME": str(machine.HOME),
        "DOCKER_HOST": f"unix://{SOCKET}",
    }


def _answers(engine: DockerEngine) -> bool:
    try:
        engine.docker("version", seconds=10)
    except (RuntimeError, subprocess.TimeoutExpired):
        return False
    return True
