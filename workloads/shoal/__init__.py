"""Shoal: decentralised asynchronous reinforcement learning of large language models."""
