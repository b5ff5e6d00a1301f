"""Elementary functions: the reference's bits, the true value, and the edges."""

import jax
import numpy as np
import pytest

from onemodel_jax import numerics
from onemodel_jax.reference.lanes import elementary as reference
from tests.support import assert_bits_equal, hard_values, special_values

mpmath = pytest.importorskip("mpmath")
INF, NAN = np.inf, np.nan

WIDE = ["exp64", "log64", "log1p64", "cos_pi"]
NARROW = ["exp", "log", "sigmoid", "tanh"]
NAMES = WIDE + NARROW


def dtype_of(name):
    return np.float64 if name in WIDE else np.float32


def run(name, x):
    with jax.enable_x64(True):
        return np.asarray(jax.jit(getattr(numerics, name))(x))


def sample(name, n=100_000, seed=0):
    """Special values, hard values, and the range where the function lives."""
    rng = np.random.default_rng([seed, NAMES.index(name)])
    dtype = dtype_of(name)
    with np.errstate(over="ignore"):
        ranges = {
            "exp64": rng.uniform(-750, 750, n),
            "log64": 10 ** rng.uniform(-309, 309, n),
            "log1p64": 10 ** rng.uniform(-309, 1, n) * rng.choice([-0.1, 1], n),
            "cos_pi": rng.uniform(-0.1, 1.1, n),
            "exp": rng.uniform(-110, 95, n),
            "log": 10 ** rng.uniform(-46, 39, n),
            "sigmoid": rng.uniform(-110, 110, n),
            "tanh": 10 ** rng.uniform(-10, 1.5, n) * rng.choice([-1, 1], n),
        }
        lived = ranges[name].astype(dtype)
    around = np.array(
        [
            0.5,
            1,
            2,
            -0.5,
            -0.29,
            -1,
            0.4142,
            -708.39,
            709.78,
            2.0**-12,
            2**0.5,
            2**-0.5,
        ],
        dtype,
    )
    steps = [around]
    for direction in (-np.inf, np.inf):
        near = around
        for _ in range(3):
            near = np.nextafter(near, dtype(direction))
            steps.append(near)
    parts = [special_values(dtype), hard_values(rng, n, dtype), lived, *steps]
    return np.concatenate(parts).astype(dtype)


@pytest.mark.parametrize("name", NAMES)
def test_bits_equal_the_reference(name):
    x = sample(name)
    assert_bits_equal(run(name, x), getattr(reference, name)(x), name)


@pytest.mark.parametrize("name", NAMES)
def test_same_bits_eager_vmap_scan_rank_0_empty_and_constant(name):
    function = getattr(numerics, name)
    x = np.random.default_rng(1).permutation(sample(name, 500))[:480].reshape(20, 24)
    want = getattr(reference, name)(x)
    with jax.enable_x64(True):
        assert_bits_equal(function(x), want, "eager")
        assert_bits_equal(jax.vmap(function, in_axes=1)(x), want.T, "vmap")
        scanned = jax.jit(lambda v: jax.lax.scan(lambda c, r: (c, function(r)), 0, v))
        assert_bits_equal(scanned(x)[1], want, "scan")
        assert_bits_equal(jax.jit(lambda: function(x))(), want, "constant")
        assert_bits_equal(function(x[0, 0]), want[0, 0], "rank 0")
        assert_bits_equal(function(x[:0]), want[:0], "empty")


@pytest.mark.parametrize("flag", [False, True])
def test_the_users_x64_flag_neither_matters_nor_changes(flag):
    with jax.enable_x64(flag):
        for name in NAMES:
            x = sample(name, 20)
            got = getattr(numerics, name)(x)
            assert_bits_equal(got, getattr(reference, name)(x), name)
        assert jax.config.jax_enable_x64 == flag


TRUTH = {
    "exp64": (mpmath.exp, 1.2),
    "log64": (mpmath.log, 3.0),
    "log1p64": (mpmath.log1p, 3.5),
    "exp": (mpmath.exp, 0.501),
    "log": (mpmath.log, 0.501),
    "sigmoid": (lambda v: 1 / (1 + mpmath.exp(-v)), 0.501),
    "tanh": (mpmath.tanh, 0.501),
}


def inside(name, x):
    """Keep the arguments with a finite true value in the format's range."""
    keep = {
        "exp64": np.abs(x) < 708,
        "log64": (x > 3e-308) & (x < INF),
        "log1p64": (x > -1) & (x < INF) & (np.abs(x) > 3e-308),
        "exp": (x > -103) & (x < 88.7),
        "log": (x > 0) & (x < INF),
        "sigmoid": (x > -103) & (x < INF),
        "tanh": np.abs(x) < INF,
    }
    return x[keep[name]]


@pytest.mark.parametrize("name", TRUTH)
def test_error_against_the_true_value(name):
    true, bound = TRUTH[name]
    x = inside(name, np.random.default_rng(2).permutation(sample(name, 4000)))[:1500]
    got = run(name, x)
    with mpmath.workprec(200):
        for value, argument in zip(got, x, strict=True):
            exact = true(mpmath.mpf(float(argument)))
            ulp = np.spacing(np.abs(dtype_of(name)(float(exact))))
            error = abs(mpmath.mpf(float(value)) - exact) / mpmath.mpf(float(ulp))
            assert error < bound, f"{name}({argument!r}) is off by {float(error)} ulp"


def test_cos_pi_is_within_4e_16_and_odd_about_the_middle():
    t = np.linspace(0, 1, 1025)  # dyadic: 1 - t is exact
    got = run("cos_pi", t)
    with mpmath.workprec(200):
        true = [mpmath.cos(mpmath.pi * mpmath.mpf(float(v))) for v in t]
        worst = max(abs(mpmath.mpf(float(a)) - b) for a, b in zip(got, true, strict=1))
    assert worst < 4e-16
    upper = t > 0.5
    assert_bits_equal(got[upper], -got[::-1][upper])


EDGES = {
    "exp64": [(0, 1), (-0.0, 1), (INF, INF), (-INF, 0), (NAN, NAN), (710, INF)],
    "log64": [(1, 0), (0, -INF), (-0.0, -INF), (-1, NAN), (INF, INF), (1e-310, -INF)],
    "log1p64": [(0, 0), (-0.0, -0.0), (1, np.log(2)), (-1, -INF), (-2, NAN), (INF, INF)]
    + [(NAN, NAN), (-INF, NAN), (1e-300, 1e-300), (1e-310, 0), (-1e-310, -0.0)],
    "cos_pi": [(0, 1), (1, -1), (-INF, 1), (INF, -1), (NAN, NAN), (-3, 1), (5, -1)],
    "exp": [(0, 1), (INF, INF), (-INF, 0), (NAN, NAN), (89, INF), (-104, 0)],
    "log": [(1, 0), (0, -INF), (-0.0, -INF), (-1, NAN), (INF, INF), (-1e-40, NAN)],
    "sigmoid": [(0, 0.5), (-0.0, 0.5), (INF, 1), (-INF, 0), (NAN, NAN), (-1000, 0)],
    "tanh": [(0, 0), (-0.0, -0.0), (INF, 1), (-INF, -1), (NAN, NAN), (3e38, 1)],
}


@pytest.mark.parametrize("name", NAMES)
def test_edges(name):
    x, want = (np.array(v, dtype_of(name)) for v in zip(*EDGES[name], strict=True))
    assert_bits_equal(run(name, x), want, name)


def test_subnormal_arguments_and_results_of_the_narrow_functions():
    tiny = np.float32(2.0**-149)
    assert_bits_equal(run("tanh", np.array([tiny, -tiny])), np.array([tiny, -tiny]))
    assert_bits_equal(run("exp", np.float32([-103.0])), np.array([tiny]))
    assert 0 < run("sigmoid", np.float32([-100.0]))[0] < np.float32(2.0**-126)
    want = np.float32([-103.27893])  # -149 ln 2
    assert_bits_equal(run("log", np.array([tiny])), want)


@pytest.mark.parametrize("name", NAMES)
def test_another_dtype_is_refused_by_name(name):
    good = np.dtype(dtype_of(name)).name
    other = np.float32 if good == "float64" else np.float64
    argument = {"cos_pi": "t", "log1p64": "y"}.get(name, "x")
    for bad in (other(1), np.int32(1), [1.0], True):
        with pytest.raises(TypeError, match=f"^{name}: {argument}: expected {good}"):
            getattr(numerics, name)(bad)


@pytest.mark.parametrize("name", NAMES)
def test_there_is_no_differentiation_rule(name):
    with jax.enable_x64(True), pytest.raises(NotImplementedError, match="exact_"):
        jax.grad(getattr(numerics, name))(dtype_of(name)(0.25))


def test_fast_arithmetic_is_near_the_exact_one():
    for name in NAMES:
        x = np.array([0.25, 0.75], dtype_of(name))
        fast = getattr(numerics, name)(x, arithmetic="fast")
        np.testing.assert_allclose(fast, run(name, x), rtol=1e-6)
