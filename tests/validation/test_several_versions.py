"""Rows that went on under newer weights (ADR 0108): files of a real engine pass, every lie about who sampled what is found.

The engine swaps in the middle of its rows. The liars hold both versions, and make proofs and log-probabilities that fit whatever they claim.
"""

import dataclasses
import random
from dataclasses import dataclass

import numpy as np
import pytest
import tiny_policy
import torch
from court import CALIBRATED, JOB, METADATA, VERSION, Court

from shoal.contracts.completions import LengthReward, Sampling
from shoal.contracts.rollouts import (
    SEGMENT_TOKENS,
    BadRollouts,
    Rollout,
    by_version,
    digest_of_weights,
    read_rollouts,
    write_rollouts,
)
from shoal.contracts.validation import Validation
from shoal.contracts.verdicts import Verdict
from shoal.environments.prompts import prompt_tokens
from shoal.inference.rollouts import PlannedRow, assemble, plan_submission
from shoal.toploc import codec
from shoal.validation.facts import Facts
from shoal.validation.judge import judge
from shoal.validation.policies import LoadedPolicy
from shoal.validation.prefill import prefill

replace = dataclasses.replace
OLD, NEW = VERSION, VERSION + 1
STEPS = 80
"""Decoding steps before the swap: the rows that began first are in their third proof, later ones in their first."""
LONGEST = 110
PUBLIC = tiny_policy.PUBLIC.model_copy(
    update={
        "several_versions": True,
        "sampling": Sampling(temperature=0.8, max_completion_tokens=LONGEST, groups_per_submission=3),
        "length_reward": LengthReward(targets=[16, 24, 32], alpha=0.003),
        "max_sequence_length": 160,
    }
)
DIGESTS = {OLD: "cd" * 32, NEW: "ef" * 32}
SEVERAL = replace(METADATA, weights_digest=digest_of_weights(list(DIGESTS.values())))


@dataclass
class TwoPolicies:
    """The old weights and the new, of which one is given at a time."""

    models: dict[int, torch.nn.Module]
    loads: list[int] = dataclasses.field(default_factory=list)

    def digest(self, version: int) -> str:
        return DIGESTS[version]

    def get(self, version: int) -> LoadedPolicy:
        self.loads.append(version)
        return LoadedPolicy(version, DIGESTS[version], self.models[version])


@dataclass
class Swapped:
    """What a real engine made of one lease with a swap in the middle, and the judge of the run."""

    court: Court
    planned: list[PlannedRow]
    honest: list[Rollout]
    facts: Facts
    models: dict[int, torch.nn.Module]
    policies: TwoPolicies

    def judge(self, rows: list[Rollout], metadata=SEVERAL, job=JOB, facts: Facts | None = None) -> Verdict:
        return self.judge_bytes(write_rollouts(rows, metadata), job, facts)

    def judge_bytes(self, data: bytes, job=JOB, facts: Facts | None = None) -> Verdict:
        path = self.court.folder / "several.parquet"
        path.write_bytes(data)
        self.policies.loads.clear()
        return judge(path, job, facts or self.facts, self.policies, random.Random(0))

    def proven(self, row: Rollout) -> Rollout:
        """Proofs and log-probabilities that fit the segments that the row claims."""
        proofs, logprobs = b"", []
        for version in row.versions:
            piece = by_version({0: row}, version)[0]
            ours = prefill(self.models[version], piece, self.facts.eos_token_ids)
            proofs += codec.encode(ours.states)
            logprobs += [min(float(value), 0.0) for value in ours.logprobs]
        return replace(row, proofs=proofs, completion_logprobs=logprobs)

    def with_each(self, change) -> list[Rollout]:
        """The file with every row of two segments changed."""
        return [change(row) if len(row.segment_versions) > 1 else row for row in self.honest]


@pytest.fixture(scope="module")
def swapped(court: Court) -> Swapped:
    return swapped_by(court)


def swapped_by(court: Court, *before: dict[str, str]) -> Swapped:
    """`before`: commands of the engine's process."""
    made = court.made

    def render(task, target):
        return prompt_tokens(made.tokenizer, tiny_policy.ENVIRONMENT, task, target, None)

    planned = plan_submission(tiny_policy.WORK, tiny_policy.STEP, tiny_policy.LEASE, PUBLIC, tiny_policy.TASKS, render)
    requests = [tiny_policy.request_json(row.request) for row in planned]
    start = {"do": "start", "folder": str(made.folder["old"]), "length": PUBLIC.max_sequence_length, "cuts": True}
    cut = {"do": "cut", "requests": requests, "stop_after": STEPS, "folder": str(made.folder["new"]), "version": OLD}
    completions = tiny_policy.run_engine([*before, start, cut]).results[-1]
    honest = assemble(planned, completions, tiny_policy.LEASE, PUBLIC, OLD, lambda *_: None)
    facts = replace(
        court.facts,
        sampling=PUBLIC.sampling,
        max_sequence_length=PUBLIC.max_sequence_length,
        validation=Validation(proof_rows_share=1.0, proof_rows_floor=8, thresholds=CALIBRATED),
        several_versions=True,
    )
    models = {OLD: made.model["old"], NEW: made.model["new"]}
    return Swapped(court, planned, honest, facts, models, TwoPolicies(models))


def rejected(verdict: Verdict, reason: str) -> str:
    assert (verdict.outcome, verdict.reason) == ("reject", reason), (verdict.outcome, verdict.evidence)
    return verdict.evidence


def test_rows_that_an_engine_goes_on_with_under_new_weights_pass_the_judge(swapped: Swapped) -> None:
    assert SEGMENT_TOKENS == codec.CHUNK_TOKENS
    kinds = {tuple(row.segment_versions) for row in swapped.honest}
    assert kinds >= {(OLD, NEW), (NEW,)}, kinds
    assert {row.policy_version for row in swapped.honest} == {OLD}
    verdict = swapped.judge(swapped.honest)
    assert verdict.outcome == "accept", verdict.evidence
    assert verdict.policy_version == OLD
    assert verdict.proof_rows == len(swapped.honest)


def test_rows_of_an_engine_that_schedules_before_it_knows_a_step_s_tokens_pass_it_as_well(
    court: Court, swapped: Swapped
) -> None:
    early = swapped_by(court, {"do": "asynchronous"})
    assert {tuple(row.segment_versions) for row in early.honest} >= {(OLD, NEW), (NEW,)}
    verdict = early.judge(early.honest)
    assert verdict.outcome == "accept", verdict.evidence
    assert verdict.proof_rows == len(early.honest)
    tokens = [(row.completion_tokens, row.segment_starts) for row in early.honest]
    assert tokens == [(row.completion_tokens, row.segment_starts) for row in swapped.honest]
    assert verdict.left_out == []
    assert sorted(set(swapped.policies.loads)) == [OLD, NEW]
    assert len(swapped.policies.loads) == 2  # one version at a time, and each once


def test_a_file_with_segments_comes_back_as_it_was_written(swapped: Swapped) -> None:
    rows, metadata = read_rollouts(write_rollouts(swapped.honest, SEVERAL))
    assert metadata == SEVERAL
    assert [(list(row.segment_versions), list(row.segment_starts)) for row in rows] == [
        (list(row.segment_versions), list(row.segment_starts)) for row in swapped.honest
    ]


def test_a_run_whose_rows_are_of_one_version_takes_no_segments(swapped: Swapped) -> None:
    one = replace(swapped.facts, several_versions=False)
    assert "rows of this run are of one version" in rejected(swapped.judge(swapped.honest, facts=one), "identity")


def test_a_file_of_one_version_is_judged_as_ever(swapped: Swapped, court: Court) -> None:
    facts = replace(court.facts, several_versions=True)
    assert swapped.judge(court.rows(court.made.old), METADATA, facts=facts).outcome == "accept"


@pytest.mark.parametrize("claimed", [OLD, NEW])
@pytest.mark.parametrize("proves", [False, True])
def test_tokens_of_one_version_that_are_given_as_the_others_are_found(
    swapped: Swapped, claimed: int, proves: bool
) -> None:
    """The boundary a proof further to the end, or to the beginning, with proofs as they were or made to fit."""

    def moved(row: Rollout) -> Rollout:
        start = row.segment_starts[1] + (SEGMENT_TOKENS if claimed == OLD else -SEGMENT_TOKENS)
        if start <= 0:  # all of it is the new version's
            row = replace(row, segment_versions=[NEW], segment_starts=[0])
        elif start >= len(row.completion_tokens):
            row = replace(row, segment_versions=[OLD], segment_starts=[0])
        else:
            row = replace(row, segment_starts=[0, start])
        return swapped.proven(row) if proves else row

    rejected(swapped.judge(swapped.with_each(moved)), "redraw" if proves else "computation")


def test_a_row_that_hides_its_swap_is_found(swapped: Swapped) -> None:
    for version in (OLD, NEW):
        hidden = swapped.with_each(
            lambda row, version=version: replace(row, segment_versions=[version], segment_starts=[0])
        )
        if len({each for row in hidden for each in row.versions}) > 1:
            rejected(swapped.judge(hidden), "computation")
    plain = [replace(row, segment_versions=(), segment_starts=()) for row in swapped.honest]
    rejected(swapped.judge(plain, METADATA), "computation")


@torch.inference_mode()
def from_a_kept_cache(swapped: Swapped, row: Rollout) -> Rollout:
    """The row as an engine makes it that keeps the keys and values of the older weights: drawn, with proofs, by what the new make of these."""
    start = row.segment_starts[1]
    tokens = torch.tensor([[*row.prompt_tokens, *row.completion_tokens]])
    before = len(row.prompt_tokens) + start - 1
    cache = swapped.models[OLD].model(tokens[:, :before], use_cache=True).past_key_values
    states = swapped.models[NEW].model(tokens[:, before:-1], past_key_values=cache).last_hidden_state[0]
    return replace(
        row, proofs=row.proofs[: start // SEGMENT_TOKENS * codec.PROOF_BYTES] + codec.encode(np.asarray(states))
    )


def test_proofs_over_a_prefix_of_the_older_weights_are_found(swapped: Swapped) -> None:
    kept = swapped.with_each(lambda row: from_a_kept_cache(swapped, row))
    evidence = rejected(swapped.judge(kept), "computation")
    assert f"does not fit version {NEW}" in evidence


def versions(row: Rollout, *found: int) -> Rollout:
    return replace(row, segment_versions=list(found))


def test_versions_that_the_step_does_not_accept_are_refused(swapped: Swapped) -> None:
    unknown = swapped.with_each(lambda row: versions(row, OLD, JOB.max_version + 1))
    assert "step 4 accepts up to 4" in rejected(swapped.judge(unknown), "identity")
    job = JOB.model_copy(update={"min_version": NEW})
    old = swapped.judge(swapped.honest, job=job)
    assert (old.outcome, old.rewards) == ("expired", [])
    assert old.evidence == f"policy_version is {OLD}, step 4 accepts from {NEW}"
    not_made = JOB.model_copy(update={"max_version": NEW + 1})
    claimed = swapped.with_each(lambda row: versions(row, OLD, NEW + 1))
    assert swapped.judge(claimed, job=not_made).outcome == "inconclusive"  # as for a whole file of such a version


def test_the_digest_is_of_all_versions_and_their_oldest_is_named(swapped: Swapped) -> None:
    assert "weights_digest is" in rejected(swapped.judge(swapped.honest, METADATA), "identity")
    newer = [replace(row, policy_version=OLD - 1) for row in swapped.honest]
    assert "the oldest of them named" in rejected(swapped.judge(newer), "identity")
    one = [replace(row, segment_versions=[OLD], segment_starts=[0]) for row in swapped.honest]
    assert "allowed are several" in rejected(swapped.judge(one, METADATA), "identity")


@pytest.mark.parametrize(
    ("found", "starts", "message"),
    [
        ([NEW, OLD], [0, 32], "ascending, each once"),
        ([OLD, OLD], [0, 32], "ascending, each once"),
        ([OLD - 1, NEW], [0, 32], "none before policy_version"),
        ([OLD, NEW], [0, 0], "segments begin at"),
        ([OLD, NEW], [32, 32], "segments begin at"),
        ([OLD, NEW], [32, 64], "segments begin at"),
        ([OLD, NEW], [0, 31], "segments begin at"),
        ([OLD, NEW], [0, -32], "segments begin at"),
        ([OLD, NEW], [0, 3200], "segments begin at"),
        ([OLD, NEW], [0], "2 entries, segment_starts 1"),
        ([], [0], "given for some rows"),
        ([], [], "given for some rows"),
    ],
)
def test_segments_that_overlap_are_empty_or_go_back_are_refused_unread(
    swapped: Swapped, found: list[int], starts: list[int], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = next(number for number, row in enumerate(swapped.honest) if number and len(row.segment_versions) > 1)
    rows = list(swapped.honest)
    rows[number] = replace(rows[number], segment_versions=found, segment_starts=starts)
    with pytest.raises(BadRollouts, match=message):
        write_rollouts(rows, SEVERAL)
    monkeypatch.setattr("shoal.contracts.rollouts.check_shapes", lambda rows: None)
    assert message in rejected(swapped.judge(rows), "format")


def test_proofs_too_many_or_too_few_for_the_segments_are_refused(swapped: Swapped) -> None:
    number = next(number for number, row in enumerate(swapped.honest) if len(row.segment_versions) > 1)
    for change in (lambda proofs: proofs[: -codec.PROOF_BYTES], lambda proofs: proofs + proofs[: codec.PROOF_BYTES]):
        rows = list(swapped.honest)
        rows[number] = replace(rows[number], proofs=change(rows[number].proofs))
        rejected(swapped.judge(rows), "computation")


def test_each_version_is_shown_its_own_tokens_and_proofs(swapped: Swapped) -> None:
    rows = dict(enumerate(swapped.honest))
    old, new = by_version(rows, OLD), by_version(rows, NEW)
    assert old.keys() | new.keys() == rows.keys()
    for number, row in rows.items():
        pieces = [piece[number] for piece in (old, new) if number in piece]
        assert [sum(piece.completion_mask) for piece in pieces] == list(
            np.diff([*row.segment_starts, len(row.completion_tokens)])
        )
        assert b"".join(piece.proofs for piece in pieces) == row.proofs
        assert pieces[-1].completion_tokens == row.completion_tokens
