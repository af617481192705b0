"""Weights of the versions that sampled a step's rows, for objectives that need log-probabilities under them (computed again here, never claimed).

In: host copies of each version as it is made; after a restart the run's own states, or the published versions. Out: the policy with
an older version's weights in it, for as long as they are needed. Kept in host memory in the dtype of serving, because that is what
sampled: half of the weights' size for each version of the asynchrony window. Called by `loop`; `update.behaviour_logprobs` asks.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from shoal import telemetry
from shoal.training.context import TrainerContext
from shoal.training.host_copy import WEIGHTS, HostCopy, local, trained
from shoal.training.model import Policy
from shoal.training.published import NoWeights, load_published
from shoal.training.state import BadState, States


class NoBehaviour(RuntimeError):
    """The weights of a version that sampled rows are not available; the message says where they were looked for."""


class BehaviourWeights:
    """The last `async_level` + 1 versions' trained weights, this rank's parts."""

    def __init__(
        self,
        context: TrainerContext,
        states: States,
        policy: Policy,
        copy: HostCopy,
        served: torch.dtype,
    ) -> None:
        self._context = context
        self._config = context.config
        self._states = states
        self._policy = policy
        self._copy = copy
        # Adapters are served merged, and are small: they are kept as they are trained.
        self._dtype = torch.float32 if context.config.trainer.lora is not None else served
        self._kept: dict[int, dict[str, Tensor]] = {}

    def keep(self, version: int) -> None:
        """Remember the weights that the host copy holds as those of `version`, and forget what is older than the window."""
        self._kept[version] = self._parts(self._copy.tensors)
        for old in [kept for kept in self._kept if kept < version - self._config.async_level or kept > version]:
            del self._kept[old]

    @contextmanager
    def lent(self, quiet: Callable[[], None]) -> Iterator[Callable[[int], Policy]]:
        """Within the block: a function that gives the policy with a version's weights. Afterwards it has its own again, bit for bit.

        `quiet` returns when nothing runs in the background: weights that are not in memory are read through its group.
        The function raises NoBehaviour.
        """

        def with_weights_of(version: int) -> Policy:
            if version not in self._kept:
                quiet()
                self._kept[version] = self._find(version)
            self._copy.put_weights(self._kept[version])
            return self._policy

        try:
            yield with_weights_of
        finally:
            self._copy.give_weights()

    def _find(self, version: int) -> dict[str, Tensor]:
        """From the state of the version, else from what was published."""
        try:
            return self._parts(self._states.read_weights(version, self._copy, self._context.liveness))
        except BadState as error:
            if self._config.trainer.lora is not None:
                raise NoBehaviour(
                    f"rows were sampled with version {version}: {error}; adapters cannot be separated from a published version"
                ) from error
            telemetry.get_logger().warning(
                "taking the weights of a sampling version from its published files", reason=str(error)
            )
        return self._published(version)

    def _published(self, version: int) -> dict[str, Tensor]:
        self._copy.give_weights()  # drops what a forward pass has gathered
        try:
            load_published(self._context, self._context.store, version, self._policy)
        except NoWeights as error:
            raise NoBehaviour(f"rows were sampled with version {version}, which has no state; {error}") from error
        return self._parts({f"{WEIGHTS}/{name}": parameter for name, parameter in trained(self._policy)})

    def _parts(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {
            key: local(tensor).to("cpu", self._dtype, copy=True)
            for key, tensor in weights.items()
            if key.startswith(f"{WEIGHTS}/")
        }
