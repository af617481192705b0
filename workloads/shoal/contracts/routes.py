"""Routes of a mixture of experts: which experts a router chose for a token, in each layer that has experts (arXiv:2510.11370 replays them).

In: the configuration of a checkpoint. Out: a `RouteShape`, the size and the rules of the routes in a rollout file. `models.routes` has their bytes.
Pure. Prepare makes the shape once; workers, validators, the orchestrator and the trainer are told.

A sampled token has the routes of the position that it was drawn from, as it has a hidden state for its proof. Prompts and tools' output have none: an
engine that finds a prompt in its cache computes no route for it.
"""

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from shoal.contracts.base import Contract

MODEL_TYPES = ("qwen3_moe", "deepseek_v3", "glm4_moe")
"""Types of models whose routers are known (`models.routers`)."""


class NoRoutes(ValueError):
    """Routes cannot be recorded of this model; the message says why."""


class RouteShape(Contract):
    """What the routes of one token are: in each of `layers`, `choices` different ones of `experts`.

    With `groups` above 1 the experts are in that many groups of equal size. Those that are chosen are in at most `groups_chosen` of them.
    """

    layers: int = Field(ge=1, le=10_000, description="layers that have experts")
    choices: int = Field(ge=1, le=256, description="experts that a token is given to in each of them")
    experts: int = Field(ge=1, le=65_536, description="experts of a layer")
    groups: int = Field(default=1, ge=1, le=65_536, description="groups of experts; 1: a router chooses freely")
    groups_chosen: int = Field(default=1, ge=1, le=65_536, description="groups that a token's experts may be in")

    @property
    def width(self) -> int:
        """Bytes of one choice."""
        return 1 if self.experts <= 256 else 2

    @property
    def bytes_a_token(self) -> int:
        """Of a sampled token, unpacked. Qwen3-30B-A3B: 48 x 8 = 384; zstd packs them to 253."""
        return self.layers * self.choices * self.width


def route_shape(config: Mapping[str, Any]) -> RouteShape:
    """The routes of a model with this `config.json`. Raises NoRoutes for one without experts, of an unknown type, or with impossible fields."""
    kind = config.get("model_type")
    if kind not in MODEL_TYPES:
        raise NoRoutes(f"model type {kind!r} has no router that is known here; known: {', '.join(MODEL_TYPES)}")
    softmax = kind == "qwen3_moe"
    layers = _count(config, "num_hidden_layers")
    named = next(
        (name for name in ("num_experts", "num_local_experts", "n_routed_experts") if config.get(name)), "num_experts"
    )
    experts, choices = _count(config, named), _count(config, "num_experts_per_tok")
    groups = 1 if softmax else _count(config, "n_group", 1)
    groups_chosen = 1 if softmax else _count(config, "topk_group", 1)
    if choices > experts or experts % groups or groups_chosen > groups or groups_chosen * (experts // groups) < choices:
        raise NoRoutes(
            f"config.json has {choices} of {experts} experts a token, in {groups_chosen} of {groups} groups; no router chooses so"
        )
    if softmax:
        alone, every = set(config.get("mlp_only_layers") or ()), _count(config, "decoder_sparse_step", 1)
        routed = sum(layer not in alone and (layer + 1) % every == 0 for layer in range(layers))
    else:
        routed = layers - min(layers, int(config.get("first_k_dense_replace") or 0))
    if not routed:
        raise NoRoutes("config.json has experts in no layer")
    return RouteShape(layers=routed, choices=choices, experts=experts, groups=groups, groups_chosen=groups_chosen)


def _count(config: Mapping[str, Any], name: str, otherwise: int | None = None) -> int:
    value = config.get(name)
    value = otherwise if value is None else value
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= 65_536:
        raise NoRoutes(f"config.json: {name} is {value!r}; allowed: 1 to 65536")
    return value
