"""What every op over a batch of lines shares: adding per-line gradients in order."""

from collections.abc import Sequence

import jax.numpy as jnp
from jax import lax

from onemodel_jax._tree import split
from onemodel_jax._types import Arithmetic, Array
from onemodel_jax.numerics.exact import add
from onemodel_jax.numerics.lanes import batched_matmul


def sum_in_line_order(grads: Sequence[Array], arithmetic: Arithmetic) -> list[Array]:
    """Return g0, + g1, + g2, ... over the leading axis of each, one addition a line.

    Args:
      grads: (B, ...) float32 each, one gradient a line; B = 0 gives +0.
      arithmetic: "exact" or "fast".
    """
    shapes = [g.shape[1:] for g in grads]
    if grads[0].shape[0] == 0:
        return [jnp.zeros(shape, jnp.float32) for shape in shapes]

    def step(total: Array, grad: Array) -> tuple[Array, None]:
        return add(total, grad, arithmetic=arithmetic), None

    flat = jnp.concatenate([g.reshape(g.shape[0], -1) for g in grads], axis=1)
    return split(lax.scan(step, flat[0], flat[1:])[0], shapes)


def mask_rows(x: Array, lengths: Array, fill: float = 0.0) -> Array:
    """Return x (B, T, D) with the rows beyond each line's length set to ``fill``.

    A dot over rows needs +0 on one side and -0 on the other: fma(+0, -0, p) is p for
    every p, while fma(+0, +0, p) would turn a lane of -0 into +0.
    """
    inside = jnp.arange(x.shape[1]) < lengths[:, None]
    return jnp.where(inside[:, :, None], x, jnp.asarray(fill, x.dtype))


def weight_gradients(dy: Array, x: Array, *, exact: bool) -> tuple[Array, Array]:
    """Return per-line (dY^T x, dY^T 1): (B, O, D) and (B, O), lane dots over rows.

    The ones are one more column of x, so that one product serves both.

    Args:
      dy: (B, T, O) float32, +0 in the rows that a line does not have.
      x: (B, T, D) float32, -0 in those rows, so that they add nothing.
      exact: True for the lane product, False for XLA's.
    """
    ones = jnp.ones((*x.shape[:2], 1), jnp.float32)
    columns = jnp.concatenate([x, ones], axis=2).transpose(0, 2, 1)
    both = batched_matmul(dy.transpose(0, 2, 1), columns, exact=exact)
    return both[..., :-1], both[..., -1]
