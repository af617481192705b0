"""A model over several devices: which layer goes where, and that what a layer is given follows it."""

import pytest
import torch
from test_calibration import PROMPTS, model_with

from shoal.proofs import CannotCalibrate
from shoal.proofs.forward import decode, prefill
from shoal.proofs.placement import Placement, divided


def test_devices_are_filled_one_after_the_other() -> None:
    assert divided([4, 1, 1, 1, 4], [6, 6]) == [0, 0, 0, 1, 1]
    assert divided([4, 1], [9, 9]) == [0, 0]
    with pytest.raises(CannotCalibrate, match=r"do not fit 2 GPUs.*spec\.prepare\.gpu"):
        divided([4, 4, 4], [5, 5])


def test_a_layer_gets_what_it_is_given_on_its_own_device_and_says_the_same() -> None:
    """The second half lies on torch's device without memory, so that whatever was not moved there would raise."""
    model, alone = model_with([]), model_with([])
    size = sum(weight.numel() * weight.element_size() for weight in model.parameters())
    cpu, meta = torch.device("cpu"), torch.device("meta")
    Placement(model, [(cpu, 3 * size // 4), (meta, 2 * size)]).apply()
    devices = {name: weight.device.type for name, weight in model.named_parameters()}
    assert devices["model.layers.0.mlp.up_proj.weight"] == "cpu"
    assert devices["model.norm.weight"] == devices["lm_head.weight"] == "meta"
    with torch.inference_mode():
        last = model.model(input_ids=torch.tensor([PROMPTS[0]]), use_cache=False).last_hidden_state
    assert (last.device.type, last.shape) == ("meta", (1, len(PROMPTS[0]), 128))

    halves = model_with([])
    Placement(halves, [(cpu, 3 * size // 4), (cpu, 2 * size)]).apply()
    [[made]], [[same]] = (list(decode(each, PROMPTS[:1], 8, 0, 1)) for each in (halves, alone))
    assert made.completion == same.completion
    assert (prefill(halves, [made], 1)[0] == prefill(alone, [made], 1)[0]).all()
