"""A real worker that ends in the middle of its leases, by kill -9 and by SIGTERM: the next process goes on with the rows in the journal.

Its files equal those of a worker that nobody disturbed, and a real validator accepts them.
"""

import random
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import tiny_policy
from court import CALIBRATED, JOB, OnePolicy, facts_of
from socket_agent import Agent, SocketAgent
from test_worker_process import PUBLIC, WAITING_STATE, Process, publish

from shoal.contracts.rollouts import Rollout, read_rollouts
from shoal.contracts.validation import Validation
from shoal.inference.journal import recover, tried_line
from shoal.inference.journal_files import PUT_AWAY
from shoal.validation.judge import judge
from shoal.validation.policies import LoadedPolicy

Deadline = Callable[..., object]
LONG = PUBLIC.model_copy(
    update={
        "max_sequence_length": 500,
        "sampling": PUBLIC.sampling.model_copy(update={"max_completion_tokens": 400, "groups_per_submission": 1}),
    }
)
"""Rows of a second and more, in leases of one group."""
START = """
import runpy
import shoal.inference.journal_files
shoal.inference.journal_files.EVERY_SECONDS = 0.05  # on a fast machine a lease of the tiny policy takes some seconds
runpy.run_module("shoal.inference", run_name="__main__", alter_sys=True)
"""
ASYNCHRONOUS = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import shoal.inference.engine  # whose variables come before vLLM
from asynchronous import schedule_asynchronously
schedule_asynchronously()
{START}
"""
LEASES = 6


class Node:
    """A worker's process over the socket of an agent that knows what is held."""

    def __init__(self, address: str, pod: str, script: str = START) -> None:
        self.process = Process(address, pod, script=script)
        self.agent = Agent(state=WAITING_STATE, tasks=tiny_policy.TASKS, step=tiny_policy.STEP, remembers=True)
        self.agent.state = WAITING_STATE.model_copy(update={"state": "Healthy", "public": LONG})
        publish(self.process.home, 3, seed=0)
        self.server = SocketAgent(self.process.home, self.agent)

    def end(self) -> None:
        self.process.process.kill()
        self.process.process.wait()
        self.server.close()
        self.process.end()

    @property
    def journals(self) -> list[Path]:
        return sorted((self.process.home / "tmp").glob("*.journal"))

    def is_in_the_middle(self) -> bool:
        """Whether some row of a lease that is not handed in is kept to a proof and not to its end."""
        for path in self.journals:
            said = recover(path.read_bytes()) if path.exists() else None
            if said is not None and not said.tried:
                kept = [made for made in said.rows.values() if made.finish_reason == "cut"]
                if any(len(made.tokens) >= 64 for made in kept):
                    return True
        return False

    def resumed(self) -> int:
        """How often a process said that it goes on with a lease."""
        text = (self.process.home / "log").read_text()
        return text.count("goes on with the rows of the process before")

    def files(self) -> dict[int, tuple[list[Rollout], bytes]]:
        """Rows and bytes of the files so far, by submission."""
        found = {}
        for _, data in list(self.agent.files):
            rows = read_rollouts(data)[0]
            found[rows[0].submission] = rows, data
        return found


@pytest.fixture(scope="module")
def undisturbed(deadline: Deadline) -> Iterator[Node]:
    node = Node("127.13.0.41", "undisturbed-0")
    deadline("files of a worker that nobody disturbs", lambda: len(node.agent.files) >= LEASES, seconds=300)
    node.process.process.kill()
    node.process.process.wait()
    yield node
    node.end()


@pytest.fixture(scope="module")
def node(undisturbed: Node) -> Iterator[Node]:
    """It begins when the other one has ended: both draw for the first submissions."""
    made = Node("127.13.0.42", "disturbed-0")
    yield made
    made.end()


def accepted(node: Node, folder: Path, rows: list[Rollout], data: bytes) -> bool:
    """The verdict of a validator that looks at every row and draws its tokens again."""
    weights = node.process.home / "weights" / "v000003"
    model = tiny_policy.Qwen3ForCausalLM.from_pretrained(weights).eval()
    tokenizer = tiny_policy.AutoTokenizer.from_pretrained(weights)
    policies = OnePolicy(LoadedPolicy(3, f"{3:064x}", model))
    validation = Validation(proof_rows_share=1.0, proof_rows_floor=8, thresholds=CALIBRATED)
    facts = facts_of(tiny_policy.ENVIRONMENT, tiny_policy.TASKS, tokenizer, LONG, validation=validation)
    path = folder / "upload.parquet"
    path.write_bytes(data)
    told = {"lease": "00" * 16, "submission": rows[0].submission, "size": len(data)}
    verdict = judge(path, JOB.model_copy(update=told), facts, policies, random.Random(0))
    assert verdict.outcome == "accept", (verdict.reason, verdict.evidence)
    return verdict.proof_rows == len(rows)


def same(ours: list[Rollout], theirs: list[Rollout]) -> None:
    """Equal rows, but for the rounding of a prefix that is computed at once."""
    for one, other in zip(ours, theirs, strict=True):
        assert list(one.completion_logprobs) == pytest.approx(list(other.completion_logprobs), abs=1e-3)
        assert len(one.proofs) == len(other.proofs)
        plain = {"completion_logprobs": (), "proofs": b""}
        assert replace(one, **plain) == replace(other, **plain)


def test_killed_in_the_middle_of_a_lease_it_goes_on_and_its_file_is_that_of_an_undisturbed_worker(
    node: Node, undisturbed: Node, deadline: Deadline, tmp_path: Path
) -> None:
    deadline("a lease in the middle", node.is_in_the_middle, seconds=200)
    node.process.process.kill()
    node.process.process.wait()
    held, before = {*node.agent.held}, len(node.agent.files)
    kept = [said for path in node.journals if (said := recover(path.read_bytes())) is not None]
    assert held
    assert {said.heading.lease for said in kept} <= held | {handed.lease for handed, _ in node.agent.files}
    node.process.start()
    deadline("files of the next process", lambda: len(node.agent.files) >= before + 2, seconds=300)
    assert node.resumed() >= 1
    of_kept = [said.heading.lease for said in kept if said.rows and said.heading.lease in held]
    assert not {*of_kept} & {*node.agent.returned}, "what goes on is not given back"
    assert {*of_kept} & {handed.lease for handed, _ in node.agent.files}
    assert node.agent.returned.count(None) == 1, "the first process's"
    seeds = {seed for said in kept for seed in said.rows}
    ours, theirs = node.files(), undisturbed.files()
    taken = [number for number in ours.keys() & theirs.keys() if seeds & {row.seed for row in ours[number][0]}]
    assert taken
    for number in taken:
        same(ours[number][0], theirs[number][0])
        assert accepted(node, tmp_path, *ours[number])


def test_killed_with_a_step_under_way_it_goes_on_and_its_files_are_those_of_a_worker_that_waits_for_each(
    undisturbed: Node, deadline: Deadline, tmp_path: Path
) -> None:
    node = Node("127.13.0.43", "early-0", ASYNCHRONOUS)
    try:
        deadline("a lease in the middle", node.is_in_the_middle, seconds=200)
        node.process.process.kill()
        node.process.process.wait()
        node.process.start()
        deadline("files of both processes", lambda: len(node.agent.files) >= LEASES, seconds=300)
        assert node.resumed() >= 1
        ours, theirs = node.files(), undisturbed.files()
        assert ours.keys() & theirs.keys()
        for number, (rows, data) in ours.items():
            assert accepted(node, tmp_path, rows, data)
            if number in theirs:
                same(rows, theirs[number][0])
    finally:
        node.end()


def test_asked_to_end_it_leaves_its_rows_to_the_next_process(
    node: Node, undisturbed: Node, deadline: Deadline, tmp_path: Path
) -> None:
    node.agent.stays = True
    for _ in range(5):  # by the time that it has heard of its end, each row that runs may have no whole proof yet
        deadline("a lease in the middle", node.is_in_the_middle, seconds=200)
        resumed = node.resumed()
        node.process.process.send_signal(signal.SIGTERM)
        assert node.process.process.wait(timeout=60) == 0
        held = {*node.agent.held}
        kept = [said for path in node.journals if (said := recover(path.read_bytes())) is not None]
        assert {said.heading.lease for said in kept} == held, "no lease went back, and each has its journal"
        begun = {said.heading.lease for said in kept if said.rows}
        if begun:
            break
        node.process.start()
    assert begun
    before = len(node.agent.files)
    node.process.start()
    deadline("their files", lambda: begun <= {handed.lease for handed, _ in node.agent.files[before:]}, seconds=300)
    assert node.resumed() == resumed + len(begun)
    assert not begun & {*node.agent.returned}, "a lease of which no row had begun goes back"
    seeds = {seed for said in kept for seed in said.rows}
    for number, (rows, data) in node.files().items():
        if seeds & {row.seed for row in rows}:
            if number in undisturbed.files():
                same(rows, undisturbed.files()[number][0])
            assert accepted(node, tmp_path, rows, data)


def test_a_journal_that_brought_nothing_the_first_time_is_put_away_and_its_lease_goes_back(
    node: Node, deadline: Deadline
) -> None:
    deadline("a lease in the middle", node.is_in_the_middle, seconds=200)
    node.process.process.kill()
    node.process.process.wait()
    held, journals, resumed = {*node.agent.held}, node.journals, node.resumed()
    for path in journals:  # as a process leaves it that crashes before a second is over
        with path.open("ab") as file:
            file.write(tried_line())
    before = len(node.agent.files)
    node.process.start()
    deadline("a file of the next process", lambda: len(node.agent.files) > before, seconds=300)
    assert node.resumed() == resumed
    assert (node.process.home / "tmp" / PUT_AWAY).exists()
    assert not held & {handed.lease for handed, _ in node.agent.files[before:]}
    assert node.agent.returned[-1] is None or held <= {*node.agent.returned}
