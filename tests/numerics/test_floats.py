"""Formats: every 16-bit pattern, exact rounding, saturating casts, and the layout."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from onemodel_jax.numerics.floats import (
    INTEGERS,
    from_bfloat16,
    from_float16,
    saturating_cast,
    to_bfloat16,
    to_float16,
)
from onemodel_jax.numerics.layout import describe
from tests.support import assert_bits_equal, bits, hard_values, special_values

F = np.float32
ALL = np.arange(65536, dtype=np.uint16)
NARROW = {
    "float16": (to_float16, from_float16, 10, 15),
    "bfloat16": (to_bfloat16, from_bfloat16, 7, 127),
}


def run(function, x):
    with jax.enable_x64(True):
        return np.asarray(jax.jit(function)(x))


def value_of(pattern, fraction, bias):
    """The definition: (-1)^s 2^(e - bias) 1.f, or 0.f 2^(1 - bias) for field 0."""
    sign = -1.0 if pattern >> 15 else 1.0
    field, part = (pattern & 0x7FFF) >> fraction, pattern & ((1 << fraction) - 1)
    if field == 2 * bias + 1:
        return np.nan if part else sign * np.inf
    one = 1.0 if field else 0.0
    return sign * np.ldexp(one + part / (1 << fraction), max(field, 1) - bias)


@pytest.mark.parametrize("name", NARROW)
def test_every_pattern_has_its_defined_value_and_comes_back(name):
    to, back, fraction, bias = NARROW[name]
    values = run(back, ALL)
    want = np.array([value_of(int(p), fraction, bias) for p in ALL])
    assert_bits_equal(values, want.astype(F))
    np.testing.assert_array_equal(run(to, values), ALL)
    with np.errstate(invalid="ignore"):
        wide = values.astype(np.float64)
    finite = ~np.isnan(wide)
    np.testing.assert_array_equal(run(to, wide)[finite], ALL[finite])


def nearest(x, values, patterns):
    """Nearest even by search: among sorted nonnegative values; ties take even bits."""
    x = np.abs(x.astype(np.longdouble))
    above = np.searchsorted(values, x)
    above = np.clip(above, 1, len(values) - 1)
    low, high = values[above - 1], values[above]
    middle = (low + high) / 2
    odd = (patterns[above - 1] & 1) == 1
    up = (x > middle) | ((x == middle) & odd)
    return np.where(up, patterns[above], patterns[above - 1])


@pytest.mark.parametrize("width", [np.float32, np.float64])
@pytest.mark.parametrize("name", NARROW)
def test_rounding_is_to_nearest_even(name, width):
    to, _, fraction, bias = NARROW[name]
    grid = np.arange((2 * bias + 1) << fraction)
    values = np.array([value_of(int(p), fraction, bias) for p in grid])
    top = np.ldexp(1.0, bias + 1)  # the value infinity would have
    values = np.append(values, top).astype(np.longdouble)
    patterns = np.append(grid, (2 * bias + 1) << fraction)
    rng = np.random.default_rng(0)
    middles = ((values[:-1] + values[1:]) / 2).astype(np.float64)
    sides = [np.nextafter(middles, -np.inf), middles, np.nextafter(middles, np.inf)]
    with np.errstate(all="ignore"):
        x = np.concatenate([*sides, hard_values(rng, 100_000, np.float64)])
        x = np.concatenate([x.astype(width), special_values(width)])
    x = x[~np.isnan(x)] * rng.choice([-1, 1], np.count_nonzero(~np.isnan(x)))
    x = x.astype(width)
    with np.errstate(over="ignore"):
        limit = width(top)  # infinity where the format has no such number
    want = nearest(np.minimum(np.abs(x), limit), values, patterns)
    want = want.astype(np.uint16) | (np.signbit(x).astype(np.uint16) << 15)
    np.testing.assert_array_equal(run(to, x), want)


def test_worked_examples():
    assert bits(F(-6.25))[0] == 0xC0C80000
    assert int(to_float16(F(-6.25))) == 0xC640
    assert int(to_bfloat16(F(-6.25))) == 0xC0C8
    assert bits(F(0.1))[0] == 0x3DCCCCCD
    assert int(to_float16(F(0.1))) == 0x2E66
    assert int(to_bfloat16(F(0.1))) == 0x3DCD
    assert float(from_float16(np.uint16(0x2E66))) == 0.0999755859375
    assert float(from_bfloat16(np.uint16(0x3DCD))) == 0.10009765625


def test_truncating_would_be_another_number():
    truncated = np.uint16(bits(F(0.1))[0] >> 16)
    assert truncated == 0x3DCC != int(to_bfloat16(F(0.1)))
    assert float(from_bfloat16(truncated)) == 0.099609375


def test_edges_of_binary16():
    x = F([65504, 65519.996, 65520, 2.0**-24, 2.0**-25, 2.0**-25 * 1.0000001, 1e-8])
    want = np.array([0x7BFF, 0x7BFF, 0x7C00, 1, 0, 1, 0], np.uint16)
    np.testing.assert_array_equal(to_float16(x), want)
    np.testing.assert_array_equal(to_float16(-x), want | 0x8000)
    scaled = to_float16(F(1e-8) * F(65536))
    assert float(from_float16(scaled)) / 65536 == pytest.approx(1e-8, rel=1e-3)


def test_a_nan_stays_a_nan_and_keeps_its_sign():
    x = np.uint32([0x7F800001, 0xFF800001, 0x7FC00000, 0xFFFFFFFF]).view(F)
    half, brain = to_float16(x), to_bfloat16(x)
    np.testing.assert_array_equal(half, [0x7E00, 0xFE00, 0x7E00, 0xFFFF])
    np.testing.assert_array_equal(brain, [0x7FC0, 0xFFC0, 0x7FC0, 0xFFFF])


def test_a_small_update_of_a_bfloat16_weight_is_lost():
    weight, step = F(1), F(1e-3)
    assert int(to_bfloat16(weight + step)) == int(to_bfloat16(weight))
    assert F(1e8) + F(1) == F(1e8)


def integers_by_python(x, name):
    info = np.iinfo(name)
    out = []
    with np.errstate(invalid="ignore"):
        values = x.astype(np.float64).tolist()
    for v in values:
        whole = 0 if v != v else v
        if not np.isfinite(whole):
            whole = info.max if whole > 0 else info.min
        out.append(min(max(int(whole), int(info.min)), int(info.max)))
    return np.array(out, name)


@pytest.mark.parametrize("name", INTEGERS)
def test_saturating_cast_truncates_clamps_and_maps_nan_to_0(name):
    rng = np.random.default_rng(1)
    limits = [float(np.iinfo(name).max), float(np.iinfo(name).min)]
    for dtype in (np.float32, np.float64):
        edge = np.array(limits, dtype)
        near = [np.nextafter(edge, dtype(s * np.inf)) for s in (-1, 1)]
        ordinary = (rng.standard_normal(2000) * 300).astype(dtype)
        with np.errstate(over="ignore"):
            wide = (
                rng.standard_normal(2000) * 2.0 ** rng.integers(0, 70, 2000)
            ).astype(dtype)
        parts = [edge, *near, ordinary, wide, special_values(dtype)]
        x = np.concatenate([*parts, hard_values(rng, 2000, dtype)])
        got = run(lambda v: saturating_cast(v, name), x)
        np.testing.assert_array_equal(got, integers_by_python(x, name))
        assert got.dtype == name


def test_shapes_vmap_and_the_users_flag():
    x = np.ones((2, 0, 3), F)
    assert to_float16(x).shape == from_float16(to_float16(x)).shape == (2, 0, 3)
    assert saturating_cast(F(3.7), np.int8).shape == ()
    got = jax.vmap(to_bfloat16, in_axes=1)(np.full((2, 3), F(0.1)))
    np.testing.assert_array_equal(got, np.full((3, 2), 0x3DCD, np.uint16))
    with jax.enable_x64(False):
        cast = saturating_cast(F([2.0**40]), "int64")
        assert cast.dtype == np.int64 and int(cast[0]) == 1 << 40


def test_bad_input_is_refused_by_name():
    with pytest.raises(TypeError, match=r"^to_float16: x: expected float32 or .*int32"):
        to_float16(np.int32(1))
    with pytest.raises(TypeError, match="^to_bfloat16: x: .*got float16"):
        to_bfloat16(np.float16(1))
    with pytest.raises(
        TypeError, match="^from_float16: bits: expected uint16, got int"
    ):
        from_float16(3)
    with pytest.raises(TypeError, match="^saturating_cast: x: .*got float"):
        saturating_cast(1.0, "int8")
    with pytest.raises(ValueError, match="^saturating_cast: dtype: .*got 'bool'"):
        saturating_cast(F(1), "bool")


DESCRIBED = {
    (-6.25, "float32"): ["0xc0c80000 = -6.25", "10000001  (129 - 127 = 2)"],
    (-6.25, "float16"): ["0xc640", "10001  (17 - 15 = 2)", "1001000000"],
    (0.1, "float32"): ["0x3dcccccd = 0.10000000149011612", "spacing  7.45058059692382"],
    (0.1, "bfloat16"): ["0x3dcd = 0.10009765625", "0.099609375  0.1005859375"],
    (1e8, "float32"): ["spacing  8.0", "neighbours  99999992.0  100000008.0"],
    (1.0, "bfloat16"): ["neighbours  0.99609375  1.0078125"],
    (65520.0, "float16"): ["0x7c00 = inf (infinity)"],
    (-0.0, None): ["float64 0x8000000000000000 = -0.0 (zero)", "-5e-324  5e-324"],
    (2.0**-149, "float32"): ["0x00000001", "(subnormal)", "neighbours  0.0  2.8025969"],
    (float("nan"), "float16"): ["0x7e00 = nan (NaN)"],
    (3.4028234663852886e38, "float32"): ["0x7f7fffff", "3.4028232635611926e+38  inf"],
}


@pytest.mark.parametrize("case", DESCRIBED, ids=str)
def test_describe(case):
    text = describe(*case)
    for part in DESCRIBED[case]:
        assert part in text


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, jnp.bfloat16])
def test_describe_reads_the_bits_of_a_scalar_of_each_format(dtype):
    for value in (1.5, -1.5, 0.1, -0.0, np.inf, 1e-7):
        x = jnp.asarray(value, dtype) if dtype is jnp.bfloat16 else dtype(value)
        first = describe(x).splitlines()[0]
        assert first.split()[:3] == [np.dtype(dtype).name, f"{hex_of(x)}", "="]
        assert first.split()[3] == repr(float(x))
        assert describe(float(x), np.dtype(dtype).name) == describe(x)


def hex_of(x):
    pattern = int(np.atleast_1d(bits(np.asarray(x)))[0])
    return f"0x{pattern:0{np.asarray(x).dtype.itemsize * 2}x}"


def test_describe_refuses_other_things():
    with pytest.raises(TypeError, match="^describe: x: expected a scalar of float64"):
        describe(np.int32(1))
    with pytest.raises(TypeError, match=r"got float32\[2\]"):
        describe(np.zeros(2, F))
    with pytest.raises(ValueError, match="^describe: format: .*got 'float8'"):
        describe(1.0, "float8")
