"""Logits are float32 products of a model's states with its head, whatever its type is: none is rounded to halves."""

import sys
import threading
from collections.abc import Iterator

import pytest
import torch

from shoal.models.head import products


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_products_of_halves_are_summed_and_kept_in_float32(dtype: torch.dtype, bias: bool) -> None:
    torch.manual_seed(0)
    head, states = torch.nn.Linear(512, 300, bias=bias).to(dtype), 4.0 * torch.randn(7, 512).to(dtype)
    wanted = states.double() @ head.weight.double().T + (head.bias.double() if bias else 0.0)
    before = torch.backends.mkldnn.matmul.fp32_precision
    with torch.inference_mode():
        found = products(head, states)
        rounded = head(states)
    assert found.dtype == torch.float32
    assert (found - wanted).abs().max() < 1e-4
    assert (rounded - wanted).abs().max() > 1e-3
    assert torch.backends.mkldnn.matmul.fp32_precision == before


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_products_of_wide_numbers_are_the_heads_own(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    head, states = torch.nn.Linear(64, 30).to(dtype), torch.randn(3, 64, dtype=dtype)
    assert torch.equal(products(head, states), head(states))


@pytest.fixture
def switching() -> Iterator[None]:
    """Threads take turns as often as Python can let them."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_threads_leave_the_process_its_setting_and_get_what_one_gets(switching: None) -> None:
    """The setting is the process's: two that each put back what they found could leave what the other had set for a moment."""
    torch.manual_seed(0)
    cases = [
        (torch.nn.Linear(64, 30).to(dtype), torch.randn(3, 64).to(dtype)) for dtype in (torch.bfloat16, torch.float16)
    ]
    before = torch.backends.mkldnn.matmul.fp32_precision
    wrong: list[object] = []

    def multiply(head: torch.nn.Linear, states: torch.Tensor, wanted: torch.Tensor) -> None:
        with torch.inference_mode():
            for _ in range(2000):
                if not torch.equal(found := products(head, states), wanted):
                    wrong.append(found)

    with torch.inference_mode():
        threads = [
            threading.Thread(target=multiply, args=(head, states, products(head, states)))
            for head, states in [*cases, *cases]
        ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert torch.backends.mkldnn.matmul.fp32_precision == before
    assert not wrong
