"""The node agent as a process: joins by itself, serves its socket, hands files in, and outlives restarts of everybody else."""

import os
import stat
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pydantic import create_model
from structlog.testing import capture_logs

from protocol_stack import GROUPS, PACKAGE, WHEEL, Node, Stack, environment, node_config, ready, verdict_on
from servers import Loopback, Server, wait_until
from shoal.agent import node_key
from shoal.agent import session as agent_session
from shoal.agent.session import Session
from shoal.agent.socket_routes import parse_metrics
from shoal.contracts import keys
from shoal.contracts.base import Contract
from shoal.contracts.pools import Admission, PoolTerms, Requirements
from shoal.contracts.problems import Refusal
from shoal.contracts.protocol import Lease, LeaseRequest, LocalSubmission, StepInfo, SubmissionReceipt
from shoal.contracts.run import AgentState, Prepared, PublicRun
from shoal.contracts.validation import Validation
from shoal.crypto.keys import PrivateKey
from shoal.inference.agent import AgentClient
from shoal.installed import installed_release
from shoal.transport import Refused, SignedClient


class Pod:
    """A pool pod with its agent."""

    def __init__(self, stack: Stack, folder: Path, address: str, code: str = "") -> None:
        self.home = folder
        if code:
            (folder / "secrets").mkdir(parents=True)
            (folder / "secrets" / "invite_code").write_text(code)
        for name in ("config", "key", "run", "tmp", "weights"):
            (folder / name).mkdir(parents=True)
        (folder / "config" / "node.json").write_bytes(node_config(stack).to_json())
        self.agent = Server(
            [sys.executable, "-m", "shoal.agent"], address, 9103, folder, environment(folder, address, "agent")
        )
        self.agent.start()
        self.socket = SignedClient("http://agent", unix_socket=folder / "run" / "agent.sock")

    def state(self) -> AgentState:
        state = self.socket.call("GET", "/v1/state", reply=AgentState)
        assert state is not None
        return state

    def is_healthy(self) -> bool:
        state = self.state()
        return state.state == "Healthy" and state.public is not None

    def step(self) -> StepInfo | None:
        return self.socket.call("GET", "/v1/step", reply=StepInfo)

    def hand_in(self, step: int, name: str) -> SubmissionReceipt:
        lease = self.socket.call("POST", "/v1/leases", LeaseRequest(node=self.state().node, step=step), Lease)
        assert lease is not None
        (self.home / "tmp" / name).write_bytes(f"rollouts {name}".encode())
        return self.submit(lease, name)

    def submit(self, lease: Lease, name: str) -> SubmissionReceipt:
        local = LocalSubmission(lease=lease.lease, file=name, groups=GROUPS)
        receipt = self.socket.call("POST", "/v1/submissions", local, SubmissionReceipt)
        assert receipt is not None
        return receipt


@pytest.fixture
def new_pod(tmp_path: Path, loopback: Loopback) -> Iterator[Callable[[Stack], Pod]]:
    pods: list[Pod] = []

    def start(stack: Stack, code: str = "") -> Pod:
        pods.append(Pod(stack, tmp_path / f"pod{len(pods)}", loopback.address(), code))
        return pods[-1]

    yield start
    for pod in pods:
        pod.agent.stop()


def test_a_strangers_agent_brings_its_code_and_shows_what_the_pool_asks_for(
    new_stack: Callable[..., Stack], new_pod: Callable[..., Pod]
) -> None:
    code = "5c" * 32
    terms = PoolTerms(
        name="pool",
        open=True,
        requirements=Requirements(gflops=1),
        admission=Admission(codes=[PrivateKey.from_seed(bytes.fromhex(code)).public]),
    )
    stack = new_stack(pools=[terms])
    stack.announce(0)
    without, pod = new_pod(stack), new_pod(stack, code)
    wait_until("the agent with the code to be a member", pod.is_healthy)
    said = (pod.home / "log").read_text()
    assert "challenge computed" in said
    assert "challenge passed" in said
    assert without.state().state == "Discovered"


def test_an_agent_joins_and_hands_a_file_in(stack: Stack, new_pod: Callable[[Stack], Pod]) -> None:
    stack.announce(0)
    pod = new_pod(stack)
    wait_until("the agent to be a member", pod.is_healthy)
    state = pod.state()
    assert (state.latest_version, state.relays) == (0, stack.addresses.relays)
    assert state.relay_token is not None
    assert state.trainer_key == stack.role_keys["trainer"].public
    assert stat.S_IMODE(os.stat(pod.home / "run" / "agent.sock").st_mode) == 0o660
    assert stat.S_IMODE(os.stat(pod.home / "key" / "node.pem").st_mode) == 0o600

    worker = AgentClient(pod.home / "run" / "agent.sock")
    assert worker.package(PACKAGE.sha256) == WHEEL
    assert worker.package("ab" * 32) is None

    step = pod.step()
    assert step is not None
    assert pod.hand_in(step.step, "a.parquet").status == "queued"
    job = stack.claim()
    assert job is not None
    assert job.node == state.node
    stack.judge(verdict_on(job))
    assert stack.progress().files_accepted == 1


def test_an_agent_registers_anew_by_itself_when_its_pool_was_forgotten_with_redis(
    new_stack: Callable[..., Stack], new_pod: Callable[..., Pod]
) -> None:
    pools = [PoolTerms(name="pool", open=True), PoolTerms(name="own", sampler="none")]
    stack = new_stack(pools=pools, validation=Validation(probation_files=0))
    stack.announce(0)
    pod = new_pod(stack)
    wait_until("the agent to be a member", pod.is_healthy)
    node = pod.state().node
    held = pod.socket.call("POST", "/v1/leases", LeaseRequest(node=node, step=0), Lease)
    assert held is not None
    stack.client().flushall()
    wait_until("Redis to be made again", lambda: ready(stack.addresses.orchestrator))

    def is_leased() -> bool:
        """Asked as the worker does: the refusal sends the agent to discovery."""
        try:
            return pod.socket.call("POST", "/v1/leases", LeaseRequest(node=node, step=0), Lease) is not None
        except Refused:
            return False

    wait_until("the agent to be a member again", is_leased)
    assert "lost this node's pool with Redis" in (pod.home / "log").read_text()
    (pod.home / "tmp" / "held.parquet").write_bytes(b"rollouts of before")
    assert pod.submit(held, "held.parquet").status == "queued"
    job = stack.claim()
    assert job is not None
    assert job.sampler == "gumbel-murmur3-1"


def test_a_file_is_handed_in_once_however_often_the_worker_asks(stack: Stack, new_pod: Callable[[Stack], Pod]) -> None:
    pod = new_pod(stack)
    wait_until("the agent to be a member", pod.is_healthy)
    step = pod.step()
    assert step is not None
    lease = pod.socket.call("POST", "/v1/leases", LeaseRequest(node=pod.state().node, step=step.step), Lease)
    assert lease is not None
    (pod.home / "tmp" / "twice.parquet").write_bytes(b"the same rollouts")
    before = stack.progress().files_pending
    assert pod.submit(lease, "twice.parquet").status == "queued"
    assert pod.submit(lease, "twice.parquet").status == "queued"
    assert stack.progress().files_pending == before + 1


def test_files_outside_tmp_cannot_be_handed_in(stack: Stack, new_pod: Callable[[Stack], Pod]) -> None:
    pod = new_pod(stack)
    wait_until("the agent to be a member", pod.is_healthy)
    (pod.home / "tmp" / "link").symlink_to(pod.home / "key" / "node.pem")
    lease = Lease(lease="0" * 32, node=pod.state().node, step=0, submission=0, expires_unix=0)
    with pytest.raises(Refused, match="422 Not a plain file"):
        pod.submit(lease, "link")
    with pytest.raises(Refused, match="404 No such file"):
        pod.submit(lease, "nowhere.parquet")
    body = b'{"lease": "%s", "file": "../key/node.pem", "groups": 2}' % (b"0" * 32)
    with pytest.raises(Refused, match=r"422 .*: LocalSubmission: file: String should match pattern"):
        pod.socket.request("POST", "/v1/submissions", body)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"[1]", "expected an object"),
        (b'{"a": NaN}', "a: expected a finite number"),
        (b'{"a": true}', "a: expected a finite number"),
        (b'{"A-b": 1}', "'A-b' is not a metric name"),
        (b"{", "not JSON"),
    ],
)
def test_metrics_that_are_no_numbers_are_refused(body: bytes, words: str) -> None:
    with pytest.raises(Refusal, match=words):
        parse_metrics(body)


def test_the_agent_outlives_restarts_of_discovery_orchestrator_and_redis(
    new_stack: Callable[..., Stack], new_pod: Callable[[Stack], Pod]
) -> None:
    stack = new_stack()
    stack.announce(0)
    pod = new_pod(stack)
    wait_until("the agent to be a member", pod.is_healthy)
    for server in (stack.orchestrator, stack.discovery, stack.redis):
        server.kill()
    for server in (stack.redis, stack.discovery, stack.orchestrator):
        server.start()
    wait_until("the step to be served again", pod.step)
    assert pod.hand_in(0, "after.parquet").status == "queued"
    pod.agent.kill()
    pod.agent.start()
    wait_until("the restarted agent to be a member", pod.is_healthy)
    assert stack.progress().nodes == {"Healthy": 1}


def test_a_node_that_was_declared_dead_joins_again_by_itself(
    new_stack: Callable[..., Stack], new_pod: Callable[[Stack], Pod]
) -> None:
    stack = new_stack()
    pod = new_pod(stack)
    wait_until("the agent to be a member", lambda: pod.state().state == "Healthy")
    hash_name = "shoal:tiny:orchestrator:nodes"
    record = stack.client().hget(hash_name, pod.state().node)
    assert record is not None
    stack.client().hset(hash_name, pod.state().node, str(record).replace('"Healthy"', '"Dead"'))
    wait_until("the orchestrator to see it dead", lambda: stack.progress().nodes == {"Dead": 1})
    with pytest.raises(Refused, match=r"403 Not a member now: node .* is Dead"):
        pod.socket.call("GET", "/v1/step")
    wait_until("the node to be back", lambda: stack.progress().nodes == {"Healthy": 1}, 30)


def test_a_machine_that_does_not_know_a_term_of_the_run_asks_for_no_work_and_says_what_to_do(
    new_stack: Callable[..., Stack], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files would be over a budget that was calibrated for logits in float32."""
    known = {name: (field.annotation, field) for name, field in PublicRun.model_fields.items() if name != "logits"}
    monkeypatch.setattr(agent_session, "PublicRun", create_model("PublicRun", __base__=Contract, **known))
    monkeypatch.setenv("SHOAL_HOME", str(tmp_path))
    stack = new_stack()
    prepared = Prepared.from_json(stack.store.get(keys.PREPARED))
    assert prepared.proof_profile is not None
    profile = prepared.proof_profile.model_copy(update={"dtype": "bfloat16", "logits": "float32"})
    stack.orchestrator.kill()
    stack.store.put(keys.PREPARED, prepared.model_copy(update={"proof_profile": profile}).to_json())
    stack.orchestrator.start()
    wait_until("the orchestrator to be ready", lambda: ready(stack.addresses.orchestrator))

    session, stop = Session(node_config(stack), PrivateKey.generate()), threading.Event()
    thread = threading.Thread(target=session.run, args=(stop,))
    with capture_logs() as said:
        thread.start()
        try:
            wait_until("the machine to say what it waits for", lambda: "upgrade" in session.status().waits_for)
            waits_for = session.status().waits_for
            asks_for_work = session.state().public is not None
            monkeypatch.setattr(agent_session, "PublicRun", PublicRun)  # as if the run were rolled back
            wait_until("the run to be known", lambda: session.state().public is not None)
            wait_until("the machine to wait for nothing", lambda: session.status().waits_for == "")
        finally:
            stop.set()
            thread.join()
    assert f"that {installed_release()} knows: 'logits' 'float32' (known here: none); upgrade this machine" in waits_for
    assert not asks_for_work
    told = [line for line in said if line["event"] == "this machine's software is older than the run"]
    assert len(told) == 1
    assert told[0]["log_level"] == "error"


def test_an_evicted_node_is_told_so_and_gets_nothing(
    new_stack: Callable[..., Stack], new_pod: Callable[[Stack], Pod]
) -> None:
    stack = new_stack()
    stack.announce(0)
    pod = new_pod(stack)
    wait_until("the agent to be a member", pod.is_healthy)
    step = pod.step()
    assert step is not None
    pod.hand_in(step.step, "bad.parquet")
    job = stack.claim()
    assert job is not None
    stack.judge(verdict_on(job, "reject", "reward"))
    with pytest.raises(Refused, match="403 Evicted"):
        pod.step()
    wait_until("the agent to know", lambda: pod.state().state == "Evicted", 30)
    assert pod.state().relay_token is None
    stranger = Node(stack, PrivateKey.load(pod.home / "key" / "node.pem"))
    stranger.register()
    with pytest.raises(Refused, match="403 Evicted"):
        stranger.beat()


def test_a_broken_key_file_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "node.pem"
    path.write_bytes(b"not a key")
    with pytest.raises(ValueError, match="holds no Ed25519 key: restore it from a backup"):
        node_key.load_or_create(path)
    assert path.read_bytes() == b"not a key"


def test_the_key_is_the_same_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "key" / "node.pem"
    assert node_key.load_or_create(path).public == node_key.load_or_create(path).public
    assert [entry.name for entry in path.parent.iterdir()] == ["node.pem"]
