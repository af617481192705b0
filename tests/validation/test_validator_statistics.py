"""The numbers behind the statistical checks: bounds on chance, forward passes, drawn rows, loaded versions."""

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from court import JOB, METADATA, Court
from hypothesis import given
from hypothesis import strategies as st

from shoal.contracts.rollouts import Rollout
from shoal.sampling.tails import at_least
from shoal.validation import prefill as prefill_module
from shoal.validation.checks import token_sampling
from shoal.validation.checks.token_sampling import tail
from shoal.validation.facts import File
from shoal.validation.policies import Policies
from shoal.validation.prefill import SURPRISE_CAP, Prefill, batches, prefill, prefill_rows


@given(expected=st.floats(0.01, 20), count=st.integers(0, 60))
def test_the_bound_on_counts_is_never_below_the_true_tail_of_a_poisson_count(expected: float, count: int) -> None:
    below = sum(math.exp(-expected + k * math.log(expected) - math.lgamma(k + 1)) for k in range(count))
    assert at_least(count, expected) >= (1 - below) * (1 - 1e-9) - 1e-12


def test_the_bound_on_counts_is_small_where_chance_explains_nothing() -> None:
    assert at_least(0, 0.0) == 1.0
    assert at_least(1, 0.0) == 0.0
    assert at_least(4, 0.01) < 1e-5
    assert at_least(3, 3.0) == 1.0


def test_the_bound_on_sums_is_never_below_the_true_tail_of_a_binomial_count() -> None:
    count, chance = 200, 0.1
    for excess in range(1, 60):
        successes = 20 + excess
        true = sum(math.comb(count, k) * chance**k * (1 - chance) ** (count - k) for k in range(successes, count + 1))
        assert tail(excess, count * chance * (1 - chance), 1.0) >= true
    assert tail(40, 18.0, 1.0) < 1e-4
    assert tail(-1.0, 18.0, 1.0) == 1.0


def test_claimed_log_probabilities_may_be_further_off_at_a_low_temperature(court: Court, honest: list[Rollout]) -> None:
    ours = prefill(court.made.model["old"], honest[0], court.facts.eos_token_ids)
    for temperature, allowed in ((0.25, 2.0), (1.0, 0.5), (2.0, 0.5)):
        sampling = court.facts.sampling.model_copy(update={"temperature": temperature})
        facts = dataclasses.replace(court.facts, sampling=sampling)
        for share in (0.98, 1.02):
            claimed = (ours.logprobs - share * allowed).tolist()
            file = File(JOB, [dataclasses.replace(honest[0], completion_logprobs=claimed)], METADATA)
            finding = token_sampling.check(file, {0: ours}, facts, 1e-9)
            assert (finding is None) == (share < 1), finding


def test_a_forward_pass_in_tiles_equals_the_definition(
    court: Court, honest: list[Rollout], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, row = court.made.model["old"], max(honest, key=lambda row: len(row.completion_tokens))
    monkeypatch.setattr(prefill_module, "TILE_ELEMENTS", 258 * 7)
    found = prefill(model, row, frozenset({1, 5}), "gumbel-murmur3-1")
    first, count = len(row.prompt_tokens) - 1, len(row.completion_tokens)
    with torch.no_grad():
        logits = model(torch.tensor([[*row.prompt_tokens, *row.completion_tokens]])).logits[0, first : first + count]
    logprobs = torch.log_softmax(logits.double() / row.temperature, -1).numpy()
    chances = np.exp(logprobs)
    surprise = np.minimum(-logprobs, SURPRISE_CAP)
    mean = (chances * surprise).sum(1)
    assert found.states.shape == (count, 128)
    np.testing.assert_allclose(found.logprobs, logprobs[np.arange(count), list(row.completion_tokens)], atol=1e-4)
    np.testing.assert_allclose(found.eos, chances[:, 1] + chances[:, 5], atol=1e-5)
    np.testing.assert_allclose(found.low, np.where(chances < 0.05, chances, 0).sum(1), atol=1e-4)
    np.testing.assert_allclose(found.surprise_mean, mean, atol=1e-4)
    np.testing.assert_allclose(found.surprise_variance, (chances * (surprise - mean[:, None]) ** 2).sum(1), atol=1e-4)
    for share, ratios in ((0.8, found.colder), (1.25, found.hotter)):
        other = torch.log_softmax(logits.double() / (row.temperature * share), -1).numpy()
        there = np.arange(count), list(row.completion_tokens)
        np.testing.assert_allclose(ratios, other[there] - logprobs[there], atol=1e-4)
    whole = prefill(model, row, frozenset({1, 5}), "gumbel-murmur3-1")
    assert found.drawn is not None
    assert found.drawn.tolist() == list(row.completion_tokens)
    assert np.array_equal(found.gaps, whole.gaps)


def test_rows_in_a_batch_give_what_each_gives_alone(court: Court, honest: list[Rollout]) -> None:
    model, eos = court.made.model["old"], court.facts.eos_token_ids
    lengths = [len(row.completion_tokens) - number % 4 for number, row in enumerate(honest)]
    rows = [
        dataclasses.replace(
            row, completion_tokens=row.completion_tokens[:end], completion_mask=row.completion_mask[:end]
        )
        for row, end in zip(honest, lengths, strict=True)
    ]
    batched: dict[int, Prefill] = {}
    sizes, padded = [], []
    for batch in prefill_rows(model, dict(enumerate(rows)), eos, "gumbel-murmur3-1"):
        sizes.append(len(batch))
        padded.append(len({len(rows[number].prompt_tokens) + lengths[number] for number in batch}))
        batched |= batch
    assert max(sizes) > 10
    assert max(padded) > 1
    for number, row in enumerate(rows):
        alone = prefill(model, row, eos, "gumbel-murmur3-1")
        assert batched[number].routes is alone.routes is None
        for field in dataclasses.fields(Prefill):
            if field.name == "routes":
                continue
            np.testing.assert_allclose(
                getattr(batched[number], field.name), getattr(alone, field.name), atol=1e-4, err_msg=field.name
            )


def test_what_stands_in_one_row_changes_nothing_in_its_neighbours(court: Court, honest: list[Rollout]) -> None:
    model, eos = court.made.model["old"], court.facts.eos_token_ids
    rows = {number: honest[number] for number in range(4)}
    (before,) = prefill_rows(model, rows, eos)
    changed = dataclasses.replace(rows[1], completion_tokens=[7] * len(rows[1].completion_tokens))
    (after,) = prefill_rows(model, rows | {1: changed}, eos)
    assert not np.allclose(before[1].states, after[1].states)
    for number in (0, 2, 3):
        assert np.array_equal(before[number].states, after[number].states)


def test_batches_hold_rows_of_like_length_within_their_budget_and_long_rows_alone() -> None:
    assert batches({0: 10, 1: 500, 2: 12, 3: 3000, 4: 11}, budget=1000) == [[0, 4, 2], [1], [3]]
    lengths = {number: 1 + number * 37 % 400 for number in range(100)}
    made = batches(lengths, budget=1000)
    assert sorted(number for group in made for number in group) == list(range(100))
    assert all(len(group) * max(lengths[number] for number in group) <= 1000 for group in made)
    assert batches({}) == []


def test_honest_rows_have_the_surprise_that_the_policy_expects(court: Court, honest: list[Rollout]) -> None:
    found = [prefill(court.made.model["old"], row, court.facts.eos_token_ids) for row in honest]
    surprise = np.minimum(-np.concatenate([each.logprobs for each in found]), SURPRISE_CAP)
    expected = np.concatenate([each.surprise_mean for each in found])
    deviation = math.sqrt(np.concatenate([each.surprise_variance for each in found]).sum())
    assert abs(float((surprise - expected).sum())) < 4 * deviation


def test_few_versions_are_kept_the_least_recently_used_goes_with_its_folder(court: Court, tmp_path: Path) -> None:
    from test_validator_process import ROLE_KEYS, publish

    from shoal.storage.store import NotFound, open_folder

    (tmp_path / "store").mkdir()
    store = open_folder(tmp_path / "store", "shoal/tiny")
    digests = [publish(store, court.made.folder["old"], version) for version in range(3)]
    policies = Policies(store, tmp_path / "policies", "tiny", ROLE_KEYS["trainer"].public, capacity=2)
    first = policies.get(0)
    assert first.weights_digest == digests[0]
    policies.get(1)
    assert policies.get(0) is first
    policies.get(2)
    assert {path.name for path in (tmp_path / "policies").iterdir()} == {"v000000", "v000002"}
    assert policies.get(0) is first
    with pytest.raises(NotFound):
        policies.get(7)  # not sealed yet: nothing is dropped for it
    assert policies.get(0) is first
    assert {path.name for path in (tmp_path / "policies").iterdir()} == {"v000000", "v000002"}
    assert policies.get(1).version == 1
    with pytest.raises(ValueError, match="capacity is 0; allowed: 1 or more"):
        Policies(store, tmp_path, "tiny", ROLE_KEYS["trainer"].public, capacity=0)
