"""One engine over two worker processes, each with the folder, the address and the agent of a pod of its own, as a real vLLM runs it on a CPU."""

import json
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import tiny_policy
from socket_agent import Agent, SocketAgent
from test_checked_swap import assembled
from test_engine_variants import errors_of, exact
from test_worker_process import ENGINE, PUBLIC, START, TRAINER, WAITING_STATE, Process, rows_of

from servers import ROOT
from shoal.contracts.hosts import GROUPED, EngineHost, engine_host
from shoal.contracts.keys import version_name
from shoal.contracts.rollouts import Rollout
from shoal.inference.completions import Completion, Request

Deadline = Callable[..., object]

ADDRESSES = ("127.13.9.5", "127.13.9.6")
PODS = ("tiny-pool-2", "tiny-pool-3")
SETTINGS = {
    "ranks": ENGINE.model_copy(update={"tensor_parallel_size": 2, "hosts": 2}),
    "stages": ENGINE.model_copy(update={"pipeline_parallel_size": 2, "hosts": 2}),
}
"""With stages, the further host has the last one: it samples and makes the proofs."""
# There is no cluster's DNS here.
SCRIPT = f"""
from dataclasses import replace
import shoal.contracts.hosts as hosts
found = hosts.engine_host
hosts.engine_host = lambda pod, count, environ: replace(found(pod, count, environ), leader="{ADDRESSES[0]}")
{START}
"""


def test_pods_in_a_row_share_an_engine_and_the_first_leads() -> None:
    places = [engine_host(f"a-run-pool-{ordinal}", 3, {}) for ordinal in range(6)]
    first, second = "a-run-pool-0.a-run-pool", "a-run-pool-3.a-run-pool"
    assert places == [EngineHost(number, 3, leader) for leader in (first, second) for number in range(3)]
    assert [place.leads for place in places if place] == [True, False, False] * 2
    assert engine_host("laptop", 1, {}) is None
    with pytest.raises(ValueError, match=r"engine\.hosts is 2: .* 'laptop' is none"):
        engine_host("laptop", 2, {})


def test_pods_of_a_group_share_an_engine_and_find_its_leader_by_what_leader_worker_set_says() -> None:
    def given(place: str, size: str = "3") -> dict[str, str]:
        return {
            "LWS_LEADER_ADDRESS": "a-run-pool-1.a-run-pool.team",
            "LWS_GROUP_SIZE": size,
            "LWS_WORKER_INDEX": place,
        }

    pods = ["a-run-pool-1", "a-run-pool-1-1", "a-run-pool-1-2"]
    places = [engine_host(pod, 3, given(str(number))) for number, pod in enumerate(pods)]
    assert places == [EngineHost(number, 3, "a-run-pool-1.a-run-pool.team") for number in range(3)]
    for wrong in (given("3"), given(""), given("1", "2")):
        with pytest.raises(ValueError, match=r"engine\.hosts is 3: pod 'a-run-pool-1' is number"):
            engine_host("a-run-pool-1", 3, wrong)
    with pytest.raises(ValueError, match="'a-run-pool-1' does not know its place"):
        engine_host("a-run-pool-1", 3, {GROUPED: "true"})


class Pair:
    """Two pods of one engine."""

    def __init__(self, kind: str) -> None:
        self.kind, settings = kind, SETTINGS[kind]
        self.state = WAITING_STATE.model_copy(update={"state": "Healthy", "public": PUBLIC})
        self.agent = Agent(state=self.state, tasks=tiny_policy.TASKS)
        self.leader, self.further = (
            Process(address, pod, settings, SCRIPT) for address, pod in zip(ADDRESSES, PODS, strict=True)
        )
        self._sockets = [
            SocketAgent(self.leader.home, self.agent),
            SocketAgent(self.further.home, Agent(state=self.state, tasks=[])),
        ]

    def close(self) -> None:
        for served in self._sockets:
            served.close()
        for process in (self.leader, self.further):
            process.end()


@pytest.fixture(scope="module", params=["ranks", pytest.param("stages", marks=pytest.mark.soak)])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    made = Pair(request.param)
    yield made
    made.close()


def events(process: Process, level: str) -> list[dict[str, Any]]:
    """What a process has logged at this level; its ranks' libraries write past our logs."""
    process.log.seek(0)
    said = [json.loads(line) for line in process.log.read().splitlines() if line.startswith("{")]
    return [line for line in said if line["level"] == level]


def requests_of(rows: list[Rollout]) -> list[Request]:
    limit = PUBLIC.sampling.max_completion_tokens
    return [Request(tuple(row.prompt_tokens), row.seed, row.temperature, limit) for row in rows]


def arrives(process: Process, version: int, seed: int) -> None:
    """A version comes as the fetcher puts it there, with the digests that ranks hold its bytes to."""
    made = process.home / "tmp" / f"made-{version}"
    tiny_policy.make_policy(made, seed)
    assembled(made, process.home / "weights" / version_name(version), TRAINER, version)


# The tests of this file tell one story, in order, of one engine.


@pytest.mark.timeout(1000)  # what it waits for has deadlines of its own
def test_a_lease_has_the_tokens_that_one_host_makes_and_proofs_that_a_prefill_confirms(
    pair: Pair, deadline: Deadline
) -> None:
    deadline("the health server", lambda: pair.further.get("/readyz")[0] == 200, seconds=280)
    arrives(pair.leader, 3, seed=0)
    arrives(pair.further, 3, seed=0)
    deadline("an engine over both", lambda: pair.leader.get("/readyz")[0] == 200, seconds=280)
    pair.agent.step = tiny_policy.STEP
    deadline("a file", lambda: bool(pair.agent.files), seconds=150)
    rows = rows_of(pair.agent, 0)
    folder = pair.leader.home / "weights" / version_name(3)
    requests = requests_of(rows)
    asked = [tiny_policy.request_json(request) for request in requests]
    alone = tiny_policy.run_engine(
        [{"do": "start", "folder": str(folder), "length": 300}, {"do": "generate", "requests": asked}]
    ).results[1]
    equal = [list(row.completion_tokens) == completion.tokens for row, completion in zip(rows, alone, strict=True)]
    figures = json.loads((ROOT / "benchmarks/results/citizen.json").read_text())
    assert sum(equal) == len(rows) == figures["multi_host_engine"][pair.kind]
    model = tiny_policy.Qwen3ForCausalLM.from_pretrained(folder).eval()
    made = [Completion(list(row.completion_tokens), [], "stop", row.proofs) for row in rows]
    assert exact(errors_of(model, made, requests=requests))


def test_it_swaps_once_every_host_has_the_version(pair: Pair, deadline: Deadline) -> None:
    pair.agent.step = tiny_policy.STEP.model_copy(update={"step": 7, "min_version": 3, "max_version": 7})
    arrives(pair.leader, 6, seed=1)
    before = len(pair.agent.files)
    deadline("another file", lambda: len(pair.agent.files) > before, seconds=150)
    assert rows_of(pair.agent, -1)[0].policy_version == 3, "the other host does not have the version yet"
    arrives(pair.further, 6, seed=1)
    deadline("a file of version 6", lambda: rows_of(pair.agent, -1)[0].policy_version == 6, seconds=150)
    rows = rows_of(pair.agent, -1)
    model = tiny_policy.Qwen3ForCausalLM.from_pretrained(pair.further.home / "weights" / version_name(6)).eval()
    made = [Completion(list(row.completion_tokens), [], "stop", row.proofs) for row in rows]
    assert exact(errors_of(model, made, requests=requests_of(rows)))


def test_a_killed_host_ends_its_engine_which_says_why_in_one_line(pair: Pair, deadline: Deadline) -> None:
    pair.further.process.kill()
    assert pair.leader.process.wait(timeout=60) == 71
    told = [line for line in events(pair.leader, "error") if "gone" in line["event"]]
    assert [(line["event"], line["host"]) for line in told] == [
        ("a host of this engine is gone: this process ends, and is started again", 1)
    ]


@pytest.mark.soak
def test_both_start_again_and_a_killed_leader_ends_the_others(pair: Pair, deadline: Deadline) -> None:
    pair.further.process.wait(timeout=30)
    before = len(pair.agent.files)
    for process in (pair.leader, pair.further):
        process.start()
    deadline("a file of the next engine", lambda: len(pair.agent.files) > before, seconds=280)
    pair.leader.process.send_signal(signal.SIGKILL)
    assert pair.further.process.wait(timeout=60) == 71
    told = [line["event"] for line in events(pair.further, "error")]
    assert told == ["the first host of this engine is gone: this process ends, and is started again"]
