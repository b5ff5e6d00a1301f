"""One IEEE 754 rounding per operation, on binary32 and binary64 NumPy arrays.

binary32 keeps subnormals. binary64 flushes (SPEC, "Binary64 flush"): a subnormal
operand counts as zero of its sign, and a result that rounds, with unbounded
exponent, to less than 2^-1022 in magnitude becomes zero of its sign.
"""

from collections.abc import Callable
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike

_TINY = 2.0**-1022
_SHIFT = 2.0**200  # lifts a product or quotient near 2^-1022 to where no bit is lost


def _operands(function: str, *values: ArrayLike) -> list[np.ndarray]:
    arrays = [np.asarray(v) for v in values]
    kinds = {a.dtype for a in arrays}
    if len(kinds) != 1 or not kinds <= {np.dtype(np.float32), np.dtype(np.float64)}:
        got = ", ".join(str(a.dtype) for a in arrays)
        raise TypeError(
            f"{function}: operands: expected all float32 or all float64, got {got}"
        )
    return [flush(a) for a in arrays]


def flush(x: np.ndarray) -> np.ndarray:
    """Return float64 ``x`` with subnormals replaced by zero; float32 unchanged."""
    if x.dtype != np.float64:
        return x
    return np.where(np.abs(x) < _TINY, np.copysign(0.0, x), x)


@np.errstate(all="ignore")
def add(x: ArrayLike, y: ArrayLike) -> np.ndarray:
    """Return x + y, one rounding; both float32 or both float64."""
    a, b = _operands("add", x, y)
    return flush(np.add(a, b))


@np.errstate(all="ignore")
def sub(x: ArrayLike, y: ArrayLike) -> np.ndarray:
    """Return x - y, one rounding; both float32 or both float64."""
    a, b = _operands("sub", x, y)
    return flush(np.subtract(a, b))


@np.errstate(all="ignore")
def mul(x: ArrayLike, y: ArrayLike) -> np.ndarray:
    """Return x * y, one rounding; both float32 or both float64."""
    a, b = _operands("mul", x, y)
    product = np.multiply(a, b)
    if product.dtype == np.float32:
        return product
    small = np.where(np.abs(a) < np.abs(b), a, b)
    large = np.where(np.abs(a) < np.abs(b), b, a)
    return _flush_edge(product, (small * _SHIFT) * large)


@np.errstate(all="ignore")
def div(x: ArrayLike, y: ArrayLike) -> np.ndarray:
    """Return x / y, one rounding; both float32 or both float64."""
    a, b = _operands("div", x, y)
    quotient = np.divide(a, b)
    if quotient.dtype == np.float32:
        return quotient
    return _flush_edge(quotient, (a * _SHIFT) / b)


def _flush_edge(result: np.ndarray, lifted: np.ndarray) -> np.ndarray:
    """Flush a float64 result, using it times 2^200 where it rounded up to 2^-1022."""
    below = (np.abs(result) == _TINY) & (np.abs(lifted) < _TINY * _SHIFT)
    return np.where(below, np.copysign(0.0, result), flush(result))


@np.errstate(all="ignore")
def sqrt(x: ArrayLike) -> np.ndarray:
    """Return the square root of x, one rounding; float32 or float64."""
    (a,) = _operands("sqrt", x)
    return np.sqrt(a)


def maximum(x: ArrayLike, y: ArrayLike) -> np.ndarray:
    """IEEE 754-2019 ``maximum``: NaN if either is NaN, and +0 above -0."""
    a, b = _operands("maximum", x, y)
    first = (a > b) | ((a == b) & ~np.signbit(a))
    return _keep_nan(np.where(first, a, b), a, b)


def minimum(x: ArrayLike, y: ArrayLike) -> np.ndarray:
    """IEEE 754-2019 ``minimum``: NaN if either is NaN, and -0 below +0."""
    a, b = _operands("minimum", x, y)
    first = (a < b) | ((a == b) & np.signbit(a))
    return _keep_nan(np.where(first, a, b), a, b)


def _keep_nan(result: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    nan = np.array(np.nan, result.dtype)
    return np.where(np.isnan(a) | np.isnan(b), nan, result)


@np.errstate(all="ignore")
def fma32(x: ArrayLike, y: ArrayLike, z: ArrayLike) -> np.ndarray:
    """Return x * y + z with one rounding; float32 arrays of broadcastable shapes.

    The product of two float32 is exact in float64. The float64 sum with z is
    rounded to odd (its error term, from TwoSum, tells which way), after which the
    rounding to float32 equals the single rounding of the exact value, because
    53 >= 2 * 24 + 2.
    """
    a, b, c = (np.asarray(v, np.float32).astype(np.float64) for v in (x, y, z))
    product = a * b
    total = product + c
    part = total - product
    error = (product - (total - part)) + (c - part)
    bits = total.view(np.int64) if total.ndim else np.array(total).view(np.int64)
    inexact = np.isfinite(total) & (error != 0) & (bits & 1 == 0)
    step = np.where((error > 0) == (total > 0), 1, -1)
    odd = (bits + np.where(inexact, step, 0)).view(np.float64)
    return odd.astype(np.float32)


def fma64(x: ArrayLike, y: ArrayLike, z: ArrayLike) -> np.ndarray:
    """Return x * y + z with one rounding; float64, by exact rationals."""
    a, b, c = np.broadcast_arrays(*_operands("fma64", x, y, z))
    triples = zip(a.flat, b.flat, c.flat, strict=True)
    values = [_fma_scalar(*triple) for triple in triples]
    return np.array(values, np.float64).reshape(a.shape)


@np.errstate(all="ignore")
def _fma_scalar(x: np.float64, y: np.float64, z: np.float64) -> float:
    if not (np.isfinite(x) and np.isfinite(y)):
        return float(x * y + z)
    if not np.isfinite(z):
        return float(z)
    if x == 0 or y == 0:
        return float(x * y + z)
    return round64(Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z)))


def round64(value: Fraction) -> float:
    """Round an exact value to float64, nearest even, under the flush rule."""
    sign = -1.0 if value < 0 else 1.0
    if abs(value) < Fraction(2) ** -1000:
        lifted = float(abs(value) * 2**200)
        return sign * (0.0 if lifted < _TINY * _SHIFT else lifted / _SHIFT)
    try:
        return float(value)
    except OverflowError:
        return sign * np.inf


def fma(x: ArrayLike, y: ArrayLike, z: ArrayLike) -> np.ndarray:
    """Return x * y + z with one rounding; all float32 or all float64."""
    wide = _operands("fma", x, y, z)[0].dtype == np.float64
    operation: Callable = fma64 if wide else fma32
    return operation(x, y, z)
