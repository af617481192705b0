"""Files of an evaluation are judged like any other, by the benchmark's environment, tasks and sampling, on rows that a real engine made."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
import tiny_policy
from court import JOB, METADATA, VERSION, Court

from shoal.contracts.completions import Sampling
from shoal.contracts.evaluation import BenchmarkTerms
from shoal.contracts.protocol import Lease, StepInfo, ValidationJob
from shoal.contracts.rollouts import Rollout
from shoal.contracts.verdicts import Verdict
from shoal.environments import Score
from shoal.environments.prompts import prompt_tokens
from shoal.environments.tokens import completion_text
from shoal.inference.assignments import WorkContext, as_run
from shoal.inference.completions import Completion
from shoal.inference.rollouts import PlannedRow, assemble, plan_submission
from shoal.sampling.draw import beacon, beacon_commitment
from shoal.validation.setup import with_benchmarks

TERMS = BenchmarkTerms(
    name="sums",
    environment="arithmetic",
    environment_digest=tiny_policy.PUBLIC.environment_digest,
    tasks_digest="cd" * 32,
    task_count=7,
    samples=3,
    sampling=Sampling(temperature=0.6, max_completion_tokens=30, groups_per_submission=4),
    target_length=40,
)
TASKS = tiny_policy.ENVIRONMENT.tasks(7, seed=11)
PUBLIC = tiny_policy.PUBLIC.model_copy(update={"benchmarks": [TERMS]})
NUMBER = PUBLIC.codec.first_number(VERSION) + 1  # the last slice: its first task is the slice's before it
BEACON = beacon(b"secret", "tiny", PUBLIC.codec.first_number(VERSION))
STEP = tiny_policy.STEP.model_copy(
    update={
        "step": NUMBER,
        "beacon": BEACON.hex(),
        "commitment": beacon_commitment(BEACON),
        "min_version": VERSION,
        "max_version": VERSION,
    }
)
LEASE = tiny_policy.LEASE.model_copy(update={"step": NUMBER})
SLICE_JOB = JOB.model_copy(
    update={"step": NUMBER, "beacon": BEACON.hex(), "min_version": VERSION, "max_version": VERSION}
)


@dataclass
class Bench:
    """A court that knows the benchmark, and what an honest engine answered."""

    court: Court
    planned: list[PlannedRow]
    answers: list[Completion]
    colder: list[Completion]

    def rows(self, answers: Sequence[Completion] | None = None, version: int = VERSION) -> list[Rollout]:
        facts = self.court.facts

        def score(task: object, tokens: Sequence[int], mask: Sequence[bool]) -> float | None:
            text = completion_text(facts.tokenizer, tokens, facts.eos_token_ids)
            found = facts.environment.score(task, text)
            return found.task_reward if isinstance(found, Score) else None

        return assemble(self.planned, answers or self.answers, LEASE, as_run(PUBLIC, TERMS), version, score)

    def judged(self, rows: list[Rollout], job: ValidationJob = SLICE_JOB) -> Verdict:
        return self.court.judge(rows, METADATA, job)


def planned_slice(court: Court, step: StepInfo = STEP, lease: Lease = LEASE) -> list[PlannedRow]:
    context = WorkContext(as_run(PUBLIC, TERMS), tiny_policy.ENVIRONMENT, TASKS)
    tokenizer = court.facts.tokenizer
    return plan_submission(
        PUBLIC.codec.decode(step.step),
        step,
        lease,
        context.public,
        context.tasks,
        lambda task, target: prompt_tokens(tokenizer, context.environment, task, target, None),
    )


@pytest.fixture(scope="module")
def bench(court: Court) -> Bench:
    planned = planned_slice(court)
    colder = [replace(row.request, temperature=0.05) for row in planned]
    engine = tiny_policy.run_engine(
        [
            {"do": "start", "folder": str(court.made.folder["old"])},
            {"do": "generate", "requests": [tiny_policy.request_json(row.request) for row in planned]},
            {"do": "generate", "requests": [tiny_policy.request_json(request) for request in colder]},
        ]
    )
    facts = with_benchmarks(court.facts, {"sums": (TERMS, tiny_policy.ENVIRONMENT, TASKS)})
    return Bench(replace(court, facts=facts), planned, *engine.results[1:])


def test_an_honest_slice_is_accepted_with_lengths_and_what_was_cut(bench: Bench) -> None:
    assert {row.prompt_index for row in bench.planned} == {3, 4, 5, 6}
    verdict = bench.judged(bench.rows())
    assert (verdict.outcome, verdict.evidence) == ("accept", "")
    assert verdict.rows == len(verdict.completion_lengths) == 12
    assert verdict.completion_lengths == [len(answer.tokens) for answer in bench.answers]
    assert verdict.cut_rows == [row for row, made in enumerate(bench.answers) if made.finish_reason == "length"]
    assert all(reward.length_penalty == 0.0 for reward in verdict.rewards), "a length is asked for and costs nothing"


def test_a_file_of_a_step_of_the_same_run_is_judged_by_the_run_and_tells_no_lengths(bench: Bench) -> None:
    verdict = bench.court.judge(bench.court.rows(bench.court.made.old))
    assert (verdict.outcome, verdict.completion_lengths) == ("accept", [])


def test_the_run_s_own_temperature_is_not_a_benchmark_s(bench: Bench) -> None:
    verdict = bench.judged([replace(row, temperature=0.8) for row in bench.rows()])
    assert (verdict.reason, verdict.evidence) == (
        "sampling",
        "row 0: temperature is 0.800000011920929, the run samples at 0.6",
    )


def test_answers_sampled_colder_than_claimed_are_rejected(bench: Bench) -> None:
    verdict = bench.judged(bench.rows(bench.colder))
    assert (verdict.outcome, verdict.reason) == ("reject", "redraw")


def test_another_slice_of_the_same_benchmark_is_rejected(bench: Bench) -> None:
    verdict = bench.judged(bench.rows(), SLICE_JOB.model_copy(update={"step": NUMBER - 1}))
    assert (verdict.outcome, verdict.reason) == ("reject", "identity")
    moved = [replace(row, step=NUMBER - 1) for row in bench.rows()]
    verdict = bench.judged(moved, SLICE_JOB.model_copy(update={"step": NUMBER - 1}))
    assert (verdict.outcome, verdict.reason) == ("reject", "sampling")


def test_an_older_version_s_answers_are_not_taken_for_this_one_s(bench: Bench) -> None:
    assert bench.judged(bench.rows(version=VERSION - 1)).outcome == "expired"
    assert bench.judged(bench.rows(version=VERSION + 1)).reason == "identity"


def test_a_number_of_no_benchmark_is_inconclusive(bench: Bench) -> None:
    without = replace(bench.court, facts=replace(bench.court.facts, benchmarks={}))
    assert without.judge(bench.rows(), METADATA, SLICE_JOB).outcome == "inconclusive"
