"""Tiny random policies with experts, wide enough for proofs, that a real engine serves: for the tests and the benchmark of routes."""

from pathlib import Path
from typing import Any

import torch
from tiny_policy import EOS, save_tokenizer
from transformers import AutoModelForCausalLM, Glm4MoeConfig, PreTrainedConfig, Qwen3MoeConfig

COMMON: dict[str, Any] = {
    "vocab_size": 258, "hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
    "max_position_embeddings": 512, "tie_word_embeddings": False, "eos_token_id": EOS, "bos_token_id": None, "pad_token_id": 0,
    "initializer_range": 0.08, "moe_intermediate_size": 64,
}  # fmt: skip


def softmax_config(experts: int = 8, choices: int = 2, layers: int = 3) -> PreTrainedConfig:
    """A Qwen3 whose layers all have experts."""
    return Qwen3MoeConfig(
        **COMMON, num_hidden_layers=layers, num_experts=experts, num_experts_per_tok=choices, norm_topk_prob=True
    )


def grouped_config(experts: int = 8, choices: int = 2, layers: int = 3) -> PreTrainedConfig:
    """A GLM-4.5 with a dense first layer, and experts in four groups of which two are chosen."""
    return Glm4MoeConfig(
        **COMMON, num_hidden_layers=layers, n_routed_experts=experts, num_experts_per_tok=choices, first_k_dense_replace=1, n_group=4,
        topk_group=2, n_shared_experts=1, use_qk_norm=True, num_mtp_layers=0,
    )  # fmt: skip


def make_expert_policy(folder: Path, config: PreTrainedConfig, seed: int, dtype: torch.dtype = torch.float32) -> Any:
    """Write a random checkpoint with a byte-level tokenizer to `folder`; returns the model. Balancing biases are random too."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config).to(dtype).eval()
    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            buffer.data = 0.1 * torch.randn(buffer.shape)
    model.save_pretrained(folder)
    save_tokenizer(folder)
    return model
