"""Proofs of models: reduction of hidden states on the device, and the calibration that gives a model its proof profile.

A shared library: workers, prepare and the command line import it. The proofs themselves are in `contracts.toploc`, which needs no torch.
"""


class CannotCalibrate(ValueError):
    """The model or the prompts do not serve; the message says what to change."""
