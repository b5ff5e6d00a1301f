"""Learning-rate schedules: pure functions of the number of steps already taken.

Arithmetic is IEEE binary64 (+ - * / and ``numerics.cos_pi``), rounded to float32 at
the end, so a schedule needs no state and a resumed run no memory (SPEC, "Schedules").
Each factory returns a function from a () int32 step to a () float32 rate, usable
eagerly and under jit.
"""

import jax
import jax.numpy as jnp

from onemodel_jax._checks import fail
from onemodel_jax._types import Array
from onemodel_jax.numerics.elementary import cos_pi
from onemodel_jax.numerics.exact import add, div, mul, sub
from onemodel_jax.numerics.softfloat import encode
from onemodel_jax.optim.optimizer import Schedule


def _count(function: str, argument: str, value: int, least: int) -> int:
    if type(value) is not int or value < least:
        expected = f"an integer of at least {least}"
        fail(ValueError, function, argument, expected, repr(value))
    return value


def _half_cosine(p: Array) -> Array:
    """Return (1 + cos(pi p)) / 2."""
    return mul(add(1.0, cos_pi(p)), 0.5)


def _rounded(body, step) -> Array:
    with jax.enable_x64(True):
        return encode(body(jnp.asarray(step).astype(jnp.float64)))


def warmup_cosine(
    base: float, warmup: int, total: int, final: float = 0.02
) -> Schedule:
    """Linear warm-up to ``base``, then a half cosine down to ``final * base``.

    base (s+1)/W for s < W; then base (f + (1-f) (1 + cos(pi p))/2) with
    p = (s-W)/(T-W), clamped to 1, so the rate stays at the floor after T.

    Args:
      base: peak rate.
      warmup: W, warm-up steps, at least 0.
      total: T, steps in all; where T <= W there is no decay and the floor follows.
      final: f, the fraction of ``base`` at the end.

    Raises:
      ValueError: a count is not an integer in range.
    """
    name = "warmup_cosine"
    _count(name, "warmup", warmup, 0)
    _count(name, "total", total, 0)
    span = max(total - warmup, 1)

    def rate(step: Array) -> Array:
        def body(s: Array) -> Array:
            rising = div(mul(base, add(s, 1.0)), float(max(warmup, 1)))
            p = jnp.clip(div(sub(s, float(warmup)), float(span)), 0.0, 1.0)
            p = jnp.where(s >= float(max(total, warmup)), 1.0, p)
            share = mul(sub(1.0, jnp.asarray(final, jnp.float64)), _half_cosine(p))
            falling = mul(base, add(share, final))
            return jnp.where(s < float(warmup), rising, falling)

        return _rounded(body, step)

    return rate
