"""Two strangers' machines, each in a network namespace with one link to a way in, join the demo run over HTTPS by `shoal node join`.

The run is the demo's (trainer, relays, validator, orchestrator, discovery: real processes), but it has no workers of its own: whatever it trains on
is made by a stranger. One is honest, loses its link for a while and comes back. The other hands in the first one's file as its own. Figures
go to `benchmarks/results/strangers.json`.
"""

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from broadcast_certificates import Authority
from local_system import EXAMPLE, LocalSystem, write_manifest
from stranger_network import Machine, ingress_configuration, unusable

from servers import ROOT, lacking, wait_until
from shoal.contracts import keys
from shoal.contracts.protocol import RELAY_TOKEN_SECONDS
from shoal.contracts.run import RunConfig

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1500)]

RUN = "strangers"
DOMAIN = "shoal.test"
RESULT = ROOT / "benchmarks" / "results" / "strangers.json"
JOIN_SECONDS = 300.0
"""An engine starts in twenty seconds on two idle cores; here are two, and a trainer."""
FILE_SECONDS = 400.0
SHOAL = str(Path(sys.executable).parent / "shoal")


class OpenRun:
    """The run, its way in, and who came."""

    def __init__(self, folder: Path, nginx: Path) -> None:
        exposure = {"type": "Ingress", "domain": DOMAIN, "tlsSecret": "way-in"}
        manifest = write_manifest(
            EXAMPLE,
            folder / "run.yaml",
            name=RUN,
            model={"generated": {"warmStartPassRate": 0.1}},  # the sooner made; what it learns is not the point here
            steps=500,
            recipe={"promptsPerStep": 4, "groupSize": 4, "optimizerSteps": 1},
            sampling={"groupsPerSubmission": 2},
            inferencePools=[{"name": "open", "open": True, "replicas": 0, "weightsSize": "1Gi"}],
            controlPlane={"exposure": exposure},
            relayServer={"exposure": exposure},
        )
        self.folder = folder
        self.system = LocalSystem(manifest, folder / "runs")
        self.authority = Authority("strangers' authority")
        self.authority_file = folder / "authority.pem"
        self.authority_file.write_bytes(self.authority.pem)
        self.machines: list[Machine] = []
        self._nginx = nginx
        self._ingress: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.system.start()
        self.system.until("the base model is prepared and announced", lambda: self.system.latest_version() >= 0, 600)
        self.config = wait_until("addresses from outside", self._config_with_addresses, 60.0)
        addresses = self.config.addresses
        relays = self.system.pods("relay")
        assert addresses.public_discovery
        assert addresses.public_orchestrator
        backends = {
            _host(addresses.public_discovery): f"{self.system.pods('discovery')[0].address}:8081",
            _host(addresses.public_orchestrator): f"{self.system.pods('orchestrator')[0].address}:8080",
            **{_host(url): f"{relay.address}:8090" for url, relay in zip(addresses.public_relays, relays, strict=True)},
        }
        for number in range(2):
            self.machines.append(Machine(number, list(backends)))
            self.machines[-1].connect()
        place = self.folder / "ingress"
        self.authority.issue(place / "tls", f"*.{DOMAIN}")
        (place / "nginx.conf").write_text(
            ingress_configuration(place, [each.way_in for each in self.machines], backends)
        )
        self._ingress = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "--", self._nginx, "-p", place, "-c", place / "nginx.conf"],
            stdin=subprocess.DEVNULL,
        )

    def _config_with_addresses(self) -> RunConfig | None:
        """The orchestrator's own configuration, once the operator knows every address from outside."""
        found = list((self.system.folder / "pods").glob(f"{RUN}-orchestrator*/**/config/run.json"))
        if not found:
            return None
        config = RunConfig.from_json(found[0].read_bytes())
        addresses = config.addresses
        complete = addresses.public_discovery and addresses.public_orchestrator and len(addresses.public_relays) == 2
        return config if complete else None

    def join(self, machine: Machine, name: str, program: list[str]) -> Path:
        """Start a node on a machine; returns its folder."""
        folder = self.folder / name
        environment = {
            "HOME": str(self.folder / f"{name}-home"),
            "PYTHONPATH": str(ROOT / "workloads"),
            "OMP_NUM_THREADS": "1",
        }
        machine.start(program, self.folder / f"{name}.log", environment)
        return folder / RUN

    def status(self, home: Path) -> dict[str, Any]:
        """What the agent wrote last; empty before."""
        try:
            return dict(json.loads((home / "run" / "status.json").read_text()))
        except (OSError, ValueError):
            return {}

    def entries(self, kind: str, node: str) -> list[Any]:
        return [entry for entry in self.system.ledger() if entry.kind == kind and entry.node == node]

    def close(self) -> None:
        for machine in self.machines:
            machine.close()
        if self._ingress is not None:
            self._ingress.terminate()
            self._ingress.wait(10)
        self.system.stop()


def _host(url: str) -> str:
    parts = urlsplit(url)
    assert parts.scheme == "https", url
    assert parts.hostname
    return parts.hostname


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, nginx_bin: Path) -> Iterator[OpenRun]:
    problem = unusable()
    if problem is not None:
        lacking("network namespaces", problem)
    running = OpenRun(tmp_path_factory.mktemp("strangers"), nginx_bin)
    try:
        running.start()
        yield running
    finally:
        running.close()


def test_strangers_join_work_cheat_and_are_cut_off(run: OpenRun) -> None:
    system = run.system
    discovery = run.config.addresses.public_discovery
    assert discovery is not None
    honest_machine, other_machine = run.machines

    # A machine that does not know the authority says so and sends nothing.
    wrong = subprocess.run(
        [
            "ip",
            "netns",
            "exec",
            honest_machine.namespace,
            SHOAL,
            "node",
            "join",
            discovery,
            "--folder",
            str(run.folder / "x"),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert wrong.returncode == 2, wrong.stdout + wrong.stderr
    assert "is not trusted: give the PEM of its authority with --ca-file" in wrong.stdout + wrong.stderr

    authority = str(run.authority_file)
    began = time.time()
    honest = run.join(
        honest_machine,
        "honest",
        [SHOAL, "node", "join", discovery, "--folder", str(run.folder / "honest"), "--ca-file", authority],
    )
    cheat_program = str(Path(__file__).with_name("cheating_machine.py"))
    cheat = run.join(
        other_machine, "cheat", [sys.executable, cheat_program, "join", discovery, str(run.folder / "cheat"), authority]
    )
    nodes = {}
    for name, home in (("honest", honest), ("cheat", cheat)):
        nodes[name] = system.until(
            f"the {name} machine is a healthy member",
            lambda home=home: (found := run.status(home)).get("state") == "Healthy" and found["node"],
            JOIN_SECONDS,
        )
    joined = time.time()
    watching = {"SHOAL_HOME": str(cheat), "PYTHONPATH": str(ROOT / "workloads")}
    other_machine.start([sys.executable, cheat_program, "watch"], run.folder / "watch.log", watching)

    # Its work is accepted, and trained on: nobody else is there to do any.
    system.until(
        "a file of the honest machine is accepted", lambda: run.entries("accepted", nodes["honest"]), FILE_SECONDS
    )
    first_accepted = time.time()
    system.until("a step is trained on a stranger's work", lambda: system.latest_version() >= 1, FILE_SECONDS)

    # The other one hands in the same bytes as its own.
    accepted = run.entries("accepted", nodes["honest"])[-1]
    assert accepted.digest is not None
    stolen = system.store.get(keys.upload(nodes["honest"], accepted.digest))
    (cheat / "tmp" / "groups").write_text(str(run.config.sampling.groups_per_submission))
    (cheat / "tmp" / "whole").write_bytes(stolen)
    (cheat / "tmp" / "whole").rename(cheat / "tmp" / "stolen.parquet")
    system.until("the cheat's node is evicted", lambda: run.entries("node-evicted", nodes["cheat"]), FILE_SECONDS)
    seen_by_the_cheat = cheat / "tmp" / "cheat.json"
    system.until("the cheat is cut off at every relay", seen_by_the_cheat.is_file, 180)
    report = json.loads(seen_by_the_cheat.read_text())
    assert len(report["refused"]) == len(run.config.addresses.public_relays), report
    (rejected,) = run.entries("rejected", nodes["cheat"])
    (evicted,) = run.entries("node-evicted", nodes["cheat"])
    assert not run.entries("accepted", nodes["cheat"])
    handed_in = report["handed_in_unix"]
    cut_off = max(each["unix"] for each in report["refused"].values())
    eviction_seconds = cut_off - handed_in
    assert eviction_seconds < 60.0, report
    system.until("its own agent says so", lambda: run.status(cheat).get("state") == "Evicted", 60)

    # A partition: the honest machine's link goes down for longer than a node may be silent, and comes back.
    # On a busy machine it may have been silent for too long before: the entries that count are those after the cut.
    deaths, joins = (len(run.entries(kind, nodes["honest"])) for kind in ("node-dead", "node-joined"))
    honest_machine.cut()
    cut = time.time()
    system.until("the silent node is dead", lambda: len(run.entries("node-dead", nodes["honest"])) > deaths, 120)
    files = len(run.entries("accepted", nodes["honest"]))
    honest_machine.mend()
    mended = time.time()
    system.until(
        "the machine has joined again by itself",
        lambda: len(run.entries("node-joined", nodes["honest"])) > joins,
        180,
    )
    rejoined = time.time()
    system.until(
        "its work is accepted again", lambda: len(run.entries("accepted", nodes["honest"])) > files, FILE_SECONDS
    )

    # It leaves in order, and has lost and doubled nothing.
    honest_machine.processes[0].terminate()
    assert honest_machine.processes[0].wait(60) == 0, (run.folder / "honest.log").read_text()[-2000:]
    digests = [entry.digest for entry in run.entries("accepted", nodes["honest"])]
    assert len(digests) == len(set(digests))
    assert not run.entries("rejected", nodes["honest"])

    # Anyone with a copy can see all of it without trusting us.
    copy = run.folder / "copy"
    shutil.copytree(system.store_folder / "shoal" / RUN, copy)
    proof = subprocess.run(
        [SHOAL, "ledger", "verify", str(copy), "--documents", "--run-key", run.config.run_key, "--json"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert proof.returncode == 0, proof.stdout + proof.stderr

    figures = {
        "joined_seconds": round(joined - began, 1),
        "first_accepted_seconds": round(first_accepted - began, 1),
        "eviction_seconds": round(eviction_seconds, 2),
        "evicted_in_ledger_seconds": round(evicted.unix - handed_in, 2),
        "refused_by_relays": {
            url: {"status": each["status"], "seconds": round(each["unix"] - handed_in, 2)}
            for url, each in report["refused"].items()
        },
        "reject_reason": (rejected.detail or "").split(":")[0],
        "relay_token_seconds": RELAY_TOKEN_SECONDS,
        "partition_seconds": round(mended - cut, 1),
        "rejoined_seconds": round(rejoined - mended, 1),
        "accepted_files_of_strangers": len(digests),
        "accepted_files_of_the_cheat": 0,
        "versions_trained_on_strangers_work": system.latest_version(),
        "ledger": "verified with documents, from a copy, by the run key",
    }
    RESULT.write_text(json.dumps(figures, indent=2) + "\n")
