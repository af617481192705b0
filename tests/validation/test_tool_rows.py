"""Rows with tools, from a real engine's file to the verdict: honest ones are accepted, and one dishonest worker of each kind is rejected by name."""

import dataclasses
from collections.abc import Sequence

import pytest
import tiny_policy
import tool_policy
from court import DIGEST, JOB, METADATA, VERSION, Court, OnePolicy, facts_of
from tool_policy import CALL, ENVIRONMENT, EOS, LEASE, PUBLIC, REST, RESULT, TASKS, ToolScenario

from shoal.contracts.rollouts import Rollout, sampled_stretches
from shoal.contracts.verdicts import Verdict
from shoal.environments import Unscorable
from shoal.environments.episodes import Tools
from shoal.environments.tool import Tool
from shoal.toploc import codec
from shoal.validation.policies import LoadedPolicy
from shoal.validation.prefill import prefill

replace = dataclasses.replace
LEASED = JOB.model_copy(update={"lease": LEASE.lease, "submission": LEASE.submission})


@pytest.fixture(scope="session")
def made() -> ToolScenario:
    return tool_policy.tool_scenario()


@pytest.fixture(scope="session")
def bench(made: ToolScenario, tmp_path_factory: pytest.TempPathFactory) -> Court:
    """The court of a run with tools."""
    facts = facts_of(ENVIRONMENT, TASKS, made.tokenizer, PUBLIC)
    policies = OnePolicy(LoadedPolicy(VERSION, DIGEST, made.model))
    return Court(made, facts, policies, tmp_path_factory.mktemp("bench"))


@pytest.fixture(scope="session")
def rows(made: ToolScenario) -> list[Rollout]:
    """The file of an honest worker."""
    return made.rows


def judge(bench: Court, rows: list[Rollout]) -> Verdict:
    return bench.judge(rows, metadata=replace(METADATA, environment_digest=PUBLIC.environment_digest), job=LEASED)


def with_call(rows: list[Rollout], calls: int = 1) -> int:
    """A row with so many answered calls that ended by itself."""
    return next(
        number
        for number, row in enumerate(rows)
        if row.finish_reason == "stop" and len(sampled_stretches(row.completion_mask)) == calls + 1
    )


def proven(bench: Court, row: Rollout, parts: Sequence[tuple[list[int], bool]], finish_reason: str = "stop") -> Rollout:
    """The row with other contents, and with proofs and log-probabilities that fit them, as a cheat with the right weights makes them."""
    mask = [sampled for part, sampled in parts for _ in part]
    row = replace(
        row,
        completion_tokens=[token for part, _ in parts for token in part],
        completion_mask=mask,
        finish_reason=finish_reason,
        task_reward=None,
        length_penalty=None,
        reward=None,
    )
    ours = prefill(bench.policies.policy.model, row, EOS)
    logprobs, proofs, start = iter(ours.logprobs), b"", 0
    for stretch in sampled_stretches(mask):
        end = start + stretch.stop - stretch.start
        proofs += codec.encode(ours.states[start:end])
        start = end
    claimed = [min(float(next(logprobs)), 0.0) if sampled else 0.0 for sampled in mask]
    return replace(row, completion_logprobs=claimed, proofs=proofs)


def rejected(verdict: Verdict, reason: str) -> str:
    assert (verdict.outcome, verdict.reason) == ("reject", reason), verdict.evidence
    return verdict.evidence


def test_a_worker_calls_the_tool_and_its_file_is_accepted_as_it_is(
    bench: Court, rows: list[Rollout], made: ToolScenario
) -> None:
    verdict = bench.judge_bytes(made.data, LEASED)
    assert verdict.outcome == "accept", verdict.evidence
    assert verdict.proof_rows >= 8
    stretches = [sampled_stretches(row.completion_mask) for row in rows]
    assert sum(len(parts) > 1 for parts in stretches) >= 12
    assert {len(parts) for parts in stretches} >= {2, 3}
    assert {reward.task_reward for reward in verdict.rewards} == {0.0}  # 6 is no task's answer


def test_every_row_is_what_its_own_requests_would_be(rows: list[Rollout], made: ToolScenario) -> None:
    for row, planned in zip(rows, made.planned, strict=True):
        limit = planned.request.max_tokens
        assert (
            made.tools.problem(planned.task, row.completion_tokens, row.completion_mask, row.finish_reason, limit)
            is None
        )
        for value, sampled in zip(row.completion_logprobs, row.completion_mask, strict=True):
            assert (value == 0.0) >= (not sampled)
        parts = sampled_stretches(row.completion_mask)
        proofs = sum(codec.proof_count(part.stop - part.start) for part in parts)
        assert len(row.proofs) == proofs * codec.PROOF_BYTES


def test_forged_outputs_of_the_tool_are_rejected(bench: Court, rows: list[Rollout], made: ToolScenario) -> None:
    number = with_call(rows)
    forged = [(made.tokenizer.encode(part), sampled) for part, sampled in ((CALL, True), ("<result>7</result>", False))]
    end = ([*made.tokenizer.encode(REST), tiny_policy.EOS], True)
    cheat = [*rows[:number], proven(bench, rows[number], [*forged, end]), *rows[number + 1 :]]
    assert (
        "the tool's output after call 1 is claimed as '<result>7</result>', run again it is '<result>6</result>'"
        in rejected(judge(bench, cheat), "tools")
    )


@pytest.mark.parametrize(
    ("parts", "finish_reason", "evidence"),
    [
        ([(CALL + RESULT + REST, True)], "stop", "sampled tokens follow the call"),
        ([(CALL[:-4], True), (CALL[-4:] + RESULT, False), (REST, True)], "stop", "follows no call"),
        ([(CALL, True), (RESULT + REST[:4], False), (REST[4:], True)], "stop", "run again it is '<result>6</result>'"),
        ([(CALL, True)], "unanswered", "it ends with call 1; the tool's output of 18 tokens is missing"),
        ([(CALL + REST, True)], "stop", "the tool's output of 18 tokens is missing"),
        ([(CALL, True), (RESULT, False)] * 2, "length", "begins or ends with a tool"),
        ([(REST, True)], "unanswered", "it does not end in a call"),
    ],
    ids=[
        "the tool's tokens marked as sampled",
        "sampled tokens marked as the tool's, before",
        "sampled tokens marked as the tool's, behind",
        "stopped at a call",
        "a call left out",
        "an output at the end",
        "unanswered without a call",
    ],
)
def test_rows_that_no_worker_with_this_tool_makes_are_rejected_though_their_proofs_fit(
    bench: Court,
    rows: list[Rollout],
    made: ToolScenario,
    parts: list[tuple[str, bool]],
    finish_reason: str,
    evidence: str,
) -> None:
    tokens = [(made.tokenizer.encode(part), sampled) for part, sampled in parts]
    if finish_reason == "stop":
        tokens[-1][0].append(tiny_policy.EOS)
    cheat = [proven(bench, rows[0], tokens, finish_reason), *rows[1:]]
    assert evidence in rejected(judge(bench, cheat), "tools")


def test_more_calls_than_there_are_is_rejected(bench: Court, rows: list[Rollout], made: ToolScenario) -> None:
    call, result = "<calc>1</calc>", "<result>1</result>"
    parts = [(made.tokenizer.encode(part), sampled) for part, sampled in [(call, True), (result, False)] * 3]
    cheat = [proven(bench, rows[0], [*parts, ([70, tiny_policy.EOS], True)]), *rows[1:]]

    class Sparing(Tool):
        most_calls = 2

    sparing = replace(bench, facts=replace(bench.facts, environment=Sparing()))
    evidence = rejected(judge(sparing, cheat), "tools")
    assert "row 0: a tool's output follows call 3, but the tool gives none: no call is left" in evidence


def test_log_probabilities_of_the_tools_tokens_are_rejected(bench: Court, rows: list[Rollout]) -> None:
    number = with_call(rows)
    row = rows[number]
    cheat = list(rows)
    claimed = [
        value if sampled else -0.1 for value, sampled in zip(row.completion_logprobs, row.completion_mask, strict=True)
    ]
    cheat[number] = replace(row, completion_logprobs=claimed)
    assert "a tool's token has a log-probability other than 0" in rejected(judge(bench, cheat), "tools")


def test_proofs_of_a_stretch_behind_a_call_are_verified_too(bench: Court, rows: list[Rollout]) -> None:
    """The proofs of the last stretch are another row's."""
    numbers = [
        number for number, row in enumerate(rows) if row.finish_reason == "stop" and not all(row.completion_mask)
    ]
    size = codec.PROOF_BYTES
    cheat = list(rows)
    for number, other in zip(numbers, [*numbers[1:], numbers[0]], strict=True):
        assert len(rows[number].proofs) >= 2 * size
        cheat[number] = replace(rows[number], proofs=rows[number].proofs[:-size] + rows[other].proofs[:size])
    assert "does not fit version 3" in rejected(judge(bench, cheat), "computation")


def test_tokens_behind_a_tools_output_are_drawn_again_too(bench: Court, rows: list[Rollout]) -> None:
    number = with_call(rows)
    row, last = rows[number], sampled_stretches(rows[number].completion_mask)[-1]
    tokens = list(row.completion_tokens)
    tokens[last.start] = 2 + (tokens[last.start] + 7) % 200
    parts = [([token], sampled) for token, sampled in zip(tokens, row.completion_mask, strict=True)]
    cheat = [*rows[:number], proven(bench, row, parts), *rows[number + 1 :]]
    every_row = LEASED.model_copy(update={"on_probation": True})
    metadata = replace(METADATA, environment_digest=PUBLIC.environment_digest)
    evidence = rejected(bench.judge(cheat, metadata=metadata, job=every_row), "redraw")
    assert f"the first is token {last.start}: " in evidence


def test_missing_proofs_of_a_stretch_are_rejected(bench: Court, rows: list[Rollout]) -> None:
    number = with_call(rows)
    cheat = list(rows)
    cheat[number] = replace(rows[number], proofs=rows[number].proofs[: -codec.PROOF_BYTES])
    assert f"row {number}: " in rejected(judge(bench, cheat), "computation")


def test_a_tool_that_fails_here_leaves_the_file_undecided(bench: Court, rows: list[Rollout]) -> None:
    class Failing(Tool):
        def observe(self, task: object, text: str) -> Unscorable:
            return Unscorable("the tool's machine is away")

    failing = replace(bench, facts=replace(bench.facts, environment=Failing()))
    verdict = judge(failing, rows)
    assert verdict.outcome == "inconclusive"
    assert "a tool failed: the tool's machine is away" in verdict.evidence


def test_a_run_without_tools_takes_no_row_with_a_tools_output(bench: Court, rows: list[Rollout]) -> None:
    class Silent:
        """The same tasks and prompts, and no tool."""

        name, version = "silent", "1"
        tasks, prompt, score, gold = ENVIRONMENT.tasks, ENVIRONMENT.prompt, ENVIRONMENT.score, ENVIRONMENT.gold

    silent = replace(bench, facts=replace(bench.facts, environment=Silent()))
    assert "completion_mask is false somewhere" in rejected(judge(silent, rows), "tools")
    whole = [
        replace(row, completion_mask=[True] * len(row.completion_tokens), finish_reason="unanswered") for row in rows
    ]
    assert "row 0: completion_mask is false somewhere, or finish_reason is unanswered" in rejected(
        judge(silent, whole), "tools"
    )


def test_a_row_that_ends_at_an_answer_of_the_wrong_tokens_is_rejected(made: ToolScenario, rows: list[Rollout]) -> None:
    """The same text in other tokens is not what the tool's output encodes to."""
    tools, row = Tools(ENVIRONMENT, made.tokenizer, EOS), rows[with_call(rows)]
    stretch = sampled_stretches(row.completion_mask)[0]
    tokens = list(row.completion_tokens)
    tokens[stretch.stop] = tokens[stretch.stop + 1]
    found = tools.problem(TASKS[row.prompt_index], tokens, row.completion_mask, row.finish_reason, 132)
    assert isinstance(found, str)
    assert "is claimed as" in found
