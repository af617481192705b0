"""AdamW with linear warm-up, a gradient-norm clip, and a guard: a norm that is not finite never reaches the weights.

In: parameters with gradients, whole or sharded. Out: whether the update was applied, and the norm before the clip. The learning rate is a pure
function of the number of updates applied so far. So resuming needs that number and AdamW's moments, no scheduler
object. The norm is over all ranks and so the same on each: they all apply an update or none does. Called by `update`.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

import torch
from prometheus_client import Gauge
from torch.distributed.tensor import DTensor

from shoal.telemetry import unmeasured

CLIPPED_NORM = unmeasured(
    Gauge("shoal_trainer_gradient_norm_clipped", "Gradient norm of the last update, after the clip.")
)


@dataclass(frozen=True)
class Applied:
    """One optimizer step: `gradient_norm` before the clip (may be infinite or NaN, then `applied` is False)."""

    applied: bool
    gradient_norm: float
    learning_rate: float


class Hyperparameters(Protocol):
    """Settings of the optimizer, from a `Recipe` or from `SftSettings`."""

    @property
    def learning_rate(self) -> float: ...

    @property
    def warmup_steps(self) -> int: ...

    @property
    def adam_beta1(self) -> float: ...

    @property
    def adam_beta2(self) -> float: ...

    @property
    def weight_decay(self) -> float: ...

    @property
    def max_grad_norm(self) -> float: ...


def warm_up(given: Hyperparameters, updates: int) -> float:
    """The share of the peak for the update that follows `updates` applied ones: linear up to 1 over `warmup_steps`, then 1."""
    return min(1.0, (updates + 1) / max(1, given.warmup_steps))


def cosine_rate(given: Hyperparameters, updates: int, total: int) -> float:
    """The same warm-up, then half a cosine (arXiv:1608.03983) from the peak to nothing, which would come just after the last of `total` updates."""
    if updates < given.warmup_steps:
        return given.learning_rate * warm_up(given, updates)
    done = (updates - given.warmup_steps) / max(1, total - given.warmup_steps)
    return given.learning_rate * 0.5 * (1.0 + math.cos(math.pi * min(1.0, done)))


class Optimizer:
    """AdamW over a model's parameters. `updates` counts the applied ones, over the whole run; `rate` gives the learning rate of the one
    that follows this many. If it is absent, that is warm-up and then `peak_rate`, which a schedule may move."""

    def __init__(
        self,
        parameters: Iterable[torch.nn.Parameter],
        given: Hyperparameters,
        rate: Callable[[int], float] | None = None,
    ) -> None:
        self._max_grad_norm = given.max_grad_norm
        self.peak_rate = given.learning_rate
        self._rate = rate if rate is not None else lambda updates: self.peak_rate * warm_up(given, updates)
        self._parameters = [parameter for parameter in parameters if parameter.requires_grad]
        self.updates = 0
        self.adamw = torch.optim.AdamW(
            self._parameters,
            lr=given.learning_rate,
            betas=(given.adam_beta1, given.adam_beta2),
            weight_decay=given.weight_decay,
        )

    def step(self) -> Applied:
        """Clip, apply and clear the gradients; when their norm is not finite, only clear them."""
        total = torch.nn.utils.clip_grad_norm_(self._parameters, self._max_grad_norm)
        norm = float(total.full_tensor() if isinstance(total, DTensor) else total)
        rate = self._rate(self.updates)
        finite = math.isfinite(norm)
        if finite:
            for group in self.adamw.param_groups:
                group["lr"] = rate
            self.adamw.step()
            self.updates += 1
            CLIPPED_NORM.set(min(norm, self._max_grad_norm))
        self.adamw.zero_grad(set_to_none=True)
        return Applied(finite, norm, rate)
