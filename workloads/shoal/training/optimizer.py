"""AdamW, or Muon and AdamW, with warm-up, a gradient-norm clip, and a guard: a norm that is not finite never reaches the weights.

In: parameters with gradients, whole or sharded. Out: whether the update was applied, and the norm before the clip. The learning rate is a pure
function of the number of updates applied so far. So resuming needs that number and the optimizers' moments, no scheduler
object. The norm is over all ranks and so the same on each: they all apply an update or none does. Called by `update`.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from prometheus_client import Gauge
from torch import Tensor
from torch.distributed.tensor import DTensor

from shoal.contracts.muon import MuonSettings
from shoal.telemetry import unmeasured
from shoal.training.muon import MOMENTUM, Muon

CLIPPED_NORM = unmeasured(
    Gauge("shoal_trainer_gradient_norm_clipped", "Gradient norm of the last update, after the clip.")
)


MOMENTS = ("exp_avg", "exp_avg_sq", MOMENTUM)
"""State of a parameter's shape: AdamW's two moments, or Muon's momentum."""


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

    @property
    def muon(self) -> MuonSettings | None: ...


def no_matrices() -> list[torch.nn.Parameter]:
    """Of a model that Muon never updates."""
    return []


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
    that follows this many. If it is absent, that is warm-up and then `peak_rate`, which a schedule may move.

    Where `given.muon` is, Muon updates those parameters that `matrices` names, and AdamW the others (`Policy.hidden_matrices` has the one rule).

    `on_host`: the moments stay in host memory, and are on the device for the update of their own parameter only. That costs 16 bytes of copies a
    parameter, with Muon 8: 33 GB for each of 16 ranks of 32B, about 3 s an update at 12 GB/s. The update itself is the same, bit for bit.
    On an accelerator AdamW is torch's fused one, which reads and writes each value once and makes no temporaries.
    """

    def __init__(
        self,
        parameters: Iterable[torch.nn.Parameter],
        given: Hyperparameters,
        rate: Callable[[int], float] | None = None,
        *,
        matrices: Callable[[], list[torch.nn.Parameter]] = no_matrices,
        on_host: bool = False,
    ) -> None:
        self._max_grad_norm = given.max_grad_norm
        self.peak_rate = given.learning_rate
        self._rate = rate if rate is not None else lambda updates: self.peak_rate * warm_up(given, updates)
        self._parameters = [parameter for parameter in parameters if parameter.requires_grad]
        self.updates = 0
        self._on_host = on_host
        self._fused = bool(self._parameters) and all(each.device.type == "cuda" for each in self._parameters)
        self.muon: Muon | None = None
        self._matrices: set[torch.nn.Parameter] = set()
        if given.muon is not None:
            hidden = matrices()
            self._matrices = set(hidden)
            self.muon = Muon(
                hidden,
                lr=given.learning_rate,
                momentum=given.muon.momentum,
                weight_decay=given.weight_decay,
                on_host=on_host,
            )
        self._others = [parameter for parameter in self._parameters if parameter not in self._matrices]
        self.adamw = torch.optim.AdamW(
            self._others,
            fused=True if self._fused else None,
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
            for each in self._both():
                for group in each.param_groups:
                    group["lr"] = rate
            self._update()
            self.updates += 1
            CLIPPED_NORM.set(min(norm, self._max_grad_norm))
        for each in self._both():
            each.zero_grad(set_to_none=True)
        return Applied(finite, norm, rate)

    def state_names(self, parameter: torch.nn.Parameter) -> tuple[str, ...]:
        """What is kept for a parameter once it was updated; a training state holds that."""
        return (MOMENTUM,) if parameter in self._matrices else ("step", "exp_avg", "exp_avg_sq")

    def state(self, parameter: torch.nn.Parameter) -> Mapping[str, Tensor]:
        """What is kept for a parameter; nothing before its first update."""
        kept: Mapping[str, Tensor] = self._of(parameter).state.get(parameter, {})
        return kept

    def forget(self) -> None:
        """Keep nothing of the updates so far but their number."""
        for each in self._both():
            each.state.clear()

    def take_up(self, parameter: torch.nn.Parameter, state: dict[str, Tensor]) -> None:
        """Keep this for a parameter, and put it where it belongs. Whoever reads a state calls this for each in turn: where moments rest on the
        host, the device then holds those of one."""
        self._of(parameter).state[parameter] = state
        self._move_moments(parameter, torch.device("cpu") if self._on_host else parameter.device)
        if self._fused and "step" in state:
            state["step"] = state["step"].to(parameter.device)  # the fused kernel counts there

    def _both(self) -> list[torch.optim.Optimizer]:
        return [self.adamw] if self.muon is None else [self.adamw, self.muon]

    def _of(self, parameter: torch.nn.Parameter) -> torch.optim.Optimizer:
        return self.muon if self.muon is not None and parameter in self._matrices else self.adamw

    def _update(self) -> None:
        if self.muon is not None:
            self.muon.step()
        if not self._on_host:
            self.adamw.step()
            return
        [group] = self.adamw.param_groups
        try:
            for parameter in self._others:
                self._move_moments(parameter, parameter.device)
                group["params"] = [parameter]
                self.adamw.step()
                self._move_moments(parameter, torch.device("cpu"))
        finally:
            group["params"] = self._others

    def _move_moments(self, parameter: torch.nn.Parameter, device: torch.device) -> None:
        state = self._of(parameter).state.get(parameter, {})
        for name in MOMENTS:
            if name in state:
                state[name] = state[name].to(device)  # of a sharded one the local part
