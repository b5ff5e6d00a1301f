"""Argument errors, in one form: function, argument, expected, got.

Structure only (rank, shape, dtype, option): values cannot be inspected under jit.
"""

import math
from collections.abc import Sequence
from typing import Any, NoReturn

import jax.numpy as jnp

from onemodel_jax._types import EXACT, FAST, Array


def fail(
    error: type[Exception], function: str, argument: str, expected: str, got: object
) -> NoReturn:
    """Raise ``error`` with the library's one error form."""
    raise error(f"{function}: {argument}: expected {expected}, got {got}")


def describe(x: Any) -> str:
    """Return ``float32[2,3]`` for an array, the type name for anything else."""
    if hasattr(x, "dtype") and hasattr(x, "shape"):
        return f"{x.dtype}[{','.join(str(d) for d in x.shape)}]"
    return type(x).__name__


def check_dtype(function: str, argument: str, x: Any, *dtypes: Any) -> None:
    """Raise TypeError unless the array ``x`` has one of ``dtypes``."""
    names = [str(d) if isinstance(d, str) else d.__name__ for d in dtypes]
    if str(x.dtype) not in names:
        fail(TypeError, function, argument, " or ".join(names), describe(x))


def check_rank(function: str, argument: str, x: Any, *ranks: int) -> None:
    """Raise ValueError unless the array ``x`` has one of ``ranks`` dimensions."""
    if len(x.shape) not in ranks:
        expected = "rank " + " or ".join(str(r) for r in ranks)
        fail(ValueError, function, argument, expected, describe(x))


def check_shape(
    function: str, argument: str, x: Any, shape: Sequence[int | None]
) -> None:
    """Raise ValueError unless ``x`` has ``shape``; None matches any size."""
    good = len(x.shape) == len(shape) and all(
        want is None or want == have for want, have in zip(shape, x.shape, strict=True)
    )
    if not good:
        wanted = ",".join("*" if d is None else str(d) for d in shape)
        fail(ValueError, function, argument, f"shape [{wanted}]", describe(x))


def check_option(
    function: str, argument: str, value: object, options: Sequence[object]
) -> None:
    """Raise ValueError unless ``value`` is one of ``options``."""
    if not any(isinstance(value, type(o)) and value == o for o in options):
        expected = "one of " + ", ".join(repr(o) for o in options)
        fail(ValueError, function, argument, expected, repr(value))


def number(function: str, argument: str, value: Any, expected: str) -> float:
    """Return the real number ``value`` as a float, of whatever size.

    Raises:
      TypeError: not one real number; text is none.
      ValueError: an integer beyond binary64.
    """
    try:
        if not isinstance(value, (str, bytes)):
            return float(value)
    except OverflowError:
        fail(ValueError, function, argument, expected, "an integer beyond binary64")
    except (TypeError, ValueError):
        pass
    fail(TypeError, function, argument, expected, describe(value))


def not_negative(function: str, argument: str, value: Any) -> float:
    """Return a finite number >= 0 as a float; raise as :func:`number` does."""
    expected = "a finite number >= 0"
    result = number(function, argument, value, expected)
    if not 0 <= result < math.inf:
        fail(ValueError, function, argument, expected, value)
    return result


def check_axis(function: str, axis: Any, x: Array) -> None:
    """Raise ValueError unless ``axis`` is an axis of ``x``, from either end."""
    if type(axis) is not int or not -x.ndim <= axis < x.ndim:
        fail(ValueError, function, "axis", f"an axis of {describe(x)}", repr(axis))


def describe_error(error: Exception) -> str:
    """Return the kind of an error and the first line of its text."""
    text = (str(error).splitlines() or [""])[0]
    return f"{type(error).__name__}: {text}"


def check_arithmetic(function: str, arithmetic: str) -> bool:
    """Return True for exact, False for fast; raise ValueError for anything else."""
    check_option(function, "arithmetic", arithmetic, (EXACT, FAST))
    return arithmetic == EXACT


def float32_arrays(function: str, **operands: Any) -> list[Array]:
    """Return the operands as arrays; raise TypeError unless all are float32."""
    arrays = {argument: jnp.asarray(value) for argument, value in operands.items()}
    for argument, array in arrays.items():
        check_dtype(function, argument, array, "float32")
    return list(arrays.values())


def line_lengths(
    function: str, argument: str, lengths: Any, count: int, whole: int
) -> Array:
    """Return lengths (count,) int32, ``whole`` each if None; raise unless they are.

    Raises:
      TypeError: not int32.
      ValueError: another shape.
    """
    if lengths is None:
        return jnp.full(count, whole, jnp.int32)
    array = jnp.asarray(lengths)
    check_dtype(function, argument, array, "int32")
    check_shape(function, argument, array, (count,))
    return array
