"""Formats: binary16 and bfloat16 bit patterns, and casts to integers that saturate.

Integer operations only, so that no flush and no rewrite can touch a bit. Arrays of
the 16-bit dtypes themselves are deliberately absent: the library computes in binary32
and binary64, and the narrow formats are for storage.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from onemodel_jax._checks import check_option, describe, fail
from onemodel_jax._types import Array, ArrayLike


class Format(NamedTuple):
    """An IEEE 754 binary interchange format: sizes of its fields in bits."""

    name: str
    exponent: int
    fraction: int

    @property
    def width(self) -> int:
        return 1 + self.exponent + self.fraction

    @property
    def bias(self) -> int:
        return (1 << (self.exponent - 1)) - 1

    @property
    def infinity(self) -> int:
        """The bits of +inf; larger magnitudes are NaN."""
        return ((1 << self.exponent) - 1) << self.fraction


FORMATS = {
    f.name: f
    for f in (
        Format("float64", 11, 52),
        Format("float32", 8, 23),
        Format("float16", 5, 10),
        Format("bfloat16", 8, 7),
    )
}

INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


def _source(function: str, x: ArrayLike) -> tuple[Array, Array, Format]:
    """Return (sign bit, magnitude bits) as int64, and the format, of a float array."""
    name = str(getattr(x, "dtype", None))
    if name not in ("float32", "float64"):
        fail(TypeError, function, "x", "float32 or float64", describe(x))
    source = FORMATS[name]
    integer = jnp.int64 if name == "float64" else jnp.int32
    b = lax.bitcast_convert_type(jnp.asarray(x), integer).astype(jnp.int64)
    return b < 0, b & ((1 << (source.width - 1)) - 1), source


def _significand(magnitude: Array, source: Format) -> tuple[Array, Array]:
    """Return (significand with its hidden bit, biased exponent of at least 1)."""
    field = magnitude >> source.fraction
    fraction = magnitude & ((1 << source.fraction) - 1)
    hidden = jnp.where(field > 0, jnp.int64(1 << source.fraction), 0)
    return fraction + hidden, jnp.maximum(field, 1)


def _narrow(function: str, x: ArrayLike, target: Format) -> Array:
    """Round to ``target``, nearest even, and return the bits as uint16."""
    with jax.enable_x64(True):
        negative, magnitude, source = _source(function, x)
        significand, field = _significand(magnitude, source)
        shift = source.fraction - target.fraction
        field = field - source.bias + target.bias
        # The significand counts one exponent step itself, hence field - 1.
        whole = (jnp.maximum(field - 1, 0) << source.fraction) + significand
        # Below the normal range one more bit is dropped for every step.
        drop = jnp.minimum(shift + jnp.maximum(1 - field, 0), 60)
        half = jnp.int64(1) << (drop - 1)
        bits = (whole + half - 1 + ((whole >> drop) & 1)) >> drop
        bits = jnp.minimum(bits, target.infinity)
        payload = (magnitude >> shift) & ((1 << target.fraction) - 1)
        quiet = jnp.int64(1 << (target.fraction - 1))
        payload = jnp.where(payload == 0, quiet, payload)
        nan = magnitude > source.infinity
        bits = jnp.where(nan, target.infinity | payload, bits)
        bits = bits | jnp.where(negative, 0x8000, 0)
        return bits.astype(jnp.uint16)


def to_float16(x: ArrayLike) -> Array:
    """Return the binary16 bits of x: one rounding to nearest even.

    Rounding (SPEC, "Formats"): magnitudes from 65520 on become infinity, those of at
    most 2^-25 zero; subnormals are kept. A NaN keeps its sign and the upper bits of
    its payload; a payload that would vanish becomes the quiet NaN.

    Args:
      x: float32 or float64, any shape.

    Returns:
      uint16 of x's shape.

    Raises:
      TypeError: x is not a float32 or float64 array.

    Example:
      >>> hex(int(to_float16(np.float32(-6.25))))
      '0xc640'
    """
    return _narrow("to_float16", x, FORMATS["float16"])


def to_bfloat16(x: ArrayLike) -> Array:
    """Return the bfloat16 bits of x: one rounding to nearest even, not a truncation.

    Arguments, NaN and errors as for :func:`to_float16`. Magnitudes from
    (2 - 2^-8) 2^127 on become infinity.

    Example:
      >>> hex(int(to_bfloat16(np.float32(0.1))))
      '0x3dcd'
    """
    return _narrow("to_bfloat16", x, FORMATS["bfloat16"])


def _half_bits(function: str, bits: ArrayLike) -> Array:
    if str(getattr(bits, "dtype", None)) != "uint16":
        fail(TypeError, function, "bits", "uint16", describe(bits))
    return jnp.asarray(bits).astype(jnp.uint32)


def from_float16(bits: ArrayLike) -> Array:
    """Return the float32 value of binary16 ``bits``, exactly; NaN payloads are kept.

    Args:
      bits: uint16, any shape.

    Raises:
      TypeError: bits is not a uint16 array.
    """
    b = _half_bits("from_float16", bits)
    magnitude, sign = b & 0x7FFF, (b & 0x8000) << 16
    normal = (magnitude << 13) + (112 << 23)
    special = (magnitude << 13) | 0x7F80_0000
    # A subnormal is an integer times 2^-24: normal in float32.
    small = magnitude.astype(jnp.int32).astype(jnp.float32) * np.float32(2.0**-24)
    small = lax.bitcast_convert_type(small, jnp.uint32)
    out = jnp.where(magnitude < 0x0400, small, normal)
    out = jnp.where(magnitude >= 0x7C00, special, out)
    return lax.bitcast_convert_type(out | sign, jnp.float32)


def from_bfloat16(bits: ArrayLike) -> Array:
    """Return the float32 value of bfloat16 ``bits``: they are its upper half.

    Arguments and errors as for :func:`from_float16`.
    """
    b = _half_bits("from_bfloat16", bits)
    return lax.bitcast_convert_type(b << 16, jnp.float32)


def saturating_cast(x: ArrayLike, dtype: str | np.dtype | type) -> Array:
    """Return x as integers: truncated toward zero, clamped to the range, NaN to 0.

    Args:
      x: float32 or float64, any shape.
      dtype: an integer dtype, "int8" to "uint64".

    Returns:
      An array of ``dtype`` and of x's shape.

    Raises:
      TypeError: x is not a float32 or float64 array.
      ValueError: dtype is not one of the eight integer dtypes.

    Example:
      >>> saturating_cast(np.float32([300, -1, np.nan]), "uint8").tolist()
      [255, 0, 0]
    """
    name = getattr(dtype, "__name__", str(dtype))
    check_option("saturating_cast", "dtype", name, INTEGERS)
    with jax.enable_x64(True):
        negative, magnitude, source = _source("saturating_cast", x)
        significand, field = _significand(magnitude, source)
        exponent = field - source.bias
        left = jnp.clip(exponent - source.fraction, 0, 63).astype(jnp.uint64)
        right = jnp.clip(source.fraction - exponent, 0, 63).astype(jnp.uint64)
        whole = (significand.astype(jnp.uint64) << left) >> right
        whole = jnp.where(exponent >= 64, jnp.uint64(2**64 - 1), whole)
        whole = jnp.where(magnitude > source.infinity, jnp.uint64(0), whole)
        info = jnp.iinfo(name)
        limit = jnp.where(negative, jnp.uint64(-int(info.min)), jnp.uint64(info.max))
        whole = jnp.minimum(whole, limit)
        return jnp.where(negative, jnp.uint64(0) - whole, whole).astype(name)
