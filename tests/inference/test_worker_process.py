"""One worker process with a real engine, from its start before there is an agent to its end on SIGTERM."""

import re
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
import tiny_policy
from socket_agent import Agent, SocketAgent

import samples
from forked_python import WORKER, start_python
from servers import PLAIN, STARTED_WITH, structured_lines
from shoal.contracts.keys import version_name
from shoal.contracts.pools import EngineSettings
from shoal.contracts.rollouts import Rollout, read_rollouts
from shoal.contracts.run import AgentState, NodeConfig
from shoal.contracts.signed import sign
from shoal.contracts.tasks import tasks_digest
from shoal.contracts.weights import WeightsManifest
from shoal.crypto.keys import PrivateKey
from shoal.inference.rollouts import plan_submission
from shoal.storage.checkpoint_files import MANIFEST_FILE
from shoal.transport.restarts import LOOK_SECONDS

ADDRESS = "127.13.0.5"
ENGINE = EngineSettings(max_sequences=8, kv_cache_bytes=64 << 20)
TRAINER = samples.ROLE_KEYS["trainer"]
PUBLIC = tiny_policy.PUBLIC.model_copy(
    update={
        "tasks_digest": tasks_digest(tiny_policy.TASKS),
        # Long enough that a file takes seconds: what happens meanwhile is what these tests are about.
        "max_sequence_length": 300,
        "sampling": tiny_policy.PUBLIC.sampling.model_copy(update={"max_completion_tokens": 200}),
    }
)
WAITING_STATE = AgentState(node=tiny_policy.NODE, state="Discovered", trainer_key=TRAINER.public)


def publish(home: Path, version: int, seed: int, signer: PrivateKey = TRAINER) -> None:
    """Put a version into `weights/` as the fetcher does: whole, with its signed manifest, by rename."""
    partial = home / "weights" / f"{version}.partial"
    tiny_policy.make_policy(partial, seed)
    manifest = WeightsManifest(
        run="tiny",
        version=version,
        model="tiny-model",
        sha256=f"{version:064x}",
        open_digest="0" * 64,
        shards=["0" * 64],
    )
    (partial / MANIFEST_FILE).write_bytes(sign(manifest, signer).to_json())
    partial.rename(home / "weights" / version_name(version))


START = """
import runpy
import shoal.inference.lease_desk
shoal.inference.lease_desk.POLL_SECONDS = 0.02  # a fast machine generates a lease of the tiny policy in less than a second
runpy.run_module("shoal.inference", run_name="__main__", alter_sys=True)
"""
OUTPACED = f"""
from shoal.inference.engine import Engine

check = Engine.check

def outpaced(engine, folder, *rest):  # the fetcher makes room while the engine starts
    if folder.name == "{version_name(2)}":
        folder.rename(folder.with_name(".old-version"))
    check(engine, folder, *rest)

Engine.check = outpaced
{START}"""


class Process:
    """`python -m shoal.inference` in a pod folder of its own."""

    def __init__(
        self, address: str = ADDRESS, pod: str = "tiny-worker-0", engine: EngineSettings = ENGINE, script: str = START
    ) -> None:
        self._address, self._pod, self._script = address, pod, script
        self._folder = tempfile.TemporaryDirectory()  # short: a socket's path has at most 107 characters
        self.home = Path(self._folder.name)
        (self.home / "tmp").mkdir()
        (self.home / "config").mkdir()
        node = NodeConfig(
            run="tiny",
            pool="pool",
            engine=engine,
            discovery="http://127.0.0.1:1",
            roster=samples.ROSTER,
            run_key=samples.RUN_KEY.public,
        )
        (self.home / "config" / "node.json").write_bytes(node.to_json())
        for name in ("left-behind.parquet", "half-written.partial"):
            (self.home / "tmp" / name).write_bytes(b"of a process before")
        self.log = (self.home / "log").open("w+")
        self.start()

    def get(self, path: str) -> tuple[int, str]:
        """Status and body of the health server; 0 while it does not listen."""
        try:
            with httpx.Client(**PLAIN) as client:
                answer = client.get(f"http://{self._address}:9105{path}")
                return answer.status_code, answer.text
        except httpx.ConnectError:
            return 0, ""

    def start(self) -> None:
        self.process = start_python(
            ["-c", self._script],
            WORKER,
            env=STARTED_WITH | {"SHOAL_HOME": str(self.home), "SHOAL_BIND": self._address, "SHOAL_POD": self._pod},
            stdout=self.log.fileno(),
        )

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._folder.cleanup()


@pytest.fixture(scope="module")
def worker() -> Iterator[Process]:
    process = Process(script=OUTPACED)
    yield process
    process.end()


@pytest.fixture(scope="module")
def agent() -> Agent:
    return Agent(state=WAITING_STATE, tasks=tiny_policy.TASKS)


@pytest.fixture(scope="module")
def served(worker: Process, agent: Agent) -> Iterator[list[SocketAgent]]:
    """The agent's socket, in a list so that a test can replace it."""
    held: list[SocketAgent] = []
    yield held
    for server in held:
        server.close()


Deadline = Callable[..., object]


def rows_of(agent: Agent, index: int) -> list[Rollout]:
    return read_rollouts(agent.files[index][1])[0]


# The tests of this file tell one story, in order, of one process.


def test_it_waits_for_an_agent_and_says_so(worker: Process, served: list[SocketAgent], deadline: Deadline) -> None:
    deadline("the health server", lambda: worker.get("/readyz")[0] == 503, seconds=150)
    assert worker.get("/readyz") == (503, "no weights are loaded yet")
    assert worker.get("/healthz")[0] == 200
    deadline("the wait as a metric", lambda: "the agent to be admitted to a run" in worker.get("/metrics")[1])


def test_weights_that_go_while_the_engine_starts_end_nothing(
    worker: Process, agent: Agent, served: list[SocketAgent], deadline: Deadline
) -> None:
    served.append(SocketAgent(worker.home, agent))
    agent.state = WAITING_STATE.model_copy(update={"state": "Healthy", "public": PUBLIC})
    publish(worker.home, 2, seed=5)
    deadline("the wait for others", lambda: "weights that stay" in worker.get("/metrics")[1], seconds=150)
    assert worker.get("/readyz") == (503, "no weights are loaded yet")
    assert worker.process.poll() is None


def test_it_starts_on_the_first_weights_that_the_trainer_signed(
    worker: Process, agent: Agent, served: list[SocketAgent], deadline: Deadline
) -> None:
    publish(worker.home, 4, seed=9, signer=PrivateKey.generate())
    publish(worker.home, 3, seed=0)
    deadline("a loaded engine", lambda: worker.get("/readyz")[0] == 200, seconds=150)
    assert "shoal_worker_policy_version 3.0" in worker.get("/metrics")[1]
    assert list((worker.home / "tmp").iterdir()) == []
    assert agent.returned == [None], "what a process before it held is given back"


def test_it_hands_in_what_the_beacon_draws(
    worker: Process, agent: Agent, served: list[SocketAgent], deadline: Deadline
) -> None:
    agent.step = tiny_policy.STEP
    deadline("a file", lambda: bool(agent.files), seconds=60)
    handed, data = agent.files[0]
    rows, metadata = read_rollouts(data)
    lease = tiny_policy.LEASE.model_copy(update={"lease": handed.lease, "submission": 0})
    tokenizer = tiny_policy.AutoTokenizer.from_pretrained(worker.home / "weights" / version_name(3))
    planned = plan_submission(
        PUBLIC.codec.decode(tiny_policy.STEP.step),
        tiny_policy.STEP,
        lease,
        PUBLIC,
        tiny_policy.TASKS,
        lambda task, target: tiny_policy.prompt_tokens(tokenizer, tiny_policy.ENVIRONMENT, task, target, None),
    )
    assert handed.groups == 3
    assert metadata.weights_digest == f"{3:064x}"
    assert {row.policy_version for row in rows} == {3}
    assert [row.seed for row in rows] == [row.request.seed for row in planned]
    assert [tuple(row.prompt_tokens) for row in rows] == [row.request.prompt_tokens for row in planned]
    assert all(row.task_reward == 0.0 for row in rows)


def test_it_tells_the_agent_what_it_did(agent: Agent, served: list[SocketAgent], deadline: Deadline) -> None:
    deadline("metrics", lambda: agent.metrics.get("worker_rollouts", 0) >= 24)
    assert agent.metrics["worker_busy_generate_seconds"] > 0
    assert agent.metrics["worker_policy_version"] == 3


def test_it_swaps_to_the_newest_version_that_the_step_allows(
    worker: Process, agent: Agent, served: list[SocketAgent], deadline: Deadline
) -> None:
    agent.step = tiny_policy.STEP.model_copy(update={"step": 7, "min_version": 5, "max_version": 7})
    publish(worker.home, 8, seed=4)
    publish(worker.home, 6, seed=1)
    deadline("a file of version 6", lambda: rows_of(agent, -1)[0].policy_version == 6, seconds=60)
    assert rows_of(agent, -1)[0].step == 7
    assert {rows_of(agent, index)[0].policy_version for index in range(len(agent.files))} == {3, 6}


def test_it_goes_on_when_the_agent_comes_back(
    worker: Process, agent: Agent, served: list[SocketAgent], deadline: Deadline
) -> None:
    served.pop().close()
    time.sleep(2)  # long enough to interrupt whatever the worker is about to ask or to hand in
    before = len(agent.files)
    served.append(SocketAgent(worker.home, agent))
    deadline("another file", lambda: len(agent.files) > before, seconds=60)


def test_refused_leases_are_asked_for_again_and_no_weights_are_swapped_for_them(
    worker: Process, agent: Agent, served: list[SocketAgent], deadline: Deadline
) -> None:
    agent.refuse_leases = True
    deadline("a refusal", lambda: agent.refused >= 1, seconds=60)
    before, served_step = agent.refused, agent.step
    agent.step = tiny_policy.STEP.model_copy(update={"step": 8, "min_version": 8, "max_version": 8})
    deadline("two refusals for version 8", lambda: agent.refused >= before + 3, seconds=60)
    assert "shoal_worker_policy_version 6.0" in worker.get("/metrics")[1]
    agent.step = served_step
    before = agent.leases
    agent.refuse_leases = False
    deadline("another lease", lambda: agent.leases > before, seconds=60)


def test_a_lease_whose_step_is_sealed_is_given_back(
    worker: Process, agent: Agent, served: list[SocketAgent], deadline: Deadline
) -> None:
    assert agent.returned == [None]
    open_step = agent.step
    agent.step = tiny_policy.STEP.model_copy(
        update={"step": 7, "min_version": 5, "max_version": 7, "first_unsealed_step": 8}
    )
    deadline("a lease given back", lambda: len(agent.returned) > 1, seconds=60)
    assert re.search(r'shoal_worker_returned_total\{reason="sealed"\} [1-9]', worker.get("/metrics")[1])
    agent.step = open_step
    before = len(agent.files)
    deadline("another file", lambda: len(agent.files) > before, seconds=60)


def test_killed_at_work_it_leaves_nothing_half_done(
    worker: Process, agent: Agent, served: list[SocketAgent], deadline: Deadline
) -> None:
    leases = agent.leases
    deadline("work on another lease", lambda: agent.leases > leases, seconds=60)
    worker.process.kill()
    worker.process.wait()
    before = len(agent.files)
    worker.start()
    deadline("a file of the next process", lambda: len(agent.files) > before, seconds=120)
    assert agent.returned.count(None) == 2
    for index in range(len(agent.files)):
        assert len(rows_of(agent, index)) == 24
    assert len({handed.lease for handed, _ in agent.files}) == len(agent.files)


def test_when_an_admin_asks_for_a_restart_it_ends_as_on_sigterm_and_its_successor_stays(
    worker: Process, agent: Agent, served: list[SocketAgent], deadline: Deadline
) -> None:
    agent.state = agent.state.model_copy(update={"restarts": 7})
    leases = agent.leases
    deadline("work on another lease", lambda: agent.leases > leases, seconds=60)
    time.sleep(2 * LOOK_SECONDS)  # the number that was there when it looked first is no wish
    assert worker.process.poll() is None
    for smaller in (0, None):  # lost with Redis; an agent that is starting
        agent.state = agent.state.model_copy(update={"restarts": smaller})
        time.sleep(LOOK_SECONDS)
    assert worker.process.poll() is None
    agent.state = agent.state.model_copy(update={"restarts": 8})
    assert worker.process.wait(timeout=60) == 0
    ended = len(agent.files) + sum(name is not None for name in agent.returned)
    taken = agent.leases - ended
    assert 0 <= taken <= agent.most_leases, "but for the leases that the kill took, each is in a file or given back"
    before, returned = len(agent.files), agent.returned.count(None)
    worker.start()
    deadline("a file of the next process", lambda: len(agent.files) > before, seconds=150)
    assert agent.returned.count(None) == returned + 1
    assert worker.process.poll() is None


def test_on_sigterm_it_finishes_what_it_can_and_leaves_cleanly(
    worker: Process, agent: Agent, served: list[SocketAgent], deadline: Deadline
) -> None:
    leases = agent.leases
    deadline("work on another lease", lambda: agent.leases > leases, seconds=60)
    before = len(agent.files)
    worker.process.send_signal(signal.SIGTERM)
    assert worker.process.wait(timeout=30) == 0
    assert len(agent.files) >= before
    # Each lease ended in a file or was given back, but for those that the kill took: the pod gave these back.
    ended = len(agent.files) + sum(name is not None for name in agent.returned)
    assert 0 <= agent.leases - ended <= agent.most_leases
    assert list((worker.home / "tmp").iterdir()) == []
    worker.log.seek(0)
    # vLLM's lines too, and those of what it loads, but for what PyTorch's C++ writes past Python.
    text = re.sub(r"^\[[IWE]\d{4} .*\n", "", worker.log.read(), flags=re.MULTILINE)
    lines = structured_lines(text, role="worker", pod="tiny-worker-0")
    assert {line.get("run") for line in lines} == {"tiny"}
    assert {line.get("node") for line in lines if line["event"] == "file done"} == {tiny_policy.NODE}
    assert not [line for line in lines if "exception" in line]
