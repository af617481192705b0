"""PRIME: implicit process rewards from a model that learns beside the policy (docs/prime.md)."""
