"""Muon in NumPy and float64, written from the two texts that define it, without torch.

Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks" (kellerjordan.github.io/posts/muon): B = mu B + G, and five
Newton-Schulz rounds X = a X + b (X X^T) X + c (X X^T)^2 X on the Nesterov sum G + mu B divided by its Frobenius norm.
Liu et al. 2025, "Muon is scalable for LLM training" (arXiv:2502.16982), equation 4: W = W - eta (0.2 sqrt(max(A, B)) O + lambda W).
"""

from collections.abc import Sequence

import numpy as np

Matrix = np.ndarray


def newton_schulz(given: Matrix) -> Matrix:
    """O of the post; for a tall matrix by its transpose, which is the same polynomial."""
    x = given / np.linalg.norm(given)
    for _ in range(5):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x


def muon(weight: Matrix, gradients: Sequence[Matrix], rates: Sequence[float], momentum: float, decay: float) -> Matrix:
    """The weight after an update with each gradient."""
    moved = np.zeros_like(weight)
    for gradient, rate in zip(gradients, rates, strict=True):
        moved = momentum * moved + gradient
        direction = newton_schulz(gradient + momentum * moved)
        weight = weight - rate * (0.2 * np.sqrt(max(weight.shape)) * direction + decay * weight)
    return weight
