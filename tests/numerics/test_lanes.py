"""The lane product has the ordered reference's bits, whatever the shape or caller."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from onemodel_jax import numerics
from onemodel_jax.numerics import engines, lanes, softfloat
from onemodel_jax.reference.lanes import lanes as reference
from tests.numerics.samples import HAS_FMA
from tests.support import assert_bits_equal, hard_values

TERMS = [0, 1, 15, 16, 17, 100, 1152, 2000]
ROWS = [0, 1, 3, 17, 40]
TINY = np.float32(2.0**-149)


def ordinary(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


@pytest.fixture(autouse=True)
def _quiet():
    with np.errstate(all="ignore"):
        yield


@functools.cache
def _products(*shapes):
    """One compiled program for many products: ((M, K), (N, K)) shapes to a function."""
    return jax.jit(lambda pairs: [numerics.matmul(x, w) for x, w in pairs])


def check(pairs, message=""):
    """Compare many products, compiled as one program, with the reference."""
    shapes = tuple((x.shape, w.shape) for x, w in pairs)
    for (x, w), got in zip(pairs, _products(*shapes)(pairs), strict=True):
        want = reference.matmul(x, w)
        assert_bits_equal(got, want, f"{message} {x.shape} {w.shape}")


@pytest.mark.parametrize("terms", TERMS)
def test_bits_equal_the_reference_for_every_length(terms):
    rng = np.random.default_rng(terms)
    sizes = [(17, 3), (40, 17), (1, 1)]
    pairs = [(ordinary(rng, m, terms), ordinary(rng, n, terms)) for m, n in sizes]
    check(pairs)
    hard = [tuple(hard_values(rng, v.shape) for v in pair) for pair in pairs]
    check(hard, "hard values")


@pytest.mark.parametrize("rows", ROWS)
def test_bits_equal_the_reference_for_every_number_of_rows_and_columns(rows):
    rng = np.random.default_rng(rows)
    check([(ordinary(rng, rows, 33), ordinary(rng, n, 33)) for n in ROWS])


@pytest.mark.parametrize("terms", [1, 17, 100])
def test_special_operands(terms):
    """Zeros of both signs, infinities, NaN, subnormal and huge numbers in one dot."""
    rng = np.random.default_rng(terms)
    choices = {
        "zeros": [0.0, -0.0],
        "zeros and ones": [0.0, -0.0, 1.0, -1.0],
        "infinities": [1.0, -1.0, np.inf, 0.5],
        "opposite infinities": [np.inf, -np.inf, 1.0],
        "NaN": [np.nan, 1.0, 2.0, 3.0],
        "subnormal": [TINY, -TINY * 3, 2.0**-127, 1.0],
        "huge": [3e38, -3e38, 1e30, 1.0],
        "both ends": [3e38, 1e-38, TINY, -1e-30],
    }
    shape = (2, 17, terms)
    for name, values in choices.items():
        draw = rng.choice(np.array(values, np.float32), shape)
        check([(draw[0], draw[1])], name)


def test_negative_zero_products_give_positive_zero():
    """Each lane starts from +0, and +0 + -0 is +0."""
    pairs = [
        (np.full((20, k), -0.0, np.float32), np.ones((18, k), np.float32))
        for k in (1, 16, 17)
    ]
    check(pairs)
    check([(w, x) for x, w in pairs])
    assert_bits_equal(numerics.dot(pairs[0][0][0], pairs[0][1][0]), np.float32(0))
    assert_bits_equal(numerics.lane_sum(pairs[2][0]), np.zeros(20, np.float32))


def test_products_that_cancel_in_one_lane_and_in_two():
    """1e20 * 1e10 - 1e20 * 1e10: the product's rounding error, or exactly 0."""
    x, y = np.zeros((2, 17), np.float32)
    x[0], y[0], x[16], y[16] = 1e20, 1e10, -1e20, 1e10
    one_lane = numerics.dot(x, y)
    assert_bits_equal(one_lane, np.uint32(0xE38758C0).view(np.float32))
    x[1], y[1], x[16], y[16] = -1e20, 1e10, 0, 0
    assert_bits_equal(numerics.dot(x, y), np.float32(0))


@pytest.mark.parametrize(("inputs", "outputs"), [(90, 64)])
def test_a_row_has_its_bits_in_any_batch(inputs, outputs):
    rng = np.random.default_rng(7)
    x, w = ordinary(rng, 128, inputs), ordinary(rng, outputs, inputs)
    want = reference.matmul(x, w)
    for batch in (1, 2, 7, 128):
        got = jax.jit(numerics.matmul)(x[:batch], w)
        assert_bits_equal(got, want[:batch], f"batch {batch}")
    by_vmap = jax.jit(jax.vmap(lambda row: numerics.matmul(row[None], w)[0]))
    assert_bits_equal(by_vmap(x), want, "vmap")
    assert_bits_equal(by_vmap(x[5:6]), want[5:6], "vmap of one")


def test_vmap_of_either_and_both_operands():
    rng = np.random.default_rng(8)
    x, w = ordinary(rng, 4, 5, 33), ordinary(rng, 4, 3, 33)
    each = np.stack([reference.matmul(a, b) for a, b in zip(x, w, strict=True)])
    product = numerics.matmul
    assert_bits_equal(jax.jit(jax.vmap(product))(x, w), each, "both")
    first = np.stack([reference.matmul(a, w[0]) for a in x])
    left = jax.jit(jax.vmap(product, in_axes=(1, None)))
    got = left(x.transpose(1, 0, 2), w[0])
    assert_bits_equal(got, first, "left")
    got = jax.vmap(product, in_axes=(None, 2))(x[0], w.transpose(1, 2, 0))
    want = np.stack([reference.matmul(x[0], b) for b in w])
    assert_bits_equal(got, want, "right")
    twice = jax.vmap(jax.vmap(numerics.dot, in_axes=(None, 0)), in_axes=(0, None))
    got = jax.jit(twice)(x[0], w[0])
    assert_bits_equal(got, reference.matmul(x[0], w[0]), "dot by two vmaps")


def test_vmap_when_one_row_of_the_batch_is_subnormal():
    """The guard looks at the whole product; either engine gives the same bits."""
    rng = np.random.default_rng(9)
    x, w = ordinary(rng, 4, 5, 40), ordinary(rng, 20, 40)
    x[2] *= np.float32(2.0**-130)
    got = jax.jit(jax.vmap(lambda v: numerics.matmul(v, w)))(x)
    assert_bits_equal(got, np.stack([reference.matmul(v, w) for v in x]))


@pytest.mark.parametrize("shape", [(4, 32, 8), (40, 100, 17), (1, 17, 1), (3, 700, 5)])
def test_operands_that_are_constants(shape):
    """Folding at compile time neither contracts nor keeps the order."""
    rng = np.random.default_rng(10)
    x, w = ordinary(rng, shape[0], shape[1]), ordinary(rng, shape[2], shape[1])
    x[0, 0], w[0, 0] = TINY, 1.0
    want = reference.matmul(x, w)
    xc, wc = jnp.asarray(x), jnp.asarray(w)
    matmul = numerics.matmul
    all_constant = jax.jit(lambda: (matmul(xc, wc), matmul(xc + 0, jnp.ones_like(wc))))
    both, ones = all_constant()
    assert_bits_equal(both, want, "both")
    assert_bits_equal(ones, reference.matmul(x, np.ones_like(w)), "ones")
    assert_bits_equal(jax.jit(lambda v: matmul(xc, v))(w), want, "left")
    assert_bits_equal(jax.jit(lambda v: matmul(v, wc))(x), want, "right")


@pytest.mark.parametrize("shape", [(4, 32, 8), (40, 100, 17), (1, 192, 68), (2, 9, 2)])
def test_constants_that_the_fast_engine_may_serve(shape):
    """Folded products of constants are rounded before they are added: wrong bits."""
    rng = np.random.default_rng(11)
    x, w = ordinary(rng, shape[0], shape[1]), ordinary(rng, shape[2], shape[1])
    want = reference.matmul(x, w)
    assert_bits_equal(jax.jit(lambda: numerics.matmul(x, w))(), want, "both")
    assert_bits_equal(jax.jit(lambda v: numerics.matmul(x, v))(w), want, "left")
    assert_bits_equal(jax.jit(lambda v: numerics.matmul(v, w))(x), want, "right")


def test_eager_jit_and_scan():
    rng = np.random.default_rng(12)
    x, w = ordinary(rng, 6, 3, 50), ordinary(rng, 20, 50)
    want = np.stack([reference.matmul(v, w) for v in x])
    assert_bits_equal(numerics.matmul(x, w), want, "eager, rank 3")
    assert_bits_equal(jax.jit(numerics.matmul)(x, w), want, "jit")
    scan = jax.jit(
        lambda x, w: jax.lax.scan(lambda c, v: (c, numerics.matmul(v, w)), 0, x)
    )
    assert_bits_equal(scan(x, w)[1], want, "scan")


def test_lane_sum_is_the_dot_with_ones_over_any_axis():
    rng = np.random.default_rng(13)
    x = hard_values(rng, (5, 37, 3))
    for axis in (0, 1, 2, -1, -2):
        want = reference.lane_sum(np.moveaxis(x, axis, -1))
        got = jax.jit(functools.partial(numerics.lane_sum, axis=axis))(x)
        assert_bits_equal(got, want, f"axis {axis}")
    for shape, axis in [((0,), 0), ((3, 0), 1), ((0, 3), 1), ((0, 3), 0)]:
        empty = np.zeros(shape, np.float32)
        want = np.zeros(np.delete(shape, axis), np.float32)
        assert_bits_equal(numerics.lane_sum(empty, axis=axis), want, f"{shape} {axis}")


def test_lane_sum_adds_16_lanes_in_index_order():
    x = np.zeros(35, np.float32)
    x[[0, 16, 32]] = 2.0**24, 1.0, 1.0  # one lane: each 1 is lost to 2^24
    assert_bits_equal(numerics.lane_sum(x), np.float32(2.0**24))
    x[16], x[17] = 0.0, 1.0
    x[32], x[33] = 0.0, 1.0  # lane 1 collects 2 before the tree
    assert_bits_equal(numerics.lane_sum(x), np.float32(2.0**24 + 2))


def guard(x, w):
    return bool(jax.jit(engines.far_from_subnormal)(x, w))


def test_the_guard_passes_operands_whose_sums_cannot_be_subnormal():
    f = np.float32
    cases = [
        ([1.0], [1.5], True),
        ([0.0, -0.0], [1.0], True),
        ([0.0], [0.0], True),
        ([1.5 * 2.0**-40], [1.5 * 2.0**-40], True),
        ([1.5 * 2.0**-40], [1.5 * 2.0**-41], False),
        ([-1.5 * 2.0**-40], [2.0**-41 * 1.99], False),
        ([1.5 * 2.0**-126], [1.5 * 2.0**46], True),
        ([1.5 * 2.0**-126], [1.5 * 2.0**45], False),
        ([2.0**-127], [2.0**100], False),
        ([TINY, 1.0], [1.0], False),
        ([1.0], [-TINY], False),
        ([np.inf], [np.nan], True),
    ]
    for x, w, want in cases:
        assert guard(np.array(x, f), np.array(w, f)) == want, (x, w)
    long = np.ones(5000, f)
    for at in (0, 1023, 4095, 4096, 4999):
        small = long.copy()
        small[at] = 1.5 * 2.0**-126
        assert not guard(small, long), at
    assert guard(long, long)


@pytest.mark.parametrize("exponents", [(-40, -40), (-40, -41), (-126, 46), (-126, 40)])
def test_operands_on_both_sides_of_the_guard(exponents):
    rng = np.random.default_rng(14)
    shapes = (18, 200), (17, 200)
    small = [
        np.ldexp(np.abs(1 + rng.random(s)), e) * rng.choice([-1, 1], s)
        for s, e in zip(shapes, exponents, strict=True)
    ]
    x, w = (v.astype(np.float32) for v in small)
    x[:, 16:32] = -x[:, :16]  # cancels to the rounding errors of the products
    w[:, 16:32] = w[:, :16]
    check([(x, w)], str(exponents))


@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 17, 5), (2, 40, 18)])
def test_the_emulated_engine_alone(shape):
    rng = np.random.default_rng(15)
    m, k, n = shape
    x, w = hard_values(rng, (2, m, k)), hard_values(rng, (2, n, k))
    with jax.enable_x64(True):
        got = jax.jit(engines.emulated)(x, w)
    want = np.stack([reference.matmul(a, b) for a, b in zip(x, w, strict=True)])
    assert_bits_equal(got, want)


@pytest.mark.parametrize(
    "shape", [(1, 17, 1), (1, 40, 1), (17, 40, 3), (20, 700, 20)], ids=str
)
def test_the_certificate_admits_the_fast_engine_only_where_there_is_fma(shape):
    """A single row included: nothing of it may be spared for another purpose."""
    assert engines.certified(engines.forced, 1, *shape) == HAS_FMA


def test_a_failed_certificate_bars_the_fast_engine(monkeypatch):
    """A wrong engine must be caught by the certificate and never reach a result."""
    rng = np.random.default_rng(16)
    x, w = ordinary(rng, 19, 21), ordinary(rng, 23, 21)
    true = engines.forced
    monkeypatch.setattr(engines, "forced", lambda a, b: true(a, b) * jnp.float32(1.5))
    engines._agrees.cache_clear()
    try:
        assert not engines.certified(engines.forced, 1, 19, 21, 23)
        assert_bits_equal(numerics.matmul(x, w), reference.matmul(x, w))
    finally:
        engines._agrees.cache_clear()


def test_the_checked_engine_notes_a_midpoint_that_two_roundings_would_miss():
    """1 + 2^-23 plus 2^-24 less a trifle: binary64 rounds it onto the midpoint."""
    x, w = np.zeros((2, 1, 1, 17), np.float32)
    x[0, 0, 0], w[0, 0, 0] = 1, 1 + 2.0**-23
    x[0, 0, 16], w[0, 0, 16] = 2.0**-12 * (1 + 2.0**-23), 2.0**-12 * (1 - 2.0**-23)
    with jax.enable_x64(True):
        out, doubtful = jax.jit(engines.checked)(x, w)
    assert bool(doubtful)
    want = reference.matmul(x[0], w[0])
    assert_bits_equal(want, np.float32([[1 + 2.0**-23]]))
    assert float(out[0, 0, 0]) != float(want[0, 0])
    assert_bits_equal(numerics.matmul(x[0], w[0]), want)


@pytest.mark.parametrize("shape", [(1, 5, 17, 3), (2, 20, 100, 20), (1, 3, 1152, 7)])
def test_the_checked_engine_equals_the_reference_where_it_notes_nothing(shape):
    rng = np.random.default_rng(17)
    groups, m, k, n = shape
    x = rng.standard_normal((groups, m, k)).astype(np.float32)
    w = rng.standard_normal((groups, n, k)).astype(np.float32)
    with jax.enable_x64(True):
        out, doubtful = jax.jit(engines.checked)(x, w)
    assert not bool(doubtful)
    want = np.stack([reference.matmul(a, b) for a, b in zip(x, w, strict=True)])
    assert_bits_equal(out, want)


def test_a_certificate_notices_doubts_that_are_lost_or_raised_for_nothing(monkeypatch):
    checked = engines.checked
    for wrong in (jnp.zeros_like, jnp.ones_like):

        def broken(x, w, wrong=wrong):
            out, doubtful = checked(x, w)
            return out, wrong(doubtful)

        assert not engines.certified(broken, 2, 19, 40, 17)
    assert engines.certified(checked, 2, 19, 40, 17)


@pytest.mark.parametrize(
    "shape", [(3, 17, 1160, 500), (4, 17, 99, 1030), (5, 1, 1200, 1), (3, 17, 1, 1030)]
)
def test_products_of_many_tiles_blocks_and_groups(shape):
    """Sums that overflow inside their lanes among them, and infinite operands."""
    rng = np.random.default_rng(18)
    groups, rows, terms, columns = shape
    plan = engines.plan(rows, terms, columns)
    assert groups >= 3 and max(plan.tiles, plan.blocks) >= 3
    x, w = ordinary(rng, groups, rows, terms), ordinary(rng, groups, columns, terms)
    x[0, 0], w[0, 0] = np.abs(x[0, 0]) * 1e30, w[0, 0] * 1e9
    x[-1, -1, -1], w[-1, -1, 0] = np.inf, -np.inf
    want = np.stack([reference.matmul(a, b) for a, b in zip(x, w, strict=True)])
    assert not np.isfinite(want).all() and np.isfinite(want).any()
    assert_bits_equal(jax.jit(jax.vmap(numerics.matmul))(x, w), want)


@pytest.mark.parametrize("term", [16, 37])
def test_a_certificate_notices_one_separately_rounded_product(monkeypatch, term):
    def separate(x, w):
        """The lane product with the product of one term rounded before its sum."""
        p = jnp.zeros((16, x.shape[0], x.shape[1], w.shape[1]), jnp.float32)
        for block, (a, b) in enumerate(zip(*engines._blocks(x, w), strict=True)):
            before, p = p, softfloat.fma32(*jnp.broadcast_arrays(a, b, p))
            if block == term // 16:
                a, b, c = (v[term % 16] for v in jnp.broadcast_arrays(a, b, before))
                twice = softfloat.add32(softfloat.mul32(a, b), c)
                p = p.at[term % 16].set(twice)
        return engines.tree_sum(p, softfloat.add32)

    def traced(x, w):
        with jax.enable_x64(True):
            return separate(x, w)

    monkeypatch.setattr(engines, "forced", traced)
    engines._agrees.cache_clear()
    assert not engines._agrees(engines.forced, 1, 3, 40, 4)
    engines._agrees.cache_clear()


def test_emulation_only_serves_the_same_bits():
    rng = np.random.default_rng(17)
    x, w = ordinary(rng, 9, 70), ordinary(rng, 21, 70)
    want = reference.matmul(x, w)
    with lanes.emulated_only():
        lowered = jax.jit(lambda a, b: numerics.matmul(a, b)).lower(x, w)
        assert "case" not in lowered.as_text()
        assert_bits_equal(lowered.compile()(x, w), want)
    assert_bits_equal(numerics.matmul(x, w), want)


M23, M24 = np.zeros((2, 3), np.float32), np.zeros((2, 4), np.float32)
BAD = {
    "K differs": (("matmul", M23, M24), ValueError, r"w: expected shape \[\*,3\], got"),
    "float64": (("matmul", M23.astype(float), M23), TypeError, "x: expected float32"),
    "integers": (("matmul", M23, M23.astype(int)), TypeError, "w: expected float32"),
    "a number": (("matmul", 1.0, M23), TypeError, "x: expected float32, got float"),
    "vector": (("matmul", M23[0], M23), ValueError, "x: expected rank of at least 2"),
    "rank 3": (("matmul", M23, M23[None]), ValueError, "w: expected rank 2"),
    "dot of matrices": (("dot", M23, M23), ValueError, "x: expected rank 1"),
    "dot lengths": (("dot", M23[0], M24[0]), ValueError, r"y: expected float32\[3\]"),
    "dot dtype": (("dot", M23[0], [1.0]), TypeError, "y: expected float32, got list"),
    "sum of a scalar": (("lane_sum", M23[0, 0]), ValueError, "axis: expected an axis"),
    "sum of integers": (
        ("lane_sum", M23.astype(int)),
        TypeError,
        "x: expected float32",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_operands_are_refused_by_name(case):
    (name, *operands), error, text = BAD[case]
    with pytest.raises(error, match=f"^{name}: {text}"):
        getattr(numerics, name)(*operands)


def test_a_bad_axis_or_arithmetic_is_refused():
    with pytest.raises(
        ValueError, match=r"^lane_sum: axis: expected an axis of f.* 2$"
    ):
        numerics.lane_sum(M23, axis=2)
    for axis in (None, (0,), 0.0):
        with pytest.raises(ValueError, match="^lane_sum: axis: expected an axis of f"):
            numerics.lane_sum(M23, axis=axis)
    for name, operands in [
        ("matmul", (M23, M23)),
        ("dot", (M23[0], M23[0])),
        ("lane_sum", (M23,)),
    ]:
        with pytest.raises(ValueError, match=f"^{name}: arithmetic: expected one of"):
            getattr(numerics, name)(*operands, arithmetic="quick")


def test_there_is_no_differentiation_rule():
    for function in (numerics.matmul, lambda a, b: numerics.lane_sum(a)):
        with pytest.raises(NotImplementedError, match="lane_matmul"):
            jax.grad(lambda a, f=function: f(a, M23).sum())(M23)


def test_fast_arithmetic_is_near_the_exact_one():
    rng = np.random.default_rng(18)
    x, w = ordinary(rng, 4, 30), ordinary(rng, 5, 30)
    got = numerics.matmul(x, w, arithmetic="fast")
    np.testing.assert_allclose(got, numerics.matmul(x, w), rtol=1e-4, atol=1e-5)
    got = numerics.dot(x[0], w[0], arithmetic="fast")
    np.testing.assert_allclose(got, numerics.dot(x[0], w[0]), rtol=1e-4, atol=1e-5)
    got = numerics.lane_sum(x, arithmetic="fast")
    np.testing.assert_allclose(got, numerics.lane_sum(x), rtol=1e-4, atol=1e-5)
