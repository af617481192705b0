"""The committed figures of objectives and experts: every key that the benchmark promises, within its bound."""

import json
from pathlib import Path
from typing import Any

import pytest
from benchmarks.objectives.experts import type_counts
from benchmarks.trainer.__main__ import GRADIENT_TOLERANCE, LOSS_TOLERANCE
from benchmarks.trainer.workload import EXPERTS, Shape, draw_batch
from transformers import AutoModelForCausalLM, Qwen3MoeConfig

RESULT = Path(__file__).resolve().parents[2] / "benchmarks" / "results" / "objectives.json"
MODELS = {"qwen3_moe", "deepseek_v3", "glm4_moe"}


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    figures: dict[str, Any] = json.loads(RESULT.read_text())
    return figures


def test_every_objective_is_its_formula_in_float64(found: dict[str, Any]) -> None:
    assert found["objectives"] >= 11
    assert max(found["objective_gap_float64"].values()) <= 1e-6
    assert found["gspo_cost"] <= 1.10


def test_models_with_experts_train_as_float64_says_on_one_two_and_four_ranks(found: dict[str, Any]) -> None:
    assert found["moe_models"] == len(MODELS)
    assert found["moe_loss_gap_float64"].keys() == found["moe_rank_gap"].keys() == MODELS
    assert max(found["moe_loss_gap_float64"].values()) <= 1e-9
    for gaps in found["moe_rank_gap"].values():
        assert {"2", "4"} <= gaps.keys()
        assert max(gaps.values()) <= 1e-9
    assert found["moe_lora_gap_float64"].keys() == found["moe_lora_rank_gap"].keys() == MODELS
    assert max(found["moe_lora_gap_float64"].values()) <= 1e-9
    for gaps in found["moe_lora_rank_gap"].values():
        assert {"2", "4", "2, tokens travel", "4, tokens travel"} <= gaps.keys()
        assert max(gaps.values()) <= 1e-9
    assert {key: found[key] for key in type_counts()} == type_counts()
    for what in ("trained", "served", "redrawn", "proved"):
        assert found[f"model_types_{what}"] >= 12
    assert 0 <= found["router_replay_mismatch"] <= 1


def test_experts_train_in_half_the_time_of_trl_at_most(found: dict[str, Any]) -> None:
    assert found["moe_time_ratio_to_trl"] >= 2.0
    beside = found["moe_trl"]
    assert beside["max_loss_difference"] <= LOSS_TOLERANCE
    assert beside["max_grad_difference"] <= GRADIENT_TOLERANCE
    batch = draw_batch(EXPERTS, beside["batch"])
    assert (beside["shape"]["experts"], beside["shape"]["completion_tokens"]) == (EXPERTS.experts, batch.tokens)


def test_both_sides_are_given_a_model_with_experts_and_no_auxiliary_loss() -> None:
    config = Shape(
        "tiny", 64, 32, 16, 1, 4, 2, rows=2, prompt=4, longest=8, pack_length=32, experts=4, chosen=2
    ).config()
    assert isinstance(config, Qwen3MoeConfig)
    assert config.router_aux_loss_coef == 0.0
    assert AutoModelForCausalLM.from_config(config).model.layers[0].mlp.experts.num_experts == 4
