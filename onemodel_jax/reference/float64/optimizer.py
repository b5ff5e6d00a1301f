"""AdamW and global-norm clipping in double precision, from the published formulas."""

from collections.abc import Sequence

import numpy as np

Arrays = Sequence[np.ndarray]


def adamw(
    param: np.ndarray,
    grads: Arrays,
    *,
    learning_rate: float | Sequence[float],
    weight_decay: float,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
) -> list[np.ndarray]:
    """Return the parameter after each step (Loshchilov and Hutter 2019, alg. 2).

    Args:
      param: float64 initial value.
      grads: its gradient at each step.
      learning_rate: one rate, or one a step.
      weight_decay: decay, multiplied by the rate; 0 for a tensor without decay.
    """
    rates = np.broadcast_to(learning_rate, len(grads))
    m = v = np.zeros_like(param, np.float64)
    history = []
    for t, (g, rate) in enumerate(zip(grads, rates, strict=True), start=1):
        m = b1 * m + (1 - b1) * g
        v = b2 * v + (1 - b2) * g**2
        corrected = (m / (1 - b1**t)) / (np.sqrt(v / (1 - b2**t)) + eps)
        param = param - rate * weight_decay * param - rate * corrected
        history.append(param)
    return history


def clip_by_norm(grads: Arrays, limit: float) -> tuple[list[np.ndarray], float]:
    """Scale by limit / (norm + 1e-6) if norm > limit; return gradients and norm."""
    norm = float(np.sqrt(sum(float(np.sum(g**2)) for g in grads)))
    factor = limit / (norm + 1e-6) if norm > limit else 1.0
    return [g * factor for g in grads], norm
