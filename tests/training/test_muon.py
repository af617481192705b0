"""Muon: the update of the papers, to the last digits in float64, and of torch's own; which parameters it has; and what it cannot train."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from reference_muon import muon as reference
from sft_rows import sft_settings
from tiny_run import make_model, recipe, write_base

from shoal.contracts.muon import MuonSettings
from shoal.contracts.trainer import Lora, TrainerSettings
from shoal.training.model import BadModel, Policy, load_policy
from shoal.training.muon import ADAMW_SIZE, Muon, orthogonalised, rows_of
from shoal.training.optimizer import Optimizer

SHAPES = [(6, 6), (3, 8), (9, 4), (1, 5)]
UPDATES = 4
RATES = [1e-2, 5e-3, 2e-2, 1e-2]
GIVEN = MuonSettings(momentum=0.9)


def gradient(shape: tuple[int, int], update: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng([*shape, update]).normal(size=shape))


def updated(shapes: list[tuple[int, int]], dtype: torch.dtype = torch.float64, **options: Any) -> list[torch.Tensor]:
    """Matrices after the updates; all start with the gradient of update 99."""
    matrices = [torch.nn.Parameter(gradient(shape, 99).to(dtype)) for shape in shapes]
    optimizer = Muon(matrices, lr=0.0, **({"momentum": 0.9, "weight_decay": 0.1} | options))
    for update, rate in enumerate(RATES):
        for matrix in matrices:
            matrix.grad = gradient(tuple(matrix.shape), update).to(dtype)
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()
    return [matrix.detach() for matrix in matrices]


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_updates_are_those_of_the_papers_in_float64(momentum: float, weight_decay: float) -> None:
    found = updated(SHAPES, momentum=momentum, weight_decay=weight_decay)
    for shape, matrix in zip(SHAPES, found, strict=True):
        gradients = [gradient(shape, update).numpy() for update in range(UPDATES)]
        wanted = reference(gradient(shape, 99).numpy(), gradients, RATES, momentum, weight_decay)
        np.testing.assert_allclose(matrix.numpy(), wanted, rtol=0, atol=1e-12, err_msg=str(shape))


def test_updates_in_bfloat16_are_torchs_own_to_the_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch has it for whole matrices, always in bfloat16, as we on an accelerator."""
    monkeypatch.setattr("shoal.training.muon.working_type", lambda *_: torch.bfloat16)
    ours = updated(SHAPES, torch.float32)
    theirs = [torch.nn.Parameter(gradient(shape, 99).float()) for shape in SHAPES]
    optimizer = torch.optim.Muon(theirs, momentum=0.9, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    for update, rate in enumerate(RATES):
        for matrix in theirs:
            matrix.grad = gradient(tuple(matrix.shape), update).float()
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()
    assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("shape", [(64, 64), (32, 96), (96, 32)])
def test_an_orthogonalised_matrix_keeps_its_singular_vectors_and_an_update_has_adamws_size(
    shape: tuple[int, int],
) -> None:
    given = gradient(shape, 0)
    left, sizes, right = torch.linalg.svd(given, full_matrices=False)
    inner = left.T @ orthogonalised(given) @ right.T
    values = inner.diagonal()
    assert (inner - torch.diag(values)).abs().max() < 1e-10
    large = values[sizes >= 0.003 * given.norm()]
    assert len(large) >= 0.9 * len(values)
    assert 0.68 < float(large.min()) <= float(large.max()) < 1.21
    size = ADAMW_SIZE * max(shape) ** 0.5 * float(orthogonalised(given).square().mean().sqrt())
    assert size == pytest.approx(ADAMW_SIZE, rel=0.25)


def test_a_momentum_in_host_memory_changes_no_bit() -> None:
    assert all(
        torch.equal(one, other) for one, other in zip(updated(SHAPES), updated(SHAPES, on_host=True), strict=True)
    )


@pytest.mark.parametrize(("rows", "world"), [(8, 4), (7, 4), (5, 4), (1, 2), (3, 8)])
def test_rows_are_counted_as_torch_cuts_them(rows: int, world: int) -> None:
    chunks = [len(chunk) for chunk in torch.zeros(rows, 2).chunk(world)]
    assert [rows_of(rank, world, rows) for rank in range(world)] == [*chunks, *[0] * (world - len(chunks))]


@pytest.mark.parametrize("tied", [False, True])
def test_muon_has_the_layers_matrices_and_adamw_embeddings_head_norms_and_biases(tied: bool) -> None:
    policy = Policy(make_model(tie_word_embeddings=tied, attention_bias=True))
    optimizer = Optimizer(policy.parameters(), recipe(muon=GIVEN), matrices=policy.hidden_matrices)
    assert optimizer.muon is not None
    names = {parameter: name for name, parameter in policy.model.named_parameters()}
    by_muon, by_adamw = (
        {names[parameter] for group in each.param_groups for parameter in group["params"]}
        for each in (optimizer.muon, optimizer.adamw)
    )
    kinds = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    assert {name.split(".")[-2] for name in by_muon} == set(kinds)
    assert len(by_muon) == 2 * len(kinds)
    assert all(name.endswith(".weight") for name in by_muon)
    assert by_adamw == set(names.values()) - by_muon
    ends = {"model.embed_tokens.weight", "model.norm.weight"} | (set() if tied else {"lm_head.weight"})
    assert ends <= by_adamw
    assert any(name.endswith("q_proj.bias") for name in by_adamw)
    assert any(name.endswith("q_norm.weight") for name in by_adamw)


def test_both_follow_one_rate_one_clip_and_one_guard() -> None:
    policy = Policy(make_model())
    given = sft_settings(muon=GIVEN, learning_rate=1e-3, warmup_steps=4, max_grad_norm=0.5)
    optimizer = Optimizer(policy.parameters(), given, matrices=policy.hidden_matrices)
    assert optimizer.muon is not None
    for parameter in policy.parameters():
        parameter.grad = torch.ones_like(parameter)
    first = optimizer.step()
    assert first.learning_rate == 0.25e-3
    assert {each.param_groups[0]["lr"] for each in (optimizer.muon, optimizer.adamw)} == {0.25e-3}
    matrix = policy.hidden_matrices()[0]
    # Momentum is (1 - 0.9) of the first gradient, clipped to the norm that all parameters have together.
    clipped = 0.5 / first.gradient_norm
    torch.testing.assert_close(optimizer.state(matrix)["momentum_buffer"], torch.full_like(matrix, 0.1 * clipped))
    before = [each.detach().clone() for each in policy.parameters()]
    for parameter in policy.parameters():
        parameter.grad = torch.full_like(parameter, torch.nan)
    assert not optimizer.step().applied
    assert all(torch.equal(one, other) for one, other in zip(before, policy.parameters(), strict=True))
    assert all(parameter.grad is None for parameter in policy.parameters())


def test_without_muon_every_parameter_is_adamws() -> None:
    policy = Policy(make_model())
    optimizer = Optimizer(policy.parameters(), recipe(), matrices=policy.hidden_matrices)
    assert optimizer.muon is None
    assert len(optimizer.adamw.param_groups[0]["params"]) == len(list(policy.parameters()))


def test_adapters_are_refused_by_name(tmp_path: Path) -> None:
    policy = load_policy(write_base(tmp_path / "base"), TrainerSettings(lora=Lora(rank=2)))
    with pytest.raises(BadModel, match=r"cannot train the adapters of trainer\.settings\.lora"):
        Optimizer(policy.parameters(), recipe(muon=GIVEN), matrices=policy.hidden_matrices)


def test_what_is_no_matrix_is_refused() -> None:
    with pytest.raises(ValueError, match=r"matrices only, and was given a parameter of shape \(3,\)"):
        Muon([torch.nn.Parameter(torch.zeros(3))], lr=0.1, momentum=0.9, weight_decay=0.0)
