"""The distribution that Shoal's modules come from. `shoal` on PyPI is somebody else's: the wheel is `shoal-rl`, its modules keep their names."""

from importlib.metadata import Distribution, PackageNotFoundError, distribution

NAME = "shoal-rl"
BEFORE = "shoal"
"""In environments that were made before the name was chosen; `make setup` makes them again."""


def installed() -> Distribution:
    """Raises PackageNotFoundError where the modules are on the path without any."""
    try:
        return distribution(NAME)
    except PackageNotFoundError:
        return distribution(BEFORE)


def installed_release() -> str:
    """The release in words, such as `shoal 0.2.0`: for registrations, and for messages to whoever runs this machine."""
    try:
        return f"shoal {installed().version}"
    except PackageNotFoundError:  # run from a source tree
        return "shoal source"
