"""Recorded routes in the trainer: used in place of its own choice, with gates and gradients of its own, or compared with it."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from expert_models import EXPERTS, Exact, write_model
from test_logprobs import PACK, SAMPLES, wavy
from tiny_run import recipe
from transformers import AutoModelForCausalLM, Qwen3Config
from transformers.utils.logging import disable_progress_bar

from shoal.contracts.routes import RouteShape, route_shape
from shoal.contracts.trainer import TrainerSettings
from shoal.models.places import stacks
from shoal.training.batches import MicroBatch, micro_batch
from shoal.training.model import Policy, load_policy
from shoal.training.reinforcement import recorded_routes
from shoal.training.stored_weights import BadModel
from shoal.training.update import router_mismatch

disable_progress_bar()
FREE = RouteShape(layers=1, choices=2, experts=8)


@pytest.fixture(params=EXPERTS, scope="module")
def base(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp(request.param) / "base", EXPERTS[request.param])


def shape_of(base: Path) -> RouteShape:
    found = recorded_routes(recipe(router_replay="Report"), base)
    assert found is not None
    return found


def own_choices(policy: Policy) -> torch.Tensor:
    """What the routers choose for the tokens of the pack that something is sampled from, ascending [completion, layers, choices]."""
    seen: list[torch.Tensor] = []
    held = [
        module.register_forward_pre_hook(lambda _, given: seen.append(given[1]))
        for module in stacks(policy.model).values()
    ]
    policy(PACK)
    for each in held:
        each.remove()
    return torch.stack([each[PACK.predicted_from] for each in seen], dim=1).sort(dim=-1).values


def with_routes(routes: torch.Tensor) -> MicroBatch:
    return dataclasses.replace(PACK, routes=routes.to(torch.uint8))


def learnt(policy: Policy, pack: MicroBatch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Log-probabilities, and the gradient of a loss over them."""
    loss, logprobs, _ = policy(pack, lambda here, logprobs, entropy: wavy(logprobs, entropy, here))
    policy.zero_grad()
    loss.backward()
    return logprobs.detach(), {
        name: each.grad.clone() for name, each in policy.model.named_parameters() if each.grad is not None
    }


@pytest.mark.parametrize("recomputation", ["On", "Off"])
def test_routes_that_the_router_would_choose_change_no_bit(base: Path, recomputation: Any) -> None:
    policy = load_policy(base, TrainerSettings(activation_recomputation=recomputation))
    own = own_choices(policy)
    logprobs, gradients = learnt(policy, PACK)
    policy.record_routes(shape_of(base), follows=True)
    again, found = learnt(policy, with_routes(own))
    assert torch.equal(again, logprobs)
    assert all(torch.equal(found[name], wanted) for name, wanted in gradients.items())
    assert router_mismatch(policy) == 0.0
    assert router_mismatch(policy) is None, "nothing was learnt since"


def rotated(own: torch.Tensor, experts: int) -> torch.Tensor:
    """Other experts for every token: the numbers behind its own."""
    return ((own + 1) % experts).sort(dim=-1).values


def test_recorded_experts_are_used_with_gates_and_gradients_of_the_routers_logits(base: Path) -> None:
    """Against a model whose router is told by hand: log-probabilities and gradients, those of the router's weights among them. In float64, in which
    two ways to round a gate do not show and another formula does."""
    shape = shape_of(base)
    settings = TrainerSettings(activation_recomputation="Off")  # `Exact` does not reach what is computed again
    policy, told = load_policy(base, settings).double(), load_policy(base, settings).double()
    with Exact():
        routes = rotated(own_choices(policy), shape.experts)
        before, _ = learnt(policy, PACK)
        policy.record_routes(shape, follows=True)
        found, gradients = learnt(policy, with_routes(routes))
        for layer, name in enumerate(stacks(told.model)):
            tell(told.model.get_submodule(name.rpartition(".")[0]).gate, routes[:, layer])
        wanted, by_hand = learnt(told, PACK)
    assert not torch.allclose(found, before, atol=1e-3)
    assert router_mismatch(policy) >= 0.9, "behind other experts a router may come to choose the recorded ones"
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-12)
    assert gradients.keys() == by_hand.keys()
    for name, gradient in by_hand.items():
        torch.testing.assert_close(gradients[name], gradient, rtol=1e-9, atol=1e-12)
    routers = [name for name in gradients if name.endswith(".gate.weight")]
    assert len(routers) == shape.layers
    assert all(gradients[name].abs().max() > 0 for name in routers)


def test_layers_that_are_computed_again_use_the_recorded_experts_again(base: Path) -> None:
    routes = rotated(own_choices(load_policy(base)), 8)
    found = []
    for recomputation in ("On", "Off"):
        policy = load_policy(base, TrainerSettings(activation_recomputation=recomputation))
        policy.record_routes(shape_of(base), follows=True)
        found.append(learnt(policy, with_routes(routes)))
    (logprobs, gradients), (wanted, of_each) = found
    assert torch.equal(logprobs, wanted)
    assert all(torch.equal(gradients[name], gradient) for name, gradient in of_each.items())


def tell(router: Any, routes: torch.Tensor) -> None:
    """Gates by the papers' formulas, of the experts that are told."""

    def told(module: Any, given: Any, output: Any) -> Any:
        logits, weights, chosen = output
        chosen = chosen.clone()
        chosen[PACK.predicted_from] = routes
        softmax = type(module).__name__.startswith("Qwen3")
        scores = torch.exp(logits) if softmax else 1 / (1 + torch.exp(-logits))
        weights = torch.stack([scores[token, experts] for token, experts in enumerate(chosen)])
        weights = weights / weights.sum(dim=1, keepdim=True)
        return logits, weights if softmax else weights * module.routed_scaling_factor, chosen

    router.register_forward_hook(told)


def test_reported_routes_change_nothing_and_count_the_pairs_that_differ(base: Path) -> None:
    shape = shape_of(base)
    policy = load_policy(base)
    own = own_choices(policy)
    logprobs, gradients = learnt(policy, PACK)
    policy.record_routes(shape, follows=False)
    routes = own.clone()
    changed = 3
    routes[:changed, 0] = rotated(own[:changed, 0], shape.experts)
    again, found = learnt(policy, with_routes(routes))
    assert torch.equal(again, logprobs)
    assert all(torch.equal(found[name], wanted) for name, wanted in gradients.items())
    assert router_mismatch(policy) == pytest.approx(changed / (len(own) * shape.layers))
    policy(with_routes(routes))
    assert router_mismatch(policy) is None, "log-probabilities alone are not what is learnt"


def test_packs_without_routes_are_routed_as_ever(base: Path) -> None:
    policy = load_policy(base)
    before = policy(PACK)[1]
    policy.record_routes(shape_of(base), follows=True)
    policy(with_routes(rotated(own_choices(load_policy(base)), 8)))
    assert torch.equal(policy(PACK)[1], before)


def test_a_pack_has_the_routes_of_its_sampled_tokens_only() -> None:
    samples = [
        dataclasses.replace(
            each, routes=np.full((len(each.mask), 1, 2), number, dtype=np.uint8) + np.array([0, 1], np.uint8)
        )
        for number, each in enumerate(SAMPLES)
    ]
    pack = micro_batch([(each, 1.0) for each in samples])
    assert pack.routes is not None
    assert pack.routes.shape == (len(pack.targets), 1, 2)
    counts = [int(each.mask.sum()) for each in samples]
    assert pack.routes[:, 0, 0].tolist() == [number for number, count in enumerate(counts) for _ in range(count)]
    assert micro_batch([(samples[0], 1.0), (SAMPLES[1], 1.0)]).routes is None


def test_models_without_known_routers_are_refused(tmp_path: Path) -> None:
    config = Qwen3Config(
        vocab_size=64, hidden_size=32, intermediate_size=16, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
        pad_token_id=0,
    )  # fmt: skip
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    assert recorded_routes(recipe(), tmp_path) is None
    with pytest.raises(
        BadModel, match=r"recipe.routerReplay: model type 'qwen3' has no router that is known here; known: qwen3_moe, "
    ):
        recorded_routes(recipe(router_replay="Replay"), tmp_path)
    with pytest.raises(
        BadModel, match=r"the model has 0 layers with 0 of 0 experts a token; routes are of 1 layers with 2 of 8"
    ):
        load_policy(tmp_path).record_routes(FREE, follows=True)


def test_the_shape_is_that_of_the_model(base: Path) -> None:
    shape = shape_of(base)
    assert (shape.layers, shape.choices, shape.experts) == (2 if "qwen3" in str(base) else 1, 2, 8)
    assert (shape.groups, shape.groups_chosen) == ((1, 1) if "qwen3" in str(base) else (2, 1))
    assert (
        route_shape(
            {"model_type": "qwen3_moe", "num_hidden_layers": 48, "num_experts": 128, "num_experts_per_tok": 8}
        ).bytes_a_token
        == 384
    )
