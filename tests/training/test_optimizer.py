"""The optimizer: warm-up then constant, a clip on the norm, and nothing that is not finite gets in."""

import pytest
import torch
from benchmarks.trainer.rank_memory import TypicalValues
from tiny_run import ranks, recipe
from torch._subclasses.fake_tensor import FakeTensorMode

from shoal.training.host_copy import HostCopy
from shoal.training.optimizer import Optimizer


def parameter_with(gradient: list[float]) -> torch.nn.Parameter:
    parameter = torch.nn.Parameter(torch.ones(len(gradient)))
    parameter.grad = torch.tensor(gradient)
    return parameter


def first_rates(updates: int, warmup_steps: int) -> list[float]:
    """What AdamW was given for each of the first updates, by a peak of 1e-3."""
    parameter = parameter_with([1.0])
    optimizer = Optimizer([parameter], recipe(learning_rate=1e-3, warmup_steps=warmup_steps))
    rates = []
    for _ in range(updates):
        parameter.grad = torch.ones(1)
        assert optimizer.step().learning_rate == optimizer.adamw.param_groups[0]["lr"]
        rates.append(optimizer.adamw.param_groups[0]["lr"])
    return rates


def test_the_learning_rate_warms_up_linearly_and_then_stays() -> None:
    rates = first_rates(6, warmup_steps=4)
    assert rates == pytest.approx([0.25e-3, 0.5e-3, 0.75e-3, 1e-3, 1e-3, 1e-3])


def test_without_warm_up_the_first_update_has_the_full_rate() -> None:
    assert first_rates(1, warmup_steps=0) == [1e-3]


def test_the_norm_that_is_reported_is_the_one_before_the_clip() -> None:
    parameter = parameter_with([30.0, 40.0])
    optimizer = Optimizer([parameter], recipe(max_grad_norm=0.1))
    assert optimizer.step().gradient_norm == pytest.approx(50.0)
    moment = optimizer.adamw.state[parameter]["exp_avg"]
    torch.testing.assert_close(moment, torch.tensor([0.006, 0.008]))  # (1 - beta1) of the gradient clipped to norm 0.1


def test_moments_in_host_memory_change_no_bit_of_an_update() -> None:
    found = []
    for on_host in (False, True):
        parameters = [parameter_with([3.0, 4.0]), parameter_with([1.0, -2.0, 0.5])]
        optimizer = Optimizer(parameters, recipe(weight_decay=0.1), on_host=on_host)
        for update in range(3):
            for parameter in parameters:
                parameter.grad = torch.sin(parameter.detach() + update)
            optimizer.step()
        moments = [value for parameter in parameters for value in optimizer.adamw.state[parameter].values()]
        found.append([*parameters, *moments])
        assert optimizer.adamw.param_groups[0]["params"] == parameters
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


@pytest.mark.parametrize("on_host", [False, True])
def test_on_an_accelerator_adamw_is_fused_and_its_moments_lie_where_the_settings_say(on_host: bool) -> None:
    """On tensors that say they are on a GPU and have no memory: an operation over two devices is refused all the same."""
    with FakeTensorMode(), TypicalValues():
        parameters = [torch.nn.Parameter(torch.ones(size, device="cuda")) for size in (5, 3)]
        optimizer = Optimizer(parameters, recipe(), on_host=on_host)
        for _ in range(2):
            for parameter in parameters:
                parameter.grad = torch.ones_like(parameter)
            assert optimizer.step().applied
        states = [optimizer.adamw.state[parameter] for parameter in parameters]
        for state in states:  # as a state that was read
            state.update({name: value.to("cpu" if name == "step" else "cuda") for name, value in state.items()})
        for parameter in parameters:
            optimizer.take_up(parameter, optimizer.adamw.state[parameter])
        kinds = {(name, value.device.type) for state in states for name, value in state.items()}
    moments = "cpu" if on_host else "cuda"
    assert kinds == {("step", "cuda"), ("exp_avg", moments), ("exp_avg_sq", moments)}
    assert optimizer.adamw.defaults["fused"]


def test_moments_that_rest_on_the_host_go_there_one_parameter_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    model = torch.nn.Linear(3, 2)
    optimizer = Optimizer(model.parameters(), recipe(), on_host=True)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    assert optimizer.step().applied
    copy = HostCopy(model, optimizer, ranks())
    copy.take()
    there: list[int] = []
    monkeypatch.setattr(optimizer, "_move_moments", lambda *_: there.append(len(optimizer.adamw.state)))
    copy.give()
    assert there == [1, 2], "the first one's were moved before the second one's were made"


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_gradient_that_is_not_finite_changes_neither_weights_nor_moments(bad: float) -> None:
    parameter = parameter_with([1.0, 2.0])
    optimizer = Optimizer([parameter], recipe())
    assert optimizer.step().applied
    weights = parameter.detach().clone()
    state = {name: value.clone() for name, value in optimizer.adamw.state[parameter].items()}
    parameter.grad = torch.tensor([1.0, bad])
    skipped = optimizer.step()
    assert not skipped.applied
    assert optimizer.updates == 1
    assert torch.equal(parameter, weights)
    assert all(torch.equal(value, state[name]) for name, value in optimizer.adamw.state[parameter].items())
    assert parameter.grad is None
