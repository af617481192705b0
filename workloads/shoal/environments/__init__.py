"""Environments: tasks, prompts and scoring, shared by prepare, workers and validators."""

from shoal.environments.base import (
    BadEnvironment,
    Environment,
    Score,
    Unscorable,
    digest,
    known_count,
    length_suffix,
    load,
)

__all__ = [
    "Environment",
    "BadEnvironment",
    "Score",
    "Unscorable",
    "digest",
    "known_count",
    "length_suffix",
    "load",
]
