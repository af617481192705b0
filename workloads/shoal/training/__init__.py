"""The trainer: GRPO on accepted rollouts, one policy version a step (paper section 3).

`loop` is the whole story; every other module is one concern of it. Entry point: `python -m shoal.training`.
"""
