"""Block sums, moments and the stable softmax family: order, truth, gradients, edges."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from onemodel_jax.numerics.reduce import BLOCK, block_sum, mean, var
from onemodel_jax.numerics.stable import log_softmax, logsumexp, softmax
from onemodel_jax.reference.lanes import reductions as reference
from tests.support import assert_bits_equal, hard_values, special_values

F = np.float32
INF, NAN = np.inf, np.nan
MOMENTS = {
    "block_sum": block_sum,
    "mean": mean,
    "var": var,
    "var, correction 1": functools.partial(var, correction=1),
}
FAMILY = {"softmax": softmax, "log_softmax": log_softmax, "logsumexp": logsumexp}
ALL = {**MOMENTS, **FAMILY}
DTYPES = [np.float32, np.float64]


def along(name):
    """The function over the last axis."""
    return functools.partial(ALL[name], axis=-1)


def expected(name, x):
    if name == "var, correction 1":
        return reference.var(x, 1)
    return getattr(reference, name)(x)


def expected_gradient(name, x, y, grad):
    """The VJP of one function, by the reference's steps."""
    if name == "block_sum":
        return np.broadcast_to(grad[..., None], x.shape)
    if name == "mean":
        each = (grad.astype(np.float64) / x.shape[-1]).astype(x.dtype)
        return np.broadcast_to(each[..., None], x.shape)
    if name.startswith("var"):
        return reference.var_gradient(x, grad, name.endswith("1"))
    if name == "logsumexp":
        return reference.logsumexp_gradient(x, y, grad)
    return getattr(reference, f"{name}_gradient")(y, grad)


def samples(name, dtype):
    """Rows of ordinary numbers, of hard ones, and of special ones."""
    rng = np.random.default_rng(0)
    spread = rng.standard_normal((6, 37)) * 10.0 ** rng.integers(-3, 3, (6, 1))
    rows = [spread.astype(dtype)]
    if name in FAMILY:
        # Ties, one huge, subnormal, and a range wider than exp's.
        extra = rng.standard_normal((4, 37)).astype(dtype)
        extra[0] = 1000
        extra[1, 3] = np.finfo(dtype).max
        extra[2] *= np.finfo(dtype).smallest_normal
        extra[3] *= 500
        rows.append(extra)
    else:
        rows.append(hard_values(rng, (6, 37), dtype))
    return np.concatenate(rows)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ALL)
def test_forward_and_backward_equal_the_reference(name, dtype):
    x = samples(name, dtype)
    function = along(name)

    def both(x, grad):
        y, pull = jax.vjp(function, x)
        return y, pull(grad)[0]

    with np.errstate(all="ignore"):
        want = expected(name, x)
        grad = np.random.default_rng(1).standard_normal(want.shape).astype(dtype)
        want_grad = expected_gradient(name, x, want, grad)
    with jax.enable_x64(True):
        got, got_grad = jax.jit(both)(x, grad)
        assert_bits_equal(got, want, f"{name} forward")
        assert_bits_equal(got_grad, want_grad, f"{name} backward")
        assert_bits_equal(function(x), want, "eager, without gradient")
        y, grad_x = jax.jit(jax.vmap(both))(x, grad)
        assert_bits_equal(y, want, "vmap")
        assert_bits_equal(grad_x, want_grad, "vmap, backward")
        scanned = jax.jit(
            lambda x: jax.lax.scan(lambda c, r: (c, function(r)), 0, x)[1]
        )
        assert_bits_equal(scanned(x), want, "scan")
        assert_bits_equal(jax.jit(lambda: function(x))(), want, "constant")


@pytest.mark.parametrize("terms", [0, 1, 7, 8, 9, 100, BLOCK, BLOCK + 1, 3 * BLOCK + 5])
def test_the_order_of_a_block_sum(terms):
    rng = np.random.default_rng(terms)
    x = rng.standard_normal(terms) * 10.0 ** rng.integers(-8, 8, terms)
    with jax.enable_x64(True):
        assert_bits_equal(jax.jit(block_sum)(x), reference.block_sum(x))
    single = x.astype(F)
    assert_bits_equal(jax.jit(block_sum)(single), reference.block_sum(single))


def test_rows_of_100003_terms():
    """Long enough for the compiler to give every thread a part."""
    x = np.random.default_rng(8).standard_normal((3, 100_003))
    with jax.enable_x64(True):
        got = jax.jit(along("block_sum"))(x)
    assert_bits_equal(got, reference.block_sum(x))


def test_lanes_and_blocks_add_as_stated():
    """2^53 swallows a lone 1: who meets whom first shows in the sum."""
    big = 2.0**53
    x = np.zeros(BLOCK * 3)
    with jax.enable_x64(True):
        total = jax.jit(block_sum)
        x[[0, 8]] = big, 1  # one lane: the 1 is lost
        assert float(total(x)) == big
        x[[8, 1, 9]] = 0, 1, 1  # lane 1 collects 2 before it meets lane 0
        assert float(total(x)) == big + 2
        x[[1, 9, 4, 1]] = 0, 0, 1, 1  # 4 joins 0 first, then 1 and 5 join alone
        assert float(total(x)) == big
        x[:] = 0
        x[[0, BLOCK, 2 * BLOCK]] = big, 1, 1  # blocks 0 and 1 first
        assert float(total(x)) == big
        x = np.zeros(BLOCK * 4)
        x[[0, 2 * BLOCK, 3 * BLOCK]] = big, 1, 1  # 2 and 3 meet before they join
        assert float(total(x)) == big + 2


def test_ten_million_tenths_do_not_drift():
    x = np.full(10_000_000, 0.1, F)
    assert abs(float(jax.jit(block_sum)(x)) - 1e6) <= 1


def test_a_long_sum_is_nearer_than_a_running_total():
    x = np.full(1 << 22, 0.1)
    true = math.fsum(x)
    running = np.cumsum(x)[-1]
    with jax.enable_x64(True):
        ours = float(jax.jit(block_sum)(x))
    assert abs(ours - true) < abs(running - true) / 100


def test_variance_with_a_large_mean():
    x = np.array([1e8 + 1, 1e8 - 1])
    with jax.enable_x64(True):
        assert abs(float(var(x)) - 1) < 1e-9
        assert float(var(x, correction=1)) == 2.0
        assert float(mean(x)) == 1e8


def test_moments_against_exact_values():
    rng = np.random.default_rng(2)
    x = rng.standard_normal((5, 1000))
    with jax.enable_x64(True):
        true = [math.fsum(row) for row in x]
        np.testing.assert_allclose(block_sum(x, axis=1), true, rtol=1e-13, atol=1e-13)
        np.testing.assert_allclose(mean(x, axis=1), np.array(true) / 1000, atol=1e-16)
        for correction in (0, 1, 2.5):
            got = var(x, axis=1, correction=correction)
            want = np.var(x, axis=1) * 1000 / (1000 - correction)
            np.testing.assert_allclose(got, want, rtol=1e-13)


@pytest.mark.parametrize("name", MOMENTS)
def test_axes_and_shapes(name):
    rng = np.random.default_rng(3)
    x = rng.standard_normal((3, 4, 5)).astype(F)
    for axis in (0, 1, 2, -3):
        want = expected(name, np.moveaxis(x, axis, -1))
        got = jax.jit(functools.partial(MOMENTS[name], axis=axis))(x)
        assert_bits_equal(got, want, f"axis {axis}")
    assert_bits_equal(jax.jit(MOMENTS[name])(x), expected(name, x.ravel()), "all")
    one = MOMENTS[name](F(1.5))
    assert_bits_equal(one, expected(name, F([1.5])), "rank 0")
    assert MOMENTS[name](np.zeros((0, 3), F), axis=1).shape == (0,)


@pytest.mark.parametrize("name", FAMILY)
def test_class_axis_and_empty_rows(name):
    x = np.random.default_rng(4).standard_normal((3, 4, 5)).astype(F)
    for axis in (0, 1, -1):
        want = expected(name, np.moveaxis(x, axis, -1))
        if want.ndim == 3:
            want = np.moveaxis(want, -1, axis)
        got = jax.jit(functools.partial(FAMILY[name], axis=axis))(x)
        assert_bits_equal(got, want, f"axis {axis}")
    empty = jax.jit(FAMILY[name])(np.zeros((2, 0), F))
    want = np.full(2, -INF, F) if name == "logsumexp" else np.zeros((2, 0), F)
    assert_bits_equal(empty, want)


def test_nothing_and_too_little():
    nothing = np.zeros(0, F)
    assert_bits_equal(block_sum(nothing), F(0))
    assert_bits_equal(mean(nothing), F(NAN))
    assert_bits_equal(var(nothing), F(NAN))
    assert_bits_equal(var(F([3]), correction=1), F(NAN))
    assert_bits_equal(var(F([3, 4]), correction=2), F(INF))
    assert_bits_equal(block_sum(F([-0.0, -0.0])), F(0))


LOG2 = F(math.log(2))
ROWS = {  # x: (softmax, log_softmax, logsumexp, its gradient)
    (-INF, -INF): ([NAN] * 2, [NAN] * 2, -INF, [0, 0]),
    (-INF, 0, 0): ([0, 0.5, 0.5], [-INF, -LOG2, -LOG2], LOG2, [0, 0.5, 0.5]),
    (INF, 0): ([NAN] * 2, [NAN, NAN], INF, [1, 0]),
    (INF, -INF, INF): ([NAN] * 3, [NAN] * 3, INF, [0.5, 0, 0.5]),
    (1e38, 1e38): ([0.5, 0.5], [-LOG2, -LOG2], F(1e38), [1, 1]),
    (NAN, 0): ([NAN] * 2, [NAN] * 2, NAN, [NAN] * 2),
    (NAN, INF): ([NAN] * 2, [NAN] * 2, NAN, [NAN] * 2),
    (1000, 1000): ([0.5, 0.5], [-LOG2, -LOG2], F(1000) + LOG2, None),
    (-1000, 0): ([0, 1], [-1000, 0], 0, [0, 1]),
    (3e38, -3e38): ([1, 0], [0, -INF], F(3e38), [1, 0]),
}


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_infinities_and_nan(row):
    x = np.array(row, F)
    wanted = ROWS[row]
    for name, want in zip(FAMILY, wanted, strict=False):
        for run in (FAMILY[name], jax.jit(FAMILY[name])):
            assert_bits_equal(run(x), np.array(want, F), name)
    if wanted[3] is not None:
        grad = jax.grad(logsumexp)(x)
        assert_bits_equal(grad, np.array(wanted[3], F), "gradient")


def test_a_masked_class_gets_gradient_0():
    x = F([-INF, 0, 1])
    for function in (softmax, log_softmax):
        run = jax.jit(lambda x, g, f=function: jax.vjp(f, x)[1](g)[0])
        grad = np.asarray(run(x, F([0, 1, -2])))
        assert np.isfinite(grad).all() and grad[0] == 0


def test_the_shift_traced_in_the_document():
    got = np.asarray(softmax(F([1000, 1000, -1000, 999])))
    np.testing.assert_allclose(got, [0.4223, 0.4223, 0, 0.1554], atol=1e-4)
    assert_bits_equal(log_softmax(F([-1000, 0])), F([-1000, 0]))


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "logsumexp"])
def test_family_against_binary64_truth(name):
    """In float32 a few roundings separate the result from the true value."""
    x = (np.random.default_rng(5).standard_normal((20, 50)) * 5).astype(F)
    wide = x.astype(np.float64)
    shifted = wide - wide.max(-1, keepdims=True)
    total = np.exp(shifted).sum(-1, keepdims=True)
    truth = {
        "softmax": np.exp(shifted) / total,
        "log_softmax": shifted - np.log(total),
        "logsumexp": (np.log(total) + wide.max(-1, keepdims=True))[:, 0],
    }[name]
    function = jax.jit(FAMILY[name])
    with jax.enable_x64(True):
        np.testing.assert_allclose(function(wide), truth, rtol=1e-13, atol=1e-14)
    np.testing.assert_allclose(function(x), truth, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ALL)
def test_the_maximum_and_the_sums_see_subnormals(name):
    tiny = F(2.0**-149)
    x = np.array([[tiny, -tiny, 0], [3 * tiny, tiny, tiny]], F)
    assert_bits_equal(jax.jit(along(name))(x), expected(name, x))


@pytest.mark.parametrize("name", ALL)
def test_special_values_in_any_place(name):
    special = special_values(F)
    rng = np.random.default_rng(6)
    x = rng.choice(special, (200, 9))
    assert_bits_equal(jax.jit(along(name))(x), expected(name, x))


@pytest.mark.parametrize("name", ALL)
def test_fast_arithmetic_is_near_the_exact_one(name):
    x = np.random.default_rng(7).standard_normal((4, 20)).astype(F)

    def loss(x, arithmetic):
        return jnp.sum(jnp.sin(ALL[name](x, axis=-1, arithmetic=arithmetic)))

    for x64 in (False, True):
        with jax.enable_x64(x64):
            gradient = jax.jit(jax.grad(loss), static_argnums=1)
            fast, exact = (gradient(x, a) for a in ("fast", "exact"))
            np.testing.assert_allclose(fast, exact, rtol=1e-5, atol=1e-6)


def test_bad_input_is_refused_by_name():
    for name in ("block_sum", "mean", "var", "softmax", "log_softmax", "logsumexp"):
        function = ALL[name]
        with pytest.raises(TypeError, match=f"^{name}: x: expected float32 or float64"):
            function(np.array([1, 2]))
        with pytest.raises(ValueError, match=f"^{name}: axis: expected an axis of flo"):
            function(F([1]), axis=1)
        with pytest.raises(ValueError, match=f"^{name}: arithmetic: expected one of"):
            function(F([1]), arithmetic="quick")
    with pytest.raises(ValueError, match="^softmax: axis: .*got None"):
        softmax(F([1]), axis=None)
    for bad in (-1, NAN):
        with pytest.raises(ValueError, match="^var: correction: expected a finite"):
            var(F([1]), correction=bad)
    with pytest.raises(TypeError, match="^var: correction: expected .* got str$"):
        var(F([1]), correction="1")
