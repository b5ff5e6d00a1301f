"""What every op over a batch of lines shares: adding per-line gradients in order."""

import jax.numpy as jnp
from jax import lax

from onemodel_jax._types import Arithmetic, Array
from onemodel_jax.numerics.exact import add


def sum_in_line_order(grads: Array, arithmetic: Arithmetic) -> Array:
    """Return g0, + g1, + g2, ... over the leading axis, one addition a line.

    Args:
      grads: (B, ...) float32, one gradient a line; B = 0 gives +0.
      arithmetic: "exact" or "fast".
    """
    if grads.shape[0] == 0:
        return jnp.zeros(grads.shape[1:], grads.dtype)

    def step(total: Array, grad: Array) -> tuple[Array, None]:
        return add(total, grad, arithmetic=arithmetic), None

    return lax.scan(step, grads[0], grads[1:])[0]
