"""Comparison with a tolerance: |actual - expected| <= atol + rtol |expected|.

On the host, in binary64, for tests and reports; not for traced values.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from onemodel_jax._checks import describe, fail, not_negative

#: (rtol, atol) by dtype; integers and booleans must match exactly.
TOLERANCES = {"float32": (1e-5, 1e-6), "float64": (1e-12, 1e-14)}


@dataclass(frozen=True)
class Closeness:
    """The outcome of a comparison; true exactly if every element is close.

    Attributes:
      close: whether all elements are close.
      count: number of elements that are not.
      size: number of elements compared.
      index: index of the worst element, None if there are no elements.
      actual, expected: the values there.
      error: |actual - expected| there; inf where a NaN or an infinity differs.
      allowed: atol + rtol |expected| there.
    """

    close: bool
    count: int
    size: int
    index: tuple[int, ...] | None
    actual: Any
    expected: Any
    error: float
    allowed: float

    def __bool__(self) -> bool:
        return self.close

    def __str__(self) -> str:
        if self.index is None:
            return "close: no elements"
        verdict = "close" if self.close else f"{self.count} of {self.size} not close"
        return (
            f"{verdict}; worst at {list(self.index)}: actual {self.actual!r}, expected "
            f"{self.expected!r}, error {self.error:.3g}, allowed {self.allowed:.3g}"
        )


def closeness(
    actual: Any,
    expected: Any,
    *,
    rtol: float | None = None,
    atol: float | None = None,
    equal_nan: bool = False,
) -> Closeness:
    """Compare two arrays of one shape and dtype and name the worst element.

    Infinities must be equal, sign included; NaN equals NaN only with ``equal_nan``.
    The worst element is the one with the largest error / allowed ratio.

    Args:
      actual, expected: float32, float64, integer or boolean arrays.
      rtol, atol: finite, not negative. Default by dtype: 1e-5 and 1e-6 for float32,
        1e-12 and 1e-14 for float64, 0 and 0 for integers and booleans.
      equal_nan: whether NaN is close to NaN.

    Raises:
      TypeError: the dtypes differ or are not among those named, or a tolerance is not
        a number.
      ValueError: the shapes differ, or a tolerance is negative or not finite.
    """
    a, e = np.asarray(actual), np.asarray(expected)
    rtol, atol = _tolerances(a, e, rtol, atol)
    if a.dtype.kind in "iub":
        a, e = a.astype(object), e.astype(object)  # Python integers: no overflow
    with np.errstate(all="ignore"):
        error, allowed = _errors(a, e, rtol, atol, equal_nan)
        bad = ~(error <= allowed)
        ratio = np.where(error > 0, error / np.where(allowed > 0, allowed, 0.0), 0.0)
    if not a.size:
        return Closeness(True, 0, 0, None, None, None, 0.0, atol)
    score = np.where(bad, ratio, -1.0) if bad.any() else ratio
    at = np.unravel_index(int(np.argmax(score)), a.shape)
    index = tuple(int(i) for i in at)
    worst = float(error[index]), float(allowed[index])
    count = int(np.count_nonzero(bad))
    return Closeness(count == 0, count, a.size, index, a[index], e[index], *worst)


def allclose(
    actual: Any,
    expected: Any,
    *,
    rtol: float | None = None,
    atol: float | None = None,
    equal_nan: bool = False,
) -> bool:
    """Return whether all elements are close. See :func:`closeness` for the rule."""
    result = closeness(actual, expected, rtol=rtol, atol=atol, equal_nan=equal_nan)
    return result.close


def _tolerances(
    a: np.ndarray, e: np.ndarray, rtol: float | None, atol: float | None
) -> tuple[float, float]:
    if a.dtype != e.dtype:
        fail(TypeError, "allclose", "expected", f"dtype {a.dtype}", describe(e))
    if a.dtype.kind not in "iub" and a.dtype.name not in TOLERANCES:
        expected = "float32, float64, integer or boolean"
        fail(TypeError, "allclose", "actual", expected, describe(a))
    if a.shape != e.shape:
        fail(ValueError, "allclose", "expected", describe(a), describe(e))
    usual = TOLERANCES.get(a.dtype.name, (0.0, 0.0))
    given = {"rtol": rtol, "atol": atol}
    chosen = [
        default if value is None else not_negative("allclose", name, value)
        for (name, value), default in zip(given.items(), usual, strict=True)
    ]
    return chosen[0], chosen[1]


def _errors(
    a: np.ndarray, e: np.ndarray, rtol: float, atol: float, equal_nan: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Return (error, allowed) of each element, float64; equal elements have error 0."""
    same = np.asarray(a == e, bool)
    if a.dtype == object:
        error = np.abs(a - e).astype(np.float64)
        allowed = atol + rtol * np.abs(e).astype(np.float64)
        return np.where(same, 0.0, error), allowed
    wide_a, wide_e = a.astype(np.float64), e.astype(np.float64)
    nan_a, nan_e = np.isnan(wide_a), np.isnan(wide_e)
    if equal_nan:
        same = same | (nan_a & nan_e)
    finite = np.isfinite(wide_a) & np.isfinite(wide_e)
    error = np.where(finite, np.abs(wide_a - wide_e), np.inf)
    allowed = np.where(finite, atol + rtol * np.abs(wide_e), atol)
    return np.where(same, 0.0, error), allowed
