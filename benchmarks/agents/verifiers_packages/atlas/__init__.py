"""Capitals, looked up in a file of the package by a tool server that all tasks share."""

from atlas.taskset import AtlasTaskset

__all__ = ["AtlasTaskset"]
