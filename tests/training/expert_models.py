"""Tiny random models with experts, as transformers makes and saves them, and float64 without the places where a model asks for float32.

`Exact` is for references: norms, rotary angles, softmax and log-probabilities then are float64 too, so that two ways to compute the same agree to
1e-12 or are different. Used by `test_experts`, `expert_ranks` and the table of model types.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from test_logprobs import SAMPLES
from tiny_run import VOCABULARY
from torch.overrides import TorchFunctionMode
from transformers import AutoModelForCausalLM, DeepseekV3Config, Glm4MoeConfig, PreTrainedConfig, Qwen3MoeConfig

TINY: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 128, "initializer_range": 0.2, "pad_token_id": 0, "dtype": "float32",
    "moe_intermediate_size": 16, "num_experts_per_tok": 2, "tie_word_embeddings": False,
}  # fmt: skip
SIGMOID: dict[str, Any] = {"first_k_dense_replace": 1, "n_group": 2, "topk_group": 1, "n_shared_experts": 1}
"""A dense first layer, then experts in two groups of which one is chosen, and a shared expert."""
UNBIASED: dict[str, Any] = {"topk_method": "noaux_tc", "scoring_func": "sigmoid"}
"""As in the checkpoints of DeepSeek. vLLM asks for both; transformers has no such fields and routes so."""


def latent(**changes: Any) -> PreTrainedConfig:
    """Multi-head latent attention: queries and keys are 12 wide, values 6."""
    sizes = {"q_lora_rank": 16, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 8, "v_head_dim": 6}
    given = TINY | SIGMOID | UNBIASED | sizes | {"num_key_value_heads": 4, "n_routed_experts": 8, "num_mtp_layers": 0}
    return DeepseekV3Config(**(given | changes))


EXPERTS: dict[str, PreTrainedConfig] = {
    "qwen3_moe": Qwen3MoeConfig(**TINY, num_experts=8, head_dim=8, norm_topk_prob=True),
    "deepseek_v3": latent(),
    "glm4_moe": Glm4MoeConfig(**TINY, **SIGMOID, n_routed_experts=8, head_dim=8, use_qk_norm=True, num_mtp_layers=0),
}


def write_model(folder: Path, config: PreTrainedConfig, dtype: torch.dtype = torch.float32) -> Path:
    """A checkpoint with random weights, norms and balancing biases too, in several files."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).to(dtype)
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if name.endswith("e_score_correction_bias"):
                tensor.normal_(std=0.1)
            elif tensor.dim() == 1:
                tensor.add_(0.2 * torch.randn(tensor.shape))
    model.save_pretrained(folder, max_shard_size="40KB")
    (folder / "tokenizer.json").write_text("{}")
    return folder


ROUNDED = [replace(one, temperature=float(np.float32(one.temperature))) for one in SAMPLES]
"""A pack's temperatures are float32."""


class Exact(TorchFunctionMode):
    """Float32 is float64 within this, wherever a computation asks for it by name."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.float:
            func = torch.Tensor.double
        widened = [torch.float64 if given is torch.float32 else given for given in args]
        named = {name: torch.float64 if given is torch.float32 else given for name, given in (kwargs or {}).items()}
        return func(*widened, **named)
