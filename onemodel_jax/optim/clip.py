"""Gradient norms and clipping (SPEC, "Gradient norm and clipping")."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from onemodel_jax._checks import check_arithmetic, fail, number
from onemodel_jax._tree import join, split
from onemodel_jax._types import EXACT, Arithmetic, Array, PyTree
from onemodel_jax.numerics.convert import narrow, widen
from onemodel_jax.numerics.exact import add, div, mul, sqrt
from onemodel_jax.numerics.lanes import batched_matmul
from onemodel_jax.numerics.primitives import island
from onemodel_jax.optim.optimizer import check_float32

_GUARD = 1e-6


def _positive(function: str, argument: str, value: Any) -> float:
    """Return ``value`` as a float, refusing negative numbers and NaN."""
    expected = "a number of at least 0"
    result = number(function, argument, value, expected)
    if not result >= 0.0:
        fail(ValueError, function, argument, expected, repr(value))
    return result


def _squared_norms(grads: list[Array], exact: bool) -> Array:
    """Return (N,) float32: each tensor's lane dot with itself.

    All tensors are padded to the longest, +0 against -0, so that one product serves.
    """
    longest = max(g.size for g in grads)
    flat = [(g.reshape(-1), longest - g.size) for g in grads]
    x = jnp.stack([jnp.pad(g, (0, n)) for g, n in flat])
    minus = jnp.float32(-0.0)
    y = jnp.stack([jnp.pad(g, (0, n), constant_values=minus) for g, n in flat])
    return batched_matmul(x[:, None], y[:, None], exact=exact)[:, 0, 0]


def norm_of_dots(grads: PyTree, *, arithmetic: Arithmetic = EXACT) -> Array:
    """Return the recognizer's gradient norm, () float64.

    Rounding: the lane dot of each tensor with itself in binary32; their sum, in
    parameter order, and its square root in binary64.

    Args:
      grads: tree of float32 tensors, in parameter order; an empty tree has norm 0.
      arithmetic: "exact" or "fast".

    Raises:
      TypeError: a gradient is not float32.
    """
    exact = check_arithmetic("norm_of_dots", arithmetic)
    check_float32("norm_of_dots", "grads", grads)
    leaves = jax.tree_util.tree_leaves(grads)
    with jax.enable_x64(True):
        zero = jnp.zeros((), jnp.float64)
        if not leaves:
            return zero
        dots = widen(_squared_norms(leaves, exact))
        total, _ = lax.scan(lambda t, x: (add(t, x), None), zero, dots)
        return sqrt(total)


def clip_by_dots(
    grads: PyTree, max_norm: float, *, arithmetic: Arithmetic = EXACT
) -> tuple[PyTree, Array]:
    """Scale the gradients to at most ``max_norm`` in the recognizer's way.

    Where :func:`norm_of_dots` is finite and exceeds ``max_norm``, every gradient is
    multiplied (one rounding) by float32(max_norm / (norm + 1e-6)); otherwise nothing
    changes, so a norm that is not finite scales nothing.

    Args:
      grads: tree of float32 tensors, in parameter order.
      max_norm: the limit, at least 0.
      arithmetic: "exact" or "fast".

    Returns:
      The gradients and the norm before clipping, () float32.

    Raises:
      TypeError: a gradient is not float32, or max_norm not a number.
      ValueError: max_norm is negative or NaN.
    """
    limit = _positive("clip_by_dots", "max_norm", max_norm)
    check_float32("clip_by_dots", "grads", grads)
    norm = norm_of_dots(grads, arithmetic=arithmetic)
    leaves, tree = jax.tree_util.tree_flatten(grads)
    with jax.enable_x64(True):
        factor = island(lambda n: narrow(div(limit, add(n, _GUARD))), norm)
        clip = (norm > limit) & (norm < jnp.inf)
        rounded = narrow(norm)
    if not leaves:
        return grads, rounded

    def scale(grad: Array) -> Array:
        return jnp.where(clip, mul(grad, factor, arithmetic=arithmetic), grad)

    scaled = split(island(scale, join(leaves)), [g.shape for g in leaves])
    return jax.tree_util.tree_unflatten(tree, scaled), rounded
