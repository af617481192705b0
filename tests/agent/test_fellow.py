"""The agents of an engine's two pods, as processes: the further one has no key and passes on what the leading one tells."""

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

import samples
from servers import STARTED_WITH, Loopback
from shoal.agent.agent import HEALTH_PORT
from shoal.contracts.pools import EngineSettings
from shoal.contracts.run import AgentState, NodeConfig
from shoal.transport import SignedClient, Unavailable

SCRIPT = """
import runpy, sys
from dataclasses import replace
import shoal.contracts.hosts as hosts
found = hosts.engine_host
hosts.engine_host = lambda pod, count, environ: replace(found(pod, count, environ), leader=sys.argv[1])  # there is no cluster's DNS here
runpy.run_module("shoal.agent", run_name="__main__", alter_sys=True)
"""


class PodAgent:
    """`python -m shoal.agent` of the pod `tiny-pool-<number>`."""

    def __init__(self, number: int, address: str, leader: str) -> None:
        self._folder = tempfile.TemporaryDirectory()  # short: a socket's path has at most 107 characters
        self.home, self.address = Path(self._folder.name), address
        for name in ("config", "key", "run", "tmp"):
            (self.home / name).mkdir()
        config = NodeConfig(
            run="tiny",
            pool="pool",
            engine=EngineSettings(tensor_parallel_size=2, hosts=2),
            discovery="http://127.0.0.1:1",
            roster=samples.ROSTER,
            run_key=samples.RUN_KEY.public,
        )
        (self.home / "config" / "node.json").write_bytes(config.to_json())
        pod = {"SHOAL_HOME": str(self.home), "SHOAL_BIND": address, "SHOAL_POD": f"tiny-pool-{number}"}
        self.process = subprocess.Popen([sys.executable, "-c", SCRIPT, leader], env=STARTED_WITH | pod)
        self._client = SignedClient("http://agent", unix_socket=self.home / "run" / "agent.sock")

    def state(self) -> AgentState | None:
        try:
            return self._client.call("GET", "/v1/state", reply=AgentState, deadline_seconds=0.0)
        except Unavailable:
            return None

    def drops_metrics(self) -> bool:
        return self._client.request("POST", "/v1/metrics", b'{"a": 1}', deadline_seconds=1.0).status_code == 204

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self._folder.cleanup()


@pytest.fixture
def agents(loopback: Loopback) -> Iterator[list[PodAgent]]:
    first, second = loopback.address(), loopback.address()
    made = [PodAgent(0, first, first), PodAgent(1, second, first)]
    yield made
    for each in made:
        each.end()


def test_a_further_pod_learns_what_the_leading_one_knows_and_is_no_node(
    agents: list[PodAgent], deadline: Callable[..., AgentState]
) -> None:
    leading, further = agents
    deadline("the leading agent", leading.state, seconds=60)
    told = deadline("the further agent", further.state, seconds=60)
    known = leading.state()
    assert known is not None
    assert (told.node, told.trainer_key, told.restarts) == (known.node, known.trainer_key, known.restarts)
    assert further.drops_metrics()
    with pytest.raises(HTTPError, match="404"):  # Prometheus' namespace reaches this port, and a token is in the state
        urlopen(f"http://{leading.address}:{HEALTH_PORT}/v1/state", timeout=10)
    assert [(each.home / "key" / "node.pem").exists() for each in agents] == [True, False]
    leading.process.kill()
    leading.process.wait()
    deadline("the end to be noticed", lambda: further.state() is None, seconds=30)
