"""The proof profile in a version's folder: which dimensions proofs leave out and which thresholds hold are the trainer's word, not the worker's."""

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import pytest
from court import DIGEST, STATISTICAL, VERSION, Court, OnePolicy
from test_dishonest_files import rejected, replace
from test_validator_process import ROLE_KEYS, publish

from samples import PROOF_PROFILE
from shoal.contracts.proof_profile import PROFILE_FILE, ProofProfile, WrongProfile
from shoal.contracts.rollouts import Rollout
from shoal.contracts.thresholds import FileMean, ProofThresholds
from shoal.contracts.verdicts import Verdict
from shoal.storage.store import open_folder
from shoal.toploc import codec
from shoal.validation.policies import LoadedPolicy, Policies
from shoal.validation.prefill import prefill


def court_with(court: Court, profile: ProofProfile, **validation: object) -> Court:
    facts = dataclasses.replace(court.facts, validation=court.facts.validation.model_copy(update=validation))
    policy = LoadedPolicy(VERSION, DIGEST, court.made.model["old"], profile)
    return dataclasses.replace(court, facts=facts, policies=OnePolicy(policy))


def proofs(court: Court, row: Rollout, profile: ProofProfile, scale: float = 1.0) -> bytes:
    """Proofs of the right states, or of ones that are all too large, as other weights' may be."""
    states = prefill(court.made.model["old"], row, court.facts.eos_token_ids).states
    return codec.encode(states * np.float32(scale), profile.mask())


def test_proofs_that_leave_out_the_masked_dimensions_fit_and_others_do_not(court: Court, honest: list[Rollout]) -> None:
    widest = int(abs(prefill(court.made.model["old"], honest[0], frozenset({1})).states).sum(0).argmax())
    profile = PROOF_PROFILE.model_copy(update={"masked_dimensions": [widest]})
    strict = court_with(court, profile)
    left_out = [replace(row, proofs=proofs(court, row, profile)) for row in honest]
    assert strict.judge(left_out).outcome == "accept"
    assert "does not fit" in rejected(strict.judge(honest), "computation")


def test_calibrated_thresholds_hold_where_the_manifest_gives_none(court: Court, honest: list[Rollout]) -> None:
    loose = PROOF_PROFILE.thresholds.model_copy(
        update={"max_exponent_mismatches": 38, "max_mantissa_error_mean": 10.0, "max_mantissa_error_median": 8.0}
    )
    unmasked = PROOF_PROFILE.model_copy(update={"masked_dimensions": []})
    shifted = [replace(row, proofs=proofs(court, row, unmasked, 1.02)) for row in honest]
    calibrated = court_with(court, unmasked, thresholds=None)
    assert "allowed together 2" in rejected(calibrated.judge(shifted, job=STATISTICAL), "computation")
    wide = court_with(court, unmasked.model_copy(update={"thresholds": loose}), thresholds=None)
    assert wide.judge(shifted, job=STATISTICAL).outcome == "accept"


def test_errors_too_small_for_a_chunk_to_tell_are_found_in_the_mean_of_a_file(
    court: Court, honest: list[Rollout]
) -> None:
    unmasked = PROOF_PROFILE.model_copy(update={"masked_dimensions": []})
    loose = ProofThresholds(max_mantissa_error_mean=4.0)
    bound = loose.model_copy(update={"file_mean": FileMean(bound=0.1, deviation=0.01)})
    near = [replace(row, proofs=proofs(court, row, unmasked, 1.01)) for row in honest]

    def outcome(rows: list[Rollout], thresholds: ProofThresholds) -> Verdict:
        profile = unmasked.model_copy(update={"thresholds": thresholds})
        every_row = STATISTICAL.model_copy(update={"on_probation": True})
        return court_with(court, profile, thresholds=None).judge(rows, job=every_row)

    assert outcome(near, loose).outcome == "accept"
    evidence = rejected(outcome(near, bound), "computation")
    assert "are together too far from version 3: mantissa error" in evidence
    assert outcome(honest, bound).outcome == "accept"


def test_a_loaded_version_has_the_profile_of_its_folder(court: Court, tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    store = open_folder(tmp_path / "store", "shoal/tiny")
    folder = tmp_path / "checkpoint"
    shutil.copytree(court.made.folder["old"], folder)
    (folder / PROFILE_FILE).unlink(missing_ok=True)
    publish(store, folder, 0)
    (folder / PROFILE_FILE).write_bytes(PROOF_PROFILE.to_json())
    publish(store, folder, 1)
    (folder / PROFILE_FILE).write_bytes(PROOF_PROFILE.model_copy(update={"hidden_size": 256}).to_json())
    publish(store, folder, 2)
    policies = Policies(store, tmp_path / "policies", "tiny", ROLE_KEYS["trainer"].public, capacity=3)
    (tmp_path / "policies" / "v000007").mkdir(parents=True)  # of a process before this one
    assert policies.get(0).profile is None
    assert policies.get(1).profile == PROOF_PROFILE
    assert policies.get(1).dtype == "float32"
    assert {path.name for path in (tmp_path / "policies").iterdir()} == {"v000000", "v000001"}
    with pytest.raises(WrongProfile, match="is of a model 256 wide, this one is 128 wide"):
        policies.get(2)
