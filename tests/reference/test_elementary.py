"""Elementary functions: the stated steps, the stated error, the stated edges."""

import math
import struct

import numpy as np
import pytest

from onemodel_jax.reference.lanes import elementary
from tests.support import assert_bits_equal

mpmath = pytest.importorskip("mpmath")
mpmath.mp.prec = 160

INF, NAN = np.inf, np.nan


def largest_error(got, x, function, dtype=np.float64):
    """Return the largest error in ulps of the true value."""
    worst = 0.0
    for value, argument in zip(got, x, strict=True):
        true = function(mpmath.mpf(float(argument)))
        ulp = float(np.spacing(np.abs(dtype(float(true)))))
        worst = max(worst, float(abs(mpmath.mpf(float(value)) - true) / ulp))
    return worst


def test_exp64_is_within_1_1_ulp():
    rng = np.random.default_rng(0)
    parts = [rng.uniform(-708, 709.7, 1500), rng.uniform(-1, 1, 1000)]
    x = np.concatenate([*parts, rng.uniform(-40, 0, 1000), [-708.39, 709.78]])
    assert largest_error(elementary.exp64(x), x, mpmath.exp) < 1.1


def test_log64_is_within_2_6_ulp():
    rng = np.random.default_rng(1)
    parts = [10 ** rng.uniform(-307, 307, 1500), rng.uniform(0.5, 2, 1500)]
    x = np.concatenate([*parts, 1 + rng.uniform(-1e-3, 1e-3, 1000)])
    assert largest_error(elementary.log64(x), x, mpmath.log) < 2.6


def test_log1p64_is_within_3_5_ulp():
    rng = np.random.default_rng(5)
    parts = [10 ** rng.uniform(-307, 9, 1000), rng.random(1000)]
    parts += [rng.uniform(-0.999, 0, 1000), np.exp(-rng.uniform(0, 50, 1000))]
    y = np.concatenate(parts)
    assert largest_error(elementary.log1p64(y), y, mpmath.log1p) < 3.5


def test_cos_pi_is_within_4e_16():
    t = np.linspace(0, 1, 501)
    got = elementary.cos_pi(t)
    true = [mpmath.cos(mpmath.pi * mpmath.mpf(float(v))) for v in t]
    worst = max(abs(mpmath.mpf(float(a)) - b) for a, b in zip(got, true, strict=True))
    assert worst < 4e-16


def float32_sample(seed):
    rng = np.random.default_rng(seed)
    parts = [rng.standard_normal(1500) * 3, 10 ** rng.uniform(-12, 1.5, 1500)]
    edge = 2.0**-12 * (1 + np.arange(-20, 20) * 2.0**-24)
    x = np.concatenate([*parts, -(10 ** rng.uniform(-12, 1.9, 500)), edge])
    return x.astype(np.float32)


FLOAT32 = {
    "sigmoid": lambda v: 1 / (1 + mpmath.exp(-v)),
    "tanh": mpmath.tanh,
    "exp": mpmath.exp,
}


@pytest.mark.parametrize("name", FLOAT32)
def test_float32_functions_are_within_0_501_ulp(name):
    x = float32_sample(2)
    got = getattr(elementary, name)(x)
    assert got.dtype == np.float32
    assert largest_error(got, x, FLOAT32[name], np.float32) < 0.501


def test_tanh_is_all_but_correctly_rounded_around_its_series():
    x = (2.0**-12 * np.linspace(0.7, 1.3, 20000)).astype(np.float32)
    true = np.tanh(x.astype(np.float64))  # 1e-16 relative: 2e-9 of a float32 ulp
    error = np.abs(elementary.tanh(x) - true) / np.spacing(true.astype(np.float32))
    assert error.max() < 0.50001


def test_float32_log_is_within_0_501_ulp():
    x = np.abs(float32_sample(3))
    x = np.append(x, np.float32(2.0**-149)).astype(np.float32)
    got = elementary.log(x)
    assert largest_error(got, x, mpmath.log, np.float32) < 0.501


def exp_by_steps(x):
    """The stated steps on Python floats, one operation a statement's operator."""
    high = struct.unpack(">d", bytes.fromhex("3FE62E42FEE00000"))[0]
    low = struct.unpack(">d", bytes.fromhex("3DEA39EF35793C76"))[0]
    k = math.floor(x * 1.4426950408889634 + 0.5)
    r = (x - k * high) - k * low
    p = 1 / math.factorial(13)
    for n in reversed(range(13)):
        p = p * r + 1 / math.factorial(n)
    return math.ldexp(p, k)


def log_by_steps(x):
    high = struct.unpack(">d", bytes.fromhex("3FE62E42FEE00000"))[0]
    low = struct.unpack(">d", bytes.fromhex("3DEA39EF35793C76"))[0]
    m, k = math.frexp(x)
    if m < math.sqrt(0.5):
        m, k = 2 * m, k - 1
    f = (m - 1) / (m + 1)
    s = f * f
    p = 1 / 23
    for n in reversed(range(11)):
        p = p * s + 1 / (2 * n + 1)
    return k * high + (2 * f * p + k * low)


def log1p_by_steps(y):
    high = struct.unpack(">d", bytes.fromhex("3FE62E42FEE00000"))[0]
    low = struct.unpack(">d", bytes.fromhex("3DEA39EF35793C76"))[0]
    if abs(y) < 2.0**-54:
        return y
    m, k = math.frexp(1 + y)
    if m < math.sqrt(0.5):
        m, k = 2 * m, k - 1
    f = {0: y / (2 + y), 1: (y - 1) / (3 + y)}.get(k, (m - 1) / (m + 1))
    s = f * f
    p = 1 / 23
    for n in reversed(range(11)):
        p = p * s + 1 / (2 * n + 1)
    return k * high + (2 * f * p + k * low)


def cos_by_steps(t):
    y, sign = (1 - t, -1.0) if t > 0.5 else (t, 1.0)
    a = 3.14159265358979323846 * y
    a2 = a * a
    r = 1.0
    for k in reversed(range(1, 14)):
        r = 1 - a2 / ((2 * k - 1) * (2 * k)) * r
    return sign * r


def test_steps_are_the_stated_ones_bit_for_bit():
    rng = np.random.default_rng(4)
    x = rng.uniform(-708, 709.7, 2000)
    want = np.array([exp_by_steps(float(v)) for v in x])
    assert_bits_equal(elementary.exp64(x), want)
    y = np.concatenate([10 ** rng.uniform(-307, 307, 1000), rng.uniform(0.4, 3, 1000)])
    want = np.array([log_by_steps(float(v)) for v in y])
    assert_bits_equal(elementary.log64(y), want)
    y = np.concatenate([10 ** rng.uniform(-30, 5, 1000), rng.uniform(-0.99, 3, 1000)])
    want = np.array([log1p_by_steps(float(v)) for v in y])
    assert_bits_equal(elementary.log1p64(y), want)
    t = rng.uniform(0, 1, 500)
    want = np.array([cos_by_steps(float(v)) for v in t])
    assert_bits_equal(elementary.cos_pi(t), want)


EDGES = {
    "exp64": [
        (0.0, 1.0),
        (-0.0, 1.0),
        (INF, INF),
        (-INF, 0.0),
        (NAN, NAN),
        (np.nextafter(709.78, INF), INF),
        (np.nextafter(-708.39, -INF), 0.0),
        (5e-324, 1.0),
    ],
    "log64": [
        (1.0, 0.0),
        (0.0, -INF),
        (-0.0, -INF),
        (5e-324, -INF),
        (-5e-324, -INF),
        (-1.0, NAN),
        (-INF, NAN),
        (INF, INF),
        (NAN, NAN),
    ],
    "log1p64": [
        (0.0, 0.0),
        (-0.0, -0.0),
        (1.0, math.log(2)),
        (-1.0, -INF),
        (-1.5, NAN),
        (-INF, NAN),
        (INF, INF),
        (NAN, NAN),
        (5e-324, 0.0),
        (-5e-324, -0.0),
    ],
    "cos_pi": [
        (0.0, 1.0),
        (-3.0, 1.0),
        (1.0, -1.0),
        (2.0, -1.0),
        (-INF, 1.0),
        (INF, -1.0),
        (NAN, NAN),
    ],
}


@pytest.mark.parametrize("name", EDGES)
def test_float64_edges(name):
    x, want = (np.array(v) for v in zip(*EDGES[name], strict=True))
    assert_bits_equal(getattr(elementary, name)(x), want)
    first = getattr(elementary, name)(np.float64(x[0]))
    assert_bits_equal(first, np.float64(want[0]))


TINY = 2.0**-149
EDGES32 = {
    "sigmoid": [
        (0.0, 0.5),
        (-0.0, 0.5),
        (INF, 1.0),
        (-INF, 0.0),
        (NAN, NAN),
        (200.0, 1.0),
        (-1000.0, 0.0),
        (TINY, 0.5),
    ],
    "tanh": [
        (0.0, 0.0),
        (-0.0, -0.0),
        (INF, 1.0),
        (-INF, -1.0),
        (NAN, NAN),
        (TINY, TINY),
        (-TINY, -TINY),
        (3e38, 1.0),
    ],
    "exp": [
        (0.0, 1.0),
        (INF, INF),
        (-INF, 0.0),
        (NAN, NAN),
        (88.8, INF),
        (-103.0, 1.0 * TINY),
        (-1000.0, 0.0),
    ],
    "log": [(1.0, 0.0), (0.0, -INF), (-0.0, -INF), (-1.0, NAN), (INF, INF)],
}


@pytest.mark.parametrize("name", EDGES32)
def test_float32_edges(name):
    x, want = (np.array(v, np.float32) for v in zip(*EDGES32[name], strict=True))
    assert_bits_equal(getattr(elementary, name)(x), want)


def test_sigmoid_reaches_subnormals():
    got = elementary.sigmoid(np.float32(-100.0))
    assert 0 < got < np.float32(2.0**-126)


def test_float64_argument_of_a_float32_function_is_refused():
    with pytest.raises(TypeError, match="tanh: x: expected float32, got float64"):
        elementary.tanh(np.float64(1))
