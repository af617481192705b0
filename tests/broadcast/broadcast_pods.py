"""Pods of the broadcast for tests: real processes, real nginx, each with an address and a home of its own."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
from broadcast_peers import AgentSocket, Announcements, OddRelay
from broadcast_run import RUN, Keys, checkpoint, put_outbox

from forked_python import ForkedProcess
from servers import PLAIN, ROOT, Loopback, answers, started, wait_until
from shoal.broadcast.nginx import NGINX_PORT
from shoal.contracts import keys
from shoal.contracts.relays import RelayConfig
from shoal.contracts.run import NodeConfig, RunConfig
from shoal.crypto.keys import PrivateKey
from shoal.storage.checkpoint_files import OWN_FILES
from shoal.storage.store import Store, open_folder


class Pod:
    """A home folder, an address, and processes that are started and killed by name."""

    def __init__(self, home: Path, address: str) -> None:
        self.home = home
        self.address = address
        for name in ("config", "secrets", "run", "tmp"):
            (home / name).mkdir(parents=True, exist_ok=True)
        self.environment: dict[str, str] = {}
        """More of it for the processes that are started from now on."""
        self._processes: dict[str, subprocess.Popen[bytes] | ForkedProcess] = {}

    @property
    def url(self) -> str:
        """Where its nginx serves."""
        return f"http://{self.address}:{NGINX_PORT}"

    def run(self) -> None:
        """Start the pod's processes."""
        raise NotImplementedError

    def configure(self, config: RunConfig | NodeConfig, key: PrivateKey | None = None) -> None:
        name = "run.json" if isinstance(config, RunConfig) else "node.json"
        (self.home / "config" / name).write_bytes(config.to_json())
        if key is not None:
            (self.home / "secrets" / "role.pem").write_bytes(key.to_pem())

    def start(self, name: str, *command: str) -> None:
        """Start `python -m <command>` as `name`; its log is `<name>.log` in the home."""
        self.start_python(name, "-m", *command)

    def start_python(self, name: str, *arguments: str) -> None:
        """The same with arguments of Python's own, such as `-c`."""
        with (self.home / f"{name}.log").open("ab") as log:
            self._processes[name] = started(
                [sys.executable, *arguments],
                env={
                    "PATH": os.environ["PATH"],
                    "PYTHONPATH": f"{ROOT / 'workloads'}",
                    "SHOAL_HOME": str(self.home),
                    "SHOAL_BIND": self.address,
                    "SHOAL_POD": self.home.name,
                    "OMP_NUM_THREADS": "1",
                    "http_proxy": "http://127.0.0.1:9",  # nobody listens: who heeds it, fails
                }
                | self.environment,
                log=log,
            )

    def start_nginx(self, role: str) -> None:
        self.start("nginx", "shoal.broadcast.nginx", role)
        self.wait_port("nginx", NGINX_PORT)

    def wait_port(self, name: str, port: int) -> None:
        def listens() -> bool:
            assert self._processes[name].poll() is None, f"{name} ended:\n{self.log(name)[-2000:]}"
            return answers(self.address, port)

        wait_until(f"{name} on {self.address}:{port}", listens, 60)

    def kill(self, name: str) -> None:
        """SIGKILL to this one process, not to its children."""
        process = self._processes.pop(name)
        process.kill()
        process.wait(10)

    def pid(self, name: str) -> int:
        return self._processes[name].pid

    def stop(self) -> None:
        """End everything, children of killed masters included."""
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(5)

    def log(self, name: str) -> str:
        path = self.home / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def metric(self, port: int, name: str) -> float:
        """A metric of the process whose health port this is; 0 while the process does not listen yet."""
        try:
            text = httpx.get(f"http://{self.address}:{port}/metrics", **PLAIN).text
        except httpx.ConnectError:
            return 0.0
        return next(float(line.split()[-1]) for line in text.splitlines() if line.startswith(name))

    def versions(self) -> list[int]:
        """Sealed versions in `www/`."""
        found = (self.home / "www" / "versions").glob("v*/weights.json")
        return sorted(int(path.parent.name[1:]) for path in found)


class OriginPod(Pod):
    """A trainer's pod without the trainer: publisher, nginx, outbox; and the store."""

    def __init__(self, home: Path, address: str, run_keys: Keys, orchestrator: str, **changes: object) -> None:
        super().__init__(home, address)
        self.config = run_keys.config(address, orchestrator, **changes)
        self.configure(self.config, run_keys.trainer)
        (home / "store").mkdir(exist_ok=True)
        (home / "outbox").mkdir(exist_ok=True)

    @property
    def store(self) -> Store:
        return open_folder(self.home / "store", f"shoal/{RUN}")

    def run(self) -> None:
        self.start_nginx("origin")
        self.start("publisher", "shoal.broadcast.origin")

    def hand_in(self, version: int, files: dict[str, bytes] | None = None) -> None:
        """What the trainer does when it has a version: a folder in the outbox, by one rename."""
        put_outbox(self.home / "outbox", version, files or checkpoint(version))


class RelayPod(Pod):
    """A relay: sync agent and nginx."""

    def __init__(
        self,
        home: Path,
        address: str,
        run_keys: Keys,
        origin: str,
        orchestrator: str,
        own: RelayConfig | None = None,
        **changes: object,
    ) -> None:
        """`own`: its `relay.json`; `changes`: to `run.json`."""
        super().__init__(home, address)
        self.configure(run_keys.config(origin, orchestrator, **changes), run_keys.roles["relay"])
        if own is not None:
            (home / "config" / "relay.json").write_bytes(own.to_json())

    def run(self) -> None:
        self.start_nginx("relay")
        self.start("sync", "shoal.broadcast.relay")


class ClientPod(Pod):
    """A pool pod without agent and worker: the client, and a stand-in for the agent's socket."""

    def __init__(self, home: Path, address: str, run_keys: Keys) -> None:
        super().__init__(home, address)
        self.configure(run_keys.node_config())
        self.agent = AgentSocket(run_keys, home / "run" / "agent.sock")

    def run(self) -> None:
        self.start("fetch", "shoal.broadcast.fetch")

    def stop(self) -> None:
        super().stop()
        self.agent.close()

    def held(self) -> list[int]:
        return sorted(int(path.name[1:]) for path in (self.home / "weights").glob("v??????"))

    def files(self, version: int) -> dict[str, bytes]:
        folder = self.home / "weights" / keys.version_name(version)
        return {path.name: path.read_bytes() for path in folder.iterdir() if path.name not in OWN_FILES}


class Pods:
    """Makes pods, and stops them all."""

    def __init__(self, run_keys: Keys, loopback: Loopback, folder: Path) -> None:
        self._keys = run_keys
        self._loopback = loopback
        self._folder = folder
        self._made: list[Pod | OddRelay | Announcements] = []
        self.announcements = Announcements(run_keys, loopback)

    def _home(self, kind: str) -> Path:
        home = self._folder / f"{kind}-{len(self._made)}"
        home.mkdir()
        return home

    def origin(self, **changes: object) -> OriginPod:
        """Not started."""
        pod = OriginPod(self._home("o"), self._loopback.address(), self._keys, self.announcements.url, **changes)
        self._made.append(pod)
        return pod

    def relay(self, origin: Pod, own: RelayConfig | None = None, **changes: object) -> RelayPod:
        """Not started."""
        home, address = self._home("r"), self._loopback.address()
        pod = RelayPod(home, address, self._keys, origin.address, self.announcements.url, own, **changes)
        self._made.append(pod)
        return pod

    def client(self) -> ClientPod:
        """Not started."""
        pod = ClientPod(self._home("c"), self._loopback.address(), self._keys)
        self._made.append(pod)
        return pod

    def odd_relay(self, www: Path, twist: Callable[[str, bytes], bytes | None] | None = None) -> OddRelay:
        """Running."""
        relay = OddRelay(www, self._loopback, twist)
        self._made.append(relay)
        return relay

    def stop(self) -> None:
        for made in self._made:
            made.close() if isinstance(made, OddRelay) else made.stop()
        self.announcements.close()
