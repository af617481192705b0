"""The proof profile of a model: what is read, what is refused, and which thresholds are in force."""

import json
from pathlib import Path

import pytest

from samples import PROOF_PROFILE
from shoal.contracts.proof_profile import (
    DRAWN_GAPS,
    PROFILE_BYTES,
    ErrorRate,
    ProofProfile,
    ProofTerms,
    WrongProfile,
    drawn_gaps_in_force,
    read_profile,
    thresholds_in_force,
)
from shoal.contracts.thresholds import DrawnGaps, ProofThresholds

GIVEN = ProofThresholds(max_exponent_mismatches=5, max_mantissa_error_mean=1.0, max_mantissa_error_median=1.0)


def test_thresholds_without_a_budget_leave_the_calibrated_budget_in_force() -> None:
    tight = DrawnGaps(share=5e-4, mean=1e-6, deviation=1e-4, largest=0.05)
    bare = PROOF_PROFILE.model_copy(update={"thresholds": ProofThresholds()})
    calibrated = PROOF_PROFILE.model_copy(update={"thresholds": ProofThresholds(drawn_gaps=tight)})
    own = DrawnGaps(share=0.01, mean=1e-4, deviation=1e-3, largest=0.2)
    assert drawn_gaps_in_force(ProofThresholds(max_mantissa_error_mean=1.0), calibrated, "bfloat16") == tight
    assert drawn_gaps_in_force(ProofThresholds(drawn_gaps=own), calibrated, "bfloat16") == own
    assert (
        drawn_gaps_in_force(None, bare, "bfloat16")
        == drawn_gaps_in_force(None, None, "bfloat16")
        == DRAWN_GAPS["bfloat16"]
    )


def written(folder: Path, data: bytes) -> Path:
    (folder / "proof_profile.json").write_bytes(data)
    return folder


def test_a_checkpoint_without_the_file_has_no_profile(tmp_path: Path) -> None:
    assert read_profile(tmp_path, 128) is None


def test_a_profile_is_read_as_it_was_written_and_gives_the_mask(tmp_path: Path) -> None:
    profile = read_profile(written(tmp_path, PROOF_PROFILE.to_json()), 128)
    assert profile == PROOF_PROFILE
    mask = PROOF_PROFILE.mask()
    assert mask is not None
    assert mask.shape == (128,)
    assert mask.nonzero()[0].tolist() == PROOF_PROFILE.masked_dimensions == [3, 17]
    assert PROOF_PROFILE.model_copy(update={"masked_dimensions": []}).mask() is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"hidden_size": 256}, "is of a model 256 wide, this one is 128 wide: calibrate again"),
        ({"masked_dimensions": [17, 3]}, "ascending, each once, and below hidden_size 128"),
        ({"masked_dimensions": [3, 3]}, "ascending, each once"),
        ({"masked_dimensions": [128]}, "below hidden_size 128"),
        ({"masked_dimensions": list(range(65))}, "65 of 128 dimensions are masked; at most half are allowed"),
        ({"thresholds": {"maxExponentMismatches": 39}}, "less than or equal to 38"),
        ({"dtype": "float8"}, "'float32', 'bfloat16' or 'float16'"),
        ({"another": 1}, "Extra inputs are not permitted"),
    ],
)
def test_a_wrong_profile_is_refused_with_its_path(tmp_path: Path, change: dict[str, object], words: str) -> None:
    fields = json.loads(PROOF_PROFILE.to_json()) | change
    with pytest.raises(WrongProfile, match=r"proof_profile\.json: ") as caught:
        read_profile(written(tmp_path, json.dumps(fields).encode()), 128)
    assert words in str(caught.value)


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff\xfe", b"null"])
def test_what_is_no_document_is_refused(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(WrongProfile):
        read_profile(written(tmp_path, data), 128)


def test_a_profile_that_is_far_too_long_is_not_read(tmp_path: Path) -> None:
    with pytest.raises(WrongProfile, match=f"at most {PROFILE_BYTES}"):
        read_profile(written(tmp_path, b" " * (PROFILE_BYTES + 1)), 128)


def test_the_manifests_thresholds_go_first_then_the_calibrated_then_the_published_ones() -> None:
    assert thresholds_in_force(GIVEN, PROOF_PROFILE) == GIVEN
    assert thresholds_in_force(None, PROOF_PROFILE) == PROOF_PROFILE.thresholds
    assert thresholds_in_force(None, None) == ProofThresholds()


def test_rates_are_told_only_of_the_thresholds_that_they_were_measured_with() -> None:
    calibrated = ProofTerms.in_force(None, PROOF_PROFILE)
    assert calibrated.calibrated
    assert calibrated.honest == PROOF_PROFILE.honest
    assert calibrated.controls == PROOF_PROFILE.controls
    other = ProofTerms.in_force(GIVEN, PROOF_PROFILE)
    assert (other.calibrated, other.honest, other.controls, other.masked_dimensions) == (False, None, [], 2)
    assert ProofTerms.in_force(None, None) == ProofTerms(thresholds=ProofThresholds(), calibrated=False)


def test_a_rate_of_no_trials_is_zero() -> None:
    assert ErrorRate(events=0, trials=0, low=0.0, high=1.0).share == 0.0
    assert ErrorRate(events=1, trials=4, low=0.0, high=1.0).share == 0.25


def test_the_published_thresholds_stay_the_upper_bound() -> None:
    with pytest.raises(ValueError, match="less than or equal to 10"):
        ProofThresholds(max_mantissa_error_mean=10.5)
    assert ProofProfile.from_json(PROOF_PROFILE.to_json()).thresholds.max_mantissa_error_mean <= 10.0
