"""Whether this machine's engine may serve its pool. Pure; called by `worker` before it starts the engine.

Validators draw the tokens of some pools again from their seeds, as vLLM does it on a CPU. Noise of another device is other noise: such a file would
be rejected and its node excluded, though nobody lied.
"""

from collections.abc import Collection


class WrongEngineError(RuntimeError):
    """The installed engine runs on a device that this pool does not take."""


def require_cpu_where_redrawn(pool: str, redrawn_pools: Collection[str], device: str) -> None:
    """Raise `WrongEngineError` when tokens of `pool` are drawn again and the engine's `device` (`cpu`, `cuda`) is not a CPU."""
    if pool in redrawn_pools and device != "cpu":
        raise WrongEngineError(
            f"the engine runs on {device}, and tokens of pool {pool} are drawn again as on a CPU: "
            "join a pool with GPUs, or install the CPU build of vLLM"
        )
