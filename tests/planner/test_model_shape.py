"""The size of a model: counted from its configuration as transformers builds it, or read from its name."""

from typing import Any

import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM

from shoal.planner.model_shape import UnknownShape, parameters_in, parameters_said, shape_of_config, shape_of_parameters

SMALL: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 300,
}  # fmt: skip
LATENT = {"q_lora_rank": 16, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 8, "v_head_dim": 6}
KINDS: list[tuple[str, dict[str, Any]]] = [
    ("LlamaConfig", {}),
    ("LlamaConfig", {"attention_bias": True, "tie_word_embeddings": True}),
    ("MistralConfig", {}),
    ("Qwen2Config", {}),
    ("Qwen3Config", {"head_dim": 32, "tie_word_embeddings": True}),
    ("Phi3Config", {"pad_token_id": 0}),
    ("GemmaConfig", {"head_dim": 16}),
    ("Gemma2Config", {"head_dim": 16}),
    ("Gemma3TextConfig", {"head_dim": 16}),
    ("Glm4Config", {"head_dim": 16, "pad_token_id": 0}),
    ("Olmo3Config", {"pad_token_id": 0}),
    ("MixtralConfig", {"num_local_experts": 4}),
    ("Qwen3MoeConfig", {"num_experts": 4, "moe_intermediate_size": 24}),
    ("Qwen3MoeConfig", {"num_experts": 4, "moe_intermediate_size": 24, "mlp_only_layers": [1]}),
    ("Qwen3MoeConfig", {"num_experts": 4, "moe_intermediate_size": 24, "decoder_sparse_step": 2}),
    (
        "Glm4MoeConfig",
        {
            "n_routed_experts": 4,
            "moe_intermediate_size": 24,
            "head_dim": 16,
            "use_qk_norm": True,
            "attention_bias": True,
        },
    ),
    (
        "DeepseekV3Config",
        {"n_routed_experts": 4, "n_group": 2, "moe_intermediate_size": 24, "first_k_dense_replace": 2, **LATENT},
    ),
    ("DeepseekV3Config", {"n_routed_experts": 4, "n_group": 2, **LATENT, "q_lora_rank": None, "attention_bias": True}),
]


@pytest.mark.parametrize(("kind", "more"), KINDS, ids=lambda each: each if isinstance(each, str) else "-".join(each))
def test_parameters_are_those_of_the_model_that_transformers_builds(kind: str, more: dict[str, Any]) -> None:
    config = getattr(transformers, kind)(**SMALL, **more)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    assert shape_of_config(config.to_dict()).parameters == model.num_parameters()


def test_a_32b_model_has_the_parameters_of_its_card() -> None:
    qwq = {
        "model_type": "qwen2", "hidden_size": 5120, "intermediate_size": 27648, "num_hidden_layers": 64,
        "num_attention_heads": 40, "num_key_value_heads": 8, "vocab_size": 152064, "max_position_embeddings": 40960,
    }  # fmt: skip
    shape = shape_of_config(qwq)
    assert shape.parameters == 32_763_876_352
    assert (shape.key_values, shape.longest, shape.exact) == (2048, 40960, True)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("Qwen/QwQ-32B", 32 * 10**9),
        ("HuggingFaceTB/SmolLM2-135M-Instruct", 135 * 10**6),
        ("Qwen/Qwen3-1.7B", 1_700_000_000),
        ("Qwen/Qwen3-30B-A3B", 30 * 10**9),
        ("mistralai/Mixtral-8x7B-v0.1", None),
        ("TinyLlama/TinyLlama-1.1B-intermediate-step-1431k-3T", 1_100_000_000),
        ("princeton-nlp/Sheared-LLaMA-2.7B-50B", None),
        ("microsoft/Phi-3-mini-128k-instruct", None),
        ("gradientai/Llama-3-8B-Instruct-262k", 8 * 10**9),
        ("70b", 70 * 10**9),
        ("meta-llama/Llama-3.1-8B", 8 * 10**9),
        ("gpt2", None),
        ("org7B/model", None),
    ],
)
def test_the_size_of_a_name(name: str, parameters: int | None) -> None:
    assert parameters_in(name) == parameters


@pytest.mark.parametrize(
    ("text", "parameters"),
    [("70b", 70 * 10**9), ("8x7B", 56 * 10**9), ("1T", 10**12), ("700k", 700_000), ("2.7B-50B", None)],
)
def test_the_size_that_a_person_says(text: str, parameters: int | None) -> None:
    assert parameters_said(text) == parameters


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"hidden_size": None}, "hidden_size is None"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        ({"vocab_size": "many"}, "vocab_size is 'many'"),
        ({"kv_lora_rank": 512}, "qk_rope_head_dim is None"),
        ({"q_lora_rank": 512}, "config.json has q_lora_rank"),
        ({"kv_lora_rank": 512, "index_n_heads": 64}, "config.json has index_n_heads"),
        ({"text_config": "none"}, "text_config"),
    ],
)
def test_a_model_that_is_not_counted_is_refused_by_the_field(change: dict[str, Any], told: str) -> None:
    with pytest.raises(UnknownShape, match=told):
        shape_of_config(SMALL | change)


def test_a_shape_of_a_number_says_that_it_is_guessed() -> None:
    shape = shape_of_parameters(7_000_000_000)
    assert (shape.parameters, shape.exact) == (7_000_000_000, False)
    with pytest.raises(UnknownShape):
        shape_of_parameters(0)


def test_deepseek_v3_has_the_parameters_and_the_small_cache_of_its_card() -> None:
    """671B without the layer for several tokens at once; 576 numbers a token and layer in the cache (arXiv:2412.19437)."""
    config = transformers.DeepseekV3Config().to_dict()
    shape = shape_of_config(config)
    assert shape.parameters == pytest.approx(671e9, rel=1e-3)
    assert (shape.key_values, shape.experts, shape.heads) == (576, 256, (128, 128))
    assert shape.expert_parameters * shape.layers == pytest.approx(58 * 256 * 3 * 7168 * 2048, rel=1e-6)
    assert shape.expert_values == 8 * 7168
