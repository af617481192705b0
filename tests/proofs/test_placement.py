"""A model over several devices: which layer goes where, and that what a layer is given follows it."""

import numpy as np
import pytest
import torch
from test_calibration import PROMPTS, measured, model_with

from shoal.proofs import CannotCalibrate, forward
from shoal.proofs.forward import decode, prefill
from shoal.proofs.placement import Placement, divided


def test_layers_are_spread_evenly_over_all_devices() -> None:
    assert divided([4, 1, 1, 1, 4], [6, 6]) == [0, 0, 0, 1, 1]
    assert divided([4, 1], [9, 9]) == [0, 1]
    assert divided([1] * 12, [100, 100, 100]) == [0] * 4 + [1] * 4 + [2] * 4
    with pytest.raises(CannotCalibrate, match=r"do not fit 2 GPUs.*spec\.prepare\.gpu"):
        divided([4, 4, 4], [5, 5])


def test_a_layer_gets_what_it_is_given_on_its_own_device_and_says_the_same() -> None:
    """The second half lies on torch's device without memory, so that whatever was not moved there would raise."""
    model, alone = model_with([]), model_with([])
    size = sum(weight.numel() * weight.element_size() for weight in model.parameters())
    cpu, meta = torch.device("cpu"), torch.device("meta")
    Placement(model, [(cpu, size), (meta, size)]).apply()
    devices = {name: weight.device.type for name, weight in model.named_parameters()}
    assert devices["model.layers.0.mlp.up_proj.weight"] == "cpu"
    assert devices["model.norm.weight"] == devices["lm_head.weight"] == "meta"
    with torch.inference_mode():
        last = model.model(input_ids=torch.tensor([PROMPTS[0]]), use_cache=False).last_hidden_state
    assert (last.device.type, last.shape) == ("meta", (1, len(PROMPTS[0]), 128))

    halves = model_with([])
    Placement(halves, [(cpu, size), (cpu, size)]).apply()
    [[made]], [[same]] = (list(decode(each, PROMPTS[:1], 8, 0, 1)) for each in (halves, alone))
    assert made.completion == same.completion
    assert (prefill(halves, [made], 1)[0] == prefill(alone, [made], 1)[0]).all()


def test_a_small_model_stays_on_one_device() -> None:
    model = model_with([])
    size = sum(weight.numel() * weight.element_size() for weight in model.parameters())
    meta = torch.device("meta")
    Placement(model, [(torch.device("cpu"), 3 * size), (meta, 3 * size)]).apply()
    assert {weight.device.type for weight in model.parameters()} == {"cpu"}


def test_a_gpu_without_memory_left_is_told_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_with([])

    def full(*arguments: object, **named: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    monkeypatch.setattr(model.model, "forward", full)
    with pytest.raises(
        CannotCalibrate, match=r"\(CUDA out of memory\): give prepare more or larger GPUs \(spec\.prepare\.gpu\)"
    ):
        measured(model)
    placement = Placement(model, [(torch.device("cpu"), 1 << 30)])
    monkeypatch.setattr(model, "to", full)
    with pytest.raises(CannotCalibrate, match="more or larger GPUs"):
        placement.apply()


def test_long_sequences_share_a_pass_with_few_others(monkeypatch: pytest.MonkeyPatch) -> None:
    model, shapes = model_with([]), list[tuple[int, ...]]()
    model.model.register_forward_pre_hook(
        lambda _, __, named: shapes.append(tuple(named["input_ids"].shape)), with_kwargs=True
    )
    made = [each for [each] in decode(model, PROMPTS[:6], 3, 0, 1)]
    alike = prefill(model, made, 4)
    shapes.clear()
    monkeypatch.setattr(forward, "PREFILL_TOKENS", 17)
    again = prefill(model, made, 4)
    assert shapes == [(2, 8)] * 3
    assert all(np.allclose(one, other, atol=1e-5) for one, other in zip(alike, again, strict=True))
    shapes.clear()
    monkeypatch.setattr(forward, "PREFILL_TOKENS", 7)
    prefill(model, made, 4)
    assert shapes == [(1, 8)] * 6
    shapes.clear()
    list(decode(model, PROMPTS[:3], 1, 0, 3))
    assert shapes == [(1, 5)] * 3
