"""SplitMix64: known outputs, draws against exact rational arithmetic, errors."""

import re
from fractions import Fraction

import numpy as np
import pytest

from onemodel_jax.nn.generator import Generator, derive
from tests.support import assert_bits_equal

SEED_0 = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
SEED_1234567 = [6457827717110365317, 3203168211198807973, 9817491932198370423]
SEEDS = [0, 1, 42, 1 << 63, (1 << 64) - 1]


def round32(x):
    """Round a rational to binary32; binary64 keeps every value used here exactly."""
    wide = float(x)
    assert Fraction(wide) == x
    return Fraction(float(np.float32(wide)))


@pytest.mark.parametrize(("seed", "want"), [(0, SEED_0), (1234567, SEED_1234567)])
def test_outputs_are_splitmix64(seed, want):
    generator = Generator(seed)
    assert [generator.next_uint64() for _ in want] == want


@pytest.mark.parametrize("seed", SEEDS)
def test_vector_outputs_equal_single_outputs_and_leave_the_same_state(seed):
    one, many = Generator(seed), Generator(seed)
    want = [one.next_uint64() for _ in range(100)]
    got = np.concatenate([many.uint64s(33), many.uint64s(0), many.uint64s(67)])
    assert got.dtype == np.uint64
    assert got.tolist() == want
    assert many.state == one.state


def test_state_continues_the_stream():
    generator = Generator(7)
    generator.uint64s(5)
    assert Generator(generator.state).next_uint64() == generator.next_uint64()


def test_next_single_is_the_upper_24_bits():
    generator = Generator(0)
    for word in SEED_0:
        single = generator.next_single()
        assert single.dtype == np.float32
        assert Fraction(float(single)) == Fraction(word >> 40, 1 << 24)


@pytest.mark.parametrize(("a", "b"), [(-0.125, 0.125), (0.1, 0.7), (-3, 1e-7), (2, 1)])
def test_uniform_rounds_difference_product_and_sum(a, b):
    got = Generator(3).uniform(a, b, (5, 8))
    assert got.shape == (5, 8) and got.dtype == np.float32
    low, high = (Fraction(float(np.float32(x))) for x in (a, b))
    span, reference = round32(high - low), Generator(3)
    want = []
    for _ in range(40):
        single = Fraction(reference.next_uint64() >> 40, 1 << 24)
        product = round32(span * single)
        # A binary64 sum of two binary32 numbers rounds innocuously to binary32.
        want.append(np.float32(float(low) + float(product)))
    assert_bits_equal(got.ravel(), np.array(want, np.float32))


def test_uniform_continues_the_stream_in_row_major_order():
    whole, parts = Generator(9), Generator(9)
    want = whole.uniform(-1, 1, (4, 3))
    rows = [parts.uniform(-1, 1, 3) for _ in range(4)]
    assert_bits_equal(np.stack(rows), want)
    assert whole.state == parts.state


def test_uniform_of_an_empty_shape_draws_nothing_and_of_no_axes_one():
    generator = Generator(1)
    assert generator.uniform(0, 1, (3, 0)).shape == (3, 0)
    assert generator.state == 1
    assert_bits_equal(generator.uniform(0, 1, ()), Generator(1).next_single())


def test_integers_is_the_upper_half_of_the_product():
    generator, reference = Generator(0), Generator(0)
    for low, high in [(0, 1), (-2, 3), (4, 11), (0, 1 << 64), (10**30, 10**30 + 7)]:
        word = reference.next_uint64()
        want = low + Fraction(word * (high - low), 1 << 64).__floor__()
        got = generator.integers(low, high)
        assert got == want and low <= got < high


def test_permutation_orders_by_outputs():
    order = Generator(5).permutation(50)
    words = Generator(5).uint64s(50).tolist()
    assert order.tolist() == sorted(range(50), key=lambda i: words[i])
    assert Generator(5).permutation(0).size == 0


def test_derive_takes_the_numbered_output_at_each_step():
    assert derive(0) == 0
    assert [derive(0, n) for n in range(3)] == SEED_0
    assert derive(0, 2, 1) == Generator(SEED_0[2]).uint64s(2)[1]


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: Generator(-1), ValueError, "Generator: seed: expected 0 to 2^64 - 1"),
        (lambda: Generator(1 << 64), ValueError, "Generator: seed: expected 0 to"),
        (lambda: Generator(1.0), TypeError, "Generator: seed: expected an integer"),
        (lambda: Generator(True), TypeError, "Generator: seed: expected an integer"),
        (lambda: derive(0, -1), ValueError, "derive: path: expected 0 to 2^64 - 1"),
        (lambda: Generator(0).integers(3, 3), ValueError, "integers: high: expected"),
        (lambda: Generator(0).integers(0, (1 << 64) + 1), ValueError, "got 184467"),
        (lambda: Generator(0).integers(0, 2.5), TypeError, "integers: high: expected"),
        (lambda: Generator(0).uint64s(-1), ValueError, "uint64s: count: expected"),
        (lambda: Generator(0).permutation(-1), ValueError, "count: expected 0 to"),
        (lambda: Generator(0).uniform(0, 1, (2, -1)), ValueError, "uniform: shape:"),
        (lambda: Generator(0).uniform(0, 1, 2.0), TypeError, "uniform: shape:"),
        (lambda: Generator(0).uniform(0, np.inf, 2), ValueError, "uniform: a, b:"),
        (lambda: Generator(0).uniform(np.nan, 1, 2), ValueError, "uniform: a, b:"),
        (lambda: Generator(0).uniform(-3e38, 3e38, 2), ValueError, "finite a, b and"),
        (lambda: Generator(0).uniform(0, 1e39, 2), ValueError, "finite a, b and"),
    ],
)
def test_bad_arguments_are_named(call, error, text):
    with pytest.raises(error, match=re.escape(text)):
        call()
