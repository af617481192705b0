"""Utilisation of accelerators: 6 FLOPs a parameter and token over the peak of the devices, and nothing where the peak is not known."""

import math

import pytest
import torch

from shoal.training.utilisation import Utilisation, peak_flops, utilisation_of


def test_six_flops_are_counted_for_each_parameter_and_token() -> None:
    measured = Utilisation(parameters=32_000_000_000, peak_flops=8 * 989e12)
    assert measured.flops_per_second(tokens=10_000, seconds=2.0) == pytest.approx(6 * 32e9 * 10_000 / 2)
    assert measured.share(tokens=10_000, seconds=2.0) == pytest.approx(9.6e14 / (8 * 989e12))


def test_without_seconds_or_parameters_there_is_no_number() -> None:
    assert math.isnan(Utilisation(parameters=5, peak_flops=1.0).share(10, 0.0))
    assert math.isnan(Utilisation().flops_per_second(10, 1.0))


@pytest.mark.parametrize(
    ("name", "peak"), [("NVIDIA H100 80GB HBM3", 989e12), ("NVIDIA H200", 989e12), ("NVIDIA A100-SXM4-40GB", 312e12)]
)
def test_the_peak_is_that_of_all_devices(name: str, peak: float) -> None:
    assert peak_flops(name, world=4) == 4 * peak


def test_a_device_that_is_not_in_the_table_has_no_share_but_a_rate() -> None:
    measured = utilisation_of(torch.nn.Linear(3, 2), torch.device("cpu"), world=2)
    assert measured.parameters == 8
    assert measured.flops_per_second(10, 1.0) == 480.0
    assert math.isnan(measured.share(10, 1.0))
