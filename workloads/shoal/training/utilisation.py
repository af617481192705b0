"""Model FLOPs utilisation: how much of the accelerators' peak the updates of a step used.

In: parameters, completion tokens, seconds, devices. Out: FLOP/s and a share. Pure except for the name of the device. Called by `loop` and `progress`.
"""

import math
from dataclasses import dataclass

import torch

FLOPS_PER_PARAMETER_AND_TOKEN = 6.0
"""Forward 2, backward 4 (Kaplan et al. 2020, arXiv:2001.08361). Recomputed activations do not count, as in PaLM's definition (arXiv:2204.02311)."""

PEAK_BF16_FLOPS = {"B200": 2250e12, "H200": 989e12, "H100": 989e12, "A100": 312e12, "L40S": 362e12}
"""Dense bf16 matrix products a second, by part of the device's name (NVIDIA data sheets, SXM)."""


@dataclass(frozen=True)
class Utilisation:
    """Model size and peak of the devices, for the utilisation of steps. All parameters count, trainable or not: they take part in both passes.
    `peak_flops` is NaN where it is unknown."""

    parameters: int = 0
    peak_flops: float = math.nan

    def flops_per_second(self, tokens: int, seconds: float) -> float:
        """Of `tokens` learnt from in `seconds`; NaN without seconds or parameters. Prompts are not counted: a lower bound."""
        if seconds <= 0.0 or self.parameters == 0:
            return math.nan
        return FLOPS_PER_PARAMETER_AND_TOKEN * self.parameters * tokens / seconds

    def share(self, tokens: int, seconds: float) -> float:
        """The same as a share of the peak of all devices."""
        return self.flops_per_second(tokens, seconds) / self.peak_flops


def peak_flops(device_name: str, world: int) -> float:
    """Dense bf16 peak of `world` devices of this name (FLOP/s); NaN for one that is not in the table."""
    return world * next((peak for name, peak in PEAK_BF16_FLOPS.items() if name in device_name), math.nan)


def utilisation_of(model: torch.nn.Module, device: torch.device, world: int) -> Utilisation:
    """Of a model on `world` devices like this one."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    return Utilisation(sum(parameter.numel() for parameter in model.parameters()), peak_flops(name, world))
