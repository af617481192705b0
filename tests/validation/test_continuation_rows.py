"""Files with continuations, on rows that a real engine made: honest ones are accepted, and a worker can choose nothing about them."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import tiny_policy
from court import JOB, METADATA, STATISTICAL, VERSION, Court

from shoal.contracts.protocol import ValidationJob
from shoal.contracts.rollouts import Rollout
from shoal.contracts.verdicts import Verdict
from shoal.environments import Score
from shoal.environments.tokens import completion_text
from shoal.inference.completions import Completion
from shoal.inference.rollouts import PlannedRow, assemble, plan_continuations
from shoal.toploc import codec
from shoal.validation.facts import Facts
from shoal.validation.prefill import prefill_rows

replace = dataclasses.replace
PUBLIC = tiny_policy.PUBLIC_VINE
VINE = PUBLIC.vine
assert VINE is not None
PARENTS = 24
EACH = VINE.rows_each - 1


@dataclass
class VineCourt:
    """A court of a run with continuations."""

    court: Court
    facts: Facts

    def rows(self, parents: Sequence[Completion], continued: Sequence[Completion]) -> list[Rollout]:
        """What a worker writes that generated these."""
        planned: list[PlannedRow] = [*self.court.made.planned]
        planned += plan_continuations(planned, parents, PUBLIC)
        return assemble(planned, [*parents, *continued], tiny_policy.LEASE, PUBLIC, VERSION, self.score)

    def score(self, task: object, tokens: Sequence[int], mask: Sequence[bool]) -> float | None:
        text = completion_text(self.facts.tokenizer, tokens, self.facts.eos_token_ids)
        found = self.facts.environment.score(task, text)
        return found.task_reward if isinstance(found, Score) else None

    def judge(self, rows: list[Rollout], job: ValidationJob = JOB) -> Verdict:
        return replace(self.court, facts=self.facts).judge(rows, METADATA, job)

    def proven(self, row: Rollout, completion: Sequence[int], finish_reason: str) -> Rollout:
        """The row with another completion, and with log-probabilities and proofs that fit it; it claims no reward."""
        return self.all_proven([unclaimed(row, completion, finish_reason)])[0]

    def all_proven(self, rows: Sequence[Rollout]) -> list[Rollout]:
        """The rows with log-probabilities and proofs that fit their completions."""
        found = {}
        for batch in prefill_rows(
            self.court.policies.policy.model, dict(enumerate(rows)), self.facts.eos_token_ids, None
        ):
            for number, ours in batch.items():
                logprobs = [min(float(value), 0.0) for value in ours.logprobs]
                proofs = codec.encode(ours.states)
                found[number] = replace(rows[number], completion_logprobs=logprobs, proofs=proofs)
        return [found[number] for number in range(len(rows))]


def unclaimed(row: Rollout, completion: Sequence[int], finish_reason: str) -> Rollout:
    """The row with another completion; it claims no reward."""
    return replace(
        row,
        completion_tokens=list(completion),
        completion_mask=[True] * len(completion),
        finish_reason=finish_reason,
        task_reward=None,
        length_penalty=None,
        reward=None,
    )


@pytest.fixture(scope="module")
def vine(court: Court) -> VineCourt:
    return VineCourt(court, replace(court.facts, vine=VINE))


@pytest.fixture(scope="module")
def file(vine: VineCourt, court: Court) -> list[Rollout]:
    """The file of an honest worker."""
    return vine.rows(court.made.old, court.made.continuations)


def changed(rows: Sequence[Rollout], number: int, row: Rollout) -> list[Rollout]:
    return [*rows[:number], row, *rows[number + 1 :]]


def refused(verdict: Verdict, reason: str) -> str:
    assert (verdict.outcome, verdict.reason) == ("reject", reason), verdict.evidence
    return verdict.evidence


@pytest.mark.parametrize("job", [JOB, STATISTICAL.model_copy(update={"on_probation": True})], ids=["drawn", "counted"])
def test_an_honest_file_is_accepted_and_every_row_has_a_reward(
    vine: VineCourt, file: list[Rollout], job: ValidationJob
) -> None:
    verdict = vine.judge(file, job)
    assert (verdict.outcome, verdict.evidence) == ("accept", "")
    assert verdict.rows == len(verdict.rewards) == PARENTS * (1 + EACH)
    assert {row.sample_index for row in file} == set(range(8 * (1 + EACH)))
    assert verdict.compute is not None
    drawn = sum(len(row.prompt_tokens) for row in file[: PARENTS : PUBLIC.group_size])
    assert verdict.compute.prompt_tokens == drawn, (
        "the prompt of a continuation is its parent's, which is counted there"
    )


def test_a_continuation_is_scored_as_the_whole_answer_with_the_length_of_both(
    vine: VineCourt, file: list[Rollout]
) -> None:
    for place, row in enumerate(file[PARENTS:]):
        parent = file[place // EACH]
        prefix = len(row.prompt_tokens) - len(parent.prompt_tokens)
        assert prefix == (place % EACH // 2 + 1) * len(parent.completion_tokens) // 3
        whole = [*parent.completion_tokens[:prefix], *row.completion_tokens]
        assert row.target_length is not None
        assert row.length_penalty == pytest.approx(0.003 * abs(row.target_length - len(whole)), abs=1e-5)
        assert len(whole) <= 40
        assert (row.finish_reason == "length") == (row.completion_tokens[-1] != tiny_policy.EOS)
    short = changed(file, PARENTS, replace(file[PARENTS], length_penalty=0.003 * 1, reward=None))
    assert "length_penalty is claimed as 0.003" in refused(vine.judge(short), "reward")


def test_every_continuation_there_must_be_and_no_other_is_in_the_file(vine: VineCourt, file: list[Rollout]) -> None:
    assert "the file has 119 rows, the lease holds 120" in refused(vine.judge(file[:-1]), "sampling")
    assert "the file has 121 rows, the lease holds 120" in refused(vine.judge([*file, file[-1]]), "sampling")
    assert "the file has 24 rows, the lease holds 120" in refused(vine.judge(file[:PARENTS]), "sampling")
    swapped = [*file[:PARENTS], file[PARENTS + 1], file[PARENTS], *file[PARENTS + 2 :]]
    assert f"row {PARENTS}: sample_index is 9, drawn is 8" in refused(vine.judge(swapped), "sampling")
    twice = changed(file, PARENTS + 1, file[PARENTS])
    assert f"row {PARENTS + 1}: sample_index is 8, drawn is 9" in refused(vine.judge(twice), "sampling")


def test_a_run_without_monte_carlo_values_takes_no_continuations(vine: VineCourt, file: list[Rollout]) -> None:
    # They have more tokens than all rows of that run may have: refused before they are made.
    assert refused(vine.court.judge(file), "format").startswith("file has ")
    few = file[: PARENTS + 1]
    assert "the file has 25 rows, the lease holds 24" in refused(vine.court.judge(few), "sampling")


def test_a_continuation_of_another_row_of_the_group_is_rejected(vine: VineCourt, file: list[Rollout]) -> None:
    """What continues a sibling that began better, named as if it continued this row."""
    number, other = PARENTS, PARENTS + EACH
    row = replace(file[other], sample_index=file[number].sample_index, seed=file[number].seed)
    evidence = refused(vine.judge(changed(file, number, row)), "sampling")
    assert f"row {number}: prompt_tokens are not the prompt and the first" in evidence
    assert "completion tokens of row 0" in evidence


@pytest.mark.parametrize("shift", [-1, 1], ids=["earlier", "later"])
def test_a_continuation_from_another_position_is_rejected_though_its_proofs_fit(
    vine: VineCourt, file: list[Rollout], shift: int
) -> None:
    row, parent = file[PARENTS], file[0]
    prefix = len(row.prompt_tokens) - len(parent.prompt_tokens) + shift
    moved = replace(row, prompt_tokens=[*parent.prompt_tokens, *parent.completion_tokens[:prefix]])
    cheat = vine.proven(moved, [*row.completion_tokens[:3], tiny_policy.EOS], "stop")
    assert "prompt_tokens are not the prompt" in refused(vine.judge(changed(file, PARENTS, cheat)), "sampling")


def test_one_changed_token_of_the_prefix_is_rejected(vine: VineCourt, file: list[Rollout]) -> None:
    row = file[-1]
    prompt = [*row.prompt_tokens[:-1], (row.prompt_tokens[-1] + 1) % 258]
    cheat = vine.proven(replace(row, prompt_tokens=prompt), row.completion_tokens, row.finish_reason)
    assert "prompt_tokens are not the prompt" in refused(vine.judge(changed(file, len(file) - 1, cheat)), "sampling")


def test_a_continuation_with_another_seed_is_rejected(vine: VineCourt, file: list[Rollout]) -> None:
    """The seed is the parent's, the boundary's and the number's: drawing until the answer is right shows."""
    other = replace(file[PARENTS], seed=file[PARENTS + 1].seed)
    assert f"row {PARENTS}: seed is" in refused(vine.judge(changed(file, PARENTS, other)), "sampling")


def test_a_continuation_that_its_seed_does_not_draw_is_rejected(vine: VineCourt, file: list[Rollout]) -> None:
    row = file[PARENTS]
    cheat = vine.proven(row, [*row.completion_tokens[:1], tiny_policy.EOS], "stop")
    job = JOB.model_copy(update={"on_probation": True})
    assert f"row {PARENTS}:" in refused(vine.judge(changed(file, PARENTS, cheat), job), "redraw")


def test_the_rest_of_the_completion_given_as_its_continuation_is_rejected(vine: VineCourt, file: list[Rollout]) -> None:
    """The cheapest continuation of all: tokens that are there already, with states that are there already. Seeds are not drawn again here."""
    number = next(
        number
        for number in range(PARENTS, len(file))
        if sum(file[(number - PARENTS) // EACH].completion_logprobs[14:]) < -30
    )
    row, parent = file[number], file[(number - PARENTS) // EACH]
    prefix = len(row.prompt_tokens) - len(parent.prompt_tokens)
    cheat = vine.proven(row, parent.completion_tokens[prefix:], parent.finish_reason)
    evidence = refused(vine.judge(changed(file, number, cheat), STATISTICAL), "replay")
    assert f"rows {(number - PARENTS) // EACH} and {number} are the same completion" in evidence


def test_a_continuation_beyond_the_length_limit_of_the_completion_is_rejected(
    vine: VineCourt, file: list[Rollout]
) -> None:
    row = file[PARENTS]
    prefix = len(row.prompt_tokens) - len(file[0].prompt_tokens)
    assert prefix > 0
    cheat = vine.proven(row, [70] * (40 - prefix + 1), "length")
    evidence = refused(vine.judge(changed(file, PARENTS, cheat)), "sampling")
    assert f"{41 - prefix} completion tokens behind {prefix} of row 0; at most {40 - prefix} are allowed" in evidence


def test_a_continuation_that_stops_early_as_if_at_the_limit_is_rejected(vine: VineCourt, file: list[Rollout]) -> None:
    row = file[PARENTS]
    cheat = vine.proven(row, row.completion_tokens[:1], "length")
    assert "finish_reason is length after 1 tokens" in refused(vine.judge(changed(file, PARENTS, cheat)), "termination")


def test_another_answer_s_reward_is_rejected(vine: VineCourt, file: list[Rollout]) -> None:
    row = replace(file[PARENTS], task_reward=1.0 - (file[PARENTS].task_reward or 0.0))
    assert "task_reward is claimed as" in refused(vine.judge(changed(file, PARENTS, row)), "reward")


def test_continuations_proofs_are_verified_too(vine: VineCourt, file: list[Rollout]) -> None:
    job = JOB.model_copy(update={"on_probation": True})
    one, other = PARENTS, PARENTS + EACH
    size = codec.PROOF_BYTES
    cheat = changed(file, one, replace(file[one], proofs=file[other].proofs[:size] + file[one].proofs[size:]))
    assert f"row {one}, proof 0 does not fit version 3" in refused(vine.judge(cheat, job), "computation")
