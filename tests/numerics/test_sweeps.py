"""Large sweeps: correct rounding on 2^20 operands, 2^24 arguments of each function."""

import ctypes
import ctypes.util

import jax
import numpy as np
import pytest

from onemodel_jax import numerics
from onemodel_jax.numerics.floats import to_bfloat16, to_float16
from onemodel_jax.reference.lanes import arithmetic
from onemodel_jax.reference.lanes import elementary as reference
from tests.numerics.samples import exact, expected, hard_tuple
from tests.support import assert_bits_equal

pytestmark = pytest.mark.slow

MANY = 1 << 20
CHUNK = 1 << 21
F = np.float32


@pytest.fixture(autouse=True)
def _quiet():
    with np.errstate(all="ignore"):
        yield


def between_midpoints(exactly, low, result, high):
    """Whether no float32 is nearer, by comparisons that binary64 makes exactly.

    ``exactly(m)`` compares the true value with m: negative below, 0 at, positive above.
    Midpoints of float32 have 25 bits. A tie must go to the even neighbour.
    """
    even = (result.view(np.uint32) & 1) == 0
    lower = exactly((low.astype(np.float64) + result) / 2)
    upper = exactly((high.astype(np.float64) + result) / 2)
    return ((lower > 0) | ((lower == 0) & even)) & ((upper < 0) | ((upper == 0) & even))


def neighbours(x):
    return np.nextafter(x, F(-np.inf)), np.nextafter(x, F(np.inf))


def test_quotients_lie_between_their_midpoints():
    x, y = hard_tuple("div", "float32", MANY, seed=10)
    got = exact("div", x, y)
    assert_bits_equal(got, expected("div", x, y))
    r = np.asarray(got)
    keep = np.isfinite(x) & np.isfinite(y) & (y != 0) & np.isfinite(r) & (r != 0)
    keep &= np.isfinite(neighbours(r)).all(axis=0)
    x, y, r = (v[keep] for v in (np.abs(x), np.abs(y), np.abs(r)))
    # x / y < m exactly if x < m y, whose product has 49 bits.
    side = lambda m: np.sign(x.astype(np.float64) - m * y.astype(np.float64))  # noqa: E731
    assert between_midpoints(side, *insert(neighbours(r), r)).all()
    assert keep.sum() > MANY // 2


def insert(pair, middle):
    return pair[0], middle, pair[1]


def test_square_roots_of_2_to_24_patterns():
    for x in sweep():
        got = exact("sqrt", x)
        assert_bits_equal(got, np.sqrt(x))
        keep = np.isfinite(x) & (x > 0)
        r, v = np.asarray(got)[keep], x[keep].astype(np.float64)
        side = lambda m, v=v: np.sign(v - m * m)  # noqa: E731
        assert between_midpoints(side, *insert(neighbours(r), r)).all()


def test_products_are_the_rounded_exact_product():
    """A product of two float32 has 48 bits and is exact in binary64."""
    x, y = hard_tuple("mul", "float32", MANY, seed=11)
    want = (x.astype(np.float64) * y).astype(F)
    assert_bits_equal(exact("mul", x, y), want)


@pytest.mark.parametrize("name", ["add", "sub", "fma", "maximum", "minimum"])
def test_a_million_hard_operands(name):
    operands = hard_tuple(name, "float32", MANY, seed=12)
    assert_bits_equal(exact(name, *operands), expected(name, *operands))


@pytest.mark.parametrize("name", ["add", "sub", "mul", "div", "maximum", "minimum"])
def test_a_million_hard_operands_in_binary64(name):
    operands = hard_tuple(name, "float64", MANY, seed=13)
    assert_bits_equal(exact(name, *operands), expected(name, *operands))


def fused(x, y, z):
    """x * y + z by the C library, binary64, under the flush rule.

    A result of 2^-1022 may have been rounded up to it from below, where its exponent
    is bounded: exact rationals decide.
    """
    library = ctypes.CDLL(ctypes.util.find_library("m"))
    library.fma.argtypes, library.fma.restype = [ctypes.c_double] * 3, ctypes.c_double
    x, y, z = (arithmetic.flush(v) for v in (x, y, z))
    result = np.frompyfunc(library.fma, 3, 1)(x, y, z).astype(np.float64)
    edge = np.abs(result) == np.finfo(np.float64).tiny
    result[edge] = arithmetic.fma(x[edge], y[edge], z[edge])
    return arithmetic.flush(result)


def test_a_million_hard_operands_of_the_binary64_fma():
    """The C library is a third opinion beside ours and the exact rationals."""
    if ctypes.util.find_library("m") is None:
        pytest.skip("no C library of mathematics to compare with")
    operands = hard_tuple("fma", "float64", MANY, seed=16)
    want = fused(*operands)
    few = [v[:: want.size // 2000] for v in (*operands, want)]
    assert_bits_equal(few.pop(), expected("fma", *few), "the C library")
    assert_bits_equal(exact("fma", *operands), want)


def sweep():
    """2^24 float32 patterns in rising order of their bits, all exponents and signs."""
    for start in range(0, 1 << 24, CHUNK):
        k = np.arange(start, start + CHUNK, dtype=np.uint32)
        yield (k * np.uint32(256) + (k * np.uint32(2654435761) >> 24)).view(F)


TRUTH = {
    "exp": np.exp,
    "log": np.log,
    "sigmoid": lambda v: np.where(
        v >= 0, 1 / (1 + np.exp(-np.abs(v))), np.exp(v) / (1 + np.exp(v))
    ),
    "tanh": np.tanh,
}
RANGE = {"exp": (0, np.inf), "log": (-104, 89), "sigmoid": (0, 1), "tanh": (-1, 1)}


def ulps(got, true):
    """Error in units of the last place of the true value, for finite results."""
    nearest = true.astype(F)
    keep = np.isfinite(got) & np.isfinite(nearest)
    got, true = got[keep].astype(np.float64), true[keep]
    return np.abs(got - true) / np.spacing(np.abs(nearest[keep])).astype(np.float64)


@pytest.mark.parametrize("name", TRUTH)
def test_2_to_24_arguments_of_a_float32_function(name):
    """The reference's bits, the error, and rising values; the truth is binary64's."""
    function = jax.jit(getattr(numerics, name))
    worst = 0.0
    for x in sweep():
        got = np.asarray(function(x))
        assert_bits_equal(got, getattr(reference, name)(x), name)
        worst = max(worst, ulps(got, TRUTH[name](x.astype(np.float64))).max(initial=0))
        real = got[~np.isnan(got)]
        low, high = RANGE[name]
        inside = real[np.isfinite(real)]
        assert np.all((inside >= low) & (inside <= high))
        # The bits of negative numbers rise as the numbers fall.
        direction = -1 if np.signbit(x[0]) else 1
        real = real[::direction]
        assert np.all(real[1:] >= real[:-1]), "not monotonic"
    print(f"{name}: worst error {worst:.7f} ulp")
    assert worst < 0.50001


def test_tanh_is_odd_and_sigmoid_of_0_is_a_half():
    x = next(sweep())
    tanh = jax.jit(numerics.tanh)
    assert_bits_equal(tanh(-x), -np.asarray(tanh(x)))
    assert float(numerics.sigmoid(F(0))) == 0.5


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_2_to_24_conversions(name):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    convert = {"float16": to_float16, "bfloat16": to_bfloat16}[name]
    target = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}[name]
    function = jax.jit(convert)
    with jax.enable_x64(True):
        for x in sweep():
            x = x[~np.isnan(x)]
            padded = np.concatenate([x, np.zeros(CHUNK - x.size, F)])
            want = padded.astype(target).view(np.uint16)
            np.testing.assert_array_equal(function(padded), want)


LONG = np.finfo(np.longdouble).nmant >= 63
WIDE = {
    "exp64": (np.exp, lambda rng: rng.uniform(-708.3, 709.7, MANY), 1.2),
    "log64": (np.log, lambda rng: np.exp(rng.uniform(-708, 709, MANY)), 3.0),
    "log1p64": (np.log1p, lambda rng: np.exp(-rng.uniform(0, 700, MANY)), 3.5),
    "log1p64 near 0": (np.log1p, lambda rng: rng.uniform(-0.6, 1, MANY), 3.5),
    "log64 near 1": (np.log, lambda rng: rng.uniform(0.5, 2, MANY), 3.0),
}


@pytest.mark.skipif(not LONG, reason="the truth needs an 80-bit long double")
@pytest.mark.parametrize("name", WIDE)
def test_a_million_arguments_of_a_binary64_function(name):
    truth, draw, bound = WIDE[name]
    x = draw(np.random.default_rng(14))
    got = exact(name.split()[0], x)
    true = truth(x.astype(np.longdouble))
    spacing = np.spacing(np.abs(true.astype(np.float64)))
    worst = float(np.max(np.abs(np.asarray(got) - true) / spacing))
    print(f"{name}: worst error {worst:.4f} ulp")
    assert worst < bound


@pytest.mark.skipif(not LONG, reason="the truth needs an 80-bit long double")
def test_a_million_arguments_of_cos_pi():
    t = np.random.default_rng(15).random(MANY)
    got = np.asarray(exact("cos_pi", t))
    pi = np.longdouble("3.14159265358979323846264338327950288")
    worst = float(np.max(np.abs(got - np.cos(pi * t))))
    print(f"cos_pi: worst error {worst:.3e}")
    assert worst < 4e-16
    falling = np.asarray(exact("cos_pi", np.linspace(0, 1, MANY)))
    assert np.all(np.diff(falling) <= 0)
