"""Logits of a causal language model from its last hidden states, in float32 whatever the model's type is, as workers' engines make them.

In: a model, and states after its final norm. Out: logits. In bfloat16 logits between 16 and 32 would be multiples of 1/8, on either side (ADR 0141).
Who needs the logits of some positions only calls this, and never the head alone: Granite divides what its head gives. Called by validators and
calibration, and `widened` by the worker's engine on a CPU. The trainer makes its logits in tiles of its own, in float32 too, with `logits_divisor`.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

DIVIDE_LOGITS = ("granite", "granitemoe")
"""Model types whose `logits_scaling` divides the logits; under this name others may multiply."""


def logits_divisor(config: Any) -> float:
    """What a model divides its head's products by: 1 of most. The trainer refuses models that do anything else with them."""
    return float(config.logits_scaling) if getattr(config, "model_type", None) in DIVIDE_LOGITS else 1.0


def products(head: torch.nn.Linear, states: torch.Tensor) -> torch.Tensor:
    """Products float32 [rows, vocabulary] of states [rows, hidden size] with a head, both of one type; float64 of float64.

    A GPU multiplies halves and sums in float32. A CPU has no such product in torch: the weight is widened for the call (4 bytes a weight).
    """
    weight, bias = head.weight, head.bias
    states = states.to(weight.device)  # a placed model may end on another one
    if states.dtype not in (torch.bfloat16, torch.float16):
        return torch.nn.functional.linear(states, weight, bias)
    if states.is_cuda:
        made = torch.mm(states, weight.T, out_dtype=torch.float32)
        return made if bias is None else made + bias.float()
    return widened(states, weight.float(), bias)


def widened(states: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """The same on a CPU, with a head's weight that is float32 already, and was of the states' type."""
    with _as_bfloat16(states.dtype == torch.bfloat16):
        return torch.nn.functional.linear(states.float(), weight, None if bias is None else bias.float())


_setting = threading.Lock()
"""Held while oneDNN's setting is read, changed, used and put back: it is the whole process's, and torch has no such product that is told per call."""


@contextmanager
def _as_bfloat16(on: bool) -> Iterator[None]:
    """Let oneDNN multiply float32 numbers as bfloat16, where the CPU can: exact for those that were bfloat16. Sums are float32 all the same.

    One thread at a time, so that none finds or leaves the setting of another. Products of float32 outside of this module do not ask for the lock: a
    process that serves or checks halves has none at that time.
    49,152 words and 128 rows of SmolLM2-135M take 18 ms so, and 58 as float32; in bfloat16 they took 16.
    """
    settings = torch.backends.mkldnn.matmul
    with _setting:
        before = settings.fp32_precision
        if on:
            settings.fp32_precision = "bf16"
        try:
            yield
        finally:
            settings.fp32_precision = before


def logits_of(model: Any, states: torch.Tensor) -> torch.Tensor:
    """Logits float32 [rows, vocabulary] of states [rows, hidden size] in the model's type."""
    head = model.lm_head  # a method of a model that is spread over processes, which ask theirs for `products`
    logits: torch.Tensor = products(head, states) if isinstance(head, torch.nn.Linear) else head(states)
    divisor = logits_divisor(model.config)
    return logits if divisor == 1.0 else logits / divisor
