"""Elementary functions of fixed bits, of binary64 and of binary32.

exp64, log64, log1p64 and cos_pi are short polynomials in which every product and every
sum is rounded separately (SPEC, "Elementary functions"); exp, log, sigmoid and tanh are
computed in binary64 from binary32 and rounded once. No library transcendental takes
part. Like the operations of ``numerics.exact`` these have no differentiation rule.
"""

import math

import jax
import jax.numpy as jnp

from onemodel_jax._checks import check_arithmetic, describe, fail, number
from onemodel_jax._types import EXACT, Arithmetic, Array, ArrayLike
from onemodel_jax.numerics.primitives import elementwise, island
from onemodel_jax.numerics.softfloat import (
    bits_of,
    decode,
    encode,
    flush64,
    from_bits,
    pin,
    safe_div,
)

LN2_HIGH = float.fromhex("0x1.62e42fee00000p-1")  # bits 0x3FE62E42FEE00000
LN2_LOW = float.fromhex("0x1.a39ef35793c76p-33")  # bits 0x3DEA39EF35793C76
LOG2_E = 1.4426950408889634
EXP_OVERFLOW, EXP_UNDERFLOW = 709.78, -708.39
_SQRT_2 = 1.4142135623730951


def exp64_body(x: Array) -> Array:
    """exp on binary64: two-part reduction by ln 2, Horner on 1/n! from n = 13."""
    # Outside the range the result is selected below; the clamp keeps k small.
    r = jnp.where((x > -709.0) & (x < 710.0), x, 0.0)
    k = jnp.floor(pin(r * LOG2_E) + 0.5)
    r = pin(pin(r - pin(k * LN2_HIGH)) - pin(k * LN2_LOW))
    p = jnp.full_like(r, 1 / math.factorial(13))
    for n in range(12, -1, -1):
        p = pin(pin(p * r) + 1 / math.factorial(n))
    value = from_bits(bits_of(p) + (k.astype(jnp.int64) << 52))
    value = jnp.where(x > EXP_OVERFLOW, jnp.inf, value)
    value = jnp.where(x < EXP_UNDERFLOW, 0.0, value)
    return jnp.where(x == x, value, jnp.nan)


def _split(x: Array) -> tuple[Array, Array]:
    """Return (m, k) with x = m * 2^k, m in [sqrt(1/2), sqrt 2), of a normal x > 0."""
    b = bits_of(x)
    m = from_bits((b & 0x000F_FFFF_FFFF_FFFF) | 0x3FF0_0000_0000_0000)
    big = m >= _SQRT_2
    k = (((b >> 52) & 0x7FF) - 1023 + big.astype(b.dtype)).astype(jnp.float64)
    return jnp.where(big, m * 0.5, m), k


def _log_series(x: Array, top: Array, bottom: Array, k: Array) -> Array:
    """Return log x = 2 atanh(top / bottom) + k ln 2, with the edges of log at x."""
    f = safe_div(top, bottom)
    s = pin(f * f)
    p = jnp.full_like(s, 1 / 23)
    for n in range(10, -1, -1):
        p = pin(pin(p * s) + 1 / (2 * n + 1))
    tail = pin(pin((f + f) * p) + pin(k * LN2_LOW))
    value = pin(pin(k * LN2_HIGH) + tail)
    # Subnormals count as zero, by their bits: the hardware flushes comparisons.
    b = bits_of(x)
    zero = (b & 0x7FF0_0000_0000_0000) == 0
    value = jnp.where(b < 0, jnp.nan, value)
    value = jnp.where(x == jnp.inf, jnp.inf, value)
    value = jnp.where(zero, -jnp.inf, value)
    return jnp.where(x == x, value, jnp.nan)


def log64_body(x: Array) -> Array:
    """log on binary64: x = m * 2^k, then 2 atanh((m-1)/(m+1)) by Horner."""
    m, k = _split(x)
    return _log_series(x, m - 1.0, m + 1.0, k)


def log1p64_body(y: Array) -> Array:
    """log(1 + y) on binary64: log64's steps, but for k = 0 and 1 from y itself.

    There m - 1 is y or (y - 1)/2, which 1 + y has rounded. Near 0 the result is y,
    so that no quotient is subnormal.
    """
    y = pin(y)
    x = pin(1.0 + y)
    m, k = _split(x)
    top = jnp.where(k == 0, y, jnp.where(k == 1, y - 1.0, m - 1.0))
    bottom = jnp.where(k == 0, 2.0 + y, jnp.where(k == 1, 3.0 + y, m + 1.0))
    value = _log_series(x, top, bottom, k)
    return jnp.where(jnp.abs(y) < 2.0**-54, flush64(y), value)


def cos_pi_body(t: Array) -> Array:
    """cos(pi t) on [0, 1]: the Maclaurin series to degree 26 (Horner)."""
    low = t <= 0.5
    a = pin(jnp.where(low, t, 1.0 - t) * math.pi)
    square = pin(a * a)
    r = jnp.ones_like(a)
    for k in range(13, 0, -1):
        divisor = jnp.full_like(square, float((2 * k - 1) * (2 * k)))
        r = pin(1.0 - pin(safe_div(square, divisor) * r))
    r = jnp.where(low, r, -r)
    r = jnp.where(t <= 0.0, 1.0, jnp.where(t >= 1.0, -1.0, r))
    return jnp.where(t == t, r, jnp.nan)


def _one_rounding(body64):
    """Wrap a binary64 body as a binary32 one: decode, compute, round once."""

    def body(x: Array) -> Array:
        return encode(body64(decode(x)))

    return body


def _sigmoid64(x: Array) -> Array:
    t = exp64_body(-jnp.abs(x))
    return safe_div(jnp.where(x >= 0, 1.0, t), pin(1.0 + t))


def _tanh64(x: Array) -> Array:
    a = jnp.abs(x)
    q = exp64_body(-2.0 * a)
    cube = pin(pin(a * a) * a)
    small = pin(a - safe_div(cube, jnp.full_like(a, 3.0)))
    large = safe_div(pin(1.0 - q), pin(1.0 + q))
    value = jnp.where(a < 2.0**-12, small, large)
    return from_bits(bits_of(value) | (bits_of(x) & jnp.int64(-(2**63))))


def _define(name: str, body):
    """Make the primitive; its long body is an island, so that no fusion repeats it."""
    return elementwise(name, lambda x: island(body, x))


exp64_p = _define("exact_exp64", exp64_body)
log64_p = _define("exact_log64", log64_body)
log1p64_p = _define("exact_log1p64", log1p64_body)
cos_pi_p = _define("exact_cos_pi", cos_pi_body)
exp_p = _define("exact_exp", _one_rounding(exp64_body))
log_p = _define("exact_log", _one_rounding(log64_body))
sigmoid_p = _define("exact_sigmoid", _one_rounding(_sigmoid64))
tanh_p = _define("exact_tanh", _one_rounding(_tanh64))


def _apply(
    function: str, primitive, fast, arithmetic: str, dtype: str, x, argument: str = "x"
) -> Array:
    exact = check_arithmetic(function, arithmetic)
    with jax.enable_x64(True):
        if type(x) in (int, float):
            x = number(function, argument, x, "a number within binary64")
        array = jnp.asarray(x, dtype) if type(x) is float else x
        if str(getattr(array, "dtype", None)) != dtype:
            fail(TypeError, function, argument, dtype, describe(x))
        array = jnp.asarray(array)
        return primitive.bind(array) if exact else fast(array)


def exp64(x: ArrayLike, *, arithmetic: Arithmetic = EXACT) -> Array:
    """Return e^x in binary64, within 1.2 units in the last place.

    Rounding: SPEC, "exp64". Above 709.78 the result is +inf, below -708.39 it is +0.

    Args:
      x: float64, any shape.
      arithmetic: "exact" or "fast" (``jnp.exp``).

    Raises:
      TypeError: x is not float64.
    """
    return _apply("exp64", exp64_p, jnp.exp, arithmetic, "float64", x)


def log64(x: ArrayLike, *, arithmetic: Arithmetic = EXACT) -> Array:
    """Return ln x in binary64, within 3.0 units in the last place.

    Rounding: SPEC, "log64". ln 0 is -inf, of a negative number NaN; an argument below
    2^-1022 in magnitude counts as 0. Arguments and errors as for :func:`exp64`.
    """
    return _apply("log64", log64_p, jnp.log, arithmetic, "float64", x)


def log1p64(y: ArrayLike, *, arithmetic: Arithmetic = EXACT) -> Array:
    """Return ln(1 + y) in binary64, within 3.5 units in the last place; y near 0 too.

    Rounding: SPEC, "log1p64". At -1 it is -inf, below NaN. Arguments and errors as for
    :func:`exp64`; fast arithmetic is ``jnp.log1p``.
    """
    return _apply("log1p64", log1p64_p, jnp.log1p, arithmetic, "float64", y, "y")


def cos_pi(t: ArrayLike, *, arithmetic: Arithmetic = EXACT) -> Array:
    """Return cos(pi t) in binary64 for t in [0, 1]; t is clamped to that range.

    Rounding: SPEC, "cos_pi". Arguments and errors as for :func:`exp64`.
    """

    def fast(x: Array) -> Array:
        return jnp.cos(jnp.clip(x, 0.0, 1.0) * math.pi)

    return _apply("cos_pi", cos_pi_p, fast, arithmetic, "float64", t, "t")


def exp(x: ArrayLike, *, arithmetic: Arithmetic = EXACT) -> Array:
    """Return e^x in binary32: exp64 rounded once, subnormal results kept.

    Args:
      x: float32, any shape.
      arithmetic: "exact" or "fast" (``jnp.exp``).

    Raises:
      TypeError: x is not float32.
    """
    return _apply("exp", exp_p, jnp.exp, arithmetic, "float32", x)


def log(x: ArrayLike, *, arithmetic: Arithmetic = EXACT) -> Array:
    """Return ln x in binary32: log64 rounded once. Errors as for :func:`exp`."""
    return _apply("log", log_p, jnp.log, arithmetic, "float32", x)


def sigmoid(x: ArrayLike, *, arithmetic: Arithmetic = EXACT) -> Array:
    """Return 1 / (1 + e^-x) in binary32, within 0.50001 units in the last place.

    Rounding: SPEC, "sigmoid and tanh". Errors as for :func:`exp`.
    """
    return _apply("sigmoid", sigmoid_p, jax.nn.sigmoid, arithmetic, "float32", x)


def tanh(x: ArrayLike, *, arithmetic: Arithmetic = EXACT) -> Array:
    """Return tanh x in binary32, within 0.50001 units in the last place; odd.

    Rounding: SPEC, "sigmoid and tanh". Errors as for :func:`exp`.
    """
    return _apply("tanh", tanh_p, jnp.tanh, arithmetic, "float32", x)
