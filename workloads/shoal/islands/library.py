"""Whether the library by which islands meet is here. torchft has a package for x86-64 only, and an image for arm64 is without it."""

import importlib.util
import platform

NAME = "torchft"


class NoLibrary(RuntimeError):
    """Islands cannot meet on this machine."""


def check() -> None:
    """Raises NoLibrary, in words for whoever wrote the run, where the library is missing."""
    if importlib.util.find_spec(NAME) is None:
        raise NoLibrary(
            f"islands meet through {NAME}, which is not installed here ({platform.machine()}): its package is for x86-64 only. "
            "Give trainer, islands and lighthouse nodes of amd64 (nodeSelector kubernetes.io/arch: amd64), or take trainer.islands out of the run"
        )
