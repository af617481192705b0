"""Our broadcast on the stage: real publisher, nginx, sync agents and clients, one pod a host; only the agents and the orchestrator are stand-ins.

In: a `Stage` and checkpoints. Out: when each client had each version, and CPU time. A client is told of a version when the publisher has announced
it, as in a run; it fetches ahead, as in a run, and makes the version visible then. Called by `__main__`.
"""

import json
import os
import shutil
import sys
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingMixIn, UnixStreamServer

from benchmarks.broadcast.certificates import Authority
from benchmarks.broadcast.links import Stage
from benchmarks.broadcast.network import Host, wait
from shoal.contracts import keys, relay_token
from shoal.contracts.completions import Sampling
from shoal.contracts.model_source import GeneratedModel, ModelSource
from shoal.contracts.protocol import RelayToken
from shoal.contracts.recipe import Recipe
from shoal.contracts.relays import OUTSIDE_PORT
from shoal.contracts.roster import ROLES, Role, Roster
from shoal.contracts.run import Addresses, AgentState, NodeConfig, RunConfig
from shoal.contracts.settings import Broadcast
from shoal.contracts.signed import sign
from shoal.contracts.storage import StorageSpec
from shoal.contracts.task_source import TaskSource
from shoal.contracts.validation import Validation
from shoal.crypto.keys import PrivateKey

ROOT = Path(__file__).resolve().parents[2]
RUN = "broadcast"
ANNOUNCE_PORT = 8089
LONGEST_SECONDS = 1800.0


@dataclass
class Measured:
    """Seconds from the handing over of the checkpoint; CPU seconds of all relays (nginx and agent) and of all clients."""

    announced: float
    clients: list[float] = field(default_factory=list)
    relay_cpu: float = 0.0
    client_cpu: float = 0.0


class Ours:
    """Thirteen pods. `close` ends them."""

    def __init__(
        self, stage: Stage, *, shard_size: int = 4 << 20, anchor_every: int = 8, authority: Authority | None = None
    ) -> None:
        """With `authority` clients fetch over HTTPS and trust it alone."""
        self._stage = stage
        self._authority = authority
        self._keys: dict[Role, PrivateKey] = {role: PrivateKey.generate() for role in ROLES}
        self._run_key = PrivateKey.generate()
        roster = sign(Roster(run=RUN, keys={role: key.public for role, key in self._keys.items()}), self._run_key)
        self._config = RunConfig(
            run=RUN,
            steps=1000,
            async_level=1,
            model_id="made-up",
            model=ModelSource(generated=GeneratedModel()),
            tasks=TaskSource(environment="arithmetic", count=10),
            recipe=Recipe(),
            sampling=Sampling(),
            length_reward=None,
            validation=Validation(),
            storage=StorageSpec(),
            broadcast=Broadcast(shard_bytes=shard_size, anchor_every=anchor_every),
            kept_versions=2,
            addresses=Addresses(
                discovery="http://127.0.0.1:1",
                orchestrator=f"http://127.0.0.1:{ANNOUNCE_PORT}",
                origin=f"http://{stage.origin.address}:8090",
                relays=[],
                redis="redis://127.0.0.1:1/0",
            ),
            roster=roster,
            run_key=self._run_key.public,
        )
        self._node = NodeConfig(
            run=RUN, pool="pool", discovery="http://127.0.0.1:1", roster=roster, run_key=self._run_key.public
        )
        self._agents: list[_Agent] = []
        place = "http://{}:8090" if authority is None else f"https://{{}}:{OUTSIDE_PORT}"
        self._relays = [place.format(relay.address) for relay in stage.relays]
        self._announced = stage.folder / "announced"
        self._fetch_seconds = 0.0

    def start(self) -> None:
        """Start all pods and wait until they are up."""
        origin = self._pod(self._stage.origin, "trainer")
        (origin / "outbox").mkdir()
        (origin / "store").mkdir()
        stand_in = [
            sys.executable,
            "-m",
            "benchmarks.broadcast.announcements",
            str(ANNOUNCE_PORT),
            str(self._announced),
        ]
        self._stage.origin.start(stand_in, origin / "orchestrator.log", self._environment(self._stage.origin, origin))
        self._module(self._stage.origin, "shoal.broadcast.nginx", "origin")
        self._module(self._stage.origin, "shoal.broadcast.origin")
        for relay in self._stage.relays:
            home = self._pod(relay, "relay")
            if self._authority is not None:
                self._authority.issue(home / "secrets" / "tls", relay.address)
            self._module(relay, "shoal.broadcast.nginx", "relay")
            self._module(relay, "shoal.broadcast.relay")
        relays = self._relays
        for number, client in enumerate(self._stage.clients):
            home = self._pod(client, None)
            if self._authority is not None:
                shutil.copy(self._authority.certificate, home / "config" / "relay-ca.pem")
            node = f"{number:064x}"
            token = RelayToken(run=RUN, node=node, expires_unix=int(time.time()) + 7200)
            state = AgentState(
                node=node,
                state="Healthy",
                relays=relays,
                relay_token=relay_token.encode(token, self._keys["orchestrator"]),
                trainer_key=self._keys["trainer"].public,
            )
            self._agents.append(_Agent(home / "run" / "agent.sock", state))
            self._module(client, "shoal.broadcast.fetch")
        for host, log, sign_of_life in [
            (self._stage.origin, "origin", "publisher started"),
            *((relay, "relay", "relay started") for relay in self._stage.relays),
            *((client, "fetch", "fetch started") for client in self._stage.clients),
        ]:
            path = self._home(host) / f"{log}.log"
            wait(f"{log} at {host.name}", lambda: path.exists() and sign_of_life in path.read_text(), 120)  # noqa: B023 - called before the loop goes on

    def broadcast(self, version: int, checkpoint: Path, *, filled_first: bool = False) -> Measured:
        """Hand over `checkpoint` (a folder, which is taken) and wait until every client has it.

        With `filled_first` clients hear of relays when all of these have it: then only the last hop is measured.
        """
        name = keys.version_name(version)
        if filled_first:
            self._tell(relays=[])
        relay_cpu, client_cpu = self._cpu(self._stage.relays), self._cpu(self._stage.clients)
        started = time.monotonic()
        os.rename(checkpoint, self._home(self._stage.origin) / "outbox" / name)
        wait(f"the announcement of {name}", lambda: self._newest() >= version, LONGEST_SECONDS)
        if filled_first:
            sealed = [self._home(relay) / "www" / "versions" / name / "weights.json" for relay in self._stage.relays]
            wait(f"{name} on all relays", lambda: all(path.exists() for path in sealed), LONGEST_SECONDS)
        found = Measured(time.monotonic() - started)
        self._tell(relays=self._relays, latest_version=version)
        told = time.monotonic() if filled_first else started
        times: dict[str, float] = {}

        def all_have_it() -> bool:
            for client in self._stage.clients:
                if client.name not in times and (self._home(client) / "weights" / name).is_dir():
                    times[client.name] = time.monotonic() - told
            return len(times) == len(self._stage.clients)

        wait(f"{name} at all clients", all_have_it, LONGEST_SECONDS, interval=0.02)
        found.clients = [times[client.name] for client in self._stage.clients]
        found.relay_cpu = self._cpu(self._stage.relays) - relay_cpu
        found.client_cpu = self._cpu(self._stage.clients) - client_cpu
        return found

    def fetch_seconds(self, version: int) -> float:
        """What the first client says `version` took it, from its first request to the visible version."""
        agent = self._agents[0]
        wait("the client's figures", lambda: agent.metrics.get("fetch_version") == version, 30)
        before, self._fetch_seconds = self._fetch_seconds, agent.metrics["fetch_seconds"]
        return self._fetch_seconds - before

    def token(self, number: int) -> str:
        """Of a node that is none of the clients."""
        token = RelayToken(run=RUN, node=f"{1000 + number:064x}", expires_unix=int(time.time()) + 7200)
        return relay_token.encode(token, self._keys["orchestrator"])

    def _tell(self, **changes: object) -> None:
        for agent in self._agents:
            agent.state = agent.state.model_copy(update=changes)

    def wire_bytes(self, version: int) -> int:
        """Bytes of the version's shards at the origin, as they travel."""
        folder = self._home(self._stage.origin) / "www" / "versions" / keys.version_name(version)
        return sum(path.stat().st_size for path in folder.glob("*.bin"))

    def ways(self) -> list[tuple[int, str]]:
        """Each version that a client finished, and how it came: `full`, `delta`, or `delta beside` a version in full."""
        lines = [line for client in self._stage.clients for line in (self._home(client) / "fetch.log").open()]
        ended = [json.loads(line) for line in lines if '"fetch ended"' in line]
        return [(each["version"], each["way"]) for each in ended if each["outcome"] == "sealed"]

    def close(self) -> None:
        self._stage.network.stop_all()
        for agent in self._agents:
            agent.close()
        for host in self._stage.network.hosts:
            shutil.rmtree(self._home(host), ignore_errors=True)
        self._announced.unlink(missing_ok=True)

    def _newest(self) -> int:
        return int(self._announced.read_text()) if self._announced.exists() else -1

    @staticmethod
    def _cpu(hosts: list[Host]) -> float:
        return sum(host.cpu_seconds() for host in hosts)

    def _home(self, host: Host) -> Path:
        return self._stage.folder / host.name

    def _pod(self, host: Host, role: Role | None) -> Path:
        home = self._home(host)
        for name in ("config", "secrets", "run", "tmp"):
            (home / name).mkdir(parents=True)
        (home / "config" / ("node.json" if role is None else "run.json")).write_bytes(
            (self._node if role is None else self._config).to_json()
        )
        if role is not None:
            (home / "secrets" / "role.pem").write_bytes(self._keys[role].to_pem())
        return home

    def _module(self, host: Host, module: str, *arguments: str) -> None:
        home = self._home(host)
        log = home / f"{module.rpartition('.')[2]}.log"
        host.start([sys.executable, "-m", module, *arguments], log, self._environment(host, home))

    @staticmethod
    def _environment(host: Host, home: Path) -> dict[str, str]:
        return {
            "PYTHONPATH": f"{ROOT / 'workloads'}:{ROOT}",
            "SHOAL_HOME": str(home),
            "SHOAL_BIND": host.address,
            "SHOAL_POD": host.name,
        }


class _UnixServer(ThreadingMixIn, UnixStreamServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients are killed at the end while they ask; that is nobody's concern."""


class _Agent:
    """`GET /v1/state` and `POST /v1/metrics` on a Unix socket, which no namespace hides."""

    def __init__(self, path: Path, state: AgentState) -> None:
        self.state = state
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

        self._server = _UnixServer(str(path), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
