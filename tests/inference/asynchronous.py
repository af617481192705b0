"""vLLM's asynchronous scheduling in an engine on a CPU, where its platform turns it off: a step is prepared, and here computed, before the tokens of
the step before are told.

It is vLLM's own scheduler, queue and runner. What a CPU lacks are CUDA's streams and events: each copy has been made when it is asked for, so
they do nothing, as vLLM's CPU runner has it for those that it uses.
"""

import os
from contextlib import nullcontext
from typing import Any

import torch


class Nothing:
    """A stream or an event of a device whose work is done when it is asked for."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.device = torch.device("cpu")

    def record(self, *args: Any) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def wait_stream(self, stream: Any) -> None:
        pass


def fork_ranks(asynchronous: bool = False) -> None:
    """From now on ranks of this process's engines are forked: they are as it is, and import nothing. On a CPU vLLM has each import all of it anew."""
    from vllm.platforms.cpu import CpuPlatform  # loaded by then, with the variables that `engine` sets

    update = CpuPlatform.check_and_update_config

    def updated(config: Any) -> None:
        update(config)
        os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"
        if asynchronous:
            config.scheduler_config.async_scheduling = True

    CpuPlatform.check_and_update_config = staticmethod(updated)


def schedule_asynchronously() -> None:
    """From now on engines of this process do, and their ranks."""
    fork_ranks(asynchronous=True)
    torch.cuda.Event = Nothing
    torch.cuda.current_stream = Nothing
    torch.cuda.stream = lambda stream: nullcontext()
