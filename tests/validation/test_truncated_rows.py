"""Answers of a truncating sampler (top-p, top-k, min-p), made by a real engine: judged by what was left of each distribution, and drawn again."""

from dataclasses import replace

import numpy as np
import pytest
import test_evaluation_rows
import tiny_policy
import torch
from court import STATISTICAL, Court
from test_evaluation_rows import SLICE_JOB, TASKS, Bench, planned_slice

from shoal.contracts.evaluation import Truncation
from shoal.contracts.pools import SAMPLER
from shoal.validation.prefill import prefill_rows
from shoal.validation.setup import with_benchmarks
from shoal.validation.truncation import truncated

RULES = {
    "top-p": Truncation(top_p=0.7),
    "top-k": Truncation(top_k=12),
    "min-p": Truncation(min_p=0.2),
    "all": Truncation(min_p=0.05, top_k=30, top_p=0.9),
}
ALL_ROWS = SLICE_JOB.model_copy(update={"on_probation": True, "accepted_files": 0})
BY_STATISTICS = ALL_ROWS.model_copy(update={"sampler": STATISTICAL.sampler})


@pytest.fixture(scope="module")
def benches(court: Court) -> dict[str, Bench]:
    """For each rule a court whose benchmark has it, and an honest engine's answers; `colder`: the same seeds without it."""
    planned = planned_slice(court)
    asked = {
        name: [tiny_policy.request_json(replace(row.request, truncation=rule)) for row in planned]
        for name, rule in RULES.items()
    }
    whole = [tiny_policy.request_json(row.request) for row in planned]
    engine = tiny_policy.run_engine(
        [
            {"do": "start", "folder": str(court.made.folder["old"])},
            *({"do": "generate", "requests": requests} for requests in (*asked.values(), whole)),
        ]
    )
    *answers, untruncated = engine.results[1:]
    made = {}
    for (name, rule), found in zip(RULES.items(), answers, strict=True):
        terms = test_evaluation_rows.TERMS.model_copy(update={"truncation": rule})
        facts = with_benchmarks(court.facts, {"sums": (terms, tiny_policy.ENVIRONMENT, TASKS)})
        made[name] = Bench(replace(court, facts=facts), planned, found, untruncated)
    return made


@pytest.mark.parametrize("name", RULES)
def test_an_honest_engines_truncated_answers_are_drawn_again_token_by_token(
    name: str, court: Court, benches: dict[str, Bench]
) -> None:
    rows, eos = benches[name].rows(), court.facts.eos_token_ids
    for batch in prefill_rows(court.made.model["old"], dict(enumerate(rows)), eos, SAMPLER, RULES[name]):
        for number, ours in batch.items():
            assert ours.gaps is not None
            assert ours.drawn is not None
            others = np.count_nonzero(ours.drawn != np.asarray(rows[number].completion_tokens))
            assert others <= 1, "a token at a border is drawn by the engine, and is not sure to us; its gap is nothing"
            assert float(ours.gaps.max()) < 1e-4
            np.testing.assert_allclose(ours.logprobs, rows[number].completion_logprobs, atol=1e-3)
            assert np.isfinite(ours.hotter).all()


@pytest.mark.parametrize("name", RULES)
def test_an_honest_truncated_slice_is_accepted_by_redraw_and_by_statistics(
    name: str, benches: dict[str, Bench]
) -> None:
    for job in (ALL_ROWS, BY_STATISTICS):
        verdict = benches[name].judged(benches[name].rows(), job)
        assert (verdict.outcome, verdict.evidence) == ("accept", "")


@pytest.mark.parametrize("name", RULES)
def test_answers_of_the_whole_distribution_are_none_of_a_truncated_one(name: str, benches: dict[str, Bench]) -> None:
    bench = benches[name]
    verdict = bench.judged(bench.rows(bench.colder), ALL_ROWS)
    assert verdict.outcome == "reject"
    assert verdict.reason in ("redraw", "token_sampling")


def test_truncated_answers_are_none_of_the_whole_distribution(benches: dict[str, Bench], court: Court) -> None:
    facts = with_benchmarks(court.facts, {"sums": (test_evaluation_rows.TERMS, tiny_policy.ENVIRONMENT, TASKS)})
    strict = replace(benches["top-k"], court=replace(court, facts=facts))
    verdict = strict.judged(strict.rows(benches["top-k"].answers), ALL_ROWS)
    assert (verdict.outcome, verdict.reason) == ("reject", "redraw")


@pytest.mark.parametrize("rule", [*RULES.values(), Truncation(top_p=0.05), Truncation(top_k=1), Truncation(min_p=0.99)])
def test_what_is_kept_is_what_the_definitions_say(rule: Truncation) -> None:
    """One distribution at a time, token by token, without tensors."""
    logprobs = torch.log_softmax(torch.randn(40, 300, generator=torch.Generator().manual_seed(1)) * 3, -1)
    kept = truncated(logprobs, rule, 1e-3)
    for row, exactly in zip(logprobs.double().exp().tolist(), kept.exactly.tolist(), strict=True):
        order = sorted(range(300), key=lambda token: -row[token])
        left = [token for token in order if row[token] >= rule.min_p * row[order[0]]]
        left = left[: rule.top_k or None]
        mass, wanted, total = 0.0, set(), sum(row[token] for token in left)
        for token in left:
            wanted.add(token)
            mass += row[token] / total
            if mass >= rule.top_p:
                break
        assert {token for token, yes in enumerate(exactly) if yes} == wanted
    assert (kept.surely <= kept.exactly).all()
    assert (kept.exactly <= kept.perhaps).all()
    assert kept.surely.any(dim=-1).all(), "the likeliest token always stays"
