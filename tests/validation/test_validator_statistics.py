"""The numbers behind the statistical checks: bounds on chance, forward passes, drawn rows, loaded versions."""

import math
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from court import Court
from hypothesis import given
from hypothesis import strategies as st

from shoal.contracts.rollouts import Rollout
from shoal.validation import prefill as prefill_module
from shoal.validation.checks.termination import at_least
from shoal.validation.checks.token_sampling import tail
from shoal.validation.judge import draw_rows
from shoal.validation.policies import Policies
from shoal.validation.prefill import SURPRISE_CAP, prefill


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


def test_a_forward_pass_in_tiles_equals_the_definition(
    court: Court, honest: list[Rollout], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, row = court.made.model["old"], max(honest, key=lambda row: len(row.completion_tokens))
    monkeypatch.setattr(prefill_module, "TILE_ELEMENTS", 258 * 7)
    found = prefill(model, row, frozenset({1, 5}))
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


def test_one_rows_forward_pass_does_not_depend_on_another(court: Court, honest: list[Rollout]) -> None:
    model, eos = court.made.model["old"], court.facts.eos_token_ids
    alone = prefill(model, honest[3], eos)
    prefill(model, honest[4], eos)
    assert np.array_equal(alone.states, prefill(model, honest[3], eos).states)


def test_honest_rows_have_the_surprise_that_the_policy_expects(court: Court, honest: list[Rollout]) -> None:
    found = [prefill(court.made.model["old"], row, court.facts.eos_token_ids) for row in honest]
    surprise = np.minimum(-np.concatenate([each.logprobs for each in found]), SURPRISE_CAP)
    expected = np.concatenate([each.surprise_mean for each in found])
    deviation = math.sqrt(np.concatenate([each.surprise_variance for each in found]).sum())
    assert abs(float((surprise - expected).sum())) < 4 * deviation


def test_rows_for_proofs_are_a_share_and_at_least_a_floor_and_at_most_all() -> None:
    rng = random.Random(0)
    assert len(draw_rows(100, 0.1, 4, rng)) == 10
    assert len(draw_rows(20, 0.1, 4, rng)) == 4
    assert draw_rows(3, 0.1, 4, rng) == [0, 1, 2]
    assert len(draw_rows(101, 0.1, 4, rng)) == 11
    drawn = [tuple(draw_rows(50, 0.1, 4, rng)) for _ in range(20)]
    assert len(set(drawn)) > 15
    assert {row for rows in drawn for row in rows} <= set(range(50))


def test_few_versions_are_kept_the_least_recently_used_goes_with_its_folder(court: Court, tmp_path: Path) -> None:
    from test_validator_process import ROLE_KEYS, publish

    from shoal.storage.store import open_folder

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
    assert policies.get(1).version == 1
    with pytest.raises(ValueError, match="capacity is 0; allowed: 1 or more"):
        Policies(store, tmp_path, "tiny", ROLE_KEYS["trainer"].public, capacity=0)
