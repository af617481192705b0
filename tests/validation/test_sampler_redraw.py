"""The sampler's choices, drawn again from the row's seed: honest rows of a real engine come out token by token, and nothing else does."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from court import CALIBRATED, JOB, METADATA, STATISTICAL, Court
from hypothesis import given
from hypothesis import strategies as some
from test_dishonest_files import proven, rejected, replace, sampled_anew
from tiny_policy import EOS

from shoal.contracts.pools import SAMPLER
from shoal.contracts.proof_profile import DRAWN_GAPS
from shoal.contracts.rollouts import Rollout
from shoal.contracts.verdicts import UNSCORED
from shoal.sampling import gumbel
from shoal.sampling.tails import RECORD_CHANCE, at_least, too_many
from shoal.validation.checks import redraw
from shoal.validation.facts import File
from shoal.validation.prefill import Prefill, prefill, prefill_rows
from shoal.validation.sequential import chance_of_a_part

ALL_ROWS = JOB.model_copy(update={"on_probation": True, "accepted_files": 0})
WORD = (1 << 64) - 1


def draw_again(logprobs: torch.Tensor, seed: int) -> torch.Tensor:
    """What `seed` draws at positions 0 to n-1."""
    return gumbel.draw(logprobs, torch.full((len(logprobs),), seed), torch.arange(len(logprobs)))


def test_tokens_drawn_again_follow_the_distribution() -> None:
    logprobs = torch.log_softmax(torch.linspace(-2, 2, 9), -1).repeat(40_000, 1)
    shares = np.bincount(draw_again(logprobs, 12345), minlength=9) / 40_000
    np.testing.assert_allclose(shares, logprobs[0].exp().numpy(), atol=0.01)


COMMON, RARE, RARE_LOG_PROBABILITY = 8, 1000, -14.0
"""A vocabulary in which each of many tokens is nearly never drawn (8e-7), all of them once in 1,200 positions."""


def peaked(positions: int) -> torch.Tensor:
    """The same log-probabilities at each position, float32 [positions, vocabulary]: few common tokens, then the rare ones."""
    rare = torch.full((RARE,), RARE_LOG_PROBABILITY)
    common = torch.full((COMMON,), math.log((1 - RARE * math.exp(RARE_LOG_PROBABILITY)) / COMMON))
    return torch.cat([common, rare]).repeat(positions, 1)


def test_no_token_is_too_improbable_to_be_drawn_again() -> None:
    """Who may put the runner-up in a rare token's place would choose an end there, or leave out what makes no sense."""
    positions = 60_000
    logprobs = peaked(positions)
    seeds, places = torch.full((positions,), 3), torch.arange(positions)
    drawn = gumbel.draw(logprobs, seeds, places)
    rare = torch.nonzero(drawn >= COMMON)[:, 0]
    expected = positions * RARE * math.exp(RARE_LOG_PROBABILITY)
    assert abs(len(rare) - expected) < 5 * math.sqrt(expected)
    # The runner-up among the common ones, claimed in each rare one's place.
    runners_up = gumbel.draw(logprobs[rare, :COMMON], seeds[rare], places[rare])
    gaps, again = gumbel.redraw(logprobs[rare], runners_up, seeds[rare], places[rare])
    assert torch.count_nonzero(gaps > 0.002) >= 0.9 * len(rare)
    assert (again == drawn[rare]).all()


def test_what_is_drawn_does_not_depend_on_how_much_is_looked_at_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = (peaked(50), torch.arange(50) % COMMON, torch.full((50,), 4), torch.arange(50))
    whole = gumbel.redraw(*arguments)
    for at_once in (1, 3 * (COMMON + RARE), 49 * (COMMON + RARE)):
        monkeypatch.setattr(gumbel, "AT_ONCE", at_once)
        for found, expected in zip(gumbel.redraw(*arguments), whole, strict=True):
            assert found.tolist() == expected.tolist()


def test_an_honest_engines_tokens_are_exactly_those_drawn_again(court: Court, honest: list[Rollout]) -> None:
    model, eos = court.made.model["old"], court.facts.eos_token_ids
    for batch in prefill_rows(model, dict(enumerate(honest)), eos, SAMPLER):
        for number, ours in batch.items():
            assert ours.gaps is not None
            assert ours.drawn is not None
            assert float(ours.gaps.max()) < 1e-4
            assert ours.drawn.tolist() == list(honest[number].completion_tokens)


def test_neither_an_abort_nor_a_swap_of_weights_before_it_changes_what_an_engine_draws(court: Court) -> None:
    made, eos = court.made, court.facts.eos_token_ids
    for policy, completions in (("old", made.after_stop), ("new", made.swapped)):
        rows = dict(enumerate(court.rows(completions)))
        for batch in prefill_rows(made.model[policy], rows, eos, SAMPLER):
            assert max(float(ours.gaps.max()) for ours in batch.values() if ours.gaps is not None) < 1e-4


def test_a_rule_that_nobody_has_is_an_error_of_ours(court: Court, honest: list[Rollout]) -> None:
    with pytest.raises(ValueError, match="sampler is 'vllm-cpu'; allowed: gumbel-murmur3-1, or None"):
        prefill(court.made.model["old"], honest[0], court.facts.eos_token_ids, "vllm-cpu")


# Cheats with the right weights and perfect proofs, one row in a file.


def one_row(court: Court, honest: list[Rollout], number: int, forged: Rollout) -> list[Rollout]:
    return [*honest[:number], proven(court, forged), *honest[number + 1 :]]


def long_row(honest: list[Rollout]) -> int:
    return next(number for number, row in enumerate(honest) if len(row.completion_tokens) == 40)


def found(court: Court, rows: list[Rollout]) -> str:
    return rejected(court.judge(rows, job=ALL_ROWS), "redraw")


def test_an_honest_file_of_a_node_on_probation_is_checked_in_every_row(court: Court, honest: list[Rollout]) -> None:
    verdict = court.judge(honest, job=ALL_ROWS)
    assert (verdict.outcome, verdict.proof_rows) == ("accept", 24), verdict.evidence


def test_a_last_token_that_was_changed_is_found_though_no_state_depends_on_it(
    court: Court, honest: list[Rollout]
) -> None:
    number = long_row(honest)
    tokens = list(honest[number].completion_tokens)
    drawn, tokens[-1] = tokens[-1], 2 + (tokens[-1] + 7) % 200
    forged = one_row(court, honest, number, replace(honest[number], completion_tokens=tokens))
    evidence = found(court, forged)
    assert evidence.startswith(f"row {number}: 1 of 40 tokens are not what seed {honest[number].seed} draws")
    assert f"token 39: {tokens[-1]} is claimed, drawn is {drawn}" in evidence
    assert court.judge(forged, job=STATISTICAL).outcome == "accept", "what this check is for: statistics see nothing"


def test_a_single_early_end_in_one_row_is_found(court: Court, honest: list[Rollout]) -> None:
    number = long_row(honest)
    early = replace(
        honest[number], completion_tokens=[*honest[number].completion_tokens[:9], EOS], finish_reason="stop"
    )
    assert f"token 9: {EOS} is claimed" in found(court, one_row(court, honest, number, early))


def test_a_sample_of_another_seed_is_found_however_well_it_is_sampled(court: Court, honest: list[Rollout]) -> None:
    number = long_row(honest)
    picked = sampled_anew(court, honest[number : number + 1], 1.0)[0]  # the best of many, say
    assert f"row {number}:" in found(court, one_row(court, honest, number, picked))


def test_a_colder_sampler_in_one_row_is_found(court: Court, honest: list[Rollout]) -> None:
    number = long_row(honest)
    colder = sampled_anew(court, honest[number : number + 1], 0.5)[0]
    assert f"row {number}:" in found(court, one_row(court, honest, number, colder))


def test_tokens_of_another_model_with_the_right_models_proofs_are_found_in_one_row(
    court: Court, honest: list[Rollout]
) -> None:
    other = court.rows(court.made.swapped)
    number = next(
        number for number, row in enumerate(other) if row.completion_tokens != honest[number].completion_tokens
    )
    assert f"row {number}:" in found(court, one_row(court, honest, number, other[number]))


# The budget


def budget_finding(court: Court, row: Rollout, gaps: np.ndarray, dtype: str, temperature: float = 1.0) -> str:
    """What is found wrong with a file of one row whose tokens are behind by `gaps`; nothing: an empty text."""
    ours = prefill(court.made.model["old"], row, court.facts.eos_token_ids, SAMPLER)
    assert ours.gaps is not None
    longer = dataclasses.replace(ours, gaps=gaps, drawn=np.zeros(len(gaps), dtype=np.int64))
    file = File(JOB, [dataclasses.replace(row, temperature=temperature)], METADATA)
    budget = DRAWN_GAPS[dtype]
    far = redraw.outliers(file, {0: longer}, budget)
    found = redraw.check(far, file.rows, budget, CHANCE) or redraw.check_budget(file, {0: longer}, budget, CHANCE)
    return "" if found is None else found.evidence


CHANCE = 1e-5


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("temperature", [0.25, 1.0, 2.0])
def test_one_token_is_not_behind_by_more_than_rounding(
    court: Court, honest: list[Rollout], dtype: str, temperature: float
) -> None:
    """A temperature below 1 divides logits, and so what rounding does."""
    row = next(row for row in honest if len(row.completion_tokens) >= 10)
    allowed = DRAWN_GAPS[dtype].largest / min(1.0, temperature)
    gaps = np.zeros(len(row.completion_tokens), dtype=np.float32)
    gaps[3] = 0.99 * allowed
    assert budget_finding(court, row, gaps, dtype, temperature) == ""
    gaps[3] = 1.01 * allowed
    assert "1 of" in budget_finding(court, row, gaps, dtype, temperature)


def test_many_small_gaps_are_more_than_a_file_may_have(court: Court, honest: list[Rollout]) -> None:
    """Each is one that an honest engine might have made; all together are chosen."""
    budget, row = DRAWN_GAPS["bfloat16"], honest[0]
    chance = np.random.default_rng(1)
    gaps = np.where(chance.random(2000) < budget.share, 2 * budget.mean / budget.share * chance.random(2000), 0.0)
    assert budget_finding(court, row, gaps.astype(np.float32), "bfloat16") == ""
    often = np.where(chance.random(2000) < 2.5 * budget.share, 1e-3, 0.0).astype(np.float32)
    assert "are not what their seeds draw" in budget_finding(court, row, often, "bfloat16")
    far = np.where(chance.random(2000) < budget.share, 0.4, 0.0).astype(np.float32)
    assert "nats together" in budget_finding(court, row, far, "bfloat16")


def test_an_honest_file_is_beyond_its_budget_no_more_often_than_it_may() -> None:
    """200 files for each chance: Bernstein's bound is wide, so that none is."""
    budget, chance = DRAWN_GAPS["bfloat16"], np.random.default_rng(2)
    for tokens in (50, 2000):
        behind = chance.random((200, tokens)) < budget.share
        sums = np.where(behind, 2 * budget.mean / budget.share * chance.random((200, tokens)), 0.0).sum(axis=1)
        assert (sums <= redraw.sum_allowed(budget, tokens, 0.005)).all()


# Outliers: rows that rounding put farther behind


def with_outliers(court: Court, share: float | None) -> Court:
    """The same court where the budget says how many tokens are farther behind than one may be."""
    gaps = DRAWN_GAPS["float32"].model_copy(update={"outliers": share})
    thresholds = CALIBRATED.model_copy(update={"drawn_gaps": gaps})
    validation = court.facts.validation.model_copy(update={"thresholds": thresholds})
    return dataclasses.replace(court, facts=dataclasses.replace(court.facts, validation=validation))


def last_tokens_changed(court: Court, honest: list[Rollout], rows: list[int]) -> list[Rollout]:
    """The file with a false last token, right proofs and the reward of what is said now, in each of these rows."""
    scored = list(honest)
    for number in rows:
        tokens = list(honest[number].completion_tokens)
        tokens[-1] = 2 + (tokens[-1] + 7) % 200
        scored[number] = proven(court, replace(honest[number], completion_tokens=tokens))
    return scored


def long_rows(honest: list[Rollout]) -> list[int]:
    return [number for number, row in enumerate(honest) if len(row.completion_tokens) == 40]


def test_a_row_with_one_token_too_far_behind_is_left_out_and_not_counted(court: Court, honest: list[Rollout]) -> None:
    number = long_row(honest)
    forged = last_tokens_changed(court, honest, [number])
    assert court.judge(forged, job=ALL_ROWS).reason == "redraw", "without a share no row is left out"
    verdict = with_outliers(court, 1e-5).judge(forged, job=ALL_ROWS)
    assert (verdict.outcome, verdict.left_out, verdict.proof_rows) == ("accept", [number], 24), verdict.evidence
    whole = with_outliers(court, 1e-5).judge(honest, job=ALL_ROWS)
    assert whole.left_out == []
    assert [row for row, reward in enumerate(verdict.rewards) if reward == UNSCORED] == [number]
    assert [r for n, r in enumerate(verdict.rewards) if n != number] == [
        r for n, r in enumerate(whole.rewards) if n != number
    ]
    assert verdict.completion_tokens == whole.completion_tokens - 40
    assert verdict.compute is not None
    assert whole.compute is not None
    assert verdict.compute.flops < whole.compute.flops
    assert verdict.answers is not None
    assert verdict.answers.unscorable == 1


def test_a_row_of_another_seed_is_no_outlier_of_rounding(court: Court, honest: list[Rollout]) -> None:
    """Or one of the few rows that are looked at could be chosen freely in each file: if it is seen, it is dropped, and else it is trained on."""
    number = long_row(honest)
    picked = sampled_anew(court, honest[number : number + 1], 1.0)[0]
    evidence = found(with_outliers(court, 1e-5), one_row(court, honest, number, picked))
    assert evidence.startswith(f"row {number}: ")
    assert "tokens are not what seed" in evidence


def test_a_few_outliers_of_one_row_may_come_together_and_many_may_not() -> None:
    budget = DRAWN_GAPS["float32"].model_copy(update={"outliers": 1e-5})
    chance = 1e-4
    assert redraw.check({0: redraw.Outliers(5, 1000, "five")}, [], budget, chance) is None
    many = redraw.check({0: redraw.Outliers(9, 1000, "nine")}, [], budget, chance)
    assert many is not None
    assert many.evidence == "nine"
    long = budget.model_copy(update={"outliers": 1e-2})
    assert redraw.check({0: redraw.Outliers(9, 1000, "nine")}, [], long, chance) is None


def test_outliers_of_a_file_s_first_rows_count_against_all_rows_of_the_look(
    court: Court, honest: list[Rollout]
) -> None:
    """Or an honest file would be rejected for the order in which its rows are seen."""
    short = sorted(range(len(honest)), key=lambda number: len(honest[number].completion_tokens))[:2]
    forged = last_tokens_changed(court, honest, short)
    tokens, few = (sum(len(row.completion_tokens) for row in rows) for rows in (honest, [honest[row] for row in short]))
    chance = chance_of_a_part(court.facts.validation, 1)
    share = next(share for share in np.geomspace(1e-6, 1e-2, 200) if at_least(2, share * tokens) > chance)
    assert at_least(2, share * few) < chance
    assert with_outliers(court, float(share)).judge(forged, job=ALL_ROWS).left_out == sorted(short)


def test_more_outliers_than_rounding_makes_reject_the_file(court: Court, honest: list[Rollout]) -> None:
    rows = long_rows(honest)[:2]
    assert len(rows) == 2
    evidence = rejected(
        with_outliers(court, 1e-6).judge(last_tokens_changed(court, honest, rows), job=ALL_ROWS), "redraw"
    )
    assert evidence.startswith("2 of ")
    assert "have such a token, rounding explains" in evidence
    assert "is claimed, drawn is" in evidence
    assert with_outliers(court, 0.01).judge(last_tokens_changed(court, honest, rows), job=ALL_ROWS).left_out == sorted(
        rows
    )


def test_a_row_that_is_left_out_still_needs_its_proofs(court: Court, honest: list[Rollout]) -> None:
    number = long_row(honest)
    forged = last_tokens_changed(court, honest, [number])
    forged[number] = replace(forged[number], proofs=bytes(len(forged[number].proofs)))
    rejected(with_outliers(court, 1e-5).judge(forged, job=ALL_ROWS), "computation")


def test_gaps_of_a_row_that_is_left_out_are_not_in_the_sum_of_the_file(court: Court, honest: list[Rollout]) -> None:
    budget = DRAWN_GAPS["float32"].model_copy(update={"outliers": 1e-5})
    file = File(ALL_ROWS, honest, METADATA)
    ours = prefill(court.made.model["old"], honest[0], court.facts.eos_token_ids, SAMPLER)
    assert ours.gaps is not None
    gaps = np.zeros_like(ours.gaps)
    gaps[0] = 5.0
    far = dataclasses.replace(ours, gaps=gaps)
    assert list(redraw.outliers(file, {0: far}, budget)) == [0]
    assert redraw.check_budget(file, {0: far, 1: ours}, budget, CHANCE) is not None
    assert redraw.check_budget(file, {1: ours}, budget, CHANCE) is None


def test_a_node_leaves_out_what_rounding_does_and_no_more() -> None:
    """With one outlier in 25 files of 1,000 tokens: the first is always allowed, one a file never for long."""
    outliers, tokens = 4e-5, 1000
    assert not too_many(1, tokens * outliers)
    assert too_many(2, tokens * outliers)
    allowed = 0
    for files in range(1, 251):
        allowed += not too_many(allowed + 1, files * tokens * outliers)
    assert 10 <= allowed <= 25  # 10 are expected of honest files
    chance = np.random.default_rng(7)
    losers = 0
    for _ in range(400):
        rows, lost = 0, False
        for files in range(1, 301):
            for _ in range(chance.poisson(outliers * tokens)):
                if too_many(rows + 1, files * tokens * outliers):
                    lost = True
                else:
                    rows += 1
        losers += lost
    assert losers <= RECORD_CHANCE * 400, "honest nodes that ever lose a file"


@given(some.floats(0.0, 1e6))
def test_the_first_event_of_a_node_is_never_too_many(expected: float) -> None:
    assert not too_many(0, expected)
    assert not too_many(1, expected)


@given(some.integers(0, 100_000), some.floats(0.0, 1e5))
def test_all_looks_together_allow_no_less_than_a_single_one(count: int, expected: float) -> None:
    if at_least(count, expected) > RECORD_CHANCE:
        assert not too_many(count, expected)
    if too_many(count, expected):
        assert too_many(count + 1, expected), "more events are no better"
    else:
        assert not too_many(count, expected + 1.0), "more room is no worse"


def test_where_the_sampler_cannot_be_redone_nothing_is_said(court: Court, honest: list[Rollout]) -> None:
    ours: Prefill = prefill(court.made.model["old"], honest[0], court.facts.eos_token_ids)
    assert (ours.gaps, ours.drawn) == (None, None)
    assert redraw.outliers(File(JOB, honest, METADATA), {0: ours}, DRAWN_GAPS["float32"]) == {}
    assert redraw.check_budget(File(JOB, honest, METADATA), {0: ours}, DRAWN_GAPS["float32"], CHANCE) is None
