"""Tiny random models of every type that we name, and what this trainer makes of each: the rows of the table of model types.

In: a name of `TYPES` or `REFUSED` and a folder. Out: what was found, for benchmarks/results/model_types.json. Called by `test_model_types` and by
`benchmarks.model_types`, which also lets vLLM serve each.
"""

import dataclasses
from pathlib import Path
from typing import Any

import torch
import transformers
from expert_models import ROUNDED, SIGMOID, UNBIASED, Exact, write_model
from safetensors.torch import load_file
from test_logprobs import PACK, plain, wavy
from tiny_run import VOCABULARY, ranks, recipe
from transformers import AutoModelForCausalLM, PreTrainedConfig

from shoal.contracts.trainer import Lora, TrainerSettings
from shoal.planner.model_shape import UnknownShape, shape_of_config
from shoal.training.attention import NEEDED_BY
from shoal.training.export import Export
from shoal.training.host_copy import HostCopy
from shoal.training.lora import NoSuchLayer
from shoal.training.model import Policy, load_policy
from shoal.training.optimizer import Optimizer
from shoal.training.stored_weights import BadModel

MOST_GAP = 1e-9
"""Of a figure in float64, relative."""
TINY: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 128, "initializer_range": 0.1, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 1, "dtype": "float32", "tie_word_embeddings": False,
}  # fmt: skip
"""Heads are 32 wide: no narrower ones are served on a CPU."""
WINDOW = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 8}
ROUTED = {"moe_intermediate_size": 32, "num_experts_per_tok": 2}
LATENT = {"q_lora_rank": 16, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 16, "v_head_dim": 32}
"""On a CPU vLLM serves latent states of 512 and 64 values only, which DeepSeek-V3 has."""


@dataclasses.dataclass(frozen=True)
class ModelType:
    """A configuration of transformers with the fields that this type is tried with, and what they show."""

    config: str
    fields: dict[str, Any]
    shows: str
    needed: str = ""
    """Of a refused type: what would let it be trained."""


HEADS = {"head_dim": 32}
TYPES: dict[str, ModelType] = {
    "qwen2": ModelType("Qwen2Config", {"hidden_size": 128, "tie_word_embeddings": True}, "biases of attention, tied embeddings"),
    "qwen3": ModelType("Qwen3Config", HEADS, "norms of queries and keys"),
    "llama": ModelType("LlamaConfig", HEADS, "grouped keys"),
    "phi3": ModelType("Phi3Config", {"hidden_size": 128}, "one matrix for queries, keys and values"),
    "gemma3_text": ModelType("Gemma3TextConfig", {**HEADS, **WINDOW, "tie_word_embeddings": True}, "sliding window, scaled embeddings, four norms"),
    "olmo3": ModelType("Olmo3Config", {"hidden_size": 128, **WINDOW}, "sliding window, norms after attention"),
    "smollm3": ModelType("SmolLM3Config", {"hidden_size": 128, "no_rope_layers": [1, 0]}, "a layer without positions"),
    "glm4": ModelType("Glm4Config", HEADS, "rotary embedding of half a head"),
    "granite": ModelType("GraniteConfig", {"hidden_size": 128, "logits_scaling": 4.0, "residual_multiplier": 0.5}, "scaled logits and residuals"),
    "mistral": ModelType("MistralConfig", {**HEADS, "sliding_window": 8}, "sliding window everywhere"),
    "qwen3_moe": ModelType("Qwen3MoeConfig", {**HEADS, **ROUTED, "num_experts": 8, "norm_topk_prob": True}, "experts in every layer"),
    "deepseek_v3": ModelType(
        "DeepseekV3Config", {**ROUTED, **SIGMOID, **UNBIASED, **LATENT, "num_key_value_heads": 4, "n_routed_experts": 8, "num_mtp_layers": 0},
        "latent attention, experts in groups, a shared expert",
    ),
    "glm4_moe": ModelType(
        "Glm4MoeConfig", {**HEADS, **ROUTED, **SIGMOID, "n_routed_experts": 8, "use_qk_norm": True, "num_mtp_layers": 0},
        "experts with a bias that balances them, a shared expert",
    ),
}  # fmt: skip
LINEAR = {"layer_types": ["linear_attention", "full_attention"], "linear_num_key_heads": 2, "linear_num_value_heads": 4,
          "linear_key_head_dim": 16, "linear_value_head_dim": 16}  # fmt: skip
REFUSED: dict[str, ModelType] = {
    "gpt_oss": ModelType(
        "GptOssConfig", {**HEADS, "num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 32},
        "attention sinks, experts with biases, weights in four bits",
        "sinks in the packed attention, biases in the grouped products, and a way to write weights in four bits",
    ),
    "qwen3_next": ModelType("Qwen3NextConfig", {**HEADS, **ROUTED, **LINEAR, "num_experts": 4, "shared_expert_intermediate_size": 32},
                            "linear attention, experts", NEEDED_BY["linear_attention"]),
    "qwen3_5_text": ModelType("Qwen3_5TextConfig", {**HEADS, **LINEAR}, "linear attention", NEEDED_BY["linear_attention"]),
    "gemma2": ModelType("Gemma2Config", {**HEADS, "query_pre_attn_scalar": 32}, "logits that are capped softly",
                        "the cap in the packed attention and in the head's tiles"),
    "mixtral": ModelType("MixtralConfig", {"hidden_size": 128, "num_local_experts": 4}, "experts under other names in the checkpoint",
                         "its names of experts' matrices (`block_sparse_moe.experts.N.w1`) in `models/places.py`"),
}  # fmt: skip


def config_of(kind: ModelType) -> PreTrainedConfig:
    made: PreTrainedConfig = getattr(transformers, kind.config)(**(TINY | kind.fields))
    return made


def published(kind: ModelType, folder: Path) -> Path:
    """The folder of a version as the trainer writes it, of a tiny model of this type."""
    base = write_model(folder / "base", config_of(kind))
    _export(load_policy(base, None, ranks()), base, folder / "out")
    return folder / "out"


def _export(policy: Policy, base: Path, out: Path) -> None:
    copy = HostCopy(policy, Optimizer(policy.parameters(), recipe()), ranks())
    copy.take()
    Export(policy, base, ranks()).write(copy.tensors, out)


def tried(kind: ModelType, folder: Path) -> dict[str, Any]:
    """Load, train and write a tiny model of this type. `reason` is there where it was refused."""
    base = write_model(folder / "base", config_of(kind))
    found: dict[str, Any] = {"shows": kind.shows}
    try:
        policy = load_policy(base, None, ranks())
    except BadModel as error:
        return found | {"reason": str(error).partition(" cannot be trained: ")[2] or str(error), "needed": kind.needed}
    _export(policy, base, folder / "out")
    before, after = _stored(base), _stored(folder / "out")
    return found | {
        "gap_float64": gap(base),
        "same_bytes": before.keys() == after.keys()
        and all(torch.equal(each, after[name]) for name, each in before.items()),
        "adapters": _adapters(base),
        "planned": _planned(policy.model),
    }


def gap(base: Path) -> float:
    """Greatest relative difference in float64 of loss, log-probabilities, entropies and gradients: ours of a pack, transformers' of each sample."""
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32, attn_implementation="eager").double().eval()
    if model.config._experts_implementation is not None:
        model.set_experts_implementation("eager")
    policy = load_policy(base, TrainerSettings(activation_recomputation="Off")).double()
    with Exact():
        alone = [torch.cat(part) for part in zip(*(plain(model, one) for one in ROUNDED), strict=True)]
        wanted = wavy(*alone, slice(None))
        wanted.backward()
        loss, *ours = policy(PACK, lambda here, logprobs, entropy: wavy(logprobs, entropy, here))
        assert loss is not None
        loss.backward()
    pairs = list(zip((loss, *ours), (wanted, *alone), strict=True))
    parameters = dict(policy.model.named_parameters())
    pairs += [(parameters[name].grad, theirs.grad) for name, theirs in model.named_parameters()]
    return max(float((one - other).detach().norm() / other.detach().norm().clamp(min=1e-30)) for one, other in pairs)


def _stored(folder: Path) -> dict[str, torch.Tensor]:
    return {name: tensor for path in folder.glob("*.safetensors") for name, tensor in load_file(path).items()}


def _adapters(base: Path) -> str:
    """Where adapters can be."""
    try:
        load_policy(base, TrainerSettings(lora=Lora(rank=2)))
        return "all layers"
    except NoSuchLayer as error:
        return f"of {str(error).partition('allowed: ')[2]}"


def _planned(model: Any) -> bool:
    """Whether `shoal plan` counts its parameters as they are."""
    try:
        return shape_of_config(model.config.to_dict()).parameters == model.num_parameters()
    except UnknownShape:
        return False
