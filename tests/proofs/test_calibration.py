"""Calibration: what is masked, which thresholds follow from honest errors, and what dishonest proofs do against them, on real small models."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from shoal.contracts.proof_profile import DRAWN_GAPS, ProofProfile
from shoal.contracts.thresholds import DrawnGaps, ProofThresholds
from shoal.models.rounded import round_in_place
from shoal.proofs import CannotCalibrate, forgeries
from shoal.proofs.calibration import (
    LEAST_CHUNKS,
    LEAST_GAPS,
    Compared,
    Effort,
    RoundedModel,
    Served,
    ServedErrors,
    calibrate,
    drawn_gaps,
    thresholds_for,
)
from shoal.proofs.chunks import by_file, distance, layout, points_of
from shoal.proofs.forgeries import changes, other_weights
from shoal.proofs.forward import decode, prefill
from shoal.proofs.masking import masked_dimensions
from shoal.toploc import codec
from shoal.toploc.codec import ErrorTable

OUTLIERS = [3, 40, 77, 90, 111]
VOCABULARY = 97
EFFORT = Effort(sequences=48, max_tokens=40, seconds=300.0, file_sequences=12, learning_rate=1e-3, updates=4)
PROMPTS = [[1 + (7 * number + place) % 90 for place in range(5)] for number in range(36)]


def model_with(outliers: Sequence[int], dtype: torch.dtype = torch.float32) -> Any:
    """A random Qwen3 of two layers; each of `outliers` is a dimension that is large, whatever the text.

    Weights are large enough for attention to matter; what a layer reads is scaled up for what the outliers take of the norm.
    """
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=32, initializer_range=0.1, eos_token_id=None, pad_token_id=0, bos_token_id=None,
        tie_word_embeddings=False,
    )  # fmt: skip
    model = Qwen3ForCausalLM(config).eval()
    with torch.no_grad():
        model.model.embed_tokens.weight.normal_(0.0, 1.0)
        large = 1000.0
        for place, dimension in enumerate(outliers):
            model.model.embed_tokens.weight[:, dimension] = large * (-1) ** place
            for layer in model.model.layers:
                layer.self_attn.o_proj.weight[dimension] = 0
                layer.mlp.down_proj.weight[dimension] = 0
        if outliers:
            scale = large * (len(outliers) / 128) ** 0.5
            norms = [
                norm for layer in model.model.layers for norm in (layer.input_layernorm, layer.post_attention_layernorm)
            ]
            for norm in (*norms, model.model.norm):
                norm.weight *= scale
                norm.weight[list(outliers)] = 0
            model.model.norm.weight[list(outliers)] = torch.linspace(40.0, 80.0, len(outliers))
    return model.to(dtype)


def measured(model: Any, effort: Effort = EFFORT) -> ProofProfile:
    return calibrate(model, PROMPTS, effort, lambda what, done, wanted: None)


@pytest.fixture(scope="module")
def plain() -> ProofProfile:
    return measured(model_with([]))


@pytest.fixture(scope="module")
def with_outliers() -> ProofProfile:
    return measured(model_with(OUTLIERS))


def passed(profile: ProofProfile) -> dict[str, float]:
    return {control.name: control.chunks.share for control in profile.controls}


def test_dimensions_that_hardly_vary_are_masked_and_no_others(plain: ProofProfile, with_outliers: ProofProfile) -> None:
    assert plain.masked_dimensions == []
    assert with_outliers.masked_dimensions == OUTLIERS


def test_no_proof_made_without_a_forward_pass_is_accepted(plain: ProofProfile, with_outliers: ProofProfile) -> None:
    for profile in (plain, with_outliers):
        rates = passed(profile)
        for name in ("dimension prior", "token prior", "constant", "low degree", "signs flipped"):
            assert rates[name] == 0.0, name


def test_without_the_mask_the_dimension_prior_would_pass_even_for_whole_files() -> None:
    model = model_with(OUTLIERS[:4])
    honest = [each for group in decode(model, PROMPTS, 32, seed=0, batch=36) for each in group]
    seen, given = [each.states for each in honest[:18]], [each.states for each in honest[18:]]
    chunks = layout([len(each) for each in given])
    accepted = {}
    for name, masked in (("free", None), ("masked", np.isin(np.arange(128), OUTLIERS[:4]))):
        forged = forgeries.dimension_prior(seen, masked, chunks)
        accepted[name] = distance(forged, points_of(given, masked)).accepted(ProofThresholds())
    assert accepted["free"].all()
    assert not accepted["masked"].any()


def test_honest_proofs_pass_and_the_bound_says_how_sure_that_is(plain: ProofProfile) -> None:
    assert plain.dtype == "float32"
    assert plain.size.sequences == 48
    assert plain.size.chunks == 96  # forty tokens are a full chunk and one of eight
    assert plain.honest.rejected_chunks.events == plain.honest.rejected_files.events == 0
    assert plain.honest.rejected_chunks.trials == 96
    assert plain.honest.rejected_files.trials == 4
    assert 0.03 < plain.honest.rejected_chunks.high < 0.04  # 1 - 0.025 ** (1 / 96)
    published = ProofThresholds()
    assert plain.thresholds.max_exponent_mismatches < published.max_exponent_mismatches / 4
    assert plain.thresholds.max_mantissa_error_mean < published.max_mantissa_error_mean / 4


def test_other_weights_are_told_apart_in_float32(plain: ProofProfile) -> None:
    assert {name: passed(plain)[name] for name in ("one step older", "int8", "fp8", "int4")} == dict.fromkeys(
        ("one step older", "int8", "fp8", "int4"), 0.0
    )


def test_in_bfloat16_thresholds_are_wider_and_still_no_forgery_passes() -> None:
    profile = measured(model_with(OUTLIERS, torch.bfloat16))
    assert profile.dtype == "bfloat16"
    assert profile.masked_dimensions == OUTLIERS
    assert profile.honest.max_mantissa_error_mean > 0.0
    assert profile.thresholds.max_mantissa_error_mean > 0.1
    rates = passed(profile)
    assert [rates[name] for name in ("dimension prior", "token prior", "constant", "low degree")] == [0.0] * 4


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_serving_engines_proofs_bound_the_mean_over_a_file_in_sixteen_bits(dtype: torch.dtype) -> None:
    model = model_with(OUTLIERS, dtype)
    asked = []

    def serve(prompts: Sequence[Sequence[int]], max_tokens: int, masked: Sequence[int]) -> list[Served]:
        asked.append((len(prompts), max_tokens, list(masked)))
        mask = np.isin(np.arange(128), masked)
        return [
            Served(each.prompt, each.completion, codec.encode(each.states, mask), 0)
            for group in decode(model, prompts, max_tokens, seed=5, batch=11)
            for each in group
        ]

    profile = calibrate(model, PROMPTS, EFFORT, lambda what, done, wanted: None, serve)
    assert asked == [(48, 40, OUTLIERS)]
    assert profile.size.sequences == 96
    assert (profile.honest.rejected_chunks.trials, profile.honest.rejected_files.trials) == (192, 8)
    assert profile.honest.rejected_chunks.events == profile.honest.rejected_files.events == 0
    assert profile.logits == (None if dtype == torch.float32 else "float32")
    if dtype == torch.float32:
        assert profile.thresholds.file_mean is None
        return
    gaps, most = profile.thresholds.drawn_gaps, DRAWN_GAPS["bfloat16"]
    assert gaps is not None
    assert 0.0 < gaps.largest <= most.largest, "what no seed drew is held to no more than the default"
    bound = profile.thresholds.file_mean
    assert bound is not None
    assert 0 < bound.bound < profile.thresholds.max_mantissa_error_mean / 3
    int4 = next(control for control in profile.controls if control.name == "int4")
    assert int4.files.events == 0  # every file is found, whether or not a chunk of it tells


def test_the_budget_of_tokens_is_what_honest_ones_had_with_a_margin_between_the_least_and_the_default() -> None:
    gaps = np.zeros(10_000, dtype=np.float32)
    rare = {"outliers": 1e-4}  # one in 10,000
    assert drawn_gaps(gaps, "bfloat16") == LEAST_GAPS["bfloat16"].model_copy(update=rare)
    gaps[:100] = 0.04
    assert drawn_gaps(gaps, "bfloat16") == DrawnGaps(share=0.013, mean=5e-4, deviation=0.005, largest=0.08, **rare)
    assert drawn_gaps(gaps, "float32").largest == 0.08, "more than the default, if an engine needs it"
    gaps[::2] = 1.0
    assert drawn_gaps(gaps, "bfloat16") == DRAWN_GAPS["bfloat16"].model_copy(update=rare)
    assert drawn_gaps(gaps[:10], "bfloat16").outliers == 1e-3, "of few tokens no more is known, and no more is allowed"


def test_an_engine_that_completes_nothing_is_named() -> None:
    with pytest.raises(CannotCalibrate, match="the serving engine completed no prompt"):
        calibrate(model_with([]), PROMPTS, EFFORT, lambda what, done, wanted: None, lambda *asked: [])


def test_a_model_of_nothing_but_outliers_keeps_half_its_dimensions() -> None:
    constant = np.tile(np.linspace(1.0, 9.0, 128, dtype=np.float32), (320, 1))
    assert len(masked_dimensions([constant])) == 64


def test_thresholds_are_the_largest_errors_with_a_margin_between_the_least_and_the_published() -> None:
    def table(mismatches: int, mean: float, median: float) -> ErrorTable:
        zeros = np.zeros(3, dtype=np.int64)
        return ErrorTable(np.array([0, mismatches, 0]), zeros, np.array([0.0, mean, 0.0]), np.array([0.0, median, 0.0]))

    assert thresholds_for(table(0, 0.0, 0.0), "float32") == ProofThresholds(
        max_exponent_mismatches=2, max_mantissa_error_mean=0.1, max_mantissa_error_median=0.0
    )
    assert thresholds_for(table(7, 0.71, 0.5), "float32") == ProofThresholds(
        max_exponent_mismatches=14, max_mantissa_error_mean=1.42, max_mantissa_error_median=1.0
    )
    assert thresholds_for(table(1, 0.31, 0.0), "bfloat16") == ProofThresholds(
        max_exponent_mismatches=10, max_mantissa_error_mean=2.2, max_mantissa_error_median=2.0
    )
    assert thresholds_for(table(8, 2.61, 2.0), "bfloat16") == ProofThresholds(
        max_exponent_mismatches=24, max_mantissa_error_mean=7.83, max_mantissa_error_median=6.0
    ), "three times transformers' own, where no engine was measured"
    for chunks, margin in ((LEAST_CHUNKS - 1, 3), (LEAST_CHUNKS, 2)):
        zeros = np.zeros(chunks)
        errors = ErrorTable(zeros.astype(np.int64), zeros.astype(np.int64), zeros, zeros)
        served = ServedErrors(Compared(layout([1] * chunks), errors), np.zeros(chunks, dtype=np.float32))
        found = thresholds_for(table(8, 2.61, 2.0), "bfloat16", served)
        assert found.max_exponent_mismatches == margin * 8, (
            "of few chunks of the engine no more is known than without it"
        )
    for dtype in ("float32", "bfloat16"):
        assert thresholds_for(table(60, 30.0, 30.0), dtype) == ProofThresholds()
    assert thresholds_for(table(128, float("inf"), float("inf")), "float32") == ProofThresholds()


def test_a_machine_too_slow_for_its_time_measures_the_least_number_of_chunks_all_the_same() -> None:
    slow = replace(EFFORT, sequences=384, max_tokens=4, seconds=0.0)
    profile = calibrate(model_with([]), PROMPTS, slow, lambda *_: None)
    assert LEAST_CHUNKS <= profile.size.chunks < slow.sequences
    assert profile.honest.rejected_chunks.high < 0.03


def test_other_weights_are_put_back() -> None:
    model = model_with([])
    before = {name: value.clone() for name, value in model.state_dict().items()}
    for name, change in changes(1e-3, 2).items():
        with other_weights(model, name, change, seed=0):
            assert any(not torch.equal(before[key], value) for key, value in model.state_dict().items())
        assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())


def test_decoding_and_one_pass_give_the_same_states_row_by_row() -> None:
    model = model_with([])
    mixed = [*PROMPTS[:3], [5, 6, 7]]  # of two lengths: decoded apart, computed again together, with padding
    decoded = [each for group in decode(model, mixed, 12, seed=0, batch=4) for each in group]
    assert sorted(len(each.prompt) for each in decoded) == [3, 5, 5, 5]
    for each, again in zip(decoded, prefill(model, decoded, 4), strict=True):
        assert each.states.shape == again.shape == (12, 128)
        assert np.abs(each.states - again).max() < 1e-4


def test_a_file_is_rejected_with_any_of_its_chunks() -> None:
    chunks = layout([40, 32, 1, 33, 32])  # chunks 0-1, 2, 3, 4-5, 6
    hit = np.array([False, True, False, False, False, False, True])
    assert by_file(hit, chunks, 2).tolist() == [True, False]  # the fifth sequence makes no whole file
    assert by_file(hit, chunks, 9).tolist() == [True]


def test_what_cannot_be_calibrated_is_said() -> None:
    with pytest.raises(CannotCalibrate, match="there are no prompts"):
        calibrate(model_with([]), [], EFFORT, lambda what, done, wanted: None)
    with pytest.raises(CannotCalibrate, match="type float64; allowed: float32, bfloat16, float16"):
        measured(model_with([], torch.float64), Effort(2, 4, 9.0, 1, 1e-3, 1))


@pytest.mark.parametrize("updates", [1, 4, 8, 11])
def test_an_older_version_is_as_many_steps_away_as_coins_fall(updates: int) -> None:
    """Against the binomial distribution: each count within five deviations."""
    number = 100_000
    made = forgeries.steps(number, updates, torch.Generator().manual_seed(5))
    for ups in range(updates + 1):
        chance = math.comb(updates, ups) / 2**updates
        seen = int((made == 2 * ups - updates).sum())
        assert abs(seen - number * chance) <= 5 * math.sqrt(number * chance * (1 - chance)) + 1
    assert int(made.abs().max()) <= updates


def test_an_older_version_is_drawn_by_the_seed_in_pieces_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forgeries, "PIECE", 1000)
    monkeypatch.setattr(torch, "randint", None)  # whose eight bytes a weight took minutes at 32B
    weight = torch.randn(70, 50, generator=torch.Generator().manual_seed(1)).to(torch.bfloat16).t()
    change = forgeries.one_step_older(0.25, 8)
    one, same, other = (change(weight, torch.Generator().manual_seed(seed)) for seed in (3, 3, 4))
    assert (one == same).all()
    assert (one != other).any()
    assert (one.shape, one.dtype) == (weight.shape, weight.dtype)
    moved = (one.float() - weight.float()).std()
    assert 0.9 < float(moved) / (0.25 * math.sqrt(8)) < 1.1


def test_rounded_weights_are_honest_under_their_term_and_the_published_are_found(tmp_path: Path) -> None:
    model = model_with([])
    model.save_pretrained(tmp_path)
    published = {name: weight.clone() for name, weight in model.state_dict().items()}
    round_in_place(model, "fp8")
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    profile = calibrate(
        model, PROMPTS, EFFORT, lambda *_: None, as_rounded=RoundedModel(quantization="fp8", folder=tmp_path)
    )
    assert profile.quantization == "fp8"
    assert profile.honest.rejected_chunks.events == 0
    accepted = {control.name: control.chunks.events for control in profile.controls}
    assert "fp8" not in accepted
    assert {name: accepted[name] for name in ("published weights", "int8", "int4", "one step older")} == {
        "published weights": 0, "int8": 0, "int4": 0, "one step older": 0
    }  # fmt: skip
    after = model.state_dict()
    assert all(torch.equal(after[name], weight) for name, weight in before.items())
    assert not all(torch.equal(after[name], weight) for name, weight in published.items())
