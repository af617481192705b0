"""One engine whose layers are in two stages, as a real vLLM runs it on a CPU: tokens, proofs and routes are those of one process."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import expert_policy
import pytest
import tiny_policy
import torch
from test_checked_swap import assembled
from test_engine_variants import errors_of, exact

from shoal.contracts.routes import route_shape
from shoal.inference.checkpoint import BadCheckpointError, check_stages, read_checkpoint
from shoal.inference.completions import Completion, Request
from shoal.inference.routes import LostRoutesError, joined
from shoal.sampling import gumbel

REQUESTS = [Request(tuple(range(40, 60 + number)), number, 0.9, 60 + number) for number in range(6)]
CUT_AFTER = 81
"""Turns: a token takes two of them. Behind an odd number the next one is under way. A cut keeps whole chunks of 32 tokens."""
SHAPE = route_shape(expert_policy.softmax_config().to_dict())


class Staged:
    """What an engine of two stages made, and what one process made of the same commands."""

    def __init__(self, folder: Path) -> None:
        config = expert_policy.softmax_config()
        self.model = {
            name: expert_policy.make_expert_policy(folder / name, config, seed)
            for seed, name in enumerate(("old", "made"))
        }
        assembled(folder / "made", folder / "new")
        asked = {"requests": [tiny_policy.request_json(request) for request in REQUESTS]}
        new = str(folder / "new")

        first: dict[str, Any] = {"do": "start", "folder": str(folder / "old"), "cuts": True, "routes": True}
        join, generate = asked | {"do": "join"}, asked | {"do": "generate"}
        cut = asked | {"do": "cut", "stop_after": CUT_AFTER, "folder": new, "version": 3}
        swap = {"do": "swap", "folder": new, "checked": True}
        start = first | {"settings": {"pipeline_parallel_size": 2}}
        made = tiny_policy.run_engine([start, join, cut, swap, generate]).results
        _, self.joined, self.cut, self.refused, self.swapped = made
        alone = tiny_policy.run_engine([first, join, swap, generate]).results
        _, self.joined_alone, _, self.swapped_alone = alone


@pytest.fixture(scope="module")
def staged() -> Iterator[Staged]:
    with tempfile.TemporaryDirectory() as folder:
        yield Staged(Path(folder))


def told(completions: list[Completion]) -> list[tuple[list[int], str, bytes | None]]:
    return [(each.tokens, each.finish_reason, each.routes) for each in completions]


def test_sequences_that_join_batches_under_way_have_the_tokens_and_routes_of_one_process(staged: Staged) -> None:
    assert told(staged.joined) == told(staged.joined_alone)
    assert any(len(each.tokens) > 32 for each in staged.joined), "no proof has a second chunk"


def test_the_last_stage_proves_what_a_prefill_finds(staged: Staged) -> None:
    assert exact(errors_of(staged.model["old"], staged.joined, requests=REQUESTS))
    assert not exact(errors_of(staged.model["made"], staged.joined, requests=REQUESTS))


def test_a_swap_reaches_the_layers_of_each_stage_once_its_bytes_are_checked(staged: Staged) -> None:
    assert staged.refused is None
    assert told(staged.swapped) == told(staged.swapped_alone)
    assert exact(errors_of(staged.model["made"], staged.swapped, requests=REQUESTS))


def test_rows_are_cut_behind_the_batches_that_stages_have_and_go_on_under_the_next_version(staged: Staged) -> None:
    """Tokens are drawn again by the run's rule, each from a prefill of the version that its segment names."""
    models = {3: staged.model["old"], 4: staged.model["made"]}
    assert {version for row in staged.cut for version, _ in row.segments} == models.keys()
    for request, row in zip(REQUESTS, staged.cut, strict=True):
        segments = row.segments or ((3, 0),)  # without any: it ended before the swap
        ends = [start for _, start in segments[1:]] + [len(row.tokens)]
        for (version, start), end in zip(segments, ends, strict=True):
            assert drawn_again(models[version], request, row.tokens)[start:end] == row.tokens[start:end]


@torch.inference_mode()
def drawn_again(model: Any, request: Request, tokens: list[int]) -> list[int]:
    prompt = list(request.prompt_tokens)
    logits = model(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1].float() / request.temperature
    seeds = torch.full((len(tokens),), request.seed, dtype=torch.int64)
    positions = torch.arange(len(prompt) - 1, len(prompt) - 1 + len(tokens))
    found: list[int] = gumbel.draw(logits, seeds, positions).tolist()
    return found


def test_a_model_of_fewer_layers_than_stages_is_refused_with_what_to_set(tmp_path: Path) -> None:
    tiny_policy.make_policy(tmp_path, 0)
    checkpoint = read_checkpoint(tmp_path)
    check_stages(checkpoint, 3)
    with pytest.raises(
        BadCheckpointError, match=r"pipelineParallelSize is 4, more than num_hidden_layers, 3: set at most 3"
    ):
        check_stages(checkpoint, 4)


def test_routes_of_stages_are_joined_token_by_token_and_a_lost_one_is_told() -> None:
    shape = SHAPE.model_copy(update={"layers": 3})
    assert joined([b"aabbccdd", b"", b"1122"], [2, 0, 1], 2, shape) == b"aabb11ccdd22"
    assert joined([b"", b""], [2, 1], 0, shape) == b""
    with pytest.raises(LostRoutesError, match=r"stage 1 has 2 bytes for 2 sampled tokens of 2"):
        joined([b"aabbccdd", b"11"], [2, 1], 2, shape)
