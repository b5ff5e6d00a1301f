"""Sums in binary64 by fixed blocks: block_sum, mean and the two-pass var.

The order depends on the number of terms alone (SPEC, "Block sum"), never on threads,
devices or the batch. Each function has a hand-written VJP beside it: reverse mode,
first order. The 16-lane sums of the training library are ``numerics.lane_sum``.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.core import ShapedArray

from onemodel_jax._checks import (
    check_arithmetic,
    check_axis,
    describe,
    fail,
    not_negative,
)
from onemodel_jax._types import EXACT, Arithmetic, Array, ArrayLike
from onemodel_jax.numerics import convert
from onemodel_jax.numerics.exact import div, mul, sub
from onemodel_jax.numerics.primitives import define
from onemodel_jax.numerics.softfloat import add64

LANES = 8
BLOCK = 16_384


def _block_sum(x: Array) -> Array:
    """Sum the rows of x (R, K) float64 to (R,).

    Element k of a block goes to lane k mod 8, ascending, from +0; the lanes are added
    in halves; the blocks are added as neighbours, a last odd one passing through.
    """
    rows, terms = x.shape
    blocks = max(-(-terms // BLOCK), 1)
    steps = -(-min(terms, BLOCK) // LANES)
    # -0 pads a tail: p + -0 is p for every p.
    x = jnp.pad(x, ((0, 0), (0, blocks * steps * LANES - terms)), constant_values=-0.0)
    x = x.reshape(rows, blocks, steps, LANES).transpose(2, 3, 0, 1)
    zero = jnp.zeros((LANES, rows, blocks), jnp.float64)
    p, _ = lax.scan(
        lambda p, v: (add64(p, v), None), zero, x, unroll=min(steps, 8) or 1
    )
    for half in (4, 2, 1):
        p = add64(p[:half], p[half : 2 * half])
    return _neighbours(p[0])


def _neighbours(sums: Array) -> Array:
    """Add (R, N) along N: b[0] + b[1], b[2] + b[3], ..., until one is left."""
    while sums.shape[1] > 1:
        even = sums.shape[1] // 2 * 2
        added = add64(sums[:, 0:even:2], sums[:, 1:even:2])
        sums = jnp.concatenate([added, sums[:, even:]], axis=1)
    return sums[:, 0]


def _abstract(x: Any) -> ShapedArray:
    return ShapedArray(x.shape[:1], x.dtype)


def _batch(operands: Any, axes: Any) -> tuple[Array, int]:
    x = jnp.moveaxis(operands[0], axes[0], 0)
    out = block_sum_p.bind(x.reshape(x.shape[0] * x.shape[1], x.shape[2]))
    return out.reshape(x.shape[:2]), 0


block_sum_p = define("block_sum", _block_sum, _abstract, _batch)


def widen(x: Array) -> Array:
    """Return float32 or float64 x as float64, exactly."""
    return convert.widen(x) if x.dtype == jnp.float32 else x


def narrow(x: Array, like: Array) -> Array:
    """Return float64 x rounded once to the dtype of ``like``."""
    return convert.narrow(x) if like.dtype == jnp.float32 else x


def sum64(x: Array, arithmetic: Arithmetic) -> Array:
    """Return the float64 block sum of float64 x over its last axis."""
    if arithmetic != EXACT:
        return jnp.sum(x, axis=-1)
    size = math.prod(x.shape[:-1])
    return block_sum_p.bind(x.reshape(size, x.shape[-1])).reshape(x.shape[:-1])


def rows(function: str, x: ArrayLike, axis: int | None) -> Array:
    """Validate, and return x with the reduced axis last (all of it for None).

    Raises:
      TypeError: x is not a float32 or float64 array.
      ValueError: axis is out of range.
    """
    if str(getattr(x, "dtype", None)) not in ("float32", "float64"):
        fail(TypeError, function, "x", "float32 or float64", describe(x))
    x = jnp.asarray(x)
    if axis is None:
        return x.reshape(x.size)
    check_axis(function, axis, x)
    return jnp.moveaxis(x, axis, -1)


def wide(function: Any) -> Any:
    """Trace ``function`` with 64-bit types enabled, whenever it is traced."""

    @functools.wraps(function)
    def wrapped(*args):
        with jax.enable_x64(True):
            return function(*args)

    return wrapped


# block_sum: grad_x[k] = grad.


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
@wide
def _sum(x: Array, arithmetic: Arithmetic) -> Array:
    return narrow(sum64(widen(x), arithmetic), x)


def _sum_fwd(x: Array, arithmetic: Arithmetic) -> tuple[Array, Array]:
    return _sum(x, arithmetic), x


def _sum_bwd(arithmetic: Arithmetic, x: Array, grad: Array) -> tuple[Array]:
    return (jnp.broadcast_to(grad[..., None], x.shape),)


_sum.defvjp(_sum_fwd, _sum_bwd)


def block_sum(
    x: ArrayLike, *, axis: int | None = None, arithmetic: Arithmetic = EXACT
) -> Array:
    """Return the sum of x, accumulated in binary64 and rounded once.

    Rounding (SPEC, "Block sum"): 8 lanes a block of 16,384, halves, then neighbours.
    No terms give +0. The gradient of every element is the cotangent.

    Args:
      x: float32 or float64, any shape.
      axis: the axis to sum over; None: all elements, in row-major order.
      arithmetic: "exact" or "fast" (``jnp.sum`` in binary64).

    Returns:
      x's dtype, the other axes.

    Raises:
      TypeError: x is not a float32 or float64 array.
      ValueError: axis is out of range.
    """
    check_arithmetic("block_sum", arithmetic)
    with jax.enable_x64(True):
        return _sum(rows("block_sum", x, axis), arithmetic)


# mean: grad_x[k] = grad / K.


def mean64(x: Array, arithmetic: Arithmetic) -> Array:
    """Return the float64 mean of float64 x over its last axis."""
    count = float(x.shape[-1])
    return div(sum64(x, arithmetic), count, arithmetic=arithmetic)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
@wide
def _mean(x: Array, arithmetic: Arithmetic) -> Array:
    return narrow(mean64(widen(x), arithmetic), x)


def _mean_fwd(x: Array, arithmetic: Arithmetic) -> tuple[Array, Array]:
    return _mean(x, arithmetic), x


@wide
def _mean_bwd(arithmetic: Arithmetic, x: Array, grad: Array) -> tuple[Array]:
    each = div(widen(grad), float(x.shape[-1]), arithmetic=arithmetic)
    return (jnp.broadcast_to(narrow(each, x)[..., None], x.shape),)


_mean.defvjp(_mean_fwd, _mean_bwd)


def mean(
    x: ArrayLike, *, axis: int | None = None, arithmetic: Arithmetic = EXACT
) -> Array:
    """Return the mean: the binary64 block sum divided by K, rounded once to x's dtype.

    Both roundings are to nearest even. The mean of nothing is NaN. Its gradient is
    grad / K, formed in binary64. Arguments and errors as for :func:`block_sum`.
    """
    check_arithmetic("mean", arithmetic)
    with jax.enable_x64(True):
        return _mean(rows("mean", x, axis), arithmetic)


# var: with d = x - mean(x), var = sum d^2 / (K - c); grad_x[k] = grad 2 d[k] / (K - c),
# because the d sum to zero.


def _deviations(x: Array, arithmetic: Arithmetic) -> Array:
    x = widen(x)
    centre = mean64(x, arithmetic)[..., None]
    return sub(x, centre, arithmetic=arithmetic)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
@wide
def _var(x: Array, correction: float, arithmetic: Arithmetic) -> Array:
    d = _deviations(x, arithmetic)
    total = sum64(mul(d, d, arithmetic=arithmetic), arithmetic)
    divisor = max(x.shape[-1] - correction, 0.0)
    return narrow(div(total, divisor, arithmetic=arithmetic), x)


def _var_fwd(
    x: Array, correction: float, arithmetic: Arithmetic
) -> tuple[Array, Array]:
    return _var(x, correction, arithmetic), x


@wide
def _var_bwd(
    correction: float, arithmetic: Arithmetic, x: Array, grad: Array
) -> tuple[Array]:
    d = _deviations(x, arithmetic)
    divisor = max(x.shape[-1] - correction, 0.0)
    slope = div(mul(2.0, d, arithmetic=arithmetic), divisor, arithmetic=arithmetic)
    grad_x = mul(slope, widen(grad)[..., None], arithmetic=arithmetic)
    return (narrow(grad_x, x),)


_var.defvjp(_var_fwd, _var_bwd)


def var(
    x: ArrayLike,
    *,
    axis: int | None = None,
    correction: float = 0,
    arithmetic: Arithmetic = EXACT,
) -> Array:
    """Return the variance in two passes: the mean, then the squared deviations.

    Rounding: all in binary64, each operation once, the sums by blocks; one rounding to
    x's dtype at the end. The divisor is max(K - correction, 0): a division by zero is
    NaN, or +inf where deviations are not zero. Gradient: grad 2 (x - mean) / divisor.

    Args:
      x, axis, arithmetic: as for :func:`block_sum`.
      correction: 0 for the population variance, 1 for the unbiased estimate.

    Raises:
      TypeError: as for :func:`block_sum`, or correction is not a number.
      ValueError: as for :func:`block_sum`, or correction is negative or not finite.
    """
    check_arithmetic("var", arithmetic)
    count = not_negative("var", "correction", correction)
    with jax.enable_x64(True):
        return _var(rows("var", x, axis), count, arithmetic)
