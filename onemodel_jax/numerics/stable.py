"""softmax, log_softmax and logsumexp, shifted by the maximum so that nothing overflows.

Everything happens in x's dtype, one rounding an operation, but for the sum, which is
the block sum (SPEC, "Softmax"). A NaN in a row makes the row NaN. Hand-written VJPs:
reverse mode, first order, with defined gradients at the infinities.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import ShapedArray

from onemodel_jax._checks import check_arithmetic, describe, fail
from onemodel_jax._types import EXACT, Arithmetic, Array, ArrayLike
from onemodel_jax.numerics import elementary
from onemodel_jax.numerics.exact import add, div, mul, sub
from onemodel_jax.numerics.primitives import define
from onemodel_jax.numerics.reduce import narrow, rows, sum64, wide, widen
from onemodel_jax.numerics.softfloat import (
    bits_of,
    flush64,
    from_bits,
    is_nan,
    order_key,
)


def _exp(x: Array, arithmetic: Arithmetic) -> Array:
    function = elementary.exp if x.dtype == jnp.float32 else elementary.exp64
    return function(x, arithmetic=arithmetic)


def _log(x: Array, arithmetic: Arithmetic) -> Array:
    function = elementary.log if x.dtype == jnp.float32 else elementary.log64
    return function(x, arithmetic=arithmetic)


def _total(x: Array, arithmetic: Arithmetic) -> Array:
    """Return the block sum over the last axis, kept, rounded once to x's dtype."""
    return narrow(sum64(widen(x), arithmetic), x)[..., None]


def _row_maximum(x: Array) -> Array:
    """By integer keys: the hardware compares subnormals as zeros."""
    if x.dtype == jnp.float64:
        x = flush64(x)
    key = order_key(bits_of(x))
    least = order_key(bits_of(jnp.asarray(-jnp.inf, x.dtype)))
    top = jnp.max(jnp.where(is_nan(x), least, key), -1, initial=least)
    any_nan = jnp.any(is_nan(x), axis=-1)
    return jnp.where(any_nan, jnp.nan, from_bits(order_key(top)))


def _abstract(x: Any) -> ShapedArray:
    return ShapedArray(x.shape[:-1], x.dtype)


def _batch(operands: Any, axes: Any) -> tuple[Array, int]:
    return row_maximum_p.bind(jnp.moveaxis(operands[0], axes[0], 0)), 0


row_maximum_p = define("row_maximum", _row_maximum, _abstract, _batch)


def _maximum(x: Array) -> Array:
    """Return the maximum of the last axis, kept; NaN if there is one, -inf of nothing.

    A primitive, so that programs show it by its name.
    """
    return row_maximum_p.bind(x)[..., None]


def _classes(function: str, x: ArrayLike, axis: int) -> Array:
    """Validate, and return x with the axis of the classes last."""
    if axis is None:
        fail(ValueError, function, "axis", f"an axis of {describe(x)}", "None")
    return rows(function, x, axis)


def _core(function: Any) -> Any:
    """A custom-VJP core of (x, arithmetic), traced with 64-bit types."""
    return functools.partial(jax.custom_vjp, nondiff_argnums=(1,))(wide(function))


# softmax: grad_x = y (grad - sum(grad y)).


@_core
def _softmax(x: Array, arithmetic: Arithmetic) -> Array:
    e = _exp(sub(x, _maximum(x), arithmetic=arithmetic), arithmetic)
    return div(e, _total(e, arithmetic), arithmetic=arithmetic)


def _softmax_fwd(x: Array, arithmetic: Arithmetic) -> tuple[Array, Array]:
    y = _softmax(x, arithmetic)
    return y, y


@wide
def _softmax_bwd(arithmetic: Arithmetic, y: Array, grad: Array) -> tuple[Array]:
    inner = _total(mul(grad, y, arithmetic=arithmetic), arithmetic)
    return (mul(y, sub(grad, inner, arithmetic=arithmetic), arithmetic=arithmetic),)


_softmax.defvjp(_softmax_fwd, _softmax_bwd)


def softmax(x: ArrayLike, *, axis: int = -1, arithmetic: Arithmetic = EXACT) -> Array:
    """Return e^x / sum e^x over ``axis``.

    Rounding (SPEC, "Softmax"): s = x - max; e = exp(s); t = block_sum(e); y = e / t,
    each rounded to x's dtype. Gradient: y (grad - block_sum(grad y)).

    A row with +inf, with NaN, or of -inf alone is NaN, as in PyTorch, and so is its
    gradient; any other -inf has probability and gradient 0.

    Args:
      x: float32 or float64, rank at least 1.
      axis: the axis of the classes; it may be empty.
      arithmetic: "exact" or "fast" (the same steps in plain jnp).

    Raises:
      TypeError: x is not a float32 or float64 array.
      ValueError: axis is out of range.
    """
    check_arithmetic("softmax", arithmetic)
    with jax.enable_x64(True):
        y = _softmax(_classes("softmax", x, axis), arithmetic)
        return jnp.moveaxis(y, -1, axis)


# log_softmax: grad_x = grad - e^y sum(grad).


@_core
def _log_softmax(x: Array, arithmetic: Arithmetic) -> Array:
    s = sub(x, _maximum(x), arithmetic=arithmetic)
    total = _total(_exp(s, arithmetic), arithmetic)
    return sub(s, _log(total, arithmetic), arithmetic=arithmetic)


def _log_softmax_fwd(x: Array, arithmetic: Arithmetic) -> tuple[Array, Array]:
    y = _log_softmax(x, arithmetic)
    return y, y


@wide
def _log_softmax_bwd(arithmetic: Arithmetic, y: Array, grad: Array) -> tuple[Array]:
    pulled = mul(_exp(y, arithmetic), _total(grad, arithmetic), arithmetic=arithmetic)
    return (sub(grad, pulled, arithmetic=arithmetic),)


_log_softmax.defvjp(_log_softmax_fwd, _log_softmax_bwd)


def log_softmax(
    x: ArrayLike, *, axis: int = -1, arithmetic: Arithmetic = EXACT
) -> Array:
    """Return x - log sum e^x over ``axis``; finite where log(softmax) is -inf.

    Rounding (SPEC, "Softmax"): s = x - max; t = block_sum(exp(s)); y = s - log(t),
    each rounded to x's dtype. Gradient: grad - exp(y) block_sum(grad).

    Rows that make softmax NaN are NaN here; any other -inf stays -inf. Arguments and
    errors as for :func:`softmax`.
    """
    check_arithmetic("log_softmax", arithmetic)
    with jax.enable_x64(True):
        y = _log_softmax(_classes("log_softmax", x, axis), arithmetic)
        return jnp.moveaxis(y, -1, axis)


# logsumexp: grad_x = grad e^(x - y).


@_core
def _logsumexp(x: Array, arithmetic: Arithmetic) -> Array:
    top = _maximum(x)
    shift = jnp.where(jnp.isinf(top), 0.0, top).astype(x.dtype)
    e = _exp(sub(x, shift, arithmetic=arithmetic), arithmetic)
    log = _log(_total(e, arithmetic), arithmetic)
    return add(log, shift, arithmetic=arithmetic)[..., 0]


def _logsumexp_fwd(
    x: Array, arithmetic: Arithmetic
) -> tuple[Array, tuple[Array, Array]]:
    y = _logsumexp(x, arithmetic)
    return y, (x, y)


@wide
def _logsumexp_bwd(
    arithmetic: Arithmetic, residuals: tuple[Array, Array], grad: Array
) -> tuple[Array]:
    x, y = residuals
    y, grad = y[..., None], grad[..., None]
    share = _exp(sub(x, y, arithmetic=arithmetic), arithmetic)
    tops = x == jnp.inf
    # At least 1, so that rows without +inf divide nothing by zero.
    count = jnp.maximum(jnp.sum(tops, axis=-1, keepdims=True), 1).astype(x.dtype)
    equal = div(tops.astype(x.dtype), count, arithmetic=arithmetic)
    share = jnp.where(y == jnp.inf, equal, share)
    share = jnp.where(y == -jnp.inf, 0.0, share).astype(x.dtype)
    return (mul(share, grad, arithmetic=arithmetic),)


_logsumexp.defvjp(_logsumexp_fwd, _logsumexp_bwd)


def logsumexp(x: ArrayLike, *, axis: int = -1, arithmetic: Arithmetic = EXACT) -> Array:
    """Return log sum e^x over ``axis``.

    Rounding (SPEC, "Softmax"): m = max, 0 if infinite; t = block_sum(exp(x - m));
    y = log(t) + m, each rounded to x's dtype. Gradient: grad exp(x - y).

    -inf alone, or nothing, gives -inf, with gradient 0; a +inf gives +inf, and the
    entries equal to +inf share the gradient equally. Arguments and errors as for
    :func:`softmax`.
    """
    check_arithmetic("logsumexp", arithmetic)
    with jax.enable_x64(True):
        return _logsumexp(_classes("logsumexp", x, axis), arithmetic)
