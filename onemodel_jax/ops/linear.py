"""The linear layer y = x W^T + b over lines of rows, with its hand-written VJP."""

from typing import NamedTuple

import jax
import numpy as np

from onemodel_jax._checks import (
    check_arithmetic,
    check_rank,
    check_shape,
    describe,
    fail,
    float32_arrays,
    line_lengths,
)
from onemodel_jax._types import EXACT, Arithmetic, Array, ArrayLike, custom_vjp
from onemodel_jax.numerics.exact import add
from onemodel_jax.numerics.lanes import batched_matmul
from onemodel_jax.ops.lines import mask_rows, sum_in_line_order, weight_gradients


class Residuals(NamedTuple):
    """What the backward pass reads: x (B, T, D), weight (O, D), lengths (B,) int32."""

    x: Array
    weight: Array
    lengths: Array


def linear(
    x: ArrayLike,
    weight: ArrayLike,
    bias: ArrayLike,
    *,
    lengths: ArrayLike | None = None,
    arithmetic: Arithmetic = EXACT,
) -> Array:
    """Return x W^T + b.

    Rounding (SPEC, "Linear"): each output is the lane dot of its row and its filter,
    then one addition of the bias. Gradients, first order and reverse mode only:
    dx is a lane dot over the outputs; dW and db are lane dots over the rows t of a
    line, ascending, added over the lines in line order.

    Args:
      x: (..., T, D) float32, lines of T rows; (D,) is one row.
      weight: (O, D) float32.
      bias: (O,) float32.
      lengths: (B,) int32 for x (B, T, D): rows at and beyond a line's length count
        as absent; their output is 0. Default: T.
      arithmetic: "exact" or "fast".

    Returns:
      (..., T, O) float32.

    Raises:
      TypeError: an operand is not float32 (int32 for lengths).
      ValueError: a shape does not fit.
    """
    name = "linear"
    exact = check_arithmetic(name, arithmetic)
    x, weight, bias = float32_arrays(name, x=x, weight=weight, bias=bias)
    if x.ndim < 1:
        fail(ValueError, name, "x", "rank of at least 1", describe(x))
    check_rank(name, "weight", weight, 2)
    check_shape(name, "weight", weight, (None, x.shape[-1]))
    check_shape(name, "bias", bias, (weight.shape[0],))
    rows = x.shape[-2] if x.ndim > 1 else 1
    count = int(np.prod(x.shape[:-2], dtype=np.int64)) if x.ndim > 1 else 1
    lines = x.reshape(count, rows, x.shape[-1])
    lengths = line_lengths(name, "lengths", lengths, count, rows)
    y = _linear(lines, weight, bias, lengths, exact)
    return y.reshape(*x.shape[:-1], weight.shape[0])


@custom_vjp(nondiff_argnums=(4,))
def _linear(x, weight, bias, lengths, exact) -> Array:
    arithmetic: Arithmetic = EXACT if exact else "fast"
    rows = x.reshape(1, x.shape[0] * x.shape[1], x.shape[2])
    y = batched_matmul(rows, weight[None], exact=exact)[0]
    y = add(y, bias, arithmetic=arithmetic)
    return mask_rows(y.reshape(*x.shape[:2], weight.shape[0]), lengths)


def _fwd(x, weight, bias, lengths, exact):
    return _linear(x, weight, bias, lengths, exact), Residuals(x, weight, lengths)


def _bwd(exact, residuals: Residuals, dy: Array):
    """dx = dY W; dW = dY^T x and db = dY^T 1, a line at a time."""
    arithmetic: Arithmetic = EXACT if exact else "fast"
    x, weight, lengths = residuals
    dy = mask_rows(dy, lengths)
    flat = dy.reshape(1, x.shape[0] * x.shape[1], weight.shape[0])
    dx = batched_matmul(flat, weight.T[None], exact=exact)[0].reshape(x.shape)
    dw, db = weight_gradients(dy, mask_rows(x, lengths, -0.0), exact=exact)
    dw, db = sum_in_line_order((dw, db), arithmetic)
    # Beyond a line dy is 0, but 0 times an infinite weight is NaN: mask dx as well.
    dx = mask_rows(dx, lengths)
    return dx, dw, db, np.zeros(lengths.shape, jax.dtypes.float0)


_linear.defvjp(_fwd, _bwd)
