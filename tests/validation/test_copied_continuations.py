"""Attacks on files with continuations where seeds are not drawn again: copies, and completions that hide behind their continuations."""

import dataclasses
import random
from collections.abc import Sequence

import numpy as np
import pytest
import tiny_policy
from court import JOB, METADATA, STATISTICAL, Court, OnePolicy
from test_continuation_rows import EACH, PARENTS, VINE, VineCourt, refused, unclaimed

from shoal.contracts.protocol import ValidationJob
from shoal.contracts.rollouts import Rollout
from shoal.contracts.validation import Validation
from shoal.contracts.vine import VineSettings, continuations
from shoal.environments.sampling import sample
from shoal.validation import sequential
from shoal.validation.checks import copies, replay
from shoal.validation.facts import Facts, File
from shoal.validation.judge import FileWeights, expensive_finding
from shoal.validation.prefill import Prefill
from shoal.validation.stopwatch import Stopwatch

replace = dataclasses.replace
SETTINGS = VineSettings(segments=4, continuations=4)
LENGTH = 1000
NATS = 0.5
SEEDS = (3, 4, 5, 9)
JOBS = {"counted": STATISTICAL, "probation": STATISTICAL.model_copy(update={"on_probation": True})}


def one_group(court: Court) -> Facts:
    sampling = court.facts.sampling.model_copy(update={"groups_per_submission": 1})
    return replace(court.facts, vine=SETTINGS, sampling=sampling)


def said(honest: Rollout, prompt: Sequence[int], tokens: Sequence[int], nats: float = NATS) -> Rollout:
    """A row that says this, each token of which has a log-probability of -`nats`."""
    claimed = {"completion_logprobs": [-nats] * len(tokens), "completion_mask": [True] * len(tokens)}
    return replace(honest, prompt_index=0, prompt_tokens=list(prompt), completion_tokens=list(tokens), **claimed)


def sampled(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(2, 50_000) for _ in range(count)]


def copied_file(honest: Rollout, edited: float, rng: random.Random) -> File:
    """Eight completions, whose continuations are their own rests but for a share of tokens, the first and the last but one always."""
    parents = [said(honest, [1, 2, 3], sampled(rng, LENGTH)) for _ in range(8)]
    rows = list(parents)
    for each in continuations(8, SETTINGS):
        whole = parents[each.parent].completion_tokens
        cut = SETTINGS.positions(LENGTH)[each.boundary - 1]
        rest = [token if rng.random() > edited else rng.randrange(2, 50_000) for token in whole[cut:]]
        rest[0], rest[-2] = sampled(rng, 2)
        rows.append(said(honest, [1, 2, 3, *whole[:cut]], rest))
    return File(STATISTICAL, rows, METADATA)


@pytest.mark.parametrize("edited", [0.0, 0.02, 0.08])
def test_the_rest_of_a_completion_with_tokens_changed_is_found_as_a_copy(
    court: Court, honest: list[Rollout], edited: float
) -> None:
    file, facts = copied_file(honest[0], edited, random.Random(1)), one_group(court)
    assert replay.check(file, facts) is None
    finding = copies.check(file, facts)
    assert finding is not None
    assert finding.reason == "replay"
    assert finding.evidence.startswith("row 8 was copied: ")


def test_a_copy_shifted_by_a_token_and_one_of_a_sibling_are_found(court: Court, honest: list[Rollout]) -> None:
    rng, facts = random.Random(2), one_group(court)
    for source in (3, 8):  # another completion of the group, and the first continuation of the same cut
        file = copied_file(honest[0], 1.0, rng)
        rows = list(file.rows)
        from_there = rows[source].completion_tokens
        rows[9] = replace(
            rows[9], completion_tokens=[*sampled(rng, 1), *from_there[:300], *sampled(rng, 2), *from_there[300:749]]
        )
        count = len(rows[9].completion_tokens)
        rows[9] = replace(rows[9], completion_logprobs=[-NATS] * count, completion_mask=[True] * count)
        finding = copies.check(File(STATISTICAL, rows, METADATA), facts)
        assert finding is not None
        assert finding.evidence.startswith("row 9 was copied: ")


def test_what_a_policy_is_sure_of_it_may_say_again(court: Court, honest: list[Rollout]) -> None:
    file = copied_file(honest[0], 0.0, random.Random(1))
    sure = [replace(row, completion_logprobs=[-0.005] * len(row.completion_tokens)) for row in file.rows]
    assert copies.check(File(STATISTICAL, sure, METADATA), one_group(court)) is None


def test_honest_continuations_of_a_policy_that_often_says_the_same_are_no_copies(
    court: Court, honest: list[Rollout]
) -> None:
    """A chain of eleven states, sampled truly: rows agree for hundreds of tokens here and there, and no evidence grows of it."""
    numbers = np.random.default_rng(3)
    chances = numbers.dirichlet(np.full(11, 0.05), size=11) * 0.99 + 0.01 / 11
    greatest, border = 0.0, 0.0
    for _ in range(2):
        rows: list[Rollout] = []

        def go_on(prompt: list[int], count: int) -> Rollout:
            state, tokens, nats = prompt[-1], [], []
            for _ in range(count):
                new = int(numbers.choice(11, p=chances[state]))
                nats.append(float(np.log(chances[state][new])))
                tokens.append(new)
                state = new
            return replace(said(honest[0], prompt, tokens), completion_logprobs=nats)

        rows += [go_on([1, 2, 3], 160) for _ in range(8)]
        for each in continuations(8, SETTINGS):
            cut = SETTINGS.positions(160)[each.boundary - 1]
            rows.append(go_on([1, 2, 3, *rows[each.parent].completion_tokens[:cut]], 160 - cut))
        file = File(STATISTICAL, rows, METADATA)
        found = copies.agreements(file, one_group(court))
        agreeing = sum(each.count(copies.AGREES) for each in found.values())
        assert agreeing > 0.2 * sum(map(len, found.values()))  # the pointer has something to follow
        border = float(np.log(sum(map(len, found.values())) / copies.CHANCE))
        for number, row in enumerate(rows):
            greatest = max(greatest, copies._evidence(found[number], row.completion_logprobs, 0.0)[0])
        assert copies.find(found, {number: row.completion_logprobs for number, row in enumerate(rows)}) is None
    assert greatest < border - 5


def test_a_run_without_continuations_is_not_looked_at_for_copies(court: Court, honest: list[Rollout]) -> None:
    twice = [honest[0], replace(honest[0], sample_index=1)]
    assert copies.check(File(STATISTICAL, twice, METADATA), court.facts) is None
    assert court.facts.strata == [range(24)]
    assert sequential.of_a_stratum(court.facts.validation, 1) is court.facts.validation


@pytest.fixture(scope="module")
def attacked(court: Court) -> VineCourt:
    return VineCourt(court, replace(court.facts, vine=VINE))


def honest_file(vine: VineCourt, court: Court) -> list[Rollout]:
    return vine.rows(court.made.old, court.made.continuations)


@pytest.mark.parametrize("job", JOBS.values(), ids=JOBS)
def test_a_copied_rest_with_one_changed_token_is_rejected_in_a_real_file(
    attacked: VineCourt, court: Court, job: ValidationJob
) -> None:
    file = honest_file(attacked, court)
    number = next(n for n in range(PARENTS, len(file)) if len(file[(n - PARENTS) // EACH].completion_tokens) == 40)
    parent = file[(number - PARENTS) // EACH]
    prefix = len(file[number].prompt_tokens) - len(parent.prompt_tokens)
    rest = list(parent.completion_tokens[prefix:])
    rest[-2] = 70 if rest[-2] != 70 else 71
    cheat = [*file[:number], attacked.proven(file[number], rest, "length"), *file[number + 1 :]]
    assert f"row {number} was copied" in refused(attacked.judge(cheat, job), "replay")


def test_a_copy_that_lies_about_its_log_probabilities_is_found_by_ours(court: Court, honest: list[Rollout]) -> None:
    """Each claim may be half a nat off, which is as much as a token says; rows that are looked at are compared once more."""
    file, facts = copied_file(honest[0], 0.0, random.Random(1)), one_group(court)
    lies = [replace(row, completion_logprobs=[-0.001] * len(row.completion_tokens)) for row in file.rows]
    assert copies.check(File(STATISTICAL, lies, METADATA), facts) is None
    found = copies.agreements(file, facts)
    assert copies.find(found, {9: np.full(len(found[9]), -NATS, dtype=np.float32)}) is not None


def drawn(
    vine: VineCourt, prompts: Sequence[Sequence[int]], limits: Sequence[int], warmth: float, seed: int
) -> list[list[int]]:
    """Completions of the policy at `warmth` times the run's temperature."""
    model, temperature = vine.court.made.model["old"], vine.facts.sampling.temperature * warmth
    texts = sample(model, prompts, max(limits), seed, temperature)
    return [text[:limit] for text, limit in zip(texts, limits, strict=True)]


def file_at(vine: VineCourt, court: Court, warmth: float, seed: int) -> list[Rollout]:
    """A file whose completions were sampled at another temperature, and all of its continuations truly."""
    assert VINE is not None
    blank = honest_file(vine, court)
    prompts = [row.prompt_tokens for row in blank[:PARENTS]]
    texts = drawn(vine, prompts, [40] * PARENTS, warmth, seed)
    cuts = [VINE.positions(len(texts[each.parent]))[each.boundary - 1] for each in continuations(PARENTS, VINE)]
    prompts += [
        [*prompts[each.parent], *texts[each.parent][:cut]]
        for each, cut in zip(continuations(PARENTS, VINE), cuts, strict=True)
    ]
    texts += drawn(vine, prompts[PARENTS:], [40 - cut for cut in cuts], 1.0, seed)
    return vine.all_proven(
        [
            unclaimed(replace(row, prompt_tokens=prompt), text, "stop" if text[-1] == tiny_policy.EOS else "length")
            for row, prompt, text in zip(blank, prompts, texts, strict=True)
        ]
    )


def together(vine: VineCourt, rows: list[Rollout], strata: list[range]) -> object:
    """What the expensive checks find with these strata."""
    facts = vine.facts if len(strata) == 2 else replace(vine.facts, vine=None)
    if len(strata) == 1:
        sampling = facts.sampling.model_copy(update={"groups_per_submission": len(rows) // facts.group_size})
        facts = replace(facts, sampling=sampling)
    assert facts.strata == strata
    policies: OnePolicy = vine.court.policies
    file = File(JOBS["probation"], rows, METADATA)
    weights = FileWeights(file, policies, Stopwatch())
    return expensive_finding(file, facts, weights, random.Random(0), {}, {}, Stopwatch())


def test_completions_of_another_temperature_do_not_hide_behind_true_continuations(
    attacked: VineCourt, court: Court
) -> None:
    hidden = 0
    for seed in SEEDS:  # which texts come of one differs between machines
        rows = file_at(attacked, court, 0.8, seed)
        hidden += together(attacked, rows, [range(PARENTS * (1 + EACH))]) is None
        verdict = attacked.judge(rows, JOBS["probation"])
        assert (verdict.outcome, verdict.reason) == ("reject", "token_sampling"), (seed, verdict.evidence)
    assert hidden > 0, "in one sum nothing is seen of some of them"


def test_proofs_of_as_many_completions_are_verified_as_without_continuations(attacked: VineCourt, court: Court) -> None:
    rows = honest_file(attacked, court)
    small = replace(attacked.facts, validation=Validation(proof_rows_share=0.1, proof_rows_floor=4))
    seen: dict[int, Prefill] = {}
    profile = court.facts.validation.thresholds
    small = replace(small, validation=small.validation.model_copy(update={"thresholds": profile}))
    file = File(JOB, rows, METADATA)
    weights = FileWeights(file, court.policies, Stopwatch())
    assert expensive_finding(file, small, weights, random.Random(0), seen, {}, Stopwatch()) is None
    assert sum(number < PARENTS for number in seen) == sequential.first_rows(PARENTS, JOB, small.validation) == 4
    assert sum(number >= PARENTS for number in seen) == 10
