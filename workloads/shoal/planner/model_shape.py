"""How large a language model is, from its `config.json` or from the size in its name. Pure.

In: the parsed configuration of a Hugging Face checkpoint, a repository's name, or a number of parameters. Out: a `ModelShape`.
Called by `shoal init`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

UNIT = {"k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}
_SIZE = re.compile(r"(?<![a-z0-9.])(?:(\d{1,3})x)?(\d{1,4}(?:\.\d{1,3})?)([kmbt])(?![a-z0-9])", re.IGNORECASE)
_UNITS_OF_NAMES = "mb"
"""In names `3T` are the tokens of training, and `128k` positions or steps."""
LARGEST_PARAMETERS = 10**13


class UnknownShape(ValueError):
    """The size of a model cannot be told; the message says what is missing."""


@dataclass(frozen=True)
class ModelShape:
    """A decoder as memory sees it. `key_values` are the numbers that one token leaves in the cache of one layer (keys and values)."""

    parameters: int
    hidden_size: int
    layers: int
    vocabulary: int
    tied: bool
    key_values: int
    layer_values: int
    """Activations of one token in one layer that its backward pass reads."""
    longest: int | None = None
    """Positions that the model was made for; None where nobody says."""
    heads: tuple[int, int] | None = None
    """Heads of queries and of keys; None where widths were guessed."""
    experts: int = 0
    """Of a layer; 0: it has none. They are divided over the trainer's ranks whole."""
    expert_parameters: int = 0
    """Of all experts of a layer, on average over the layers; shared experts are not among them."""
    expert_sides: int = 0
    """Rows and columns of one matrix of each of these experts, added up: what a rank of adapters costs for it."""
    expert_values: int = 0
    """Values of one token's state, once for each expert that it goes to."""
    exact: bool = True
    """False where widths were guessed from a number of parameters."""

    @property
    def embedding(self) -> int:
        """Parameters of the token embedding."""
        return self.vocabulary * self.hidden_size

    @property
    def ends(self) -> int:
        """Parameters of embedding and head together; a tied head is the embedding."""
        return self.embedding * (1 if self.tied else 2)

    @property
    def layer_parameters(self) -> int:
        """Parameters of one layer."""
        return max(1, (self.parameters - self.ends) // self.layers)

    @property
    def matrices(self) -> int:
        """Parameters of the layers' matrices; norms and biases, a few ten-thousandths, are counted too."""
        return self.layers * self.layer_parameters


def shares_heads(queries: int, keys: int, ranks: int) -> bool:
    """Whether attention can be shared by heads: equal numbers of query heads, and of key heads or copies of them."""
    return queries % ranks == 0 and (keys % ranks == 0 or ranks % keys == 0)


def shape_of_config(config: Mapping[str, Any]) -> ModelShape:
    """The shape of a Llama-like decoder (Llama, Mistral, Mixtral, Qwen2, Qwen3, Gemma, Phi-3, DeepSeek-V3, GLM-4 and the like), counted tensor by
    tensor. A layer of the mean size stands for all, where the first ones have no experts.

    Raises UnknownShape for a configuration without these fields, or with attention of another kind (sparse, state-space layers).
    """
    given = config.get("text_config", config)
    if not isinstance(given, Mapping):
        raise UnknownShape("config.json: text_config is no object")
    latent = bool(given.get("kv_lora_rank"))
    unknown = ("state_size", "ssm_cfg", "index_n_heads", *(() if latent else ("q_lora_rank",)))
    if odd := [name for name in unknown if given.get(name)]:
        raise UnknownShape(f"config.json has {odd[0]}: a model of this kind is not counted here")
    hidden, layers, heads, vocabulary, intermediate = (
        _count(given, name)
        for name in ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "intermediate_size")
    )
    shared = _count(given, "num_key_value_heads", heads)
    head = _count(given, "head_dim", max(1, hidden // heads))
    kind = str(given.get("model_type", config.get("model_type", "")))
    # Gemma ties where nothing is said; transformers' own default is tied for it alone among these.
    tied = bool(given.get("tie_word_embeddings", config.get("tie_word_embeddings", kind.startswith("gemma"))))
    queries, keys = heads * head, shared * head
    biased = bool(given.get("attention_bias", kind.startswith("qwen2")))
    attention = 2 * hidden * queries + 2 * hidden * keys + (queries + 2 * keys if biased else 0)
    attention += (
        hidden if biased and not kind.startswith(("qwen2", "glm4")) else 0
    )  # the output's bias, which these have not
    cached, attended = 2 * keys, 2 * queries + 2 * keys
    if latent:
        attention, cached, attended = _latent_attention(given, hidden, heads, biased)
        shared = heads
    norms = (4 if kind in ("gemma2", "gemma3", "gemma3_text", "glm4") else 2) * hidden
    norms += 2 * head if kind.startswith(("qwen3", "gemma3")) or given.get("use_qk_norm") else 0  # of queries and keys
    norms += queries + keys if kind in ("olmo2", "olmo3") else 0
    feed_forward, read, experts, of_experts, sides = _feed_forward(given, hidden, intermediate, layers)
    ends = vocabulary * hidden * (1 if tied else 2)
    longest = given.get("max_position_embeddings")
    return ModelShape(
        parameters=ends + layers * (attention + norms) + feed_forward + hidden,
        hidden_size=hidden,
        layers=layers,
        vocabulary=vocabulary,
        tied=tied,
        key_values=cached,
        layer_values=6 * hidden + attended + read,
        longest=longest if isinstance(longest, int) and longest > 0 else None,
        heads=(heads, shared),
        experts=experts,
        expert_parameters=of_experts // layers,
        expert_sides=sides // layers,
        expert_values=hidden * _count(given, "num_experts_per_tok", 1) if experts else 0,
    )


def _latent_attention(given: Mapping[str, Any], hidden: int, heads: int, biased: bool) -> tuple[int, int, int]:
    """Of multi-head latent attention (arXiv:2405.04434): parameters, numbers that an engine caches of a token, and values that training keeps."""
    latent, rotary, plain, value = (
        _count(given, name) for name in ("kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim")
    )
    low = _count(given, "q_lora_rank") if given.get("q_lora_rank") else 0
    queries, values = heads * (plain + rotary), heads * value
    asked = hidden * low + low + low * queries if low else hidden * queries
    kept = hidden * (latent + rotary) + latent + latent * heads * (plain + value)
    biases = (low + latent + rotary + hidden) if biased else 0
    cached = latent + rotary
    return asked + kept + values * hidden + biases, cached, 2 * queries + 2 * values + 2 * (low + cached)


def _feed_forward(
    given: Mapping[str, Any], hidden: int, intermediate: int, layers: int
) -> tuple[int, int, int, int, int]:
    """Parameters of all layers' feed-forward parts, the values of one that training keeps of a token, and experts of a layer; of all experts their
    parameters, and rows and columns of one matrix of each."""
    names = ("num_experts", "num_local_experts", "n_routed_experts")
    experts = next((int(given[name]) for name in names if given.get(name)), 0)
    dense = 3 * hidden * intermediate
    if not experts:
        return layers * dense, 4 * intermediate, 0, 0, 0
    width = _count(given, "moe_intermediate_size", intermediate)
    used = _count(given, "num_experts_per_tok", 1)
    shared = int(given.get("n_shared_experts") or 0) * width
    stacked = experts * 3 * hidden * width
    sparse = stacked + hidden * experts + 3 * hidden * shared
    alone = set(given.get("mlp_only_layers") or ())
    every = _count(given, "decoder_sparse_step", 1)
    first = int(given.get("first_k_dense_replace") or 0)
    routed = sum(layer >= first and layer not in alone and (layer + 1) % every == 0 for layer in range(layers))
    # A token's state is copied for each of its experts, and so is what they make of it.
    values = 4 * (used * width + shared) + 2 * used * hidden
    of_all = routed * sparse + (layers - routed) * dense
    return of_all, values, experts, routed * stacked, routed * experts * (hidden + width)


def _count(given: Mapping[str, Any], name: str, otherwise: int | None = None) -> int:
    value = given.get(name)
    value = otherwise if value is None else value
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= LARGEST_PARAMETERS:
        raise UnknownShape(f"config.json: {name} is {value!r}; a decoder like Llama has a whole number above 0")
    return value


def parameters_in(name: str) -> int | None:
    """The number of parameters that a model's name says: `Qwen3-1.7B`, `SmolLM2-135M-Instruct`.

    None where it says none or several: `2.7B-50B` are parameters and tokens. None for `8x7B` too, since experts share their attention.
    """
    found = {
        (experts, round(float(size) * UNIT[unit.lower()]))
        for experts, size, unit in _SIZE.findall(name.rpartition("/")[2].replace("_", "-"))
        if unit.lower() in _UNITS_OF_NAMES
    }
    if len(found) != 1:
        return None
    [(experts, parameters)] = found
    return parameters if not experts and 0 < parameters <= LARGEST_PARAMETERS else None


def parameters_said(text: str) -> int | None:
    """The number of parameters that a person says: `1.7B`, `135M`, `8x7B`, which is an upper bound; None for other text."""
    found = _SIZE.fullmatch(text)
    if found is None:
        return None
    experts, size, unit = found.groups()
    parameters = round(int(experts or 1) * float(size) * UNIT[unit.lower()])
    return parameters if 0 < parameters <= LARGEST_PARAMETERS else None


# Widths of published dense models, by parameters: hidden size, layers, vocabulary, key and value numbers a layer, feed-forward width, tied head.
# From the config.json of SmolLM2-135M, Qwen3-0.6B, Qwen3-1.7B, Qwen3-8B, Qwen2.5-32B, Qwen2.5-72B.
_PUBLISHED: tuple[tuple[int, int, int, int, int, int, bool], ...] = (
    (134_515_008, 576, 30, 49_152, 384, 1_536, True),
    (596_049_920, 1_024, 28, 151_936, 2_048, 3_072, True),
    (1_720_574_976, 2_048, 28, 151_936, 2_048, 6_144, True),
    (8_190_735_360, 4_096, 36, 151_936, 2_048, 12_288, False),
    (32_763_876_352, 5_120, 64, 152_064, 2_048, 27_648, False),
    (72_706_203_648, 8_192, 80, 152_064, 2_048, 29_568, False),
)


def shape_of_parameters(parameters: int) -> ModelShape:
    """A shape for a number of parameters: the widths of the published model that is nearest by ratio. Marked as not exact."""
    if not 0 < parameters <= LARGEST_PARAMETERS:
        raise UnknownShape(f"{parameters} parameters; allowed: 1 to {LARGEST_PARAMETERS}")
    nearest = min(_PUBLISHED, key=lambda each: max(each[0] / parameters, parameters / each[0]))
    _, hidden, layers, vocabulary, key_values, wide, tied = nearest
    return ModelShape(
        parameters, hidden, layers, vocabulary, tied, key_values, 8 * hidden + key_values + 4 * wide, exact=False
    )
