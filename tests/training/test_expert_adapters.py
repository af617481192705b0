"""Adapters of experts: their definition in float64, one curve on any number of ranks, versions under the checkpoint's names, and what is refused."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from expert_adapters import LORA, gap, set_apart
from expert_models import EXPERTS, write_model
from expert_ranks import stored
from test_logprobs import PACK, wavy
from test_other_steps import Pod
from tiny_run import Orchestrator
from transformers.utils.logging import disable_progress_bar

from forked_python import TRAINER, run_python
from servers import Loopback
from shoal.contracts.trainer import Lora, TrainerSettings
from shoal.planner.memory import Adapters
from shoal.planner.model_shape import shape_of_config
from shoal.training import experts
from shoal.training.experts import grouped_linear, in_one_kernel, low_rank
from shoal.training.lora import ExpertAdapters, NoSuchLayer
from shoal.training.model import load_policy, load_reference
from shoal.training.stored_weights import BadModel

disable_progress_bar()
ON_RANKS = ("qwen3_moe", "deepseek_v3")
"""The third has the experts of the second; `benchmarks.objectives` measures it too."""


@pytest.fixture(params=EXPERTS, scope="module")
def base(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp(request.param) / "base", EXPERTS[request.param])


def test_an_adapted_model_is_in_float64_the_one_whose_weights_are_merged(base: Path) -> None:
    """Loss, log-probabilities, entropies, and the gradients of all adapters; no frozen weight has one."""
    assert gap(base) <= 1e-11


@pytest.mark.parametrize("names", [["up_proj"], ["down_proj", "gate_proj"]])
def test_any_of_an_expert_s_matrices_may_have_adapters_alone(base: Path, names: list[str]) -> None:
    assert gap(base, Lora(rank=2, target_modules=names)) <= 1e-11


NAMES = """
import sys
from pathlib import Path
from shoal.contracts.trainer import Lora, TrainerSettings
from shoal.training.model import load_policy

policy = load_policy(Path(sys.argv[1]), TrainerSettings(lora=Lora(rank=2)))
print([name for name, each in policy.named_parameters() if each.requires_grad])
"""


def test_processes_with_other_seeds_of_hashes_have_adapters_in_one_order(tmp_path: Path) -> None:
    """Ranks are processes of their own, and FSDP2 sends parameters by their order alone: gate and up have the same shape."""
    base = write_model(tmp_path / "base", EXPERTS["qwen3_moe"])
    said = {
        subprocess.run(
            [sys.executable, "-c", NAMES, base],
            env=os.environ | {"PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout.splitlines()[-1]
        for seed in ("1", "6")  # a set of the two names has another order
    }
    assert len(said) == 1
    assert "gate_proj" in said.pop()


def test_adapters_begin_as_the_base_model_with_the_same_first_values_each_time(base: Path) -> None:
    policy, untouched = load_policy(base, TrainerSettings(lora=LORA)), load_reference(base)
    assert torch.equal(policy(PACK)[1], untouched(PACK)[1])
    again = load_policy(base, TrainerSettings(lora=LORA)).state_dict()
    assert all(torch.equal(each, again[name]) for name, each in policy.state_dict().items())
    first = next(module for module in policy.modules() if isinstance(module, ExpertAdapters)).lora_a
    assert not torch.equal(first[0], first[1])  # experts differ
    assert float(first.detach().abs().max()) <= first.shape[2] ** -0.5


def test_only_adapters_are_trained_and_as_many_as_the_plan_counts(base: Path) -> None:
    policy = load_policy(base, TrainerSettings(lora=LORA, activation_recomputation="On"))
    policy(PACK, lambda here, logprobs, entropy: wavy(logprobs, entropy, here))[0].backward()
    with_gradient = {name for name, each in policy.named_parameters() if each.grad is not None}
    assert {name.rpartition(".")[2] for name in with_gradient} == {"lora_a", "lora_b"}
    assert with_gradient == {name for name, each in policy.named_parameters() if each.requires_grad}
    shape = shape_of_config(policy.model.config.to_dict())
    of_experts = [module for module in policy.modules() if isinstance(module, ExpertAdapters)]
    counted = sum(each.numel() for module in of_experts for each in module.parameters())
    assert shape.layers * Adapters(LORA.rank, 3).stacked(shape) == counted


def test_whole_weights_have_the_checkpoints_names_and_every_expert_s_change(base: Path) -> None:
    policy, before = load_policy(base, TrainerSettings(lora=LORA)), stored(base)
    assert all(torch.equal(tensor, before[name]) for name, tensor in policy.full_weights())
    set_apart(policy)
    after = dict(policy.full_weights())
    assert list(after) == sorted(before)
    assert not any(torch.equal(after[name], tensor) for name, tensor in before.items() if ".experts." in name)
    other = load_reference(base)
    other.load_weights(after.items())
    torch.testing.assert_close(other(PACK)[1], policy(PACK)[1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rank", [1, 4, 8])
def test_one_kernel_for_all_experts_takes_adapters_of_any_rank(rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In bfloat16; the kernel is what runs on an accelerator. An expert without tokens has gradients of zeros."""
    chance = torch.Generator().manual_seed(1)
    counts = torch.tensor([5, 0, 7, 1])
    rows, seen = (torch.randn(13, columns, generator=chance).bfloat16() for columns in (16, 24))
    thin = [torch.randn(4, *sides, generator=chance).bfloat16() for sides in ((rank, 16), (24, rank))]
    found = []
    for product in (grouped_linear, in_one_kernel):
        monkeypatch.setattr(experts, "grouped_linear", product)
        given = [each.clone().requires_grad_() for each in (rows, *thin)]
        out = low_rank(given[0], given[1], given[2], 2.0, counts)
        out.backward(seen)
        found.append([out, *(each.grad for each in given)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=3e-2, atol=3e-2)
    assert all(not gradients[1].any() for each in found for gradients in each[2:])


def test_names_that_no_matrix_has_are_refused_with_those_that_there_are(base: Path) -> None:
    settings = TrainerSettings(lora=Lora(target_modules=["up_proj", "gate_up_proj", "gate"]))
    with pytest.raises(
        NoSuchLayer, match=r"names \['gate', 'gate_up_proj'\].*allowed: \['down_proj', 'gate_proj', .*'up_proj'"
    ):
        load_policy(base, settings)


def test_muon_refuses_adapters_of_experts_by_name(base: Path) -> None:
    policy = load_policy(base, TrainerSettings(lora=Lora(target_modules=["up_proj"])))
    with pytest.raises(BadModel, match=r"muon updates whole matrices: it cannot train the adapters"):
        policy.hidden_matrices()


def test_adapters_of_attention_alone_leave_experts_without_any(base: Path) -> None:
    policy = load_policy(base, TrainerSettings(lora=Lora(rank=2, target_modules=["o_proj"])))
    assert not any(isinstance(module, ExpertAdapters) for module in policy.modules())
    assert set(dict(policy.full_weights())) == set(stored(base))


@pytest.fixture(scope="module")
def orchestrator(loopback: Loopback) -> Iterator[Orchestrator]:
    server = Orchestrator(loopback.address())
    server.latest_version = 4
    yield server
    server.close()


def test_a_run_publishes_experts_with_their_adapters_merged_and_resumes(
    tmp_path: Path, orchestrator: Orchestrator
) -> None:
    base = write_model(tmp_path / "base", EXPERTS["qwen3_moe"])
    pod = Pod(tmp_path, base, orchestrator, trainer=TrainerSettings(lora=Lora(rank=3)))
    first = pod.trainer()
    first.resume()
    first.train_step(0)
    first._waits.idle()
    first.close()
    pod.trainer().run()  # from the state of version 1
    before, after = stored(base), pod.weights(4)
    assert before.keys() == after.keys()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {name for name in before if name.endswith("_proj.weight")}
    assert {name for name in changed if ".experts." in name} == {name for name in before if ".experts." in name}


@pytest.fixture(scope="module", params=[["--brief"], pytest.param([], marks=pytest.mark.soak)], ids=["brief", "all"])
def on_ranks(request: pytest.FixtureRequest) -> dict[str, Any]:
    """In a process of its own, from which the ranks are forked."""
    here = Path(__file__).parent
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(here), str(here.parent), *sys.path]),
        "OMP_NUM_THREADS": "1",
    }
    command = [str(here / "expert_adapter_ranks.py"), *request.param, *ON_RANKS]
    done = run_python(command, TRAINER, env=environment, timeout=450)
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("name", ON_RANKS)
def test_adapters_train_alike_on_one_two_and_four_ranks_in_float64(on_ranks: dict[str, Any], name: str) -> None:
    """Losses, norms, KL, entropy, use of the experts and all weights after six updates, whatever travels and whoever shares packs."""
    brief = {"2", "2, tokens travel", "4, 2 share packs", "4, 2 share packs, tokens travel"}
    assert set(on_ranks["gaps"][name]) in (brief, brief | {"4", "4, tokens travel"})
    assert max(on_ranks["gaps"][name].values()) <= 1e-9
    losses = on_ranks["losses"][name]
    assert len(set(losses)) == len(losses)


@pytest.mark.parametrize("name", ON_RANKS)
def test_any_number_of_ranks_writes_each_expert_s_merged_matrix(on_ranks: dict[str, Any], name: str) -> None:
    assert all(on_ranks["written"][name].values())


@pytest.mark.parametrize("name", ON_RANKS)
def test_states_of_adapters_go_on_to_the_bit_and_are_read_by_other_numbers_of_ranks(
    on_ranks: dict[str, Any], name: str
) -> None:
    assert all(on_ranks["resumed"][name].values())
    assert all(on_ranks["taken"][name].values())
