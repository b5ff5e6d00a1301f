"""exp, log, cosine, sigmoid and tanh from + - * / alone (SPEC, "Elementary functions").

Every product and every sum is rounded separately in binary64; nothing here calls
the C library's transcendental functions, whose last bit differs between platforms.
"""

import math

import numpy as np
from numpy.typing import ArrayLike

LOG2_E = 1.4426950408889634
LN2_HIGH = float.fromhex("0x1.62e42feep-1")  # 0x3FE62E42FEE00000
LN2_LOW = float.fromhex("0x1.a39ef35793c76p-33")  # 0x3DEA39EF35793C76
PI = 3.14159265358979323846
_SQRT2 = float.fromhex("0x1.6a09e667f3bcdp+0")


@np.errstate(all="ignore")
def exp64(x: ArrayLike) -> np.ndarray:
    """Return exp(x) in float64, within 1.1 ulp; never subnormal.

    x > 709.78 gives +inf, x < -708.39 gives +0, NaN gives NaN.
    """
    x = np.asarray(x, np.float64)
    inside = (x >= -708.39) & (x <= 709.78)
    safe = np.where(inside, x, 0.0)
    k = np.floor(safe * LOG2_E + 0.5)
    r = (safe - k * LN2_HIGH) - k * LN2_LOW
    p = np.full_like(r, 1.0 / math.factorial(13))
    for n in range(12, -1, -1):
        p = p * r + 1.0 / math.factorial(n)
    bits = np.atleast_1d(p).view(np.int64) + (np.atleast_1d(k).astype(np.int64) << 52)
    value = bits.view(np.float64).reshape(x.shape)
    value = np.where(x > 709.78, np.inf, value)
    value = np.where(x < -708.39, 0.0, value)
    return np.where(np.isnan(x), np.nan, value)


@np.errstate(all="ignore")
def log64(x: ArrayLike) -> np.ndarray:
    """Return the natural logarithm in float64, within 2.6 ulp.

    Below 2^-1022 in magnitude (either sign) gives -inf, negative NaN, +inf +inf.
    """
    x = np.asarray(x, np.float64)
    zero = np.abs(x) < 2.0**-1022
    usual = np.isfinite(x) & (x > 0) & ~zero
    m, exponent = np.frexp(np.where(usual, x, 1.0))
    m, exponent = m * 2.0, exponent - 1  # m in [1, 2)
    upper = m >= _SQRT2
    m = np.where(upper, m * 0.5, m)
    k = np.where(upper, exponent + 1, exponent).astype(np.float64)
    f = (m - 1.0) / (m + 1.0)
    s = f * f
    p = np.full_like(s, 1.0 / 23.0)
    for n in range(10, -1, -1):
        p = p * s + 1.0 / (2 * n + 1)
    value = k * LN2_HIGH + ((2.0 * f) * p + k * LN2_LOW)
    value = np.where(zero, -np.inf, value)
    value = np.where(x == np.inf, np.inf, value)
    return np.where(np.isnan(x) | ((x < 0) & ~zero), np.nan, value)


@np.errstate(all="ignore")
def log1p64(y: ArrayLike) -> np.ndarray:
    """Return the natural logarithm of 1 + y in float64, within 3.5 ulp.

    1 + y, rounded, gives k. For k = 0 the fraction is y / (2 + y), for k = 1 it is
    (y - 1) / (3 + y): no bit of y is lost. Below 2^-54 in magnitude it is y.
    """
    y = np.asarray(y, np.float64)
    x = 1.0 + y
    mantissa, exponent = np.frexp(np.where((x > 0) & (x < np.inf), x, 1.0))
    low = mantissa * 2.0 < _SQRT2
    k = np.where(low, exponent - 1, exponent).astype(np.float64)
    m = np.where(low, mantissa * 2.0, mantissa)
    f = (m - 1.0) / (m + 1.0)
    f = np.where(k == 0, y / (2.0 + y), np.where(k == 1, (y - 1.0) / (3.0 + y), f))
    s = f * f
    p = np.full_like(s, 1.0 / 23.0)
    for n in range(10, -1, -1):
        p = p * s + 1.0 / (2 * n + 1)
    value = k * LN2_HIGH + ((2.0 * f) * p + k * LN2_LOW)
    value = np.where(x == 0, -np.inf, np.where(x == np.inf, np.inf, value))
    value = np.where(x < 0, np.nan, value)
    zero = np.copysign(0.0, y)
    near = np.where(np.abs(y) < 2.0**-1022, zero, y)
    return np.where(np.abs(y) < 2.0**-54, near, np.where(np.isnan(y), y, value))


@np.errstate(all="ignore")
def cos_pi(t: ArrayLike) -> np.ndarray:
    """Return cos(pi t) in float64 for t in [0, 1]; 1 below, -1 above."""
    t = np.asarray(t, np.float64)
    upper = t > 0.5
    y = np.where(upper, 1.0 - t, t)
    a = PI * y
    square = a * a
    r = np.ones_like(a)
    for k in range(13, 0, -1):
        r = 1.0 - (square / ((2 * k - 1) * (2 * k))) * r
    value = np.where(upper, -1.0, 1.0) * r
    return np.where(t <= 0, 1.0, np.where(t >= 1, -1.0, value))


@np.errstate(all="ignore")
def exp(x: ArrayLike) -> np.ndarray:
    """Return exp64 of float32 x, rounded once to float32."""
    return exp64(_widen("exp", x)).astype(np.float32)


@np.errstate(all="ignore")
def log(x: ArrayLike) -> np.ndarray:
    """Return log64 of float32 x, rounded once to float32."""
    return log64(_widen("log", x)).astype(np.float32)


@np.errstate(all="ignore")
def sigmoid(x: ArrayLike) -> np.ndarray:
    """Return 1 / (1 + exp(-x)) of float32 x: float64 throughout, rounded once.

    With t = exp64(-|x|): 1 / (1 + t) for x >= 0, t / (1 + t) for x < 0.
    """
    wide = _widen("sigmoid", x)
    t = exp64(-np.abs(wide))
    return (np.where(wide >= 0, 1.0, t) / (1.0 + t)).astype(np.float32)


@np.errstate(all="ignore")
def tanh(x: ArrayLike) -> np.ndarray:
    """Return tanh of float32 x: float64 throughout, rounded once, odd.

    With a = |x|: a - ((a a) a) / 3 for a < 2^-12, else (1 - q) / (1 + q) with
    q = exp64(-2 a); then the sign of x.
    """
    wide = _widen("tanh", x)
    a = np.abs(wide)
    small = a - ((a * a) * a) / 3.0
    q = exp64(-2.0 * a)
    value = np.where(a < 2.0**-12, small, (1.0 - q) / (1.0 + q))
    return np.copysign(value, wide).astype(np.float32)


def _widen(function: str, x: ArrayLike) -> np.ndarray:
    x = np.asarray(x)
    if x.dtype != np.float32:
        raise TypeError(f"{function}: x: expected float32, got {x.dtype}")
    return x.astype(np.float64)
