"""An admin's restart of a node that is a pod: the real agent and the real `fetch`, whose container would be started again by Kubernetes.

That a worker in the middle of a file ends as on SIGTERM is in `tests/inference/test_worker_process.py`.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from test_agent import Pod

from protocol_stack import ADMIN_TOKEN, Stack, environment
from servers import PLAIN, Loopback, Server, wait_until
from shoal.transport.restarts import EXIT_HUNG, LOOK_SECONDS

HANGS = """
import sys, threading, time
from pathlib import Path
from shoal.transport import restarts
restarts.FORCE_SECONDS = 0.5
restarts.end_when_restarted(Path(sys.argv[1]))
print("watches", flush=True)
while True:
    time.sleep(60)
"""


@pytest.fixture
def pod(stack: Stack, tmp_path: Path, loopback: Loopback) -> Iterator[Pod]:
    stack.announce(0)
    made = Pod(stack, tmp_path / "pod", loopback.address())
    wait_until("the agent to be a member", made.is_healthy)
    wait_until("the agent to tell of restarts", lambda: made.state().restarts is not None)
    yield made
    made.agent.kill()


@pytest.fixture
def fetch(pod: Pod) -> Iterator[Server]:
    command = [sys.executable, "-m", "shoal.broadcast.fetch"]
    made = Server(command, pod.agent.address, 9104, pod.home, environment(pod.home, pod.agent.address, "fetch"))
    made.start()
    yield made
    made.stop()


def ask_for_restart(stack: Stack, pod: Pod) -> None:
    answer = httpx.post(
        f"{stack.addresses.orchestrator}/v1/admin/nodes/{pod.state().node}/restart",
        headers={"Authorization": f"Bearer {ADMIN_TOKEN}"},
        **PLAIN,
    )
    assert answer.status_code == 200, answer.text


def exit_code(server: Server) -> int:
    assert server.process is not None
    process = server.process
    wait_until("the process to end", lambda: process.poll() is not None, seconds=60)
    assert process.returncode is not None
    return process.returncode


def test_each_restart_ends_each_process_of_the_pod_once_and_leaves_the_agent(
    stack: Stack, pod: Pod, fetch: Server
) -> None:
    time.sleep(2 * LOOK_SECONDS)
    for _ in range(2):
        before = pod.state().restarts
        ask_for_restart(stack, pod)
        assert exit_code(fetch) == 0
        assert before is not None
        assert (pod.state().restarts or 0) > before
        fetch.start()  # as a kubelet does
        time.sleep(2 * LOOK_SECONDS)
        assert fetch.process is not None
        assert fetch.process.poll() is None, "the new process knows that it is the one that was asked for"
    assert pod.is_healthy()
    assert "an admin asked for a restart: this process ends" in (pod.home / "log").read_text()


def test_a_restart_that_redis_forgot_is_no_wish_and_the_next_one_is(stack: Stack, pod: Pod, fetch: Server) -> None:
    ask_for_restart(stack, pod)
    assert exit_code(fetch) == 0
    fetch.start()
    told = pod.state().restarts
    stack.client().flushall()
    pod.agent.stop()
    pod.agent.start()  # what it knew is gone too
    wait_until("the agent to be a member again", pod.is_healthy, seconds=60)
    wait_until("the agent to tell of restarts", lambda: pod.state().restarts is not None)
    assert (pod.state().restarts or 0) < (told or 0)
    time.sleep(2 * LOOK_SECONDS)
    assert fetch.process is not None
    assert fetch.process.poll() is None
    ask_for_restart(stack, pod)
    assert exit_code(fetch) == 0


def test_a_process_that_hangs_is_ended(stack: Stack, pod: Pod) -> None:
    hanging = subprocess.Popen(
        [sys.executable, "-c", HANGS, str(pod.home / "run" / "agent.sock")],
        env={"PATH": os.environ["PATH"], **environment(pod.home, pod.agent.address, "worker")},
        stdout=subprocess.PIPE,
    )
    try:
        assert hanging.stdout is not None
        assert hanging.stdout.readline() == b"watches\n"
        time.sleep(2 * LOOK_SECONDS)
        ask_for_restart(stack, pod)
        assert hanging.wait(60) == EXIT_HUNG
    finally:
        hanging.kill()
