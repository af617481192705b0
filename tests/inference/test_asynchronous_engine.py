"""vLLM schedules a step before it knows the tokens of the step before: tokens, proofs and routes are those of an engine that waits."""

import re
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import expert_policy
import numpy as np
import pytest
import tiny_policy
import torch
from test_checked_swap import assembled
from test_engine_variants import errors_of, exact

from shoal.inference.completions import Completion, Request
from shoal.inference.proofs import LostStatesError, ProofRecorder
from shoal.toploc import codec

LENGTH = 300
REQUESTS = [
    Request(
        tuple(range(40, 44 + number % 50)),
        number,
        (0.7, 0.9, 1.2)[number % 3],
        (1, 31, 32, 33, 64, 90, 200)[number % 7],
    )
    for number in range(150)
]
"""Prompts of all lengths below and above a block of the cache; limits at, before and behind the end of a proof. A third of the long rows stops."""
FEW = REQUESTS[40:64]
CUT_AFTER = 45


def commands(folder: Path) -> list[dict[str, Any]]:
    all_of, few = ({"requests": [tiny_policy.request_json(each) for each in some]} for some in (REQUESTS, FEW))
    new = str(folder / "new")
    return [
        {"do": "start", "folder": str(folder / "old"), "length": LENGTH, "cuts": True},
        all_of | {"do": "generate"},
        few | {"do": "generate", "stop_after": 50},
        few | {"do": "join"},
        few | {"do": "grow", "stop_after": 81},
        few | {"do": "cut", "stop_after": CUT_AFTER, "folder": new, "version": 3},
        {"do": "swap", "folder": new, "checked": True},
        all_of | {"do": "generate"},
        # Less memory than the rows want: some are taken out with a step under way, and computed again.
        {"do": "start", "folder": str(folder / "old"), "length": LENGTH, "settings": {"kv_cache_bytes": 1 << 20}},
        all_of | {"do": "generate"},
        {"do": "preemptions"},
    ]


class Both:
    """What an engine that schedules asynchronously and one that does not made of the same commands."""

    def __init__(self, folder: Path) -> None:
        self.model = {}
        for seed, name in enumerate(("old", "made")):
            self.model[name] = tiny_policy.make_policy(folder / name, seed)
        assembled(folder / "made", folder / "new")
        asked = commands(folder)
        self.waits = tiny_policy.run_engine(asked).results
        self.early, *self.ahead = tiny_policy.run_engine([{"do": "asynchronous"}, *asked]).results


@pytest.fixture(scope="module")
def both() -> Iterator[Both]:
    with tempfile.TemporaryDirectory() as folder:
        yield Both(Path(folder))


def told(completions: Sequence[Completion]) -> list[tuple[Any, ...]]:
    return [(each.tokens, each.finish_reason, each.segments) for each in completions]


def same(ahead: Sequence[Completion], waits: Sequence[Completion]) -> int:
    """Tokens are equal; returns how many proofs differ by a bit: rows beside them were others, which a sum's order may depend on."""
    assert told(ahead) == told(waits)
    for one, other in zip(ahead, waits, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)
        assert len(one.proofs) == len(other.proofs) > 0
    return sum(one.proofs != other.proofs for one, other in zip(ahead, waits, strict=True))


def worst(errors: Sequence[codec.ProofErrors]) -> tuple[int, float]:
    """Most mismatches of a proof, and the greatest mean error."""
    mismatches = max(each.exponent_mismatches + each.sign_mismatches for each in errors)
    return mismatches, max(each.mantissa_error_mean for each in errors)


def test_rows_of_all_lengths_are_equal_to_the_bit(both: Both) -> None:
    ahead, waits = both.ahead[1], both.waits[1]
    assert {each.finish_reason for each in ahead} == {"stop", "length"}
    assert sum(each.finish_reason == "stop" for each in ahead) >= 20
    assert same(ahead, waits) == 0


def test_what_was_stopped_and_aborted_under_way_leaves_nothing(both: Both) -> None:
    """After 50 steps one hears of 49 tokens of the first rows."""
    for results in (both.ahead, both.waits):
        assert re.fullmatch(r"stopped with 1\d sequences unfinished: the test says so", results[2])
    assert same(both.ahead[3], both.waits[3]) == 0


def test_rows_that_are_kept_and_go_on_in_another_process_are_equal(both: Both) -> None:
    """What a process had told of a row when it ended is a matter of time, and a prefix that is computed at once is rounded in another way."""
    same(both.ahead[4], both.waits[4])
    assert [each.tokens for each in both.ahead[4]] == [each.tokens for each in both.ahead[3]]
    assert exact(errors_of(both.model["old"], both.ahead[4], requests=FEW))


def test_segments_end_at_the_same_tokens_and_what_follows_is_of_the_next_version(both: Both) -> None:
    assert {version for row in both.ahead[5] for version, _ in row.segments} == {3, 4}
    assert same(both.ahead[5], both.waits[5]) == 0


def test_a_swap_begins_when_no_step_is_under_way(both: Both) -> None:
    assert both.ahead[6] is both.waits[6] is None
    assert same(both.ahead[7], both.waits[7]) == 0
    assert exact(errors_of(both.model["made"], both.ahead[7], requests=REQUESTS))


def test_rows_that_were_taken_out_with_a_step_under_way_are_equal(both: Both) -> None:
    assert both.ahead[10] > 0, "nothing was preempted: give the engine less memory"
    same(both.ahead[9], both.waits[9])
    old = both.model["old"]
    ahead, waits = (worst(errors_of(old, each[9], requests=REQUESTS)) for each in (both.ahead, both.waits))
    assert ahead[0] <= waits[0] + 1, (ahead, waits)
    assert ahead[1] <= waits[1] + 0.05, (ahead, waits)


class Experts:
    """What engines that record routes made, the second of two ranks, which compute a step while the next is scheduled."""

    def __init__(self, folder: Path) -> None:
        self.model = expert_policy.make_expert_policy(folder, expert_policy.softmax_config(), 0)
        start = {"do": "start", "folder": str(folder), "length": LENGTH, "routes": True}
        ranks = start | {"settings": {"tensor_parallel_size": 2}}
        few = {"requests": [tiny_policy.request_json(each) for each in FEW]}
        asked = [start, few | {"do": "join"}, few | {"do": "generate"}, ranks, few | {"do": "join"}]
        self.waits = tiny_policy.run_engine(asked[:3]).results
        self.early, *self.ahead = tiny_policy.run_engine([{"do": "asynchronous"}, *asked]).results


@pytest.fixture(scope="module")
def experts() -> Iterator[Experts]:
    with tempfile.TemporaryDirectory() as folder:
        yield Experts(Path(folder))


def test_routes_are_those_of_an_engine_that_waits(experts: Experts) -> None:
    assert all(each.routes for each in experts.ahead[1])
    for made in (1, 2):
        same(experts.ahead[made], experts.waits[made])
        assert [each.routes for each in experts.ahead[made]] == [each.routes for each in experts.waits[made]]


def test_ranks_that_are_at_a_step_while_the_next_is_scheduled_make_the_same(experts: Experts) -> None:
    same(experts.ahead[4], experts.waits[1])
    assert [each.routes for each in experts.ahead[4]] == [each.routes for each in experts.waits[1]]
    assert exact(errors_of(experts.model, experts.ahead[4], requests=FEW))


HIDDEN = 128


@pytest.mark.parametrize("count", [1, 2, 31, 32, 33, 63, 64, 65])
@torch.inference_mode()
def test_the_row_of_a_step_behind_the_end_is_in_no_proof(count: int) -> None:
    """Whatever steps others had before, so that the note of the last one lies anywhere among those of a chunk."""
    states = torch.randn((count + 1, HIDDEN), generator=torch.Generator().manual_seed(count))
    other = torch.randn((200, HIDDEN), generator=torch.Generator().manual_seed(0))
    for before in range(33):
        recorder = ProofRecorder()
        for step in range(before + count + 1):
            if step < before:
                recorder.add(["other"], other[step : step + 1], np.array([step]))
            else:
                rows = torch.stack([other[step], states[step - before]])
                recorder.add(["other", "ends"], rows, np.array([step, step - before]))
        recorder.finish({"ends": count})
        recorder.finish({"other": before + count + 1})
        assert recorder.take(["ends", "other"]) == {
            "ends": codec.encode(states[:count].numpy()),
            "other": codec.encode(other[: before + count + 1].numpy()),
        }


def test_a_state_of_another_token_than_the_next_is_an_error() -> None:
    recorder = ProofRecorder()
    recorder.add(["a", "b"], torch.ones((2, HIDDEN)), np.array([0, 0]))
    recorder.add(["a", "b"], torch.ones((2, HIDDEN)), np.array([1, 2]))
    with pytest.raises(LostStatesError, match="request b: a state is of sampled token 2, not of 1"):
        recorder.finish({"a": 2})


def test_two_rows_behind_the_end_are_an_error() -> None:
    recorder = ProofRecorder()
    for _ in range(3):
        recorder.add(["a"], torch.ones((1, HIDDEN)))
    with pytest.raises(LostStatesError, match="request a: 3 rows of hidden states for 1 sampled tokens"):
        recorder.finish({"a": 1})
