"""Mixtures of experts: packed as exact as alone, in and out by the checkpoint's own names, alike on any number of ranks, and what is refused."""

import dataclasses
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from expert_models import EXPERTS, ROUNDED, Exact, latent, write_model
from safetensors.torch import load_file, save_file
from test_logprobs import PACK, SAMPLES, plain, wavy
from test_other_steps import Pod
from tiny_run import Orchestrator, ranks, recipe
from transformers import AutoModelForCausalLM, GptOssConfig
from transformers.utils.logging import disable_progress_bar

from forked_python import TRAINER, run_python
from servers import Loopback
from shoal.contracts.trainer import TrainerSettings
from shoal.models.places import places, stacks
from shoal.training.experts import RoutedTokens, balance, grouped_linear, in_one_kernel
from shoal.training.export import Export
from shoal.training.host_copy import HostCopy
from shoal.training.model import load_policy, load_reference, policy_to_ask, policy_to_train, without_weights
from shoal.training.optimizer import Optimizer
from shoal.training.stored_weights import BadModel
from shoal.validation.models import CannotHold, check_division, load_model, overwrite

disable_progress_bar()


@pytest.fixture(params=EXPERTS, scope="module")
def base(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp(request.param) / "base", EXPERTS[request.param])


def stored(folder: Path) -> dict[str, torch.Tensor]:
    return {name: tensor for path in folder.glob("*.safetensors") for name, tensor in load_file(path).items()}


def test_the_checkpoint_has_one_matrix_an_expert_and_the_model_stacks(base: Path) -> None:
    policy = load_policy(base)
    assert set(places(policy.model)) == set(stored(base))
    assert any(".experts.7.gate_proj.weight" in name for name in stored(base))
    assert stacks(policy.model)


def test_a_model_that_is_filled_by_rows_is_the_one_that_transformers_loads(base: Path) -> None:
    wanted, found = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), load_policy(base).model
    assert wanted.state_dict().keys() == found.state_dict().keys()
    assert all(torch.equal(found.state_dict()[name], weight) for name, weight in wanted.state_dict().items())


@pytest.mark.parametrize("exact", [True, False])
def test_a_pack_gives_in_float64_what_transformers_gives_for_each_sample_alone(base: Path, exact: bool) -> None:
    """Loss, log-probabilities, entropies and all gradients. Without `Exact` norms and routers compute in float32, as they do in training."""
    most = 1e-11 if exact else 1e-6
    model = AutoModelForCausalLM.from_pretrained(base, attn_implementation="eager", experts_implementation="eager")
    model = model.double().eval()
    # A backward pass does not see `Exact`, so there it must compute nothing again.
    policy = load_policy(base, TrainerSettings(activation_recomputation="Off" if exact else "On")).double()
    with Exact() if exact else torch.enable_grad():
        alone = [torch.cat(part) for part in zip(*(plain(model, one) for one in ROUNDED), strict=True)]
        wanted = wavy(*alone, slice(None))
        wanted.backward()
        loss, *found = policy(PACK, lambda here, logprobs, entropy: wavy(logprobs, entropy, here))
        loss.backward()
    for ours, theirs in zip((loss, *found), (wanted, *alone), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=most, atol=most)
    for (name, theirs), ours in zip(model.named_parameters(), policy.model.parameters(), strict=True):
        assert (ours.grad - theirs.grad).norm() <= most * theirs.grad.norm(), name


def test_no_sample_of_a_pack_sees_another(base: Path) -> None:
    """A token of the first sample is changed: every other sample's log-probabilities keep their bits, and its own do not."""
    policy = load_policy(base)
    before = policy(PACK)[1]
    tokens = PACK.tokens.clone()
    tokens[0] = (tokens[0] + 1) % policy.vocabulary
    after = policy(type(PACK)(**(vars(PACK) | {"tokens": tokens})))[1]
    mine = int(SAMPLES[0].mask.sum())
    assert not torch.equal(before[:mine], after[:mine])
    assert torch.equal(before[mine:], after[mine:])


def test_whole_weights_have_the_checkpoints_names_and_values(base: Path) -> None:
    weights, wanted = dict(load_policy(base).full_weights()), stored(base)
    assert list(weights) == sorted(wanted)
    assert all(torch.equal(weights[name], tensor) for name, tensor in wanted.items())


def test_another_versions_weights_are_taken_over_by_name(base: Path) -> None:
    policy, other = load_policy(base), load_reference(base)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.mul_(1.5)
    other.load_weights(policy.full_weights())
    assert torch.equal(other(PACK)[1], policy(PACK)[1])
    weights = dict(policy.full_weights())
    name = next(name for name in weights if name.endswith(".experts.3.up_proj.weight"))
    matrix = weights.pop(name)
    with pytest.raises(BadModel, match=rf"weights are missing: {name} and 0 more"):
        other.load_weights(weights.items())
    with pytest.raises(BadModel, match=rf"weight {name} of shape \(32, 16\) is not one of this model"):
        other.load_weights([(name, matrix.T)])


def rewritten(folder: Path, name: str, tensor: torch.Tensor | None) -> None:
    """Another tensor under this name of a checkpoint, or none."""
    for path in folder.glob("*.safetensors"):
        held = load_file(path)
        if held.pop(name, None) is not None:
            save_file(held if tensor is None else held | {name: tensor}, path, metadata={"format": "pt"})


def test_a_validator_writes_the_next_version_over_the_one_that_it_holds(base: Path, tmp_path: Path) -> None:
    """Each matrix of an expert, and the balancing bias. A version that lacks a matrix is refused, as is one of another shape."""
    other = AutoModelForCausalLM.from_pretrained(base)
    with torch.no_grad():
        for tensor in other.state_dict().values():
            tensor.add_(torch.linspace(-0.1, 0.1, tensor.numel()).view(tensor.shape))
    other.save_pretrained(tmp_path / "next", max_shard_size="40KB")
    model = load_model(base)
    room = {name: tensor.data_ptr() for name, tensor in model.state_dict().items()}
    beats: list[None] = []
    overwrite(model, tmp_path / "next", lambda: beats.append(None))
    assert len(beats) == len(stored(base))
    assert {name: tensor.data_ptr() for name, tensor in model.state_dict().items()} == room
    assert all(torch.equal(tensor, other.state_dict()[name]) for name, tensor in model.state_dict().items())
    name = next(name for name in stored(base) if name.endswith(".experts.3.up_proj.weight"))
    rewritten(tmp_path / "next", name, stored(base)[name].T.contiguous())
    with pytest.raises(CannotHold, match=rf"{name} of shape \(32, 16\) is not a weight of the version before"):
        overwrite(model, tmp_path / "next")
    rewritten(tmp_path / "next", name, None)
    with pytest.raises(CannotHold, match=rf"lacks 1 weights of the version before: {name}"):
        overwrite(model, tmp_path / "next")


def test_a_validator_of_several_gpus_refuses_experts_before_it_loads_them(base: Path) -> None:
    check_division(base, 1)
    with pytest.raises(CannotHold, match=r"2 GPUs cannot spread experts: .*set gpu.count of the validator to 1"):
        check_division(base, 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_written_is_the_checkpoint_that_was_read_bit_for_bit(
    base: Path, dtype: torch.dtype, tmp_path: Path
) -> None:
    """Balancing biases stay float32 beside weights in bfloat16: a rounded one would choose other experts."""
    model = AutoModelForCausalLM.from_pretrained(base)
    model.to(dtype)
    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            buffer.data = torch.linspace(0.1, 0.2, len(buffer))
    model.save_pretrained(tmp_path / "base")
    policy = load_policy(tmp_path / "base", None, ranks())
    copy = HostCopy(policy, Optimizer(policy.parameters(), recipe()), ranks())
    copy.take()
    Export(policy, tmp_path / "base", ranks(), file_bytes=30_000).write(copy.tensors, tmp_path / "out")
    before, after = stored(tmp_path / "base"), stored(tmp_path / "out")
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        kept = torch.float32 if name.endswith("e_score_correction_bias") else dtype
        assert after[name].dtype == kept
        assert torch.equal(after[name], tensor.to(kept)), name
    again = load_policy(tmp_path / "out")
    assert all(
        torch.equal(one, other)
        for one, other in zip(again.state_dict().values(), policy.state_dict().values(), strict=True)
    )


def test_weights_that_are_kept_on_the_host_leave_balancing_biases_where_routers_compute(base: Path) -> None:
    """The device that computes is torch's `meta` here: another one than that of the host."""
    elsewhere = dataclasses.replace(ranks(), device=torch.device("meta"))
    settings = TrainerSettings(cpu_offload=True, data_type="Float32")
    for made in (policy_to_train, policy_to_ask):
        model = made(without_weights(base), settings, elsewhere).model
        biases = {name for name, _ in model.named_buffers() if name.endswith("e_score_correction_bias")}
        assert bool(biases) == ("qwen3_moe" not in str(base))
        devices = {name: tensor.device.type for name, tensor in model.state_dict().items()}
        assert {name for name, device in devices.items() if device == "meta"} == biases
        assert set(devices.values()) - {"meta"} == {"cpu"}


@pytest.mark.parametrize("counts", [[5, 0, 7, 1], [0, 0, 13, 0], [0, 0, 0, 0]])
def test_one_product_an_expert_and_one_kernel_for_all_give_the_same(counts: list[int]) -> None:
    """In bfloat16; the kernel is what runs on an accelerator. An expert without tokens has a gradient of zeros, also where none has any."""
    chance = torch.Generator().manual_seed(1)
    rows = torch.randn(sum(counts), 16, generator=chance).bfloat16()
    stack = torch.randn(4, 24, 16, generator=chance).bfloat16()
    seen = torch.randn(sum(counts), 24, generator=chance).bfloat16()
    found = []
    for product in (grouped_linear, in_one_kernel):
        given = [rows.clone().requires_grad_(), stack.clone().requires_grad_()]
        out = product(*given, torch.tensor(counts))
        out.backward(seen)
        found.append([out, *(each.grad for each in given)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=2e-2, atol=2e-2)
    empty = [expert for expert, count in enumerate(counts) if not count]
    assert all(not each[2][empty].any() for each in found)


def test_tokens_are_counted_once_where_something_is_learnt(base: Path) -> None:
    policy = load_policy(base, TrainerSettings(activation_recomputation="On"))
    policy(PACK)
    assert not policy.routed.take().any()
    policy(PACK, lambda here, logprobs, entropy: wavy(logprobs, entropy, here))[0].backward()
    counts = policy.routed.take()
    assert counts.sum(dim=1).tolist() == [2 * len(PACK.tokens)] * len(stacks(policy.model))
    assert not policy.routed.take().any()


def test_balance_is_one_for_even_use_and_says_how_far_one_expert_is_ahead() -> None:
    assert balance(torch.tensor([[1, 2], [0, 0]])) is None
    even = balance(torch.full((3, 8), 5))
    assert (even.largest, even.unused) == (1.0, 0.0)
    assert even.entropy == pytest.approx(1.0)
    one = balance(torch.tensor([[8, 0, 0, 0], [2, 2, 2, 2]]))
    assert (one.largest, one.entropy, one.unused) == (4.0, pytest.approx(0.5), 3 / 8)


def test_a_dense_model_has_no_routes_to_count() -> None:
    assert RoutedTokens(torch.nn.Linear(2, 2)).take() is None


@pytest.fixture(scope="module")
def orchestrator(loopback: Loopback) -> Iterator[Orchestrator]:
    server = Orchestrator(loopback.address())
    server.latest_version = 4
    yield server
    server.close()


def test_a_run_publishes_versions_under_the_checkpoints_names_and_reports_the_use_of_experts(
    tmp_path: Path, orchestrator: Orchestrator
) -> None:
    base = write_model(tmp_path / "base", EXPERTS["glm4_moe"])
    pod = Pod(tmp_path, base, orchestrator)
    pod.trainer().run()
    before = stored(base)
    first, last = pod.weights(1), pod.weights(4)
    assert before.keys() == first.keys() == last.keys()
    changed = {name for name in before if not torch.equal(first[name], last[name])}
    assert set(before) - changed == {name for name in before if name.endswith("e_score_correction_bias")}
    for step in range(4):
        report = pod.report(step)
        assert 1 <= report.expert_load_largest <= 8
        assert 0 < report.expert_load_entropy <= 1
        assert 0 <= report.experts_unused < 1
    other = load_reference(base)
    other.load_weights(last.items())
    assert all(torch.equal(tensor, last[name]) for name, tensor in other.full_weights())


@pytest.fixture(scope="module", params=[["--brief"], pytest.param([], marks=pytest.mark.soak)], ids=["brief", "all"])
def on_ranks(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Of all three models; in a process of its own, from which the ranks are forked."""
    here = Path(__file__).parent
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(here), str(here.parent), *sys.path]),
        "OMP_NUM_THREADS": "1",
    }
    done = run_python([str(here / "expert_ranks.py"), *request.param], TRAINER, env=environment, timeout=450)
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("name", EXPERTS)
def test_one_two_and_four_ranks_train_alike_in_float64(on_ranks: dict[str, Any], name: str) -> None:
    """Losses, norms, KL, entropy, use of the experts and all weights after six updates. Also where two ranks share each pack, and where tokens travel
    to experts."""
    brief = {"2", "2, tokens travel", "4, 2 share packs", "4, 2 share packs, tokens travel"}
    assert set(on_ranks["gaps"][name]) in (brief, brief | {"4", "4, tokens travel"})
    assert max(on_ranks["gaps"][name].values()) <= 1e-9
    losses = on_ranks["curves"][name]["1"]["loss"]
    assert len(set(losses)) == len(losses)


@pytest.mark.parametrize("name", EXPERTS)
def test_any_number_of_ranks_writes_the_checkpoint_that_it_read(on_ranks: dict[str, Any], name: str) -> None:
    assert all(on_ranks["written"][name].values())


@pytest.mark.parametrize("name", EXPERTS)
def test_tokens_that_travel_give_the_gradients_that_weights_give(on_ranks: dict[str, Any], name: str) -> None:
    """With activations computed again, and in bfloat16. An expert's gradient is rounded once over all ranks, or once for each."""
    found = on_ranks["other settings"][name]
    assert found["again"] <= 1e-5
    assert found["halves"] <= 2e-2
    assert found["halves, again"] <= 2e-2
    assert on_ranks["stay"][name] == {"Weights": False, "Tokens": True}


def test_a_rank_whose_experts_no_token_chooses_computes_with_the_others(on_ranks: dict[str, Any]) -> None:
    """Forward and backward: it gets no row, gives none back, and its experts have gradients of zeros."""
    assert on_ranks["one-sided"]["far"] <= 1e-5
    assert on_ranks["one-sided"]["empty"]


def test_experts_that_ranks_cannot_divide_are_refused(on_ranks: dict[str, Any]) -> None:
    assert "its 8 experts cannot be divided over 3 ranks; allowed: 1, 2, 4, 8" in on_ranks["refused"]


@pytest.mark.parametrize("changes", [{"scoring_func": "softmax"}, {"topk_method": None}])
def test_routers_that_vllm_would_compute_otherwise_are_refused(changes: dict[str, Any], tmp_path: Path) -> None:
    base = write_model(tmp_path, latent(**changes))
    [(name, said)] = changes.items()
    with pytest.raises(BadModel, match=f"its config.json has {name} {said!r}: the trainer routes by"):
        load_policy(base)


def test_experts_that_are_computed_otherwise_are_refused(tmp_path: Path) -> None:
    config = GptOssConfig(
        vocab_size=64, hidden_size=32, intermediate_size=16, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        head_dim=8, num_local_experts=4, num_experts_per_tok=2, pad_token_id=0, dtype="float32", initializer_range=0.2,
    )  # fmt: skip
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "base")
    with pytest.raises(
        BadModel, match=r"attention has sinks, .*its experts are not a gate, an up and a down projection without biases"
    ):
        load_policy(tmp_path / "base")
