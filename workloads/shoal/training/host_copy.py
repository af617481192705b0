"""A copy of all that is trained in the host's memory: what is saved and published while the next step already changes the originals.

In: policy and optimizer, sharded or not. Out: tensors by key, each rank its own shards, ready for `torch.distributed.checkpoint`; and the way back,
when a state was read into them. One set of buffers is used again for every version, so taking a copy costs one pass over memory. Called by
`loop` and `state`.
"""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from shoal.training.optimizer import Optimizer
from shoal.training.parallel import Ranks

WEIGHTS = "weights"
MOMENTS = ("step", "exp_avg", "exp_avg_sq")
"""What torch's AdamW keeps for a parameter."""


def trained(policy: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Parameter]]:
    """The parameters that training changes, by name, in order. Frozen ones are those of the base model for ever."""
    return ((name, parameter) for name, parameter in sorted(policy.named_parameters()) if parameter.requires_grad)


def local(tensor: Tensor) -> Tensor:
    """This rank's part of a tensor, without a gradient; the whole of one that is not sharded."""
    tensor = tensor.detach()
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


class HostCopy:
    """Host copies of the weights `weights/<parameter>`, AdamW's moments `<moment>/<parameter>` and random states `random/<kind>/<rank>`."""

    def __init__(self, policy: torch.nn.Module, optimizer: Optimizer, ranks: Ranks) -> None:
        self._policy = policy
        # These stay the sharded parameters, also while a forward pass shows whole ones in their place.
        self._trained = dict(trained(policy))
        self._optimizer = optimizer
        self._ranks = ranks
        self._buffers: dict[str, Tensor] = {}
        self.tensors: dict[str, Tensor] = {}

    def take(self) -> None:
        """Copy everything as it is now."""
        self.tensors = {key: self._copied(key, live) for key, live in self._live()}
        if self._ranks.device.type == "cuda":
            torch.cuda.synchronize()
        self.tensors |= self._random_states()

    def expect(self, keys: set[str]) -> dict[str, Tensor]:
        """Tensors to read a state with these keys into. Random states of ranks that are no more are left out."""
        for key in keys:
            kind, _, name = key.partition("/")
            if kind == WEIGHTS or kind in MOMENTS:
                like = torch.zeros(()) if kind == "step" else self._trained[name]
                self.tensors[key] = self._host_like(key, like)
        self.tensors = {key: tensor for key, tensor in self.tensors.items() if key in keys}
        self.tensors |= {key: state for key, state in self._random_states().items() if key in keys}
        return self.tensors

    def shapes(self) -> dict[str, torch.Size]:
        """Global shapes of the weights by key."""
        return {f"{WEIGHTS}/{name}": parameter.shape for name, parameter in self._trained.items()}

    def empty_weights(self) -> dict[str, Tensor]:
        """Tensors of their own, to read another version's weights into."""
        return {
            f"{WEIGHTS}/{name}": self._wrapped(torch.empty(local(live).shape), live)
            for name, live in self._trained.items()
        }

    def give(self) -> None:
        """Put the copy back into policy, optimizer and random generators."""
        self.give_weights()
        state = self._optimizer.adamw.state
        state.clear()
        for name, parameter in self._trained.items():
            moments = {moment: self.tensors[key] for moment in MOMENTS if (key := f"{moment}/{name}") in self.tensors}
            if moments:
                state[parameter] = {
                    moment: kept.clone() if moment == "step" else _like(parameter, kept)
                    for moment, kept in moments.items()
                }
        for key, state_bytes in self.tensors.items():
            if key == self._random("cpu"):
                torch.set_rng_state(state_bytes)
            elif key == self._random("cuda"):
                torch.cuda.set_rng_state(state_bytes, self._ranks.device)

    def give_weights(self) -> None:
        """Put the weights alone back; bit for bit, after others were tried out in their place."""
        self.put_weights(self.tensors)

    @torch.no_grad()
    def put_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Put the weights of some version, by key, into the policy; what a forward pass had gathered of others is dropped."""
        for module in self._policy.modules():
            if isinstance(module, FSDPModule):
                module.reshard()
        for name, parameter in self._trained.items():
            local(parameter).copy_(local(weights[f"{WEIGHTS}/{name}"]))

    def _live(self) -> Iterator[tuple[str, Tensor]]:
        for name, parameter in self._trained.items():
            yield f"{WEIGHTS}/{name}", parameter
            for moment, value in self._optimizer.adamw.state.get(parameter, {}).items():
                if moment in MOMENTS:
                    yield f"{moment}/{name}", value

    def _copied(self, key: str, live: Tensor) -> Tensor:
        copy = self._host_like(key, live)
        local(copy).copy_(local(live), non_blocking=True)
        return copy

    @torch.no_grad()
    def _host_like(self, key: str, live: Tensor) -> Tensor:
        """The buffer of this key on the host, sharded as `live` is."""
        part = local(live)
        buffer = self._buffers.get(key)
        if buffer is None or buffer.shape != part.shape:
            pinned = self._ranks.device.type == "cuda" and part.device.type == "cuda"
            buffer = torch.empty(part.shape, dtype=part.dtype, device="cpu", pin_memory=pinned)
            self._buffers[key] = buffer
        return self._wrapped(buffer, live)

    @torch.no_grad()
    def _wrapped(self, part: Tensor, live: Tensor) -> Tensor:
        """This rank's part as a tensor that is sharded as `live` is; over the background's group, whatever group trains."""
        if not isinstance(live, DTensor):
            return part
        return DTensor.from_local(
            part, self._ranks.background_mesh, live.placements, run_check=False, shape=live.shape, stride=live.stride()
        )

    def _random_states(self) -> dict[str, Tensor]:
        found = {self._random("cpu"): torch.get_rng_state()}
        if self._ranks.device.type == "cuda":
            found[self._random("cuda")] = torch.cuda.get_rng_state(self._ranks.device)
        return found

    def _random(self, kind: str) -> str:
        return f"random/{kind}/{self._ranks.rank:05d}"


def _like(parameter: torch.nn.Parameter, kept: Tensor) -> Tensor:
    """A moment on the parameter's device, sharded as the parameter is."""
    moment = torch.empty_like(parameter, requires_grad=False)
    local(moment).copy_(local(kept))
    return moment
