"""How much memory an engine on a CPU is given for keys and values. Called by `engine`; pure."""

from collections.abc import Mapping
from typing import Any

CPU_KV_CACHE_BYTES = (64 << 20, 4 << 30)
"""Least and most memory for keys and values on a CPU; what is used between them is what the sequences can fill."""


def kv_cache_bytes(config: Mapping[str, Any], dtype: str, tokens: int) -> int:
    """Memory for keys and values of `tokens` tokens within CPU_KV_CACHE_BYTES, from a Hugging Face `config.json`."""
    heads = config["num_attention_heads"]
    head_size = config.get("head_dim") or config["hidden_size"] // heads
    each = 2 * config["num_hidden_layers"] * config.get("num_key_value_heads", heads) * head_size
    width = 4 if dtype == "float32" else 2
    least, most = CPU_KV_CACHE_BYTES
    return int(max(least, min(most, tokens * each * width)))
