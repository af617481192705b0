"""Ranks that share packs compute what one rank does, whatever method trains; and what cannot be shared is refused."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.trainer.context_exact import CASES, LAYOUTS, TOLERANCE
from test_batches import groups, plan
from tiny_run import ranks, write_base

from forked_python import TRAINER, run_python
from servers import ROOT
from shoal.training.batches import micro_batch
from shoal.training.context_parallel import PackPart, part_of, undividable
from shoal.training.model import load_policy
from shoal.training.parallel import BadDivision, ContextGroup, Ranks, start_ranks
from shoal.training.stored_weights import BadModel


def context(rank: int, size: int) -> ContextGroup:
    """A place in a group, for what asks nobody."""
    ranks()
    return ContextGroup(rank, size, torch.distributed.group.WORLD)


def test_ranks_have_one_rank_s_loss_and_gradients_in_float64_whether_they_share_packs_or_not() -> None:
    layouts = ["2 ranks", "4 ranks, 2 share", "4 ranks share"]
    assert set(layouts) < set(LAYOUTS)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]), "OMP_NUM_THREADS": "1"}
    done = run_python(["-m", "benchmarks.trainer.context_exact", *layouts], TRAINER, env=environment, timeout=450)
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, dict[str, float]] = json.loads(done.stdout.splitlines()[-1])
    for layout in layouts:
        assert set(found[layout]) == {*CASES, "supervised", "PRIME"}
        for case, difference in found[layout].items():
            assert difference <= TOLERANCE, (layout, case)


@pytest.mark.parametrize("size", [2, 3, 4, 7])
def test_parts_laid_end_to_end_are_the_pack(size: int) -> None:
    for pack in plan(pack_length=48).optimizer_batches[0].micro_batches:
        parts = [part_of(pack, context(rank, size)) for rank in range(size)]
        assert len({len(part.tokens) for part in parts}) == 1
        length = len(pack.tokens)
        tokens, positions = (torch.cat([getattr(part, name) for part in parts]) for name in ("tokens", "positions"))
        assert tokens[:length].tolist() == pack.tokens.tolist()
        assert positions[:length].tolist() == pack.positions.tolist()
        assert 0 <= len(tokens) - length < size
        for part in parts:
            assert part.segments.bounds[-1] == len(tokens)
            assert part.segments.bounds[: len(pack.segments.bounds)] == pack.segments.bounds
        assert [part.completions.start for part in parts[1:]] == [part.completions.stop for part in parts[:-1]]
        assert (parts[0].completions.start, parts[-1].completions.stop) == (0, len(pack.targets))
        each = len(parts[0].tokens)
        places = torch.cat([part.predicted_from + number * each for number, part in enumerate(parts)])
        assert places.tolist() == pack.predicted_from.tolist()


def test_a_loss_is_asked_about_the_pack_s_tokens_not_the_part_s() -> None:
    pack = micro_batch([(sample, 1.0) for sample in groups()[0].samples])
    part = part_of(pack, context(1, 2))
    asked = []

    def loss(here: slice, logprobs: torch.Tensor, entropy: torch.Tensor) -> torch.Tensor:
        asked.append(here)
        return logprobs.sum()

    part.loss(loss)(slice(0, 2), torch.zeros(2), torch.zeros(2))
    first = part.completions.start
    assert first > 0
    assert asked == [slice(first, first + 2)]


def test_without_a_group_a_part_is_the_pack_itself() -> None:
    pack = plan().optimizer_batches[0].micro_batches[0]
    part = part_of(pack, None)
    assert isinstance(part, PackPart)
    assert part.tokens is pack.tokens
    assert part.predicted_from is pack.predicted_from
    assert part.gather(len(pack.targets), pack.temperatures) == (pack.temperatures,)


class Config:
    def __init__(self, heads: int, shared: int | None = None, **more: Any) -> None:
        self.num_attention_heads, self.num_key_value_heads = heads, shared
        self.__dict__ |= more


@pytest.mark.parametrize(
    ("config", "size", "problem"),
    [
        (Config(64, 8), 8, None),
        (Config(64, 8), 16, None),  # each key head twice
        (Config(40, 8), 20, "its 40 query and 8 key heads cannot be shared by trainer.settings.contextParallel 20 ranks; allowed: 1, 2, 4, 8, 40"),
        (Config(14, 2), 4, "allowed: 1, 2, 14"),
        (Config(9, 3), 2, "allowed: 1, 3, 9"),
        (Config(8), 16, "its 8 query and 8 key heads"),
        (Config(8, 2, rope_scaling={"type": "dynamic", "factor": 2.0}), 2, "rotary embedding (dynamic) depends on the longest sample"),
        (Config(8, 2, rope_parameters={"full_attention": {"rope_type": "longrope"}}), 2, "rotary embedding (longrope)"),
        (Config(8, 2, rope_parameters={"rope_type": "yarn", "factor": 4.0}), 2, None),
    ],
)  # fmt: skip
def test_heads_that_cannot_be_shared_are_refused_with_what_can(config: Config, size: int, problem: str | None) -> None:
    found = undividable(config, size)
    assert len(found) == (problem is not None)
    assert problem is None or problem in found[0]


def test_a_model_that_cannot_be_shared_is_refused_when_it_is_loaded(tmp_path: Path) -> None:
    base = write_base(tmp_path / "base")
    here = ranks()
    shared = Ranks(
        here.rank, here.world, 0, here.device, here.mesh, here.background, here.background_mesh, here.saving,
        context_group=context(0, 4),
    )  # fmt: skip
    with pytest.raises(
        BadModel, match=r"2 query and 1 key heads cannot be shared by .*contextParallel 4 ranks; allowed: 1, 2"
    ):
        load_policy(base, None, shared)


def test_ranks_that_cannot_be_divided_are_refused_before_they_meet() -> None:
    with pytest.raises(
        BadDivision, match="the trainer has 6 ranks, and 4 are to share each pack; allowed: a divisor of 6"
    ):
        start_ranks("cpu", environment={"RANK": "0", "WORLD_SIZE": "6"}, context_parallel=4)


def test_shares_of_the_data_are_those_of_groups_not_of_ranks() -> None:
    here = ranks()
    one = Ranks(5, 8, 0, here.device, here.mesh, here.background, here.background_mesh, here.saving)
    assert (one.data_rank, one.data_world, one.counts_packs) == (5, 8, True)
    shared = Ranks(
        5, 8, 0, here.device, here.mesh, here.background, here.background_mesh, here.saving, context_group=context(1, 4)
    )
    assert (shared.data_rank, shared.data_world, shared.counts_packs) == (1, 2, False)
