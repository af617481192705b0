"""The plan's memory of a trainer's rank against torch's FSDP2 memory tracker, and what the plan says about host memory."""

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import replace

import pytest
from benchmarks.trainer.rank_memory import CASES, QWEN3_32B, Case
from transformers import DeepseekV3Config

from forked_python import TRAINER, run_python
from servers import ROOT
from shoal.contracts.trainer import Offload
from shoal.planner.memory import Adapters, MemoryPart, OnHost, state_bytes, total, trained_parameters, trainer_rank
from shoal.planner.model_shape import shape_of_config

MOST_ERROR = 0.10
FITS = 76e9
"""Of an 80 GB GPU, whose context and buffers of NCCL need the rest."""


def measured(names: Sequence[str]) -> dict[str, dict[str, float]]:
    """In a process of its own, which has a group of fake ranks."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]), "OMP_NUM_THREADS": "1"}
    done = run_python(["-m", "benchmarks.trainer.rank_memory", *names], TRAINER, env=environment, timeout=450)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, dict[str, float]] = json.loads(done.stdout.splitlines()[-1])
    return found


def by_cause(case: Case) -> dict[str, int]:
    return {part.cause: part.nbytes for part in case.planned()}


@pytest.mark.parametrize(
    "names",
    [
        ("small, two ranks", "small, four of eight share", "small, PRIME"),
        pytest.param(
            ("small, a large vocabulary", "small, nothing again", "small, Muon", "small, Muon on more ranks"),
            marks=pytest.mark.soak,
        ),
    ],
    ids=["plain, sharing, PRIME", "vocabulary, recomputing, Muon"],
)
def test_planned_bytes_are_those_that_the_trackers_count_within_a_tenth(names: Sequence[str]) -> None:
    found = measured(names)
    for name in names:
        assert total(CASES[name].planned()) == pytest.approx(found[name]["bytes"], rel=MOST_ERROR), name


@pytest.mark.soak
def test_planned_bytes_of_inputs_are_there_where_they_are_kept() -> None:
    names = device, host = "small, inputs on the device", "small, inputs in host memory"
    found = measured(names)
    for name in names:
        assert total(CASES[name].planned()) == pytest.approx(found[name]["bytes"], rel=MOST_ERROR), name
    planned = total(CASES[device].planned()) - total(CASES[host].planned())
    assert planned == pytest.approx(found[device]["bytes"] - found[host]["bytes"], rel=MOST_ERROR)


@pytest.mark.soak
@pytest.mark.parametrize("name", ["8 layers of Qwen3-32B, 16 ranks", "8 layers of Qwen3-32B, eight of 16 share"])
def test_planned_bytes_of_widths_of_32b_are_those_of_the_tracker_too(name: str) -> None:
    assert total(CASES[name].planned()) == pytest.approx(measured([name])[name]["bytes"], rel=MOST_ERROR)


def test_the_paper_s_model_at_32k_fits_sixteen_gpus_of_80_gb() -> None:
    case = CASES["Qwen3-32B, 16 ranks"]
    assert total(case.planned()) <= FITS
    assert total(replace(case, reference=True).planned()) > FITS
    assert total(replace(case, reference=True, offload=Offload(reference=True)).planned()) <= FITS
    longer = replace(case, tokens=2 * case.tokens)
    assert total(longer.planned()) > FITS
    assert total(replace(longer, offload=Offload(optimizer=True, activations=True)).planned()) <= FITS


def test_muon_keeps_four_bytes_of_each_matrix_where_adamw_keeps_eight() -> None:
    case = CASES["Qwen3-32B, 16 ranks"]
    matrices = 64 * (3 * 5120 * 25_600 + 2 * 5120 * 8192 + 2 * 5120 * 1024)
    saved = total(case.planned()) - total(replace(case, muon=True).planned())
    assert saved == pytest.approx(4 * matrices / 16, rel=1e-3)
    host = replace(case, muon=True, offload=Offload(optimizer=True))
    assert by_cause(host)["AdamW's and Muon's moments, float32"] == 0


def test_packs_of_131072_tokens_of_the_paper_s_model_fit_sixteen_gpus_where_eight_share_them() -> None:
    case = replace(CASES["Qwen3-32B, 16 ranks"], tokens=131_072)
    assert total(case.planned()) > FITS
    assert total(replace(case, sharing=8).planned()) <= FITS


def test_a_reward_model_costs_a_second_policy_with_its_moments_and_none_of_its_passes() -> None:
    case = Case(QWEN3_32B, 16, 32_768, reference=True)
    prime = replace(case, reward_model=True)
    of_32b = 32.76e9
    ends = 2 * 2 * 151_936 * 5120  # the policy's embedding and head in bfloat16
    assert total(prime.planned()) - total(case.planned()) == pytest.approx(12 * of_32b / 16 + ends, rel=0.01)
    on_host = Offload(optimizer=True)
    grown = total(replace(prime, offload=on_host).planned()) - total(replace(case, offload=on_host).planned())
    assert grown == pytest.approx(4 * of_32b / 16 + ends, rel=0.01)


def test_what_is_kept_in_host_memory_leaves_its_cause_alone() -> None:
    case = Case(QWEN3_32B, 16, 32_768, reference=True)
    whole = by_cause(case)
    for field, cause in (
        ("reference", "reference model of the KL penalty"),
        ("optimizer", "AdamW's moments, float32"),
        ("activations", "layers' inputs, 32768 tokens"),
    ):
        less = by_cause(replace(case, offload=Offload(**{field: True})))
        assert less[cause] < whole[cause] / 50, field
        assert less.keys() == whole.keys()
    assert all(isinstance(part, MemoryPart) and part.nbytes >= 0 for part in case.planned())


def test_where_tokens_travel_no_rank_has_room_for_the_experts_of_a_layer() -> None:
    """DeepSeek-V3 on 256 ranks: 210 GB with a layer's experts and their gradients gathered, 111 GB with those of the rank (ADR 0120)."""
    shape = shape_of_config(DeepseekV3Config().to_dict())
    gathered, stay = (
        total(trainer_rank(shape, 256, 32_768, "Full", reference=False, tokens_travel=each)) for each in (False, True)
    )
    assert (gathered / 1e9, stay / 1e9) == pytest.approx((210, 111), abs=1)
    alone = [total(trainer_rank(shape, 1, 1024, "Full", tokens_travel=each)) for each in (False, True)]
    assert alone[0] == alone[1]
    on_host = OnHost(reference=True)
    assert total(trainer_rank(shape, 256, 32_768, "Full", on_host=on_host, tokens_travel=True)) > stay


def test_adapters_of_experts_are_counted_by_rank_and_names_and_lie_where_experts_lie() -> None:
    """DeepSeek-V3 at rank 16 on 256 ranks: 123 GB with layers gathered, 87 GB where tokens travel; states of 81 GB (ADR 0126)."""
    shape = shape_of_config(DeepseekV3Config().to_dict())
    of_experts = 58 * 256 * 16 * 3 * (7168 + 2048)
    counted = trained_parameters(shape.parameters, "LoRA", Adapters(), shape)
    assert of_experts < counted < 1.03 * of_experts
    assert state_bytes(counted) == pytest.approx(81e9, rel=0.01)
    one_name = trained_parameters(shape.parameters, "LoRA", Adapters(32, 1), shape)
    assert one_name == pytest.approx(2 / 3 * of_experts + 2 * (counted - of_experts), rel=1e-6)
    gathered, stay = (
        total(trainer_rank(shape, 256, 32_768, "LoRA", reference=False, tokens_travel=each)) for each in (False, True)
    )
    assert (gathered / 1e9, stay / 1e9) == pytest.approx((123, 87), abs=1)
    attention = [
        total(trainer_rank(shape, 256, 32_768, "LoRA", reference=False, tokens_travel=each, adapters=Adapters(16, 0)))
        for each in (False, True)
    ]
    # A rank has a share of them with moments, 12 bytes each. Two layers are gathered in bfloat16, and the gradients of one are on their way.
    of_layer = of_experts / 61
    saved = gathered - attention[0], stay - attention[1]
    assert saved == pytest.approx((12 * of_experts / 256 + 10 * of_layer, 12 * of_experts / 256), rel=0.1)
