"""The sampler's choices, drawn again from the row's seed: honest rows of a real engine come out token by token, and nothing else does."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from court import JOB, METADATA, STATISTICAL, Court
from test_dishonest_files import proven, rejected, replace, sampled_anew
from tiny_policy import EOS

from shoal.contracts.rollouts import Rollout
from shoal.sampling.draw import stretch_seed
from shoal.validation import samplers
from shoal.validation.checks import redraw
from shoal.validation.facts import File
from shoal.validation.prefill import Prefill, prefill, prefill_rows

ALL_ROWS = JOB.model_copy(update={"on_probation": True, "accepted_files": 0})
WORD = (1 << 64) - 1


def splitmix(state: int, steps: int) -> int:
    """Output number `steps` of SplitMix64, one integer at a time."""
    mixed = (state + steps * 0x9E3779B97F4A7C15) & WORD
    mixed = ((mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9) & WORD
    mixed = ((mixed ^ mixed >> 27) * 0x94D049BB133111EB) & WORD
    return mixed ^ mixed >> 31


def test_noise_is_splitmix64_of_key_and_token() -> None:
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423]  # seed 1234567, Rosetta Code
    assert [splitmix(1234567, step) for step in (1, 2, 3)] == published
    keys, tokens = torch.tensor([0, 7, 2**31 - 1, 7]), torch.tensor([0, 257, 151_000, 1])
    found = samplers.gumbel_noise(keys, tokens).tolist()
    for key, token, noise in zip(keys.tolist(), tokens.tolist(), found, strict=True):
        uniform = ((splitmix(splitmix(key, 0), token + 1) >> 11) + 0.5) / 2**53
        assert noise == pytest.approx(-math.log(-math.log(uniform)), rel=1e-12)


def test_tokens_drawn_again_follow_the_distribution() -> None:
    logprobs = torch.log_softmax(torch.linspace(-2, 2, 9), -1).repeat(40_000, 1)
    keys = samplers.row_keys("vllm-cpu", 12345, [True] * 40_000)
    _, drawn = samplers.redraw(logprobs, torch.zeros(40_000, dtype=torch.int64), keys)
    shares = np.bincount(drawn, minlength=9) / 40_000
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
    keys = samplers.row_keys("vllm-cpu", 3, [True] * positions)
    logprobs = peaked(positions)
    _, drawn = samplers.redraw(logprobs, torch.zeros(positions, dtype=torch.int64), keys)
    rare = np.flatnonzero(drawn >= COMMON)
    expected = positions * RARE * math.exp(RARE_LOG_PROBABILITY)
    assert abs(len(rare) - expected) < 5 * math.sqrt(expected)
    # The runner-up among the common ones, claimed in each rare one's place.
    places = torch.from_numpy(rare)
    runners_up = samplers.redraw(logprobs[places, :COMMON], torch.zeros(len(rare), dtype=torch.int64), keys[rare])[1]
    gaps, again = samplers.redraw(logprobs[places], torch.from_numpy(runners_up), keys[rare])
    assert np.count_nonzero(gaps > samplers.TOLERANCE_NATS["float32"]) >= 0.9 * len(rare)
    assert (again == drawn[rare]).all()


def test_what_is_drawn_does_not_depend_on_how_much_is_looked_at_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    keys, logprobs = samplers.row_keys("vllm-cpu", 4, [True] * 50), peaked(50)
    chosen = torch.arange(50) % COMMON
    whole = samplers.redraw(logprobs, chosen, keys)
    for at_once in (1, 3 * (COMMON + RARE), 49 * (COMMON + RARE)):
        monkeypatch.setattr(samplers, "AT_ONCE", at_once)
        for found, expected in zip(samplers.redraw(logprobs, chosen, keys), whole, strict=True):
            assert found.tolist() == expected.tolist()


def test_an_honest_engines_tokens_are_exactly_those_drawn_again(court: Court, honest: list[Rollout]) -> None:
    model, eos = court.made.model["old"], court.facts.eos_token_ids
    for batch in prefill_rows(model, dict(enumerate(honest)), eos, "vllm-cpu"):
        for number, ours in batch.items():
            assert ours.gaps is not None
            assert ours.drawn is not None
            assert float(ours.gaps.max()) < 1e-4
            assert ours.drawn.tolist() == list(honest[number].completion_tokens)


def test_neither_an_abort_nor_a_swap_of_weights_before_it_changes_what_an_engine_draws(court: Court) -> None:
    made, eos = court.made, court.facts.eos_token_ids
    for policy, completions in (("old", made.after_stop), ("new", made.swapped)):
        rows = dict(enumerate(court.rows(completions)))
        for batch in prefill_rows(made.model[policy], rows, eos, "vllm-cpu"):
            assert max(float(ours.gaps.max()) for ours in batch.values() if ours.gaps is not None) < 1e-4


def test_after_a_tool_the_next_stretch_is_drawn_with_a_seed_of_its_own() -> None:
    mask = [True, True, False, True, True, True]
    keys = samplers.row_keys("vllm-cpu", 99, mask)
    first = samplers.row_keys("vllm-cpu", 99, [True, True])
    second = samplers.row_keys("vllm-cpu", stretch_seed(99, 1), [True] * 3)
    assert keys.tolist() == [*first.tolist(), *second.tolist()]
    assert first.tolist() == samplers.row_keys("vllm-cpu", 99, [True] * 5).tolist()[:2]


def test_a_sampler_that_nobody_knows_is_an_error_of_ours() -> None:
    with pytest.raises(ValueError, match="sampler is 'dice'; allowed: vllm-cpu"):
        samplers.row_keys("dice", 1, [True])


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


# The tolerance


def test_a_token_behind_by_no_more_than_rounding_is_let_pass(court: Court, honest: list[Rollout]) -> None:
    ours = prefill(court.made.model["old"], honest[0], court.facts.eos_token_ids, "vllm-cpu")
    assert ours.gaps is not None
    file = File(JOB, honest, METADATA)

    def finding(gap: float, dtype: str) -> object:
        gaps = np.zeros_like(ours.gaps)
        gaps[3] = gap
        return redraw.check(file, {0: dataclasses.replace(ours, gaps=gaps)}, dtype)

    for dtype, at_one in samplers.TOLERANCE_NATS.items():
        tolerance = at_one / min(1.0, honest[0].temperature)
        assert finding(0.99 * tolerance, dtype) is None
        assert finding(1.01 * tolerance, dtype) is not None


def test_a_low_temperature_divides_logits_and_so_what_rounding_may_do(court: Court, honest: list[Rollout]) -> None:
    ours = prefill(court.made.model["old"], honest[0], court.facts.eos_token_ids, "vllm-cpu")
    assert ours.gaps is not None
    for temperature, allowed in ((0.25, 4.0), (1.0, 1.0), (2.0, 1.0)):
        file = File(JOB, [dataclasses.replace(honest[0], temperature=temperature)], METADATA)
        for share in (0.99, 1.01):
            prefills = {0: dataclasses.replace(ours, gaps=np.full_like(ours.gaps, share * allowed))}
            assert (redraw.check(file, prefills, "bfloat16") is None) == (share < 1)


def test_where_the_sampler_cannot_be_redone_nothing_is_said(court: Court, honest: list[Rollout]) -> None:
    ours: Prefill = prefill(court.made.model["old"], honest[0], court.facts.eos_token_ids)
    assert (ours.gaps, ours.drawn) == (None, None)
    assert redraw.check(File(JOB, honest, METADATA), {0: ours}, "float32") is None
