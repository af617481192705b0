"""How many rows of a file are looked at, and the error rates of the sequential test that decides when it is enough."""

import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from court import JOB, STATISTICAL, Court

from shoal.contracts.protocol import ValidationJob
from shoal.contracts.rollouts import Rollout
from shoal.contracts.validation import Validation
from shoal.validation.prefill import OTHER_TEMPERATURES, Prefill
from shoal.validation.sequential import (
    PARTS,
    chance_of_a_part,
    first_rows,
    looks,
    other_temperature,
    ratios,
    undecided,
)

SPEC = Validation(probation_files=10, proof_rows_share=0.1, proof_rows_floor=4)


def job(accepted: int, **changes: object) -> ValidationJob:
    return JOB.model_copy(update={"accepted_files": accepted, "on_probation": accepted < 10, **changes})


PAGE = Path(__file__).resolve().parents[2] / "docs" / "validation.md"


def test_the_page_names_the_shares_and_the_border_that_the_checks_use() -> None:
    rate = Validation().false_reject_rate
    assert chance_of_a_part(Validation(), 1) == rate / PARTS
    text = PAGE.read_text()
    shares = {line.split("|")[1].strip(): line for line in text.splitlines() if "of `falseRejectRate` |" in line}
    assert list(shares) == ["`computation`", "`redraw`", "`token_sampling`", "`termination`"]
    parts = [
        1,
        2,
        3,
        1,
    ]  # redraw: outliers and the budget; token_sampling: improbable tokens, surprise, the sequential test
    assert sum(parts) == PARTS
    for line, part in zip(shares.values(), parts, strict=True):
        assert f" {Fraction(part, PARTS)} of `falseRejectRate` |" in line
    # Half of the test's part for each of its two temperatures.
    assert f"`{len(OTHER_TEMPERATURES) * PARTS} / falseRejectRate` (reject)" in text
    words = {5: "a fifth", 6: "a sixth", 7: "a seventh"}
    parts_in_words = "improbable tokens, surprise, ends, the mean error of proofs, outliers, the budget of redraw and the sequential test"
    assert f"how often: {words[PARTS]} each for {parts_in_words}." in text


def test_every_row_is_looked_at_on_probation_and_for_a_second_opinion() -> None:
    assert first_rows(64, job(0), SPEC) == 64
    assert first_rows(64, job(9), SPEC) == 64
    assert first_rows(64, job(100_000, second_opinion=True), SPEC) == 64


def test_the_share_falls_with_accepted_files_down_to_the_floor() -> None:
    found = [first_rows(64, job(accepted), SPEC) for accepted in (10, 12, 20, 40, 100, 1000, 100_000)]
    assert found == [64, 54, 32, 16, 7, 7, 7]
    assert first_rows(20, job(100_000), SPEC) == 4
    assert first_rows(3, job(100_000), SPEC) == 3
    assert first_rows(64, job(0, on_probation=False), Validation(probation_files=0)) == 7


def test_looks_double_until_all_rows_were_seen() -> None:
    assert looks(64, 4) == [4, 8, 16, 32, 64]
    assert looks(24, 12) == [12, 24]
    assert looks(5, 5) == [5]
    assert looks(7, 3) == [3, 6, 7]


def test_the_false_reject_rate_of_a_file_is_spread_over_parts_and_looks() -> None:
    assert chance_of_a_part(Validation(false_reject_rate=1e-3), 5) == pytest.approx(1e-3 / 35)


def tokens(random: np.random.Generator, count: int, sharpness: float, share: float) -> Prefill:
    """Tokens sampled at `share` of the temperature, from distributions over nine tokens that change from one to the next."""
    logits = random.normal(0.0, sharpness, (count, 9))

    def log_softmax(temperature: float) -> np.ndarray:
        scaled = logits / temperature
        return scaled - np.log(np.exp(scaled).sum(1, keepdims=True))

    there = np.arange(count), (log_softmax(share) + random.gumbel(size=logits.shape)).argmax(1)
    run = log_softmax(1.0)
    colder, hotter = (log_softmax(each)[there] - run[there] for each in OTHER_TEMPERATURES)
    mean = (np.exp(run) * -run).sum(1)
    variance = (np.exp(run) * (-run - mean[:, None]) ** 2).sum(1)
    none = np.zeros(count)
    columns = (run[there], none, none, mean, variance, colder, hotter)
    return Prefill(torch.zeros((count, 0)), *(column.astype(np.float32) for column in columns))


def test_honest_files_are_rejected_no_oftener_than_stated_however_often_they_are_looked_at() -> None:
    stated = Validation(false_reject_rate=0.05)
    random = np.random.default_rng(0)
    rejects = 0
    for _ in range(200):
        seen: list[Prefill] = []
        for _ in range(32):  # one look a row, more often than a validator does
            seen.append(tokens(random, 20, 1.5, share=1.0))
            if other_temperature(ratios(seen), stated):
                rejects += 1
                break
    expected = 0.05 / PARTS * 200
    assert rejects <= expected + 3 * math.sqrt(expected)


@pytest.mark.parametrize("share", OTHER_TEMPERATURES)
def test_another_temperature_is_rejected_or_looked_at_further_but_for_the_stated_misses(share: float) -> None:
    stated = Validation(miss_rate=0.05)
    random = np.random.default_rng(1)
    outcomes = {"reject": 0, "missed": 0, "end": 0}
    for _ in range(200):
        seen: list[Prefill] = []
        while True:
            seen.append(tokens(random, 50, 2.0, share))
            if other_temperature(ratios(seen), stated):
                outcome = "reject"
            elif not undecided(seen, 64, stated):
                outcome = "end" if len(seen) == 64 else "missed"
            else:
                continue
            outcomes[outcome] += 1
            break
    assert outcomes["missed"] <= 0.05 * 200 + 3 * math.sqrt(0.05 * 200)
    assert outcomes["reject"] >= 170, outcomes


def test_what_all_rows_could_not_tell_is_not_looked_for() -> None:
    random = np.random.default_rng(2)
    sure = [tokens(random, 50, 60.0, share=1.0)]  # one token has nearly all of the probability
    assert not undecided(sure, 64, SPEC)
    unsure = [tokens(random, 20, 1.5, share=1.0)]
    assert undecided(unsure, 64, SPEC)
    assert not undecided(unsure, 1, SPEC), "there are no more rows"


def test_honest_rows_of_a_real_engine_are_accepted_look_by_look(court: Court, honest: list[Rollout]) -> None:
    verdict = court.judge(honest, job=STATISTICAL)
    assert verdict.outcome == "accept", verdict.evidence
    assert verdict.proof_rows in (12, 24)
    assert court.judge(honest, job=JOB).proof_rows == 12, "rows that are drawn again say all that there is to say"
