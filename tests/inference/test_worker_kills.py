"""kill -9 of the worker at moments all over a file's life: nothing half done is ever handed over, and what was held is given back."""

import time
from collections.abc import Callable, Iterator

import pytest
import tiny_policy
from socket_agent import Agent, SocketAgent
from test_worker_process import PUBLIC, WAITING_STATE, Process, publish, rows_of

Deadline = Callable[..., object]

MOMENTS = (0.0, 0.05, 0.3, 0.8, 1.2, 1.5, 1.8, 2.2)
"""Seconds after a lease was given: prompts are drawn, tokens come, rows are scored, the file is written and handed over."""


@pytest.fixture
def killed() -> Iterator[Process]:
    process = Process()
    yield process
    process.end()


@pytest.mark.soak
def test_whenever_it_is_killed_files_are_whole_and_each_lease_has_one_end(killed: Process, deadline: Deadline) -> None:
    agent = Agent(state=WAITING_STATE, tasks=tiny_policy.TASKS, step=tiny_policy.STEP)
    agent.state = WAITING_STATE.model_copy(update={"state": "Healthy", "public": PUBLIC})
    publish(killed.home, 3, seed=0)
    server = SocketAgent(killed.home, agent)
    try:
        for kills, moment in enumerate(MOMENTS):
            leases = agent.leases
            deadline("a lease", lambda before=leases: agent.leases > before, seconds=200)
            time.sleep(moment)
            killed.process.kill()
            killed.process.wait()
            killed.start()
            deadline("the next process to give back", lambda n=kills: agent.returned.count(None) == n + 2, seconds=200)
            assert list((killed.home / "tmp").glob("*.p*")) == []
        before = len(agent.files)
        deadline("a file of the last process", lambda: len(agent.files) > before, seconds=200)
    finally:
        server.close()
    for index in range(len(agent.files)):
        rows = rows_of(agent, index)
        assert len(rows) == 24
        assert all(row.proofs and len(row.completion_tokens) == len(row.completion_logprobs) for row in rows)
    names = [handed.lease for handed, _ in agent.files]
    assert len(set(names)) == len(names)
    # What is neither in a file nor given back by name was held by a process that was killed, one lease each at most.
    assert agent.leases - len(names) - sum(name is not None for name in agent.returned) <= len(MOMENTS) + 1
