"""Logits of a causal language model from its last hidden states, as transformers' own forward pass makes them.

In: a model, and states after its final norm. Out: logits. Who needs the logits of some positions only calls this, and never the head alone:
Granite divides what its head gives. Called by validators and calibration. The trainer computes its logits in tiles of its own, with `logits_divisor`.
"""

from typing import Any

import torch

DIVIDE_LOGITS = ("granite", "granitemoe")
"""Model types whose `logits_scaling` divides the logits; under this name others may multiply."""


def logits_divisor(config: Any) -> float:
    """What a model divides its head's products by: 1 of most. The trainer refuses models that do anything else with them."""
    return float(config.logits_scaling) if getattr(config, "model_type", None) in DIVIDE_LOGITS else 1.0


def logits_of(model: Any, states: torch.Tensor) -> torch.Tensor:
    """Logits [rows, vocabulary] of states [rows, hidden size], both in the model's type."""
    logits: torch.Tensor = model.lm_head(states)
    divisor = logits_divisor(model.config)
    return logits if divisor == 1.0 else logits / divisor
