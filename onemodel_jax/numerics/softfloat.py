"""IEEE operations that XLA cannot rewrite: the bodies behind the exact primitives.

XLA on CPU contracts ``a*b + c``, turns divisions into reciprocals, and flushes
subnormals (SPEC, "What the compiler does"). Three ways around it are used here.

* binary32 * / fma: widen to binary64, do ONE operation there, round back, subnormals
  on both sides by integers. 53 >= 2*24 + 2 bits make the second rounding harmless
  (Figueroa 1995); fma needs round-to-odd (Boldo and Melquiond 2008).
* binary32 + - sqrt: the hardware operation, on operands scaled up where they are small.
* binary64: the hardware operation between *pins*. A pin is an integer minimum on the
  bits that only changes one NaN payload; no compiler pass looks through it.

All functions take and return arrays inside a 64-bit context; none validates.
"""

import jax.numpy as jnp
from jax import lax

from onemodel_jax._types import Array

_I32, _U32, _I64, _U64 = jnp.int32, jnp.uint32, jnp.int64, jnp.uint64
_F32, _F64 = jnp.float32, jnp.float64

_ABS64 = 0x7FFF_FFFF_FFFF_FFFF
_INF64 = 0x7FF0_0000_0000_0000
_FRACTION64 = 0x000F_FFFF_FFFF_FFFF
_ONE64 = 0x3FF0_0000_0000_0000


def bits_of(x: Array) -> Array:
    """Return the bits of a float32 or float64 array as int32 or int64."""
    return lax.bitcast_convert_type(x, _I64 if x.dtype == _F64 else _I32)


def from_bits(b: Array) -> Array:
    """Return the float array whose bits are the int32 or int64 array ``b``."""
    return lax.bitcast_convert_type(b, _F64 if b.dtype == _I64 else _F32)


def pin(x: Array) -> Array:
    """Return ``x``, opaque to contraction and algebraic rewrites.

    The all-ones NaN loses its last bit; every other pattern passes unchanged.
    """
    b = bits_of(x)
    limit = 0x7FFF_FFFE if b.dtype == _I32 else _ABS64 - 1
    return from_bits(lax.min(b, jnp.asarray(limit, b.dtype)))


def subnormal(x: Array) -> Array:
    """Return True where binary32 ``x`` is subnormal, by its bits."""
    magnitude = bits_of(x) & 0x7FFF_FFFF
    return (magnitude != 0) & (magnitude < 0x0080_0000)


def decode(x: Array) -> Array:
    """Return binary32 ``x`` as binary64, exactly, though operands are flushed."""
    b = bits_of(x)
    magnitude = b & 0x7FFF_FFFF
    quanta = magnitude.astype(_F64) * 2.0**-149
    tiny = jnp.where(b < 0, -quanta, quanta)
    return jnp.where(magnitude < 0x0080_0000, tiny, x.astype(_F64))


def encode(value: Array) -> Array:
    """Return binary64 ``value`` rounded once to binary32, nearest even."""
    magnitude = jnp.abs(value)
    # The unit in the last place of 2^-97 is 2^-149, the quantum of subnormals.
    quanta = bits_of(magnitude + 2.0**-97) - ((1023 - 97) << 52)
    sign = jnp.where(bits_of(value) < 0, jnp.int32(-(2**31)), jnp.int32(0))
    tiny = from_bits(quanta.astype(_I32) | sign)
    return jnp.where(magnitude < 2.0**-126, tiny, pin(value.astype(_F32)))


# binary32


def _sum(x: Array, y: Array) -> Array:
    """Return binary64 x + y; a sum of two zeros is spelled out.

    XLA drops the addition of a constant zero, which would keep the -0 of -0 + 0.
    """
    bx, by = bits_of(x), bits_of(y)
    zeros = ((bx | by) & _ABS64) == 0
    return jnp.where(zeros, from_bits(bx & by), pin(x + y))


def _scaled_up(x: Array) -> Array:
    """Return x * 2^64 exactly, for magnitudes below 2^-60, subnormals included."""
    b = bits_of(x)
    magnitude = b & 0x7FFF_FFFF
    quanta = magnitude.astype(_F32) * 2.0**-85
    up = jnp.where(magnitude < 0x0080_0000, quanta, jnp.abs(x) * 2.0**64)
    return from_bits(bits_of(up) | (b & ~jnp.int32(0x7FFF_FFFF)))


def _scaled_down(x: Array, zero_sign: Array) -> Array:
    """Return x * 2^-64, for multiples of 2^-85; a zero takes the sign of zero_sign."""
    b = bits_of(x)
    magnitude = b & 0x7FFF_FFFF
    quanta = (from_bits(magnitude) * 2.0**85).astype(_I32)
    down = jnp.where(magnitude < (127 - 62) << 23, quanta, magnitude - (64 << 23))
    sign = jnp.where(magnitude == 0, zero_sign, b) & ~jnp.int32(0x7FFF_FFFF)
    return from_bits(down | sign)


def add32(x: Array, y: Array) -> Array:
    # The hardware's sum is right where an operand is at least 2^-60, for one below
    # 2^-126 does not move it. Where both are less, it is right of the operands times
    # 2^64, which are multiples of 2^-85: the sum is normal or an exact zero.
    bx, by = bits_of(x), bits_of(y)
    small = lax.max(bx & 0x7FFF_FFFF, by & 0x7FFF_FFFF) < (127 - 60) << 23
    tiny = _scaled_down(pin(_scaled_up(x) + _scaled_up(y)), bx & by)
    return jnp.where(small, tiny, pin(x + y))


def sub32(x: Array, y: Array) -> Array:
    return add32(x, -y)


def mul32(x: Array, y: Array) -> Array:
    return encode(decode(x) * decode(y))


def div32(x: Array, y: Array) -> Array:
    # The binary64 quotient must be right to the last bit: a subnormal quotient can be
    # a midpoint of binary32, and a reciprocal that is an ulp off would break the tie.
    return encode(safe_div(decode(x), decode(y)))


def sqrt32(x: Array) -> Array:
    # No root is subnormal, so the hardware's is right. A subnormal operand is an
    # integer n quanta of 2^-149; its root is that of 2n, times 2^-75.
    b, tiny = bits_of(x), subnormal(x)
    double = ((b & 0x7FFF_FFFF) << 1).astype(_F32)
    root = pin(jnp.sqrt(jnp.where(tiny, jnp.where(b < 0, -double, double), pin(x))))
    return jnp.where(tiny, root * 2.0**-75, root)


def round_to_odd(p: Array, z: Array) -> Array:
    """Return binary64 ``p + z`` rounded to odd: inexact sums get an odd last bit."""
    s = _sum(p, z)
    back = pin(s - p)
    error = pin(pin(p - pin(s - back)) + pin(z - back))
    b = bits_of(s)
    inexact = (error != 0) & ((b & 1) == 0) & ((b & _ABS64) < _INF64)
    away = (error > 0) == (s > 0)
    return from_bits(jnp.where(inexact, b + jnp.where(away, 1, -1), b))


def fma32(x: Array, y: Array, z: Array) -> Array:
    return encode(round_to_odd(decode(x) * decode(y), decode(z)))


def round_to_grid(value: Array) -> Array:
    """Return binary64 ``value`` rounded once to the binary32 grid, still binary64.

    Adding and subtracting 1.5 * 2^(e + 29) rounds at 2^(e - 23), e at least -126.
    """
    b = bits_of(value)
    exponent = jnp.maximum(b & _INF64, (1023 - 126) << 52)
    magic = from_bits(exponent + (29 << 52) + (1 << 51))
    rounded = pin(pin(value + magic) - magic)
    rounded = jnp.where(jnp.abs(rounded) >= 2.0**128, jnp.inf, jnp.abs(rounded))
    rounded = from_bits(bits_of(rounded) | (b & ~jnp.int64(_ABS64)))
    return jnp.where((b & _INF64) == _INF64, value, rounded)


def fma_on_grid(x: Array, y: Array, z: Array) -> Array:
    """fma32 on decoded operands, its result decoded too."""
    return round_to_grid(round_to_odd(x * y, z))


def add_on_grid(x: Array, y: Array) -> Array:
    """add32 on decoded operands, its result decoded too."""
    return round_to_grid(_sum(x, y))


# binary64


def flush64(x: Array) -> Array:
    """Return ``x`` with subnormals replaced by zeros of their sign."""
    b = bits_of(x)
    return from_bits(jnp.where((b & _INF64) == 0, b & ~jnp.int64(_ABS64), b))


def add64(x: Array, y: Array) -> Array:
    return flush64(_sum(flush64(pin(x)), flush64(pin(y))))


def sub64(x: Array, y: Array) -> Array:
    return add64(x, -y)


def sqrt64(x: Array) -> Array:
    return pin(jnp.sqrt(flush64(pin(x))))


def _split_exponent(x: Array) -> tuple[Array, Array]:
    """Return (significand with sign in +-[1, 2), exponent field) of normal ``x``."""
    b = bits_of(x)
    field = (b & _INF64) >> 52
    return from_bits((b & ~jnp.int64(_INF64)) | _ONE64), field


def _scale(significand: Array, shift: Array) -> Array:
    """Return normal ``significand`` * 2^shift; overflow is inf, underflow is zero."""
    b = bits_of(significand)
    field = ((b & _INF64) >> 52) + shift
    sign = b & ~jnp.int64(_ABS64)
    out = sign | (jnp.clip(field, 0, 2046) << 52) | (b & _FRACTION64)
    out = jnp.where(field >= 2047, sign | _INF64, out)
    return from_bits(jnp.where(field <= 0, sign, out))


def _ordinary(x: Array) -> Array:
    """Return True where ``x`` is a finite normal number."""
    field = bits_of(x) & _INF64
    return (field != 0) & (field != _INF64)


def mul64(x: Array, y: Array) -> Array:
    x, y = flush64(pin(x)), flush64(pin(y))
    (mx, ex), (my, ey) = _split_exponent(x), _split_exponent(y)
    product = _scale(pin(mx * my), ex + ey - 2046)
    return jnp.where(_ordinary(x) & _ordinary(y), product, pin(x * y))


def div64(x: Array, y: Array) -> Array:
    x, y = flush64(pin(x)), flush64(pin(y))
    (mx, ex), (my, ey) = _split_exponent(x), _split_exponent(y)
    quotient = _scale(safe_div(mx, my), ex - ey)
    return jnp.where(_ordinary(x) & _ordinary(y), quotient, safe_div(x, y))


def _two_product(x: Array, y: Array) -> tuple[Array, Array]:
    """Return (rounded product, exact error) without a fused operation (Dekker 1971)."""

    def split(v: Array) -> tuple[Array, Array]:
        # 26 bits, rounded: the rest then fits 26 bits and a sign.
        high = from_bits((bits_of(v) + (1 << 26)) & ~jnp.int64(0x7FF_FFFF))
        return high, pin(v - high)

    (xh, xl), (yh, yl) = split(x), split(y)
    p = pin(x * y)
    error = pin(pin(xh * yh) - p)
    error = pin(error + pin(xh * yl))
    error = pin(error + pin(xl * yh))
    return p, pin(error + pin(xl * yl))


def _two_sum(x: Array, y: Array) -> tuple[Array, Array]:
    """Return (rounded sum, exact error) (Knuth 1969)."""
    s = pin(x + y)
    back = pin(s - x)
    return s, pin(pin(x - pin(s - back)) + pin(y - back))


def fma64(x: Array, y: Array, z: Array) -> Array:
    """x*y + z with one rounding, by scaled error-free transformations.

    Operands are scaled so that the product lies in [1, 4); an addend more than 2^200
    away only decides the rounding, so its distance is clamped there.
    """
    x, y, z = (flush64(pin(v)) for v in (x, y, z))
    (mx, ex), (my, ey), (mz, ez) = map(_split_exponent, (x, y, z))
    scale = ex + ey - 2046
    distance = ez - 1023 - scale
    addend = _scale(mz, jnp.clip(distance, -200, 200))
    high, low = _two_product(mx, my)
    mid, tail = _two_sum(addend, low)
    top, rest = _two_sum(high, mid)
    fused = _scale_or_zero(pin(top + round_to_odd(rest, tail)), scale)
    fused = jnp.where(distance > 200, z, fused)
    ordinary = _ordinary(x) & _ordinary(y) & _ordinary(z)
    product = mul64(x, y)
    plain = jnp.where((z == 0) & _ordinary(x) & _ordinary(y), product, _sum(product, z))
    finite_product_inf_z = _ordinary(x) & _ordinary(y) & ~(jnp.abs(z) < jnp.inf)
    plain = jnp.where(finite_product_inf_z, z, plain)
    return jnp.where(ordinary, fused, plain)


def _scale_or_zero(x: Array, shift: Array) -> Array:
    return jnp.where(x == 0, x, _scale(x, shift))


# both widths


def safe_div(x: Array, y: Array) -> Array:
    """Return the hardware's x / y, pinned, safe from the reciprocal rewrite.

    XLA multiplies by a reciprocal where the divisor is one number for all elements.
    The unsigned minimum with ``bits(x)`` and the sign bit set leaves the divisor's
    magnitude as it is but makes it depend on each element of the dividend, constant or
    not. Right but for flushing, in both widths.
    """
    unsigned, width = (_U64, 64) if x.dtype == _F64 else (_U32, 32)
    bx = lax.bitcast_convert_type(x, unsigned)
    by = lax.bitcast_convert_type(y, unsigned)
    sign = unsigned(1 << (width - 1))
    magnitude = lax.min(by & ~sign, bx | sign)
    quotient = pin(from_bits(bits_of(x)) / lax.bitcast_convert_type(magnitude, x.dtype))
    out = lax.bitcast_convert_type(quotient, unsigned) ^ (by & sign)
    return lax.bitcast_convert_type(out, x.dtype)


def order_key(b: Array) -> Array:
    """Return integers ordered as the floats are, -0 below +0."""
    width = 31 if b.dtype == _I32 else 63
    return b ^ ((b >> width) & ((1 << width) - 1))


def is_nan(x: Array) -> Array:
    """Return True where ``x`` is NaN, by its bits."""
    b = bits_of(x)
    inf = 0x7F80_0000 if b.dtype == _I32 else _INF64
    return (b & (0x7FFF_FFFF if b.dtype == _I32 else _ABS64)) > inf


def _chosen(x: Array, y: Array, better) -> Array:
    """Return x where better(key x, key y), else y; NaN if either is NaN."""
    if x.dtype == _F64:
        x, y = flush64(x), flush64(y)
    first = better(order_key(bits_of(x)), order_key(bits_of(y)))
    return _nan_if(is_nan(x) | is_nan(y), jnp.where(first, x, y))


def maximum(x: Array, y: Array) -> Array:
    return _chosen(x, y, lax.ge)


def minimum(x: Array, y: Array) -> Array:
    return _chosen(x, y, lax.le)


def _nan_if(condition: Array, value: Array) -> Array:
    return jnp.where(condition, jnp.asarray(jnp.nan, value.dtype), value)
