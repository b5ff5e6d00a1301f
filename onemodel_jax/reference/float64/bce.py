"""Binary cross entropy on logits by its definition: softplus, sigmoid, no tricks."""

import numpy as np


def bce(x: np.ndarray, t: np.ndarray, p: np.ndarray | float = 1.0) -> np.ndarray:
    """Return p t log(1 + e^-x) + (1 - t) log(1 + e^x), elementwise, float64."""
    return p * t * np.logaddexp(0.0, -x) + (1.0 - t) * np.logaddexp(0.0, x)


def bce_gradients(
    x: np.ndarray, t: np.ndarray, p: np.ndarray | float = 1.0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the derivatives in x, t and p of one loss, elementwise."""
    high, low = 1.0 / (1.0 + np.exp(-x)), 1.0 / (1.0 + np.exp(x))
    minus, plus = np.logaddexp(0.0, -x), np.logaddexp(0.0, x)
    return (1.0 - t) * high - p * t * low, p * minus - plus, t * minus
