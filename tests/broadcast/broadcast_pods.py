"""Pods of the broadcast for tests: real processes, real nginx, each with an address and a home of its own.

The two peers that belong to other roles are stood in for by small servers that speak the contracts: who takes announcements (the
orchestrator), and who tells a client about relays (the agent's socket).
"""

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import ThreadingMixIn, UnixStreamServer

import httpx

from servers import ROOT, Loopback, answers, wait_until
from shoal.broadcast.nginx import NGINX_PORT
from shoal.contracts import keys, relay_token
from shoal.contracts.canonical import sign
from shoal.contracts.http_signatures import verify_request
from shoal.contracts.identity import ROLES, PrivateKey, Role, Roster
from shoal.contracts.protocol import RelayToken, VersionAnnouncement
from shoal.contracts.recipe import GeneratedModel, ModelSource, Recipe, Sampling, StorageSpec, TaskSource, Validation
from shoal.contracts.run import Addresses, AgentState, NodeConfig, RunConfig
from shoal.storage.store import Store, open_folder

RUN = "tides"
SHARD = 64 << 10
KEPT = 3


def checkpoint(version: int, size: int = 10 * SHARD - 123) -> dict[str, bytes]:
    """Files of a made-up checkpoint: a config and `size` bytes of weights that differ from version to version."""
    return {
        "config.json": json.dumps({"version": version}).encode(),
        "model.safetensors": random.Random(version).randbytes(size),
    }


@dataclass
class Keys:
    """The keys of a made-up run."""

    run: PrivateKey = field(default_factory=PrivateKey.generate)
    roles: dict[Role, PrivateKey] = field(default_factory=lambda: {role: PrivateKey.generate() for role in ROLES})

    def roster(self) -> Roster:
        return Roster(run=RUN, keys={role: key.public for role, key in self.roles.items()})

    @property
    def trainer(self) -> PrivateKey:
        return self.roles["trainer"]

    def token(
        self, node: str = "a" * 64, *, seconds: float = 600, run: str = RUN, signer: Role = "orchestrator"
    ) -> str:
        """A relay token, by default a good one."""
        token = RelayToken(run=run, node=node, expires_unix=int(time.time() + seconds))
        return relay_token.encode(token, self.roles[signer])

    def config(
        self, origin: str = "127.0.0.1", orchestrator: str = "http://127.0.0.1:1", **changes: object
    ) -> RunConfig:
        fields: dict[str, object] = {
            "run": RUN,
            "steps": 100,
            "async_level": 1,
            "model_id": "tiny-model",
            "model": ModelSource(generated=GeneratedModel()),
            "tasks": TaskSource(environment="arithmetic", count=10),
            "recipe": Recipe(),
            "sampling": Sampling(),
            "length_reward": None,
            "validation": Validation(),
            "storage": StorageSpec(),
            "shard_size": SHARD,
            "kept_versions": KEPT,
            "addresses": Addresses(
                discovery="http://127.0.0.1:1",
                orchestrator=orchestrator,
                origin=f"http://{origin}:{NGINX_PORT}",
                relays=[],
                redis="redis://127.0.0.1:1/0",
            ),
            "roster": sign(self.roster(), self.run),
            "run_key": self.run.public,
        }
        return RunConfig.model_validate({**fields, **changes})

    def node_config(self) -> NodeConfig:
        return NodeConfig(
            run=RUN,
            pool="pool",
            discovery="http://127.0.0.1:1",
            roster=sign(self.roster(), self.run),
            run_key=self.run.public,
        )


class Pod:
    """A home folder, an address, and processes that are started and killed by name."""

    def __init__(self, home: Path, address: str) -> None:
        self.home = home
        self.address = address
        for name in ("config", "secrets", "run", "tmp"):
            (home / name).mkdir(parents=True, exist_ok=True)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def url(self) -> str:
        """Where its nginx serves."""
        return f"http://{self.address}:{NGINX_PORT}"

    def configure(self, config: RunConfig | NodeConfig, key: PrivateKey | None = None) -> None:
        name = "run.json" if isinstance(config, RunConfig) else "node.json"
        (self.home / "config" / name).write_bytes(config.to_json())
        if key is not None:
            (self.home / "secrets" / "role.pem").write_bytes(key.to_pem())

    def start(self, name: str, *command: str) -> None:
        """Start `python -m <command>` as `name`; its log is `<name>.log` in the home."""
        with (self.home / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", "--", sys.executable, "-m", *command],
                env={
                    "PATH": os.environ["PATH"],
                    "PYTHONPATH": f"{ROOT / 'workloads'}",
                    "SHOAL_HOME": str(self.home),
                    "SHOAL_BIND": self.address,
                    "SHOAL_POD": self.home.name,
                    "OMP_NUM_THREADS": "1",
                    "http_proxy": "http://127.0.0.1:9",  # nobody listens: who heeds it, fails
                },
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
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
        """A metric of the process whose health port this is."""
        text = httpx.get(f"http://{self.address}:{port}/metrics", trust_env=False).text
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

    def __init__(self, home: Path, address: str, run_keys: Keys, origin: str, **changes: object) -> None:
        super().__init__(home, address)
        self.configure(run_keys.config(origin, **changes), run_keys.roles["relay"])

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
        return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "shoal-weights.json"}


def put_outbox(outbox: Path, version: int, files: dict[str, bytes]) -> None:
    name = keys.version_name(version)
    making = outbox / f".making-{name}"
    making.mkdir()
    for file, data in files.items():
        (making / file).write_bytes(data)
    making.rename(outbox / name)


class Announcements:
    """Takes `POST /v1/versions` as the orchestrator does: signed by the trainer, idempotent, 409 for other bytes."""

    def __init__(self, run_keys: Keys, loopback: Loopback) -> None:
        self.taken: list[VersionAnnouncement] = []
        self.away = False
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                signed = verify_request(
                    method="POST",
                    url=outer.url + self.path,
                    headers=dict(self.headers),
                    body=body,
                    now_unix=time.time(),
                )
                assert signed.key == run_keys.trainer.public
                self.send_response(503 if outer.away else outer._take(VersionAnnouncement.from_json(body)))
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        address = loopback.address()
        self._server = ThreadingHTTPServer((address, 0), Handler)
        self.url = f"http://{address}:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def _take(self, announcement: VersionAnnouncement) -> int:
        known = [old for old in self.taken if old.version == announcement.version]
        if known and known[0] != announcement:
            return 409
        if not known:
            self.taken.append(announcement)
        return 204

    def versions(self) -> list[int]:
        return [announcement.version for announcement in self.taken]

    def close(self) -> None:
        self._server.shutdown()


class _UnixServer(ThreadingMixIn, UnixStreamServer):
    daemon_threads = True


class AgentSocket:
    """`GET /v1/state` and `POST /v1/metrics` on a Unix socket; the test sets what is answered."""

    def __init__(self, run_keys: Keys, path: Path) -> None:
        self.state = AgentState(
            node="a" * 64, state="Healthy", relay_token=run_keys.token(), trainer_key=run_keys.trainer.public
        )
        self.metrics: dict[str, float] = {}
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer(200, outer.state.to_json())

            def do_POST(self) -> None:
                outer.metrics |= json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                self._answer(204, b"")

            def _answer(self, status: int, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def address_string(self) -> str:
                return "unix"

            def log_message(self, *_: object) -> None:
                pass

        self._path = path
        self._server = _UnixServer(str(path), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def say(self, **changes: object) -> None:
        self.state = AgentState.model_validate({**self.state.model_dump(), **changes})

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class OddRelay:
    """Serves a `versions/` tree as nginx would, Range included, but `twist(path, body)` may change what is sent.

    `twist` gives the body to send, or None for 404. With `cut_after`, connections break after so many bytes of every shard; `asked` lists requests.
    """

    def __init__(
        self, www: Path, loopback: Loopback, twist: Callable[[str, bytes], bytes | None] | None = None
    ) -> None:
        self.twist = twist or (lambda _, body: body)
        self.cut_after: int | None = None
        self.endless: str | None = None
        self.refuse = False
        self.asked: list[tuple[str, str | None]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                path, wanted = self.path.lstrip("/"), self.headers.get("Range")
                outer.asked.append((path, wanted))
                if outer.refuse:
                    return self.send_error(401)
                if outer.endless is not None and path.endswith(outer.endless):
                    return self._endless()
                source = www / path
                body = outer.twist(path, source.read_bytes()) if source.is_file() else None
                start, size = 0, len(body or b"")
                if wanted is not None and body is not None:
                    start = int(wanted.removeprefix("bytes=").removesuffix("-"))
                self.send_response(404 if body is None else 206 if wanted else 200)
                if wanted is not None:
                    self.send_header("Content-Range", f"bytes {start}-{size - 1}/{size}")
                rest = (body or b"")[start:]
                self.send_header("Content-Length", str(len(rest)))
                self.end_headers()
                if outer.cut_after is not None and path.endswith(".bin") and len(rest) > outer.cut_after:
                    self.wfile.write(rest[: outer.cut_after])
                    self.wfile.flush()
                    self.connection.shutdown(socket.SHUT_RDWR)
                    self.close_connection = True
                else:
                    self.wfile.write(rest)
                return None

            def _endless(self) -> None:
                self.send_response(200)
                self.end_headers()
                self.close_connection = True
                try:
                    while True:
                        self.wfile.write(bytes(65536))
                except OSError:
                    return

            def log_message(self, *_: object) -> None:
                pass

        address = loopback.address()
        self._server = ThreadingHTTPServer((address, 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://{address}:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


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

    def relay(self, origin: Pod, **changes: object) -> RelayPod:
        """Not started."""
        pod = RelayPod(self._home("r"), self._loopback.address(), self._keys, origin.address, **changes)
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
            made.close() if isinstance(made, OddRelay) else made.stop()  # type: ignore[union-attr]
        self.announcements.close()


def copy_www(source: Pod, target: Path) -> Path:
    """A copy of a pod's served folder, to be twisted."""
    shutil.copytree(source.home / "www" / "versions", target / "versions")
    return target
