"""Exact arithmetic: one IEEE 754 operation, one rounding, whatever XLA does around it.

Every function here takes float32 or float64 arrays of equal dtype (a Python number
adopts the dtype of its partner), broadcasts as NumPy does, and works eagerly, under
jit, vmap and scan, with 64-bit types enabled or not. Nothing is promoted silently.
There is no differentiation rule on purpose: use ``onemodel_jax.ops``.

Rounding (SPEC, "Arithmetic"): the correctly rounded result, to nearest even.
binary32 keeps subnormals; binary64 flushes them (operand and result, sign kept). A
NaN result is a NaN of unspecified payload.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive

from onemodel_jax._checks import check_arithmetic, describe, fail, number
from onemodel_jax._types import EXACT, Arithmetic, Array, ArrayLike
from onemodel_jax.numerics import softfloat
from onemodel_jax.numerics.primitives import elementwise


def _by_width(body32, body64):
    """Choose the body by the dtype of the first operand."""

    @functools.wraps(body32)
    def body(*operands: Array) -> Array:
        wide = operands[0].dtype == jnp.float64
        return (body64 if wide else body32)(*operands)

    return body


add_p = elementwise("exact_add", _by_width(softfloat.add32, softfloat.add64))
sub_p = elementwise("exact_sub", _by_width(softfloat.sub32, softfloat.sub64))
mul_p = elementwise("exact_mul", _by_width(softfloat.mul32, softfloat.mul64))
div_p = elementwise("exact_div", _by_width(softfloat.div32, softfloat.div64))
sqrt_p = elementwise("exact_sqrt", _by_width(softfloat.sqrt32, softfloat.sqrt64))
fma_p = elementwise("exact_fma", _by_width(softfloat.fma32, softfloat.fma64))
maximum_p = elementwise("exact_maximum", softfloat.maximum)
minimum_p = elementwise("exact_minimum", softfloat.minimum)


def operands(function: str, **values: ArrayLike) -> list[Array]:
    """Convert operands to arrays of one floating dtype and one shape.

    Raises:
      TypeError: no array among them, an operand that is not float32 or float64, or
        two different dtypes.
      ValueError: shapes that do not broadcast, or an integer beyond binary64.
    """
    for name, value in values.items():
        if type(value) is int:
            values[name] = number(function, name, value, "an integer within binary64")
    arrays: dict[str, Any] = {k: v for k, v in values.items() if type(v) is not float}
    for name, value in arrays.items():
        if str(getattr(value, "dtype", None)) not in ("float32", "float64"):
            fail(TypeError, function, name, "float32 or float64", describe(value))
    dtypes = {str(value.dtype) for value in arrays.values()}
    if len(dtypes) != 1:
        got = ", ".join(describe(v) for v in values.values())
        fail(TypeError, function, ", ".join(values), "arrays of one dtype", got)
    dtype = dtypes.pop()
    try:
        shape = np.broadcast_shapes(*(np.shape(v) for v in values.values()))
    except ValueError:
        got = ", ".join(str(list(np.shape(v))) for v in values.values())
        fail(ValueError, function, ", ".join(values), "shapes that broadcast", got)
    with jax.enable_x64(True):
        return [jnp.broadcast_to(jnp.asarray(v, dtype), shape) for v in values.values()]


def apply(
    function: str, primitive: Primitive, fast, arithmetic: str, **values: ArrayLike
) -> Array:
    """Validate and run ``primitive`` (exact) or the jnp function ``fast``."""
    exact = check_arithmetic(function, arithmetic)
    with jax.enable_x64(True):
        arrays = operands(function, **values)
        return primitive.bind(*arrays) if exact else fast(*arrays)


def add(x: ArrayLike, y: ArrayLike, *, arithmetic: Arithmetic = EXACT) -> Array:
    """Return x + y, rounded once.

    Args:
      x, y: float32 or float64, one dtype, any shapes that broadcast.
      arithmetic: "exact" or "fast" (``jnp.add``).

    Raises:
      TypeError, ValueError: see :func:`operands`.
    """
    return apply("add", add_p, jnp.add, arithmetic, x=x, y=y)


def sub(x: ArrayLike, y: ArrayLike, *, arithmetic: Arithmetic = EXACT) -> Array:
    """Return x - y, rounded once. Arguments and errors as for :func:`add`."""
    return apply("sub", sub_p, jnp.subtract, arithmetic, x=x, y=y)


def mul(x: ArrayLike, y: ArrayLike, *, arithmetic: Arithmetic = EXACT) -> Array:
    """Return x * y, rounded once. Arguments and errors as for :func:`add`."""
    return apply("mul", mul_p, jnp.multiply, arithmetic, x=x, y=y)


def div(x: ArrayLike, y: ArrayLike, *, arithmetic: Arithmetic = EXACT) -> Array:
    """Return x / y, rounded once. Arguments and errors as for :func:`add`.

    x / 0 is an infinity, 0 / 0 is NaN, as IEEE 754 says.
    """
    return apply("div", div_p, jnp.divide, arithmetic, x=x, y=y)


def sqrt(x: ArrayLike, *, arithmetic: Arithmetic = EXACT) -> Array:
    """Return the square root of x, rounded once; NaN below -0, and -0 at -0."""
    return apply("sqrt", sqrt_p, jnp.sqrt, arithmetic, x=x)


def fma(
    x: ArrayLike, y: ArrayLike, z: ArrayLike, *, arithmetic: Arithmetic = EXACT
) -> Array:
    """Return x * y + z with one rounding at the end (IEEE 754 fusedMultiplyAdd).

    Arguments and errors as for :func:`add`. Fast arithmetic is ``x * y + z``, which
    the compiler may or may not fuse.
    """
    fast = lambda a, b, c: a * b + c  # noqa: E731
    return apply("fma", fma_p, fast, arithmetic, x=x, y=y, z=z)


def maximum(x: ArrayLike, y: ArrayLike, *, arithmetic: Arithmetic = EXACT) -> Array:
    """Return the larger operand (IEEE 754-2019 maximum): NaN wins, +0 beats -0.

    Arguments and errors as for :func:`add`.
    """
    return apply("maximum", maximum_p, jnp.maximum, arithmetic, x=x, y=y)


def minimum(x: ArrayLike, y: ArrayLike, *, arithmetic: Arithmetic = EXACT) -> Array:
    """Return the smaller operand (IEEE 754-2019 minimum): NaN wins, -0 beats +0.

    Arguments and errors as for :func:`add`.
    """
    return apply("minimum", minimum_p, jnp.minimum, arithmetic, x=x, y=y)
