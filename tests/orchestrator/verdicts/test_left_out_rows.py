"""Rows that files go without: whose they are is in the ledger, and a node that leaves out too many loses its file and no more."""

from pathlib import Path

import pytest

from protocol_stack import verdict_on
from run_states import Orchestrator
from servers import Redis
from shoal.contracts.protocol import ValidationJob
from shoal.contracts.recipe import Recipe
from shoal.contracts.thresholds import DrawnGaps, ProofThresholds
from shoal.contracts.validation import Validation
from shoal.contracts.verdicts import UNSCORED, Verdict
from shoal.ledger.entries import Accepted
from shoal.orchestrator.verdicts.verdicts import decide

TOKENS = 100
GAPS = DrawnGaps(share=0.001, mean=1e-5, deviation=1e-3, largest=0.05, outliers=0.001)


def orchestrator(folder: Path, redis_url: str, outliers: float | None) -> Orchestrator:
    thresholds = ProofThresholds(drawn_gaps=GAPS.model_copy(update={"outliers": outliers}))
    run = Orchestrator(
        folder,
        redis_url,
        validation=Validation(claim_seconds=60, probation_files=0, thresholds=thresholds),
        recipe=Recipe(prompts_per_step=64, group_size=2, max_sequence_length=128),
    )
    run.announce(0)
    return run


@pytest.fixture
def run(tmp_path: Path, redis_server: Redis) -> Orchestrator:
    """A run of which one file in a hundred has an outlier."""
    return orchestrator(tmp_path, redis_server.url, 1e-4)


def without(job: ValidationJob, *rows: int) -> Verdict:
    verdict = verdict_on(job)
    rewards = [UNSCORED if number in rows else reward for number, reward in enumerate(verdict.rewards)]
    return Verdict.model_validate({**verdict.model_dump(), "rewards": rewards, "left_out": list(rows)})


def judged(run: Orchestrator, node: str, *rows: int, looked_at: int | None = None) -> str:
    """What becomes of a file without these rows, of which all rows were looked at or so many."""
    run.clock.now += 3600.0
    lease = run.lease_in_time(node)
    sha256 = run.confirm(lease, run.upload(lease)).sha256
    verdict = without(run.claimed(), *rows)
    run.judge(verdict.model_copy(update={"proof_rows": verdict.rows if looked_at is None else looked_at}))
    return run.state.view.settled.get((node, sha256), "lost")


def test_the_ledger_names_the_rows_that_a_file_goes_without(run: Orchestrator) -> None:
    node = run.join()
    assert judged(run, node, 2) == "accepted"
    [file] = run.state.view.accepted[0]
    assert isinstance(file, Accepted)
    assert file.left_out == [2]
    assert (run.state.view.files_of[node].left_out, run.state.view.files_of[node].looked_at) == (1, TOKENS)
    run.restarted()
    assert run.state.view.files_of[node].left_out == 1, "the record is the ledger's"


def test_a_group_with_a_single_row_left_does_not_count(run: Orchestrator) -> None:
    judged(run, run.join(), 2)
    [file] = run.state.view.accepted[0]
    assert (file.groups, file.counted_groups) == (2, 1)


def test_a_node_that_leaves_out_a_row_of_each_file_loses_files_and_stays(run: Orchestrator) -> None:
    node = run.join()
    room = run.state.nodes.get(node)
    outcomes = [judged(run, node, 0) for _ in range(8)]
    assert outcomes[:2] == ["accepted", "lost"]
    assert outcomes.count("accepted") <= 2
    record = run.state.nodes.get(node)
    assert room is not None
    assert record is not None
    assert record.room < room.room, "it costs what a dropped lease does"
    assert node not in run.state.view.evicted
    assert judged(run, node) == "accepted", "a whole file of the same node counts"


def test_honest_files_make_room_for_the_next_outlier(run: Orchestrator) -> None:
    node = run.join()
    assert [judged(run, node, 0), judged(run, node, 1)] == ["accepted", "lost"]
    for _ in range(8):
        assert judged(run, node) == "accepted"
    assert judged(run, node, 1) == "accepted"


def test_rows_that_nobody_looked_at_make_no_room(run: Orchestrator) -> None:
    node = run.join()
    assert judged(run, node, 0) == "accepted"
    for _ in range(8):
        assert judged(run, node, looked_at=1) == "accepted"
    files = run.state.view.files_of[node]
    assert files.looked_at == TOKENS + 8 * TOKENS // 4
    run.restarted()
    assert run.state.view.files_of[node].looked_at == files.looked_at
    assert judged(run, node, 1, looked_at=1) == "lost"


def test_no_row_is_left_out_where_no_rate_is_known(tmp_path: Path, redis_server: Redis) -> None:
    run = orchestrator(tmp_path, redis_server.url, None)
    assert judged(run, run.join(), 0) == "lost"


def test_a_file_is_lost_only_where_it_would_have_been_accepted() -> None:
    job = ValidationJob(
        claim="aa" * 16, run="tiny", node="ab" * 32, lease="cd" * 16, step=0, submission=0, sha256="ef" * 32, size=1, beacon="0" * 64,
        min_version=0, max_version=0,
    )  # fmt: skip
    asked = {"validator": "a", "alone": False, "window": (0, 0), "spent": "too many"}
    assert decide(verdict_on(job), "d", (), sealed=False, **asked).kind == "lost"
    assert decide(verdict_on(job), "d", (), sealed=True, **asked).kind == "expire"


@pytest.mark.parametrize("rows", [[1, 0], [0, 0], [99], [-1]])
def test_rows_that_a_verdict_leaves_out_are_rows_of_its_file_in_order(rows: list[int]) -> None:
    job = ValidationJob(
        claim="aa" * 16, run="tiny", node="ab" * 32, lease="cd" * 16, step=0, submission=0, sha256="ef" * 32, size=1, beacon="0" * 64,
        min_version=0, max_version=0,
    )  # fmt: skip
    with pytest.raises(ValueError, match="left_out names rows of the file, ascending, each once"):
        without(job, *rows)
    with pytest.raises(ValueError, match="a row that is left out has no reward"):
        Verdict.model_validate({**verdict_on(job).model_dump(), "left_out": [0]})
