"""The 16-lane dot product and what is built from it (SPEC, "Lane dot").

Element k goes into partial k mod 16 by a fused multiply-add, in ascending k, from
+0; then the partials are added in halves: 8, 4, 2, 1.
"""

import math

import numpy as np

from onemodel_jax.reference.lanes.arithmetic import fma32

LANES = 16
_ELEMENTS = 1 << 18  # working-set bound of one row block; does not touch any bit


@np.errstate(all="ignore")
def halving_tree(partials: np.ndarray) -> np.ndarray:
    """Add 16 partials (16, ...) in halves: p[i] + p[i + s] for s = 8, 4, 2, 1."""
    p = partials
    for half in (8, 4, 2, 1):
        p = p[:half] + p[half : 2 * half]
    return p[0]


def matmul(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Return the lane dots of the rows of x and the rows of w.

    Args:
      x: (M, K) float32.
      w: (N, K) float32.

    Returns:
      (M, N) float32; element (m, n) is ``dot(x[m], w[n])``. K = 0 gives +0.

    Raises:
      ValueError: the operands are not matrices with the same K.
    """
    x, w = np.asarray(x, np.float32), np.asarray(w, np.float32)
    if x.ndim != 2 or w.ndim != 2 or x.shape[1] != w.shape[1]:
        raise ValueError(
            f"matmul: operands: expected (M, K) and (N, K), got {x.shape}, {w.shape}"
        )
    out = np.zeros((x.shape[0], w.shape[0]), np.float32)
    rows = max(1, _ELEMENTS // max(1, LANES * w.shape[0]))
    for top in range(0, x.shape[0], rows):
        out[top : top + rows] = _row_block(x[top : top + rows], w)
    return out


def _row_block(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    partials = np.zeros((LANES, x.shape[0], w.shape[0]), np.float32)
    for start in range(0, x.shape[1], LANES):
        a = x[:, start : start + LANES].T[:, :, None]
        b = w[:, start : start + LANES].T[:, None, :]
        partials[: len(a)] = fma32(a, b, partials[: len(a)])
    return halving_tree(partials)


def dot(x: np.ndarray, y: np.ndarray) -> np.float32:
    """Return the lane dot of two (K,) float32 vectors."""
    return matmul(np.asarray(x)[None], np.asarray(y)[None])[0, 0]


def lane_sum(x: np.ndarray) -> np.ndarray:
    """Return the lane dot with ones over the last axis of x: (..., K) -> (...)."""
    x = np.asarray(x, np.float32)
    ones = np.ones((1, x.shape[-1]), np.float32)
    rows = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
    return matmul(rows, ones).reshape(x.shape[:-1])
