"""Binary cross entropy on logits, in binary64, with its gradients.

exp sees only non-positive arguments and log1p sees what it returns, so nothing
overflows and nothing is rounded away (SPEC, "Binary cross entropy"). One logit is one
yes-or-no question; classes that exclude each other need a softmax.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from onemodel_jax._checks import (
    check_arithmetic,
    check_dtype,
    check_option,
    check_shape,
    describe,
    fail,
)
from onemodel_jax._types import EXACT, Arithmetic, Array, ArrayLike, custom_vjp
from onemodel_jax.numerics.elementary import exp64, log1p64
from onemodel_jax.numerics.exact import add, div, mul, sub
from onemodel_jax.numerics.reduce import block_sum, mean, narrow, sum64, wide, widen
from onemodel_jax.numerics.softfloat import flush64


class Residuals(NamedTuple):
    """What the backward pass needs: the arguments.

    Attributes:
      logits, targets: (...) float32 or float64.
      pos_weight: of a shape that broadcasts to theirs.
    """

    logits: Array
    targets: Array
    pos_weight: Array


class _Parts(NamedTuple):
    """Shared by value and gradients; all (...) float64, in the letters of SPEC."""

    positive: Array  # bool, x >= 0
    a: Array  # |x|
    t: Array
    p: Array
    e: Array  # exp(-a)
    log: Array  # log(1 + e)
    r: Array  # 1 - t
    q: Array  # p t


def _times(x: Array, y: Array, arithmetic: Arithmetic) -> Array:
    """Return x y, but +0 for 0 times an infinity: what has no weight does not count."""
    x, y = jnp.broadcast_arrays(x, y)
    nothing = (x == 0) & (jnp.abs(y) == jnp.inf)
    nothing = nothing | ((y == 0) & (jnp.abs(x) == jnp.inf))
    return jnp.where(nothing, 0.0, mul(x, y, arithmetic=arithmetic))


def _open(x: Array) -> Array:
    """Return x as float64; comparisons must see float64 subnormals flushed."""
    return flush64(x) if x.dtype == jnp.float64 else widen(x)


def _parts(saved: Residuals, arithmetic: Arithmetic) -> _Parts:
    x, t, p = map(_open, saved)
    p = jnp.broadcast_to(p, x.shape)
    a = jnp.abs(x)
    e = exp64(-a, arithmetic=arithmetic)
    log = log1p64(e, arithmetic=arithmetic)
    r = sub(1.0, t, arithmetic=arithmetic)
    return _Parts(x >= 0, a, t, p, e, log, r, _times(p, t, arithmetic))


@custom_vjp(nondiff_argnums=(3,))
@wide
def _bce(logits: Array, targets: Array, pos_weight: Array, arithmetic: Arithmetic):
    """a u + w L: u is 1 - t for x >= 0, p t below; w = (1 - t) + p t."""
    parts = _parts(Residuals(logits, targets, pos_weight), arithmetic)
    w = jnp.where(parts.p == 1, 1.0, add(parts.r, parts.q, arithmetic=arithmetic))
    u = jnp.where(parts.positive, parts.r, parts.q)
    line, bend = _times(parts.a, u, arithmetic), _times(w, parts.log, arithmetic)
    loss = add(line, bend, arithmetic=arithmetic)
    return narrow(loss, logits)


def _bce_fwd(
    logits: Array, targets: Array, pos_weight: Array, arithmetic: Arithmetic
) -> tuple[Array, Residuals]:
    loss = _bce(logits, targets, pos_weight, arithmetic)
    return loss, Residuals(logits, targets, pos_weight)


# loss = p t softplus(-x) + (1 - t) softplus(x), and softplus' = sigmoid:
#   d/dx = (1 - t) sigmoid(x) - p t sigmoid(-x), which for p = 1 is sigmoid(x) - t;
#   d/dt = p softplus(-x) - softplus(x), which for p = 1 is -x;
#   d/dp = t softplus(-x).


def _logit_slope(parts: _Parts, arithmetic: Arithmetic) -> Array:
    below = add(1.0, parts.e, arithmetic=arithmetic)
    near = div(1.0, below, arithmetic=arithmetic)
    far = div(parts.e, below, arithmetic=arithmetic)
    high = jnp.where(parts.positive, near, far)  # sigmoid(x)
    low = jnp.where(parts.positive, far, near)  # sigmoid(-x)
    up, down = _times(parts.r, high, arithmetic), _times(parts.q, low, arithmetic)
    return sub(up, down, arithmetic=arithmetic)


def _target_slope(parts: _Parts, arithmetic: Arithmetic) -> Array:
    line = _times(jnp.where(parts.positive, -1.0, parts.p), parts.a, arithmetic)
    more = sub(parts.p, 1.0, arithmetic=arithmetic)
    return add(line, _times(more, parts.log, arithmetic), arithmetic=arithmetic)


def _weight_slope(parts: _Parts, arithmetic: Arithmetic) -> Array:
    both = add(parts.a, parts.log, arithmetic=arithmetic)
    softplus = jnp.where(parts.positive, parts.log, both)
    return _times(parts.t, softplus, arithmetic)


def _sum_to(x: Array, shape: tuple[int, ...], arithmetic: Arithmetic) -> Array:
    """Return x summed over the axes that broadcasting from ``shape`` has stretched."""
    lead = x.ndim - len(shape)
    summed = [k for k in range(x.ndim) if k < lead or shape[k - lead] == 1]
    kept = [k for k in range(x.ndim) if k not in summed]
    rows = [math.prod(x.shape[k] for k in axes) for axes in (kept, summed)]
    x = x.transpose(*kept, *summed).reshape(rows)
    return sum64(x, arithmetic).reshape(shape)


@wide
def _bce_bwd(
    arithmetic: Arithmetic, saved: Residuals, grad: Array
) -> tuple[Array, ...]:
    parts, grad = _parts(saved, arithmetic), _open(grad)

    def pulled(slope: Any) -> Array:
        return _times(grad, slope(parts, arithmetic), arithmetic)

    weights = _sum_to(pulled(_weight_slope), saved.pos_weight.shape, arithmetic)
    grads = pulled(_logit_slope), pulled(_target_slope), weights
    return tuple(narrow(g, saved.logits) for g in grads)


_bce.defvjp(_bce_fwd, _bce_bwd)


def bce_with_logits(
    logits: ArrayLike,
    targets: ArrayLike,
    *,
    pos_weight: ArrayLike | None = None,
    reduction: str = "mean",
    arithmetic: Arithmetic = EXACT,
) -> Array:
    """Return -(p t log sigmoid(x) + (1 - t) log(1 - sigmoid(x))), never NaN of numbers.

    For p = 1 it is max(x, 0) - x t + log(1 + e^-|x|). Rounding, in binary64 with one
    rounding to the logits' dtype at the end (SPEC, "Binary cross entropy"):

    1. e = exp64(-|x|), l = log1p64(e), r = 1 - t, q = p t;
    2. loss = |x| u + w l, with u = r for x >= 0 and q below, and w = r + q, or 1 where
       p is 1: weight 1 and no weight give the same bits.
    3. "mean" and "sum" are ``numerics.mean`` and ``numerics.block_sum`` of the rounded
       losses in row-major order; the mean of nothing is NaN.

    Zero times an infinity is +0 throughout: the loss of -inf with target 0 and of +inf
    with target 1 is 0, a wrong or soft target at an infinite logit costs +inf. NaN
    stays NaN. Targets are used as they are: outside [0, 1] the formula goes on.

    Gradients, reverse mode, first order: (1 - t) sigmoid(x) - p t sigmoid(-x) in x,
    that is sigmoid(x) - t for p = 1, finite at the infinities; p softplus(-x) -
    softplus(x) in t, that is -x; t softplus(-x) in p, summed over broadcast axes.

    Args:
      logits: (...) float32 or float64, any shape.
      targets: the logits' shape and dtype, probabilities in [0, 1].
      pos_weight: weight of the positive term: a number, or an array of the logits'
        dtype that broadcasts to their shape, as (C,) does to (B, C). Default: 1.
      reduction: "mean" over all elements, "sum", or "none".
      arithmetic: "exact" or "fast" (the same steps by XLA's own operations).

    Returns:
      The logits' dtype; () or, for "none", the logits' shape.

    Raises:
      TypeError: logits are not float32 or float64, or another dtype is not theirs.
      ValueError: a shape does not fit, or reduction is none of the three.

    Example:
      loss = bce_with_logits(logits, labels, pos_weight=3.0)
    """
    name = "bce_with_logits"
    check_arithmetic(name, arithmetic)
    check_option(name, "reduction", reduction, ("mean", "sum", "none"))
    with jax.enable_x64(True):
        x = _array(name, "logits", logits, "float32", "float64")
        t = _array(name, "targets", targets, str(x.dtype))
        check_shape(name, "targets", t, x.shape)
        p = _weight(name, 1.0 if pos_weight is None else pos_weight, x)
        loss = _bce(x, t, p, arithmetic)
        if reduction == "none":
            return loss
        total = mean if reduction == "mean" else block_sum
        return total(loss, arithmetic=arithmetic)


def _array(name: str, argument: str, value: Any, *dtypes: str) -> Array:
    if not hasattr(value, "dtype"):
        fail(TypeError, name, argument, " or ".join(dtypes), describe(value))
    check_dtype(name, argument, value, *dtypes)
    return jnp.asarray(value)


def _weight(name: str, value: Any, logits: Array) -> Array:
    if type(value) in (int, float):
        return jnp.asarray(value, logits.dtype)
    p = _array(name, "pos_weight", value, str(logits.dtype))
    try:
        fits = np.broadcast_shapes(p.shape, logits.shape) == logits.shape
    except ValueError:
        fits = False
    if not fits:
        expected = f"a shape that broadcasts to {list(logits.shape)}"
        fail(ValueError, name, "pos_weight", expected, describe(p))
    return p
