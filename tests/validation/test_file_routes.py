"""Routes that a real engine recorded, from its hooks to the verdict: honest ones are accepted, and what no router makes is refused by name."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_policy
from court import CALIBRATED, DIGEST, METADATA, VERSION, Court, OnePolicy, facts_of
from expert_policy import grouped_config, make_expert_policy
from transformers import AutoTokenizer

from shoal.contracts.rollouts import Rollout, read_rollouts, write_rollouts
from shoal.contracts.routes import RouteShape
from shoal.contracts.validation import Validation
from shoal.contracts.verdicts import Verdict
from shoal.inference.completions import Completion
from shoal.inference.rollouts import assemble
from shoal.models.places import stacks
from shoal.models.routes import decode, encode
from shoal.validation.models import load_model
from shoal.validation.parsing import parse_file
from shoal.validation.policies import LoadedPolicy
from shoal.validation.prefill import prefill

replace = dataclasses.replace
SHAPE = RouteShape(layers=2, choices=2, experts=8, groups=4, groups_chosen=2)
PUBLIC = tiny_policy.PUBLIC.model_copy(update={"routes": SHAPE})
EOS = frozenset({tiny_policy.EOS})


@dataclasses.dataclass
class Routed:
    """What one engine made of one submission, with two versions' weights, and how often requests were aborted between."""

    folder: dict[str, Path]
    planned: list[Any]
    made: list[Completion]
    swapped: list[Completion]

    def rows(self, completions: list[Completion]) -> list[Rollout]:
        return assemble(self.planned, completions, tiny_policy.LEASE, PUBLIC, VERSION, lambda task, tokens, mask: 0.0)


@pytest.fixture(scope="module")
def routed(tmp_path_factory: pytest.TempPathFactory) -> Routed:
    root = tmp_path_factory.mktemp("routed")
    folder = {"old": root / "old", "new": root / "new"}
    for seed, each in enumerate(folder.values()):
        make_expert_policy(each, grouped_config(), seed)
    planned = tiny_policy.plan(AutoTokenizer.from_pretrained(folder["old"]))
    requests = [tiny_policy.request_json(row.request) for row in planned]
    commands = [
        {"do": "start", "folder": str(folder["old"]), "routes": True},
        {"do": "generate", "requests": requests},
        {"do": "swap", "folder": str(folder["new"])},
        {"do": "join", "requests": requests},
    ]
    results = tiny_policy.run_engine(commands).results
    return Routed(folder, planned, results[1], results[3])


@pytest.fixture(scope="module")
def bench(routed: Routed, tmp_path_factory: pytest.TempPathFactory) -> Court:
    facts = facts_of(
        tiny_policy.ENVIRONMENT,
        tiny_policy.TASKS,
        AutoTokenizer.from_pretrained(routed.folder["old"]),
        PUBLIC,
        routes=SHAPE,
        validation=Validation(proof_rows_share=1.0, proof_rows_floor=24, thresholds=CALIBRATED),
    )
    policies = OnePolicy(LoadedPolicy(VERSION, DIGEST, load_model(routed.folder["old"])))
    return Court(None, facts, policies, tmp_path_factory.mktemp("bench"))


@pytest.fixture
def rows(routed: Routed) -> list[Rollout]:
    """The file of an honest worker; nothing scored it."""
    return [replace(row, task_reward=None, length_penalty=None, reward=None) for row in routed.rows(routed.made)]


def rejected(verdict: Verdict, reason: str) -> str:
    assert (verdict.outcome, verdict.reason) == ("reject", reason), verdict.evidence
    return verdict.evidence


def own_routes(model: Any, row: Rollout) -> np.ndarray:
    """What the routers of transformers choose at the positions that tokens were drawn from."""
    seen: list[Any] = []
    held = [
        module.register_forward_pre_hook(lambda _, given: seen.append(given[1])) for module in stacks(model).values()
    ]
    prefill(model, row, EOS)
    for each in held:
        each.remove()
    first = len(row.prompt_tokens) - 1
    chosen = np.stack([each.numpy()[first : first + len(row.completion_tokens)] for each in seen], axis=1)
    return np.sort(chosen, axis=-1)


@pytest.mark.parametrize("version", ["old", "new"])
def test_an_engine_records_the_routes_of_the_weights_that_it_holds(routed: Routed, version: str) -> None:
    """In float32 they are those of transformers; behind a swap too, and for requests that join while others are aborted."""
    model = load_model(routed.folder[version])
    for row in routed.rows(routed.made if version == "old" else routed.swapped):
        assert row.routes is not None
        assert np.array_equal(decode(row.routes, len(row.completion_tokens), SHAPE), own_routes(model, row))


def test_an_honest_file_with_routes_is_accepted(bench: Court, rows: list[Rollout]) -> None:
    verdict = bench.judge(rows)
    assert verdict.outcome == "accept", verdict.evidence
    assert verdict.proof_rows == 24


def changed(row: Rollout, change: Callable[[np.ndarray], None]) -> Rollout:
    experts = decode(row.routes or b"", len(row.completion_tokens), SHAPE).astype(int)
    change(experts)
    return replace(row, routes=encode(experts, SHAPE))


def elsewhere(experts: np.ndarray) -> None:
    """Every token's experts are those of the token before."""
    experts[:] = np.roll(experts, 1, axis=0)


def test_routes_that_differ_by_more_than_ties_are_refused(bench: Court, rows: list[Rollout]) -> None:
    evidence = rejected(bench.judge([changed(row, elsewhere) for row in rows]), "computation")
    assert "routes are not those of the claimed weights: " in evidence
    assert "deviations of the scores at most (allowed 0.05)" in evidence


def test_a_tie_is_accepted_and_the_next_best_expert_of_one_token_is_not(bench: Court, rows: list[Rollout]) -> None:
    """Row 0 in place of all others: one token's second expert in one layer is exchanged for one of the same group."""

    def exchanged(experts: np.ndarray) -> None:
        first, second = experts[3, 1]
        experts[3, 1] = (first, second ^ 1) if second ^ 1 != first else (first ^ 2, second)

    one = changed(rows[0], exchanged)
    gaps = prefill(bench.policies.policy.model, one, EOS, routes=SHAPE).routes
    assert gaps is not None
    assert gaps.pairs == SHAPE.layers * len(one.completion_tokens)
    assert gaps.differing >= 1
    assert gaps.largest > 0.05
    rejected(bench.judge([one, *rows[1:]]), "computation")


@pytest.mark.parametrize(
    ("routes", "reason", "said"),
    [
        (
            lambda good: good[:-1],
            "bounds",
            "row 1: routes have 159 bytes for 40 sampled tokens, must be 160: 2 layers x 2 experts x 1",
        ),
        (
            lambda good: bytes([7, 1]) + good[2:],
            "bounds",
            "row 1: sampled token 0, layer 0 of those with experts: expert 9; the model has 8",
        ),
        (lambda good: good * 400, "format", "bytes of routes; at most 4 a token are allowed"),
    ],
)
def test_routes_that_no_router_makes_are_refused(
    bench: Court, rows: list[Rollout], routes: Callable[[bytes], bytes], reason: Any, said: str
) -> None:
    good = rows[1].routes
    assert good is not None
    assert said in rejected(bench.judge([rows[0], replace(rows[1], routes=routes(good)), *rows[2:]]), reason)


def test_a_file_without_the_routes_that_the_run_records_is_refused_and_so_is_one_with_routes_elsewhere(
    bench: Court, rows: list[Rollout], tmp_path: Path
) -> None:
    plain = [replace(row, routes=None) for row in rows]
    assert "row 0 has no routes, which this run records" in rejected(bench.judge(plain), "format")
    elsewhere = replace(bench, facts=replace(bench.facts, routes=None))
    assert "bytes of routes; this run records none" in rejected(elsewhere.judge(rows), "format")


def test_the_reader_apart_sends_the_routes(rows: list[Rollout], tmp_path: Path) -> None:
    data = write_rollouts(rows, METADATA)
    (tmp_path / "file").write_bytes(data)
    sent, _ = parse_file(tmp_path / "file", 10_000, route_bytes=SHAPE.bytes_a_token)
    assert [row.routes for row in sent] == [row.routes for row in rows]
    assert sent == read_rollouts(data)[0]
