"""An honest file of a real vLLM engine is accepted; one file of each kind of cheat is rejected for its own reason.

The cheats of the last part hold the right weights and make perfect proofs for whatever tokens they hand in, as any
worker can.
"""

import dataclasses
import os
import random

import numpy as np
import pytest
import torch
from court import JOB, METADATA, STATISTICAL, Court
from tiny_policy import EOS

from shoal.contracts.protocol import ValidationJob
from shoal.contracts.rollouts import Rollout
from shoal.contracts.verdicts import Verdict
from shoal.toploc import codec
from shoal.validation import parsing
from shoal.validation.judge import judge
from shoal.validation.prefill import prefill

replace = dataclasses.replace


def proven(court: Court, row: Rollout, policy: str = "old") -> Rollout:
    """The row with proofs and log-probabilities that fit its tokens, as a cheat with the right weights makes them."""
    row = replace(row, completion_mask=[True] * len(row.completion_tokens))
    ours = prefill(court.made.model[policy], row, court.facts.eos_token_ids)
    return replace(
        row,
        proofs=codec.encode(ours.states),
        completion_logprobs=[min(float(value), 0.0) for value in ours.logprobs],
        task_reward=None,
        length_penalty=None,
        reward=None,
    )


def rejected(verdict: Verdict, reason: str) -> str:
    assert (verdict.outcome, verdict.reason) == ("reject", reason), verdict.evidence
    assert verdict.compute is None
    return verdict.evidence


def test_an_honest_file_is_accepted_with_rewards_of_every_row(court: Court, honest: list[Rollout]) -> None:
    verdict = court.judge(honest)
    assert verdict.outcome == "accept", verdict.evidence
    assert verdict.policy_version == 3
    assert verdict.rows == 24
    assert verdict.proof_rows == 12
    assert verdict.completion_tokens == sum(len(row.completion_tokens) for row in honest)
    assert verdict.compute is not None
    prompts = sum(len(row.prompt_tokens) for row in honest[:: court.facts.group_size])
    parameters = sum(weight.numel() for weight in court.policies.policy.model.parameters())
    assert (verdict.compute.prompt_tokens, verdict.compute.parameters) == (prompts, parameters)
    assert verdict.compute.flops == 2.0 * parameters * (prompts + verdict.completion_tokens)
    for row, reward in zip(honest, verdict.rewards, strict=True):
        assert reward.task_reward == 0.0  # a random model knows no sums
        assert row.target_length is not None
        assert reward.length_penalty is not None
        assert reward.length_penalty == 0.003 * abs(row.target_length - len(row.completion_tokens))
        assert reward.reward == -reward.length_penalty


def test_a_file_whose_readers_all_fail_is_unread_which_no_validator_decides_alone(
    court: Court, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parsing, "DEADLINE_SECONDS", 1.0)
    path = court.folder / "endless"
    os.mkfifo(path)  # nobody writes to it: it is never read to its end
    verdict = judge(path, JOB, court.facts, court.policies, random.Random(0))
    assert rejected(verdict, "unread") == "reading the file took more than 1 s"
    assert "not a readable Parquet file" in rejected(court.judge_bytes(b"PAR1"), "format")


def test_rows_that_the_worker_could_not_score_are_scored_by_the_validator(court: Court, honest: list[Rollout]) -> None:
    unscored = [replace(row, task_reward=None, length_penalty=None, reward=None) for row in honest]
    assert court.judge(unscored).rewards == court.judge(honest).rewards


def test_completions_of_other_weights_are_rejected(court: Court) -> None:
    evidence = rejected(court.judge(court.rows(court.made.swapped)), "computation")
    assert "does not fit version 3" in evidence


def test_completions_of_slightly_other_weights_are_rejected(court: Court, honest: list[Rollout]) -> None:
    # Changes of 1 %, as between distant versions; the threshold is the one calibrated for float32.
    torch.manual_seed(0)
    stale = tuple(parameter.detach().clone() for parameter in court.made.model["old"].parameters())
    try:
        with torch.no_grad():
            for parameter in court.made.model["old"].parameters():
                parameter.mul_(1 + 0.01 * torch.randn_like(parameter))
        forged = [proven(court, row) for row in honest]
    finally:
        with torch.no_grad():
            for parameter, value in zip(court.made.model["old"].parameters(), stale, strict=True):
                parameter.copy_(value)
    rejected(court.judge(forged), "computation")


def test_edited_tokens_are_rejected(court: Court, honest: list[Rollout]) -> None:
    def edited(row: Rollout) -> Rollout:
        tokens = list(row.completion_tokens)
        tokens[len(tokens) // 2] = 2 + (tokens[len(tokens) // 2] + 7) % 200
        return replace(row, completion_tokens=tokens, task_reward=None, length_penalty=None, reward=None)

    rejected(court.judge([edited(row) for row in honest]), "computation")


def test_another_prompt_is_rejected(court: Court, honest: list[Rollout]) -> None:
    forged = [replace(honest[0], prompt_tokens=list(honest[0].prompt_tokens)[::-1]), *honest[1:]]
    assert rejected(court.judge(forged), "sampling").startswith("row 0: prompt_tokens are not those of add-")


def test_another_seed_is_rejected(court: Court, honest: list[Rollout]) -> None:
    forged = [*honest[:5], replace(honest[5], seed=42), *honest[6:]]
    assert rejected(court.judge(forged), "sampling").startswith("row 5: seed is 42, drawn is ")


def test_a_row_left_out_is_rejected(court: Court, honest: list[Rollout]) -> None:
    assert rejected(court.judge(honest[:-1]), "sampling").startswith("the file has 23 rows, the lease holds 24")


def test_rows_too_many_are_named_and_a_flood_of_short_ones_is_not_read(court: Court, honest: list[Rollout]) -> None:
    assert rejected(court.judge([*honest, honest[0]]), "sampling").startswith(
        "the file has 25 rows, the lease holds 24"
    )
    row = honest[0]
    short = replace(row, prompt_tokens=[5], completion_tokens=[7], completion_logprobs=[-0.5], completion_mask=[True])
    assert rejected(court.judge([short] * 97), "format") == "file has 97 rows; at most 96 are allowed"


def test_an_easier_target_length_is_rejected(court: Court, honest: list[Rollout]) -> None:
    forged = [replace(honest[0], target_length=40), *honest[1:]]
    assert "target_length is 40, drawn is" in rejected(court.judge(forged), "sampling")


def test_another_temperature_is_rejected(court: Court, honest: list[Rollout]) -> None:
    assert "temperature is 0.5" in rejected(court.judge([replace(row, temperature=0.5) for row in honest]), "sampling")


def test_a_temperature_that_is_no_number_is_rejected(court: Court, honest: list[Rollout]) -> None:
    # Every comparison with it is false, so that it would switch off whatever is compared with it.
    nothing = [replace(row, temperature=float("nan")) for row in honest]
    assert "temperature is nan" in rejected(court.judge(nothing), "sampling")


def test_a_row_in_which_nothing_was_sampled_is_rejected(court: Court, honest: list[Rollout]) -> None:
    count = len(honest[2].completion_tokens)
    forged = [*honest[:2], replace(honest[2], completion_mask=[False] * count), *honest[3:]]
    assert rejected(court.judge(forged), "bounds") == "row 2: completion_mask is false everywhere: nothing was sampled"


def test_control_codes_of_a_stranger_do_not_reach_the_evidence(court: Court, honest: list[Rollout]) -> None:
    forged = [replace(honest[0], problem_id="\x1b[2Jmine\n"), *honest[1:]]
    assert rejected(court.judge(forged), "sampling").startswith(r"row 0: problem_id is '\x1b[2Jmine\n', drawn is ")


def test_an_inflated_reward_is_rejected(court: Court, honest: list[Rollout]) -> None:
    forged = [*honest[:7], replace(honest[7], task_reward=1.0), *honest[8:]]
    assert rejected(court.judge(forged), "reward") == "row 7: task_reward is claimed as 1, computed again it is 0"


def test_forged_proofs_are_rejected(court: Court, honest: list[Rollout]) -> None:
    random = np.random.default_rng(0)

    def forge(words: list[int]) -> list[Rollout]:
        proof = np.array(words, dtype=">u2").tobytes()
        return [replace(row, proofs=proof * (len(row.proofs) // len(proof))) for row in honest]

    constant = [65497, 0x4010] + [0] * 127
    assert "degree is below 126" in rejected(court.judge(forge(constant)), "computation")
    assert "modulus 0" in rejected(court.judge(forge([0] * 129)), "computation")
    assert "does not fit" in rejected(
        court.judge(forge([65497, *random.integers(1, 65497, 128).tolist()])), "computation"
    )
    # Typical values at typical places: the average state of all honest rows, without any forward pass over these
    # tokens.
    states = [prefill(court.made.model["old"], row, court.facts.eos_token_ids).states for row in honest[:4]]
    typical = np.repeat(np.concatenate(states).mean(axis=0, keepdims=True), 40, axis=0)
    forged = [replace(row, proofs=codec.encode(typical[: len(row.completion_tokens)])) for row in honest]
    assert "does not fit" in rejected(court.judge(forged), "computation")


def test_proofs_of_another_length_are_rejected(court: Court, honest: list[Rollout]) -> None:
    assert "bytes of proofs for" in rejected(court.judge([replace(row, proofs=b"") for row in honest]), "computation")


def test_early_stops_are_rejected_though_their_proofs_fit(court: Court, honest: list[Rollout]) -> None:
    early = [
        proven(court, replace(row, completion_tokens=[*row.completion_tokens[:3], EOS], finish_reason="stop"))
        if len(row.completion_tokens) > 5
        else row
        for row in honest
    ]
    evidence = rejected(court.judge(early, job=STATISTICAL), "termination")
    assert "checked completions end with a probability below" in evidence


def test_a_length_end_before_the_limit_is_rejected(court: Court, honest: list[Rollout]) -> None:
    number, row = next((n, row) for n, row in enumerate(honest) if row.finish_reason == "length")
    cut = proven(court, replace(row, completion_tokens=row.completion_tokens[:-1]))
    evidence = rejected(court.judge([*honest[:number], cut, *honest[number + 1 :]]), "termination")
    assert evidence == f"row {number}: finish_reason is length after 39 tokens, the limit is 40"


def test_tokens_after_the_end_are_rejected(court: Court, honest: list[Rollout]) -> None:
    number, row = next((n, row) for n, row in enumerate(honest) if row.finish_reason == "length")
    tokens = list(row.completion_tokens)
    tokens[4] = EOS
    forged = [*honest[:number], replace(row, completion_tokens=tokens), *honest[number + 1 :]]
    assert "tokens follow an end-of-sequence token" in rejected(court.judge(forged), "termination")


def test_tokens_of_another_model_are_rejected_though_their_proofs_fit(court: Court) -> None:
    forged = [proven(court, row) for row in court.rows(court.made.swapped)]
    assert "tokens have a mean surprise of" in rejected(court.judge(forged, job=STATISTICAL), "token_sampling")


def test_tokens_sampled_at_a_lower_temperature_are_rejected_though_their_proofs_fit(court: Court) -> None:
    rows = court.rows(court.made.old)
    colder = [row for start in (0, 8, 16) for row in sampled_anew(court, rows[start : start + 8], 0.5)]
    evidence = rejected(court.judge([proven(court, row) for row in colder], job=STATISTICAL), "token_sampling")
    assert "tokens have a mean surprise of" in evidence


@torch.inference_mode()
def sampled_anew(court: Court, group: list[Rollout], share: float) -> list[Rollout]:
    """A group of rows to the length limit, at a share of the run's temperature, with a seed that nobody gave."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.tensor([list(row.prompt_tokens) for row in group])
    for _ in range(40):
        logits = court.made.model["old"](tokens).logits[:, -1] / (court.facts.sampling.temperature * share)
        logits[:, EOS] = -torch.inf
        tokens = torch.cat([tokens, torch.multinomial(logits.softmax(-1), 1, generator=generator)], dim=1)
    return [
        replace(row, completion_tokens=made.tolist(), finish_reason="length")
        for row, made in zip(group, tokens[:, -40:], strict=True)
    ]


def test_a_file_of_another_version_than_the_node_said_is_rejected(court: Court, honest: list[Rollout]) -> None:
    """Validators check the files of a version together: who lies about it would have weights loaded for one file."""
    evidence = rejected(court.judge(honest, job=JOB.model_copy(update={"policy_version": 2})), "identity")
    assert evidence == "policy_version is 3, the node said 2 when it handed it in"
    assert court.judge(honest, job=JOB.model_copy(update={"policy_version": 3})).outcome == "accept"


def test_false_log_probabilities_are_rejected(court: Court, honest: list[Rollout]) -> None:
    forged = [replace(row, completion_logprobs=[-0.001] * len(row.completion_tokens)) for row in honest]
    assert "claimed log-probabilities differ" in rejected(court.judge(forged), "token_sampling")


def test_one_completion_handed_in_as_eight_is_rejected(court: Court, honest: list[Rollout]) -> None:
    long = next(row for row in honest[:8] if len(row.completion_tokens) > 20)
    copies = [
        replace(row, **{name: getattr(long, name) for name in ("completion_tokens", "completion_logprobs", "proofs")})
        for row in honest[:8]
    ]
    copies = [
        replace(
            row,
            completion_mask=[True] * len(row.completion_tokens),
            finish_reason=long.finish_reason,
            task_reward=None,
            length_penalty=None,
            reward=None,
        )
        for row in copies
    ]
    assert "are the same completion" in rejected(court.judge(copies + honest[8:]), "replay")


def test_another_nodes_file_is_rejected(court: Court, honest: list[Rollout]) -> None:
    thief = court_job(node="77" * 32)
    assert rejected(court.judge(honest, job=thief), "identity").startswith("node is")


def test_a_file_of_another_step_or_submission_is_rejected(court: Court, honest: list[Rollout]) -> None:
    assert "step is '4', the lease is for '5'" in rejected(court.judge(honest, job=court_job(step=5)), "identity")
    assert "submission is '2'" in rejected(court.judge(honest, job=court_job(submission=3)), "identity")


def test_a_false_weights_digest_is_rejected(court: Court, honest: list[Rollout]) -> None:
    false = replace(METADATA, weights_digest="00" * 32)
    before = court.policies.loads
    assert "weights_digest is '0000" in rejected(court.judge(honest, metadata=false), "identity")
    assert court.policies.loads == before, "a false claim loads no weights"


def test_another_environment_is_rejected(court: Court, honest: list[Rollout]) -> None:
    other = replace(METADATA, environment_digest="00" * 32)
    assert "environment_digest is '0000" in rejected(court.judge(honest, metadata=other), "identity")


def test_a_version_from_the_future_is_rejected_and_an_old_one_is_only_late(court: Court) -> None:
    assert "accepts up to 4" in rejected(court.judge(court.rows(court.made.old, version=5)), "identity")
    late = court.judge(court.rows(court.made.old, version=1))
    assert (late.outcome, late.reason) == ("expired", None)
    assert late.evidence == "policy_version is 1, step 4 accepts from 2"


def test_a_version_that_the_validator_cannot_get_is_inconclusive(court: Court) -> None:
    verdict = court.judge(court.rows(court.made.old, version=4))
    assert (verdict.outcome, verdict.reason, verdict.rewards) == ("inconclusive", None, [])
    assert "version 4 is not published" in verdict.evidence


def court_job(**changes: object) -> ValidationJob:
    return JOB.model_copy(update=changes)
