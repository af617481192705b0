"""Verdicts: the validators' queue, and what their findings lead to."""
