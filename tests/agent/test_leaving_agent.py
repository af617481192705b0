"""What a pod's agent does with leases when the pod ends, or when its worker was killed: real processes."""

import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from test_agent import Pod

from protocol_stack import Stack
from servers import Loopback, wait_until
from shoal.contracts.protocol import HeldByPod, Lease, LeaseRequest, LocalReturn
from shoal.contracts.validation import Validation
from shoal.transport import Refused


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory, loopback: Loopback) -> Iterator[Stack]:
    """Nobody is on probation: a node may hold two leases."""
    running = Stack(tmp_path_factory.mktemp("stack"), loopback.address(), validation=Validation(probation_files=0))
    try:
        running.start()
        yield running
    finally:
        running.close()


@pytest.fixture
def pod(stack: Stack, tmp_path: Path, loopback: Loopback) -> Iterator[Pod]:
    stack.announce(0)
    made = Pod(stack, tmp_path / "pod", loopback.address())
    wait_until("the agent to be a member", made.is_healthy)
    yield made
    made.agent.kill()


def lease(pod: Pod) -> Lease:
    step = pod.step()
    assert step is not None
    given = pod.socket.call("POST", "/v1/leases", LeaseRequest(node=pod.state().node, step=step.step), Lease)
    assert given is not None
    return given


def give_back(pod: Pod, name: str | None) -> None:
    pod.socket.call("POST", "/v1/returns", LocalReturn(lease=name))


def ended(pod: Pod) -> Callable[[], bool]:
    assert pod.agent.process is not None
    process = pod.agent.process
    return lambda: process.poll() is not None


def told(pod: Pod) -> HeldByPod:
    said = pod.socket.call("GET", "/v1/held", reply=HeldByPod)
    assert said is not None
    return said


def test_a_new_worker_gives_back_what_a_killed_one_held(stack: Stack, pod: Pod) -> None:
    before = stack.progress().pending_groups
    held = [lease(pod), lease(pod)]
    assert stack.progress().pending_groups > before
    give_back(pod, None)
    assert stack.progress().pending_groups == before

    def leased_again() -> Lease | None:
        with suppress(Refused):  # the last one that was waited for
            return lease(pod)
        return None

    given = wait_until("the wait for what was dropped to end", leased_again, 60.0, interval=1.0)
    assert given is not None
    assert given.submission == held[0].submission
    give_back(pod, None)


def test_asked_to_end_it_serves_until_the_file_is_handed_in(stack: Stack, pod: Pod) -> None:
    held, other = lease(pod), lease(pod)
    assert told(pod) == HeldByPod(leases=[held, other], handing_in=[], stays=True)
    (pod.home / "tmp" / "late.parquet").write_bytes(b"rollouts of a worker that leaves")
    assert pod.agent.process is not None
    pod.agent.process.send_signal(signal.SIGTERM)

    def refuses_leases() -> bool:
        try:
            given = lease(pod)
        except Refused as refused:
            return refused.code == "pod-ending"
        give_back(pod, given.lease)
        return False

    wait_until("the signal to be seen", refuses_leases)
    assert told(pod) == HeldByPod(leases=[held, other], handing_in=[], stays=False), (
        "no worker follows on one that ends now"
    )
    assert pod.submit(held, "late.parquet").status == "queued"
    give_back(pod, other.lease)
    wait_until("the agent to end", ended(pod))
    assert pod.agent.process.returncode == 0


def test_asked_to_end_with_nothing_held_it_ends(pod: Pod) -> None:
    assert pod.agent.process is not None
    pod.agent.process.send_signal(signal.SIGTERM)
    wait_until("the agent to end", ended(pod))
    assert pod.agent.process.returncode == 0
