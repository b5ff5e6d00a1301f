"""Gradient norms and clipping: the recognizer's and the training library's."""

from collections.abc import Sequence

import numpy as np

from onemodel_jax.reference.lanes.lanes import dot

Arrays = Sequence[np.ndarray]


@np.errstate(all="ignore")
def global_norm_lanes(grads: Arrays) -> np.float64:
    """Recognizer's norm: float64 sum, in order, of float32 lane dots; then sqrt."""
    total = np.float64(0)
    for grad in grads:
        flat = np.asarray(grad, np.float32).reshape(-1)
        total = total + np.float64(dot(flat, flat))
    return np.sqrt(total)


@np.errstate(all="ignore")
def clip_lanes(grads: Arrays, limit: float) -> tuple[list[np.ndarray], np.float64]:
    """Scale by float32(limit / (norm + 1e-6)) when the norm exceeds the limit.

    A norm that is not finite scales nothing. Returns the gradients and the norm.
    """
    norm = global_norm_lanes(grads)
    if not (np.isfinite(norm) and norm > limit):
        return list(grads), norm
    factor = np.float32(np.float64(limit) / (norm + 1e-6))
    return [g * factor for g in grads], norm


@np.errstate(all="ignore")
def global_norm(grads: Arrays, *, infinity: bool = False) -> np.float64:
    """Library's norm: sqrt of the squares added one by one in float64, in order.

    With ``infinity`` the largest magnitude, NaN if any element is NaN. No element:
    +0.
    """
    flat = [np.asarray(g, np.float32).reshape(-1).astype(np.float64) for g in grads]
    values = np.concatenate([np.zeros(1), *flat])
    if infinity:
        return np.max(np.abs(values))
    return np.sqrt(np.cumsum(values * values)[-1])


@np.errstate(all="ignore")
def clip_norm(
    grads: Arrays, max_norm: float, *, infinity: bool = False
) -> tuple[list[np.ndarray], np.float32]:
    """Multiply by float32(max_norm / (norm + 1e-6)) when that is below 1.

    A norm that is not finite scales nothing. Returns the gradients and
    float32(norm).
    """
    norm = global_norm(grads, infinity=infinity)
    if not np.isfinite(norm):
        return list(grads), np.float32(norm)
    factor = np.float32(np.float64(max_norm) / (norm + 1e-6))
    if not factor < 1:
        return list(grads), np.float32(norm)
    return [g * factor for g in grads], np.float32(norm)


def clip_value(grads: Arrays, limit: float) -> list[np.ndarray]:
    """Clamp every element to [-limit, limit]; a NaN stays."""
    c = np.float32(limit)
    return [np.where(g > c, c, np.where(g < -c, -c, g)) for g in grads]
