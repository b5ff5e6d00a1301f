"""Each operation against exact rationals rounded once, on hard operands."""

from fractions import Fraction

import numpy as np
import pytest

from onemodel_jax.reference.lanes import arithmetic
from tests.support import assert_bits_equal, hard_values, special_values

FORMATS = {np.float32: (24, -126, 127), np.float64: (53, -1022, 1023)}


def round_exact(value, dtype, zero_sign=0):
    """Round a Fraction to nearest even by integers; binary64 flushes subnormals."""
    precision, low, high = FORMATS[dtype]
    if value == 0:
        return dtype(-0.0 if zero_sign else 0.0)
    sign, value = (-1 if value < 0 else 1), abs(value)
    exponent = value.numerator.bit_length() - value.denominator.bit_length()
    while Fraction(2) ** exponent > value:
        exponent -= 1
    while Fraction(2) ** (exponent + 1) <= value:
        exponent += 1
    kept = exponent if dtype is np.float64 else max(exponent, low)
    quantum = Fraction(2) ** (kept - precision + 1)
    rounded = round(value / quantum) * quantum  # Fraction rounds half to even
    if dtype is np.float64 and rounded < Fraction(2) ** low:
        return dtype(sign * 0.0)
    if rounded >= Fraction(2) ** (high + 1):
        return dtype(sign * np.inf)
    return dtype(sign * float(rounded))


def flushed(x):
    x = float(x)
    return np.float64(np.copysign(0.0, x)) if abs(x) < 2.0**-1022 else np.float64(x)


def expected_fma(x, y, z, dtype):
    if dtype is np.float64:
        x, y, z = flushed(x), flushed(y), flushed(z)
    x, y, z = dtype(x), dtype(y), dtype(z)
    with np.errstate(all="ignore"):
        if not (np.isfinite(x) and np.isfinite(y)) or x == 0 or y == 0:
            return dtype(dtype(x * y) + z)
    if not np.isfinite(z):
        return z
    exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
    return round_exact(exact, dtype)


def adversarial(rng, n):
    """Triples of float32 near ties, cancellation, the subnormal and the top range."""
    x = hard_values(rng, n)
    y = hard_values(rng, n)
    z = hard_values(rng, n)
    with np.errstate(all="ignore"):
        near = -(x * y)
        half = np.float32(2.0) ** rng.integers(-30, 30, n).astype(np.float32)
    third = n // 3
    z[:third] = near[:third]  # cancellation to the product's rounding error
    odd = rng.integers(0, 1 << 12, third).astype(np.float32) * 2 + 1
    x[third : 2 * third] = odd  # short products: sums land on ties and next to them
    y[third : 2 * third] = half[third : 2 * third]
    z[third : 2 * third] = np.float32(1 << 23) * half[:third] * 2
    return x, y, z


def test_fma32_rounds_the_exact_value_once_on_adversarial_operands():
    rng = np.random.default_rng(1)
    x, y, z = adversarial(rng, 9000)
    want = [expected_fma(*t, np.float32) for t in zip(x, y, z, strict=True)]
    assert_bits_equal(arithmetic.fma32(x, y, z), np.array(want, np.float32))


def test_fma32_on_every_triple_of_special_values():
    values = special_values()
    x, y, z = (g.ravel() for g in np.meshgrid(values, values, values))
    want = [expected_fma(*t, np.float32) for t in zip(x, y, z, strict=True)]
    assert_bits_equal(arithmetic.fma32(x, y, z), np.array(want, np.float32))


BIG = 2.0**24
TRIPLES = {
    "tie to even, down": ((BIG, 1, 1), BIG),
    "tie to even, up": ((BIG + 2, 1, 1), BIG + 4),
    "just above the tie": ((1, 1 + 2.0**-23, BIG), BIG + 2),
    "just below the tie": ((1, 1 - 2.0**-24, BIG), BIG),
    "tail of 2^-125 above a tie": ((2.0**-63, 2.0**-62, BIG + 1e-9), BIG),
    "float64 sum is odd, one step above the tie": (
        ((1 + 1999 * 2.0**-23) * 2.0**-24, 1 - 3997 * 2.0**-24, 1),
        1 + 2.0**-23,
    ),
    "cancels to the product's error": (
        (1 + 2.0**-23, 1 + 2.0**-23, -(1 + 2.0**-22)),
        2.0**-46,
    ),
    "subnormal from normals": ((2.0**-75, 2.0**-74, 0), 2.0**-149),
    "half the least subnormal, to even": ((2.0**-75, 2.0**-75, 0), 0.0),
    "above half the least subnormal": ((2.0**-75, 1.5 * 2.0**-75, 0), 2.0**-149),
    "product overflows, sum does not": ((2.0**100, 2.0**28, -(2.0**127)), 2.0**127),
    "top binade rounds to infinity": ((2.0**127, 1, 2.0**127), np.inf),
    "exact cancellation is +0": ((3, 5, -15), 0.0),
    "negative zero product and addend": ((-0.0, 5, -0.0), -0.0),
    "negative underflow keeps its sign": ((-(2.0**-100), 2.0**-100, 0.0), -0.0),
}


@pytest.mark.parametrize("name", TRIPLES)
def test_fma32_hand_worked(name):
    operands, want = TRIPLES[name]
    got = arithmetic.fma32(*(np.float32(v) for v in operands))
    assert_bits_equal(got, np.float32(want), name)


def test_fma32_tail_beyond_float64_decides_a_tie():
    # The float64 sum 2^24 + 1 drops the tail 2^-100; rounding to odd remembers it.
    z = np.float32(2.0**-60)
    x, y = np.float32(2**12 + 1), np.float32(2**12 - 1)  # x * y = 2^24 - 1
    for tail in (-1, 1):
        for scale in (1, 2):
            a, b, c = x * np.float32(2 * scale), y, np.float32(tail) * z
            exact = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
            got = arithmetic.fma32(a, b, c)
            assert_bits_equal(got, round_exact(exact, np.float32))
    a, b = np.float32(4097), np.float32(4097)  # 2^24 + 2^13 + 1: a tie
    up = arithmetic.fma32(a, b, z)
    down = arithmetic.fma32(a, b, -z)
    assert float(up) - float(down) == 2.0


EXACT = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "div": lambda x, y: x / y,
}


def edge64(rng, n):
    """float64 operands whose results crowd around 2^-1022 and around zero."""
    x = (1 + rng.random(n)) * 2.0 ** rng.integers(-1022, -1000, n)
    x = np.where(rng.random(n) < 0.3, 2.0**-1022 * (1 + rng.random(n)), x)
    y = np.where(rng.random(n) < 0.5, 1 - rng.random(n) * 2.0**-50, rng.random(n))
    y = np.where(rng.random(n) < 0.3, x * (1 + rng.random(n)), y)
    return x * rng.choice([-1, 1], n), y * rng.choice([-1, 1], n)


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("dtype", FORMATS)
def test_operations_round_the_exact_value_once(name, dtype):
    rng = np.random.default_rng(2)
    x, y = hard_values(rng, 4000, dtype), hard_values(rng, 4000, dtype)
    if dtype is np.float64:
        x[:2000], y[:2000] = edge64(rng, 2000)
    x[0] = dtype(-0.0)
    finite = np.isfinite(x) & np.isfinite(y) & (y != 0)
    got = getattr(arithmetic, name)(x, y)
    for a, b, r in zip(x[finite], y[finite], got[finite], strict=True):
        a, b = (flushed(a), flushed(b)) if dtype is np.float64 else (a, b)
        if b == 0 or a == 0:
            continue
        exact = EXACT[name](Fraction(float(a)), Fraction(float(b)))
        negative = name in ("mul", "div") and np.signbit(a) != np.signbit(b)
        assert_bits_equal(r, round_exact(exact, dtype, negative), f"{a!r} {b!r}")


IEEE = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide}


@pytest.mark.parametrize("name", IEEE)
@pytest.mark.parametrize("dtype", FORMATS)
def test_special_operands_follow_ieee_after_the_flush(name, dtype):
    values = special_values(dtype)
    x, y = (g.ravel() for g in np.meshgrid(values, values))
    with np.errstate(all="ignore"):
        want = IEEE[name](arithmetic.flush(x), arithmetic.flush(y))
    # A float64 result of 2^-1022 may have rounded up: its own test is below.
    clear = (np.abs(want) != 2.0**-1022) | (dtype is np.float32)
    got = getattr(arithmetic, name)(x, y)
    assert_bits_equal(got[clear], arithmetic.flush(want)[clear])


def larger_by_definition(x, y):
    if x != x or y != y:
        return np.nan
    if x == y:
        return y if np.signbit(x) else x
    return x if x > y else y


@pytest.mark.parametrize("dtype", FORMATS)
def test_maximum_and_minimum_propagate_nan_and_order_zeros(dtype):
    values = arithmetic.flush(special_values(dtype))
    x, y = (g.ravel() for g in np.meshgrid(values, values))
    want = [larger_by_definition(a, b) for a, b in zip(x, y, strict=True)]
    assert_bits_equal(arithmetic.maximum(x, y), np.array(want, dtype))
    want = [-larger_by_definition(-a, -b) for a, b in zip(x, y, strict=True)]
    assert_bits_equal(arithmetic.minimum(x, y), np.array(want, dtype))


def test_float64_maximum_counts_a_subnormal_as_zero():
    got = arithmetic.maximum(np.array([5e-324, -5e-324]), np.array([0.0, -1.0]))
    assert_bits_equal(got, np.array([0.0, -0.0]))


def test_float64_product_that_rounds_up_to_the_least_normal_is_flushed():
    # (1 - 2^-53) 2^-1022 has 53 bits below 2^-1022; the subnormal grid rounds it up.
    x, y = np.float64(2.0**-1022), np.float64(1 - 2.0**-53)
    assert x * y == 2.0**-1022
    assert_bits_equal(arithmetic.mul(x, y), np.float64(0.0))
    assert_bits_equal(arithmetic.mul(-x, y), np.float64(-0.0))
    assert_bits_equal(arithmetic.div(x, np.float64(1 + 2.0**-52)), np.float64(0.0))
    assert_bits_equal(arithmetic.fma64(x, y, np.float64(-0.0)), np.float64(0.0))


def test_float32_keeps_subnormals():
    tiny = np.float32(2.0**-149)
    assert_bits_equal(arithmetic.add(tiny, tiny), np.float32(2.0**-148))
    half = np.float32(0.5)
    assert_bits_equal(arithmetic.mul(np.float32(2.0**-126), half), tiny * 2**22)
    assert_bits_equal(arithmetic.sqrt(np.float32(2.0**-148)), np.float32(2.0**-74))


def test_fma64_rounds_the_exact_value_once():
    rng = np.random.default_rng(3)
    x, y, z = (hard_values(rng, 1500, np.float64) for _ in range(3))
    with np.errstate(all="ignore"):
        z[:500] = -(x[:500] * y[:500])
    x[500:900], y[500:900] = edge64(rng, 400)
    z[500:900] = -(x[500:900] * y[500:900])
    want = [expected_fma(*t, np.float64) for t in zip(x, y, z, strict=True)]
    assert_bits_equal(arithmetic.fma(x, y, z), np.array(want))


def test_fma64_finite_operands_and_an_infinite_addend():
    big = np.float64(1e300)
    assert arithmetic.fma64(big, big, np.float64(-np.inf)) == -np.inf
    assert arithmetic.fma64(big, big, -big) == np.inf


@pytest.mark.parametrize("name", ["add", "maximum", "mul"])
def test_mixed_or_other_dtypes_are_refused(name):
    operation = getattr(arithmetic, name)
    with pytest.raises(TypeError, match=f"{name}: operands: expected all float32"):
        operation(np.float32(1), np.float64(1))
    with pytest.raises(TypeError, match="got int64, int64"):
        operation(np.int64(1), np.int64(1))
