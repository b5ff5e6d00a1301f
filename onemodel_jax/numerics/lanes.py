"""The lane dot product: dot, matmul and lane_sum, one order for every shape.

Element k goes to lane k mod 16; each lane is a chain of fused multiply-adds in
ascending k from +0; the 16 lanes are added by a fixed halving tree (SPEC, "Lane dot").
One primitive carries all of it, with a batching rule of its own, so that vmap cannot
change an order. Like ``numerics.exact`` it has no differentiation rule.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.core import ShapedArray

from onemodel_jax._checks import check_arithmetic, check_axis, describe, fail
from onemodel_jax._types import EXACT, Arithmetic, Array, ArrayLike
from onemodel_jax.numerics import engines
from onemodel_jax.numerics.primitives import define

_emulated_only = False


def _abstract(x: Any, w: Any) -> ShapedArray:
    return ShapedArray((x.shape[0], x.shape[1], w.shape[1]), x.dtype)


def _product(x: Array, w: Array) -> Array:
    """Lower x (G, M, K), w (G, N, K): the fastest engine that may serve it."""
    (groups, rows, terms), columns = x.shape, w.shape[1]
    if 0 in (groups, rows, terms, columns):
        return jnp.zeros((groups, rows, columns), jnp.float32)
    if _emulated_only:
        return engines.emulated(x, w)
    # Constants must not reach the fast engine: the compiler folds products of two
    # constants with a rounding of their own, and the certificate saw no constants.
    x, w = lax.optimization_barrier((x, w))
    shape = (groups, rows, terms, columns)
    if engines.certified(engines.forced, *shape):
        guard = engines.far_from_subnormal(x, w)
        return lax.cond(guard, engines.forced, engines.emulated, x, w)
    if engines.certified(engines.checked, *shape):
        out, doubtful = engines.checked(x, w)
        good = engines.far_from_subnormal(x, w) & ~doubtful
        return lax.cond(good, lambda *_: out, engines.emulated, x, w)
    return engines.emulated(x, w)


def _batch(operands: Any, axes: Any) -> tuple[Array, int]:
    (x, w), (x_axis, w_axis) = operands, axes
    if x_axis is not None:
        x = jnp.moveaxis(x, x_axis, 0)
    if w_axis is not None:
        w = jnp.moveaxis(w, w_axis, 0)
    size = x.shape[0] if x_axis is not None else w.shape[0]
    groups, rows, columns = x.shape[-3], x.shape[-2], w.shape[-2]
    if w_axis is None:  # the batch joins the rows
        merged = x.transpose(1, 0, 2, 3).reshape(groups, size * rows, x.shape[-1])
        out = lane_matmul_p.bind(merged, w)
        return out.reshape(groups, size, rows, columns), 1
    if x_axis is None:  # the batch joins the columns
        merged = w.transpose(1, 0, 2, 3).reshape(groups, size * columns, w.shape[-1])
        out = lane_matmul_p.bind(x, merged)
        return out.reshape(groups, rows, size, columns), 2
    merged_x, merged_w = (v.reshape(size * groups, *v.shape[2:]) for v in (x, w))
    out = lane_matmul_p.bind(merged_x, merged_w)
    return out.reshape(size, groups, rows, columns), 0


lane_matmul_p = define("lane_matmul", _product, _abstract, _batch)


def _check(function: str, x: Any, w: Any, name: str) -> None:
    for argument, value in (("x", x), (name, w)):
        if str(getattr(value, "dtype", None)) != "float32":
            fail(TypeError, function, argument, "float32", describe(value))


def matmul(x: ArrayLike, w: ArrayLike, *, arithmetic: Arithmetic = EXACT) -> Array:
    """Return x @ w.T: out[..., m, n] is the lane dot of x[..., m, :] and w[n, :].

    Rounding (SPEC, "Lane dot"): K fused multiply-adds in 16 binary32 lanes, 15
    additions. The bits of an element depend on its two rows alone.

    Args:
      x: (..., M, K) float32; any sizes, 0 included.
      w: (N, K) float32.
      arithmetic: "exact" or "fast" (``jnp.matmul``, XLA's own order).

    Returns:
      (..., M, N) float32; +0 everywhere if K is 0.

    Raises:
      TypeError: an operand is not a float32 array.
      ValueError: a rank is too small, or the K axes differ.
    """
    _check("matmul", x, w, "w")
    x, w = jnp.asarray(x), jnp.asarray(w)
    if x.ndim < 2:
        fail(ValueError, "matmul", "x", "rank of at least 2", describe(x))
    if w.ndim != 2:
        fail(ValueError, "matmul", "w", "rank 2", describe(w))
    if x.shape[-1] != w.shape[-1]:
        fail(ValueError, "matmul", "w", f"shape [*,{x.shape[-1]}]", describe(w))
    if not check_arithmetic("matmul", arithmetic):
        return jnp.matmul(x, w.T)
    rows = x.reshape(1, _rows(x), x.shape[-1])
    return lane_matmul_p.bind(rows, w[None]).reshape(*x.shape[:-1], w.shape[0])


def _rows(x: Array) -> int:
    count = 1
    for size in x.shape[:-1]:
        count *= size
    return count


def batched_matmul(x: Array, w: Array, *, exact: bool) -> Array:
    """Return out[g, m, n] = dot(x[g, m, :], w[g, n, :]); x (G, M, K), w (G, N, K)."""
    if not exact:
        return lax.dot_general(x, w, (((2,), (2,)), ((0,), (0,))))
    return lane_matmul_p.bind(x, w)


def dot(x: ArrayLike, y: ArrayLike, *, arithmetic: Arithmetic = EXACT) -> Array:
    """Return the lane dot of two vectors, () float32 (SPEC, "Lane dot").

    Args:
      x, y: (K,) float32.
      arithmetic: "exact" or "fast" (``jnp.dot``).

    Raises:
      TypeError: an operand is not a float32 array.
      ValueError: a rank is not 1, or the lengths differ.
    """
    _check("dot", x, y, "y")
    x, y = jnp.asarray(x), jnp.asarray(y)
    if x.ndim != 1:
        fail(ValueError, "dot", "x", "rank 1", describe(x))
    if y.shape != x.shape:
        fail(ValueError, "dot", "y", describe(x), describe(y))
    if not check_arithmetic("dot", arithmetic):
        return jnp.dot(x, y)
    return lane_matmul_p.bind(x[None, None], y[None, None])[0, 0, 0]


def lane_sum(x: ArrayLike, *, axis: int = -1, arithmetic: Arithmetic = EXACT) -> Array:
    """Return the sum over ``axis``: the lane dot with a row of ones.

    fma(x, 1, p) is x + p rounded once, so this is the 16-lane sum in index order.

    Args:
      x: float32, rank at least 1.
      axis: the axis to sum over.
      arithmetic: "exact" or "fast" (``jnp.sum``).

    Raises:
      TypeError: x is not a float32 array.
      ValueError: axis is out of range.
    """
    _check("lane_sum", x, x, "x")
    x = jnp.asarray(x)
    check_axis("lane_sum", axis, x)
    if not check_arithmetic("lane_sum", arithmetic):
        return jnp.sum(x, axis=axis)
    moved = jnp.moveaxis(x, axis, -1)
    ones = jnp.ones((1, moved.shape[-1]), jnp.float32)
    rows = moved.reshape(1, _rows(moved), moved.shape[-1])
    return lane_matmul_p.bind(rows, ones[None]).reshape(moved.shape[:-1])


@contextmanager
def emulated_only() -> Iterator[None]:
    """Bar every fast engine from programs traced inside the context.

    For ``onemodel verify``, which runs a step both ways. JAX's caches are cleared on
    the way in and out, because a cached program keeps the engine it was built with.
    """
    global _emulated_only
    before = _emulated_only
    _emulated_only = True
    jax.clear_caches()
    try:
        yield
    finally:
        _emulated_only = before
        jax.clear_caches()
