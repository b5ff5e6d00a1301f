"""Every primitive against JAX itself, on small integers where float32 is exact."""

from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from onemodel_jax.reference.exact import machine
from onemodel_jax.reference.exact.carriers import rationals
from onemodel_jax.reference.exact.check import check_vjp
from onemodel_jax.reference.exact.lift import Lifted
from onemodel_jax.reference.exact.machine import Machine, Refused
from onemodel_jax.reference.exact.opaque import with_opaque
from onemodel_jax.reference.exact.primitives import PACKAGE
from onemodel_jax.reference.exact.shadowed import shadowed_field

X = np.array([[3, -1, 4], [1, -5, 9]], np.float32)
V = np.array([2, -7, 1, 8, -2], np.float32)
IMAGE = np.arange(2 * 5 * 4 * 4, dtype=np.float32).reshape(2, 5, 4, 4) % 7 - 3
KERNEL = np.arange(3 * 3 * 4 * 2, dtype=np.float32).reshape(3, 3, 4, 2) % 5 - 2
NHWC = ("NHWC", "HWIO", "NHWC")


def conv(**options):
    def call(x, k):
        options.setdefault("window_strides", (1, 1))
        options.setdefault("padding", "SAME")
        return lax.conv_general_dilated(x, k, dimension_numbers=NHWC, **options)

    return call


FUNCTIONS = {
    "arithmetic": (lambda x: -x * x + x - x**3 + jnp.square(x), [X]),
    "quarters": (lambda x: (x + 2) / 4 + x / 2, [X]),
    "dot_general": (lambda x: jnp.einsum("ij,kj->ik", x, x), [X]),
    "batched dot": (lambda x: jnp.einsum("bi,bi->b", x, x), [X]),
    "clamp sign abs": (lambda x: jnp.clip(x, -2, 2) + jnp.sign(x) + abs(x), [X]),
    "rounding": (
        lambda x: jnp.floor(x / 2) + jnp.ceil(x / 4) + jnp.round(x / 2),
        [X],
    ),
    "away from zero": (
        lambda x: lax.round(x / 2, lax.RoundingMethod.AWAY_FROM_ZERO),
        [X],
    ),
    "comparisons": (
        lambda x: jnp.where((x > 1) | (x <= -5), x, 0) + (x == 4) + (x != 1) * 1.0,
        [X],
    ),
    "reductions": (
        lambda x: x.sum(0) + x.max(0) + x.min(0) + x.prod(0) + x.mean(0),
        [X],
    ),
    "arguments": (lambda x: x * (x.argmax(1) + 3 * x.argmin(1))[:, None], [X]),
    "cumulative": (
        lambda v: jnp.cumsum(v) + jnp.cumprod(v) + lax.cummax(v, reverse=True),
        [V],
    ),
    "movement": (
        lambda x: jnp.concatenate([x[::-1].T, jnp.pad(x.T, ((0, 1), (0, 0)))])[1:, :1],
        [X],
    ),
    "interior pad": (lambda v: lax.pad(v, 9.0, [(1, -1, 2)]), [V]),
    "split": (lambda v: jnp.split(v, [2])[1] * 2, [V]),
    "dynamic slices": (
        lambda v: lax.dynamic_update_slice(
            v, 2 * lax.dynamic_slice(v, (1,), (2,)), (jnp.int32(3),)
        ),
        [V],
    ),
    "gather": (lambda v: v[jnp.array([0, 0, 3, -1])], [V]),
    "gather with zero fill": (
        lambda v: v.at[jnp.array([1, 9])].get(mode="fill", fill_value=0),
        [V],
    ),
    "scatter": (lambda v: v.at[jnp.array([4, 0])].set(v[:2]), [V]),
    "scatter add": (lambda v: v.at[jnp.array([1, 1, 9])].add(v[:3]), [V]),
    "sort": (lambda v: jnp.sort(v) + v[jnp.argsort(v)], [V]),
    "descending rows": (lambda x: jnp.sort(x, axis=1, descending=True), [X]),
    "truncation": (lambda x: (x / 2).astype(int).astype(jnp.float32), [X]),
    "one over": (lambda v: lax.integer_pow(2.0 * v, 2) * jnp.power(v, 2.0), [V]),
    "finite": (lambda v: jnp.where(jnp.isfinite(v), v, 0.0), [V]),
    "masked by infinity": (
        lambda v: jnp.max(jnp.where(v > 0, v, -jnp.inf)) + v,
        [V],
    ),
    "max pool": (
        lambda x: lax.reduce_window(
            x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 1, 1), "SAME"
        ),
        [IMAGE],
    ),
    "sum pool": (
        lambda x: lax.reduce_window(
            x, 0.0, lax.add, (1, 3, 2, 1), (1, 2, 2, 1), "VALID"
        ),
        [IMAGE],
    ),
    "convolution": (conv(), [IMAGE, KERNEL]),
    "strided": (conv(window_strides=(2, 1), padding=[(2, 0), (0, 1)]), [IMAGE, KERNEL]),
    "dilated": (
        conv(rhs_dilation=(2, 1), lhs_dilation=(1, 2), padding=[(1, 2), (-1, 0)]),
        [IMAGE, KERNEL],
    ),
    "grouped": (
        conv(feature_group_count=4),
        [IMAGE, KERNEL.reshape(3, 3, 1, 8)],
    ),
    "batch grouped": (conv(batch_group_count=2), [IMAGE, KERNEL]),
    "loops": (
        lambda v: lax.fori_loop(0, 4, lambda i, s: s * v[i] + i, jnp.zeros(())),
        [V],
    ),
    "int arithmetic": (
        lambda v: v * (jnp.arange(5) * jnp.int32(2**30) // 3 % 5),
        [V],
    ),
}


def exact(fn, args, carrier=None):
    """Run fn at the given floats, exactly; return nested lists of elements."""
    lifted = Lifted(fn, args)
    m = Machine(carrier or with_opaque(rationals()))
    return lifted.primal(m, [m.constant(jnp.asarray(a)) for a in args])


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_are_those_of_jax(name):
    fn, args = FUNCTIONS[name]
    want = np.asarray(fn(*map(jnp.asarray, args)))
    (got,) = exact(fn, args)
    assert got.shape == want.shape
    assert [Fraction(float(w)) for w in want.flat] == list(got.flat)


# Functions that are constant between kinks are covered above; these have slopes.
SMOOTH = [
    "arithmetic",
    "dot_general",
    "batched dot",
    "clamp sign abs",
    "comparisons",
    "reductions",
    "cumulative",
    "movement",
    "interior pad",
    "split",
    "dynamic slices",
    "gather",
    "gather with zero fill",
    "scatter",
    "scatter add",
    "sort",
    "descending rows",
    "loops",
]


@pytest.mark.parametrize("name", SMOOTH)
def test_jax_transposes_these_functions(name):
    fn, args = FUNCTIONS[name]
    report = check_vjp(fn, *args, trials=1)
    assert report.ok, str(report)


@pytest.mark.parametrize("name", ["strided", "dilated", "grouped", "batch grouped"])
def test_jax_transposes_convolutions(name):
    fn, (x, k) = FUNCTIONS[name]
    report = check_vjp(fn, x, k, trials=1, points="field")
    assert report.ok, str(report)


@pytest.mark.parametrize("points", ["fractions", "field"])
def test_jax_transposes_pooling(points):
    small = np.zeros((1, 4, 4, 1), np.float32)
    report = check_vjp(FUNCTIONS["max pool"][0], small, trials=1, points=points)
    assert report.ok, str(report)


def test_a_masked_attention_gives_hidden_keys_no_weight():
    def attend(q, k):
        hidden = jnp.array([False, True, False])
        scores = jnp.where(hidden, -jnp.inf, q @ k.T)
        return jax.nn.softmax(scores)

    args = np.ones((2, 2), np.float32), np.ones((3, 2), np.float32)
    lifted = Lifted(attend, args)
    m = Machine(with_opaque(rationals()), opaque=True)
    (weights,) = lifted.primal(m, [m.constant(a) for a in args])
    assert list(weights[:, 1]) == [0, 0]
    assert check_vjp(attend, *args, opaque=True).ok


PRIMITIVES = {}


def bound(name, *args):
    """Bind a primitive that exists by name and abstract value only."""
    if name not in PRIMITIVES:
        primitive = jax.extend.core.Primitive(name)

        def abstract(*avals, **params):
            shape = avals[0].shape
            if name == "lane_matmul":
                shape = (*avals[0].shape[:2], avals[1].shape[1])
            if name in REDUCTIONS:
                shape = shape[:-1]
            return jax.core.ShapedArray(shape, avals[0].dtype)

        primitive.def_abstract_eval(abstract)
        PRIMITIVES[name] = primitive
    return PRIMITIVES[name].bind(*args)


MEANINGS = {
    "exact_add": lambda a, b: a + b,
    "exact_sub": lambda a, b: a - b,
    "exact_mul": lambda a, b: a * b,
    "exact_div": lambda a, b: a / b,
    "exact_fma": lambda a, b, c: a * b + c,
    "exact_maximum": max,
    "exact_minimum": min,
    "exact_convert": lambda a: a,
}


REDUCTIONS = {"block_sum": sum, "row_maximum": max}


@pytest.mark.parametrize("name", REDUCTIONS)
def test_a_reduction_of_rows_is_the_real_sum_or_the_largest_element(name):
    (got,) = exact(lambda a: bound(name, a), [X])
    assert list(got) == [REDUCTIONS[name](map(Fraction, row.tolist())) for row in X]


@pytest.mark.parametrize("name", MEANINGS)
def test_an_exact_operation_is_the_real_operation_that_it_rounds(name):
    meaning = MEANINGS[name]
    count = meaning.__code__.co_argcount if hasattr(meaning, "__code__") else 2
    args = [V[:3], V[1:4], V[2:5]][:count]
    (got,) = exact(lambda *a: bound(name, *a), args)
    want = [meaning(*map(lambda e: Fraction(float(e)), row)) for row in zip(*args)]  # noqa: B905, C417
    assert list(got) == want


def test_a_lane_product_is_a_sum_of_products():
    x = np.arange(12, dtype=np.float32).reshape(2, 2, 3)
    w = np.arange(18, dtype=np.float32).reshape(2, 3, 3) - 5
    (got,) = exact(lambda a, b: bound("lane_matmul", a, b), [x, w])
    want = np.einsum("gmk,gnk->gmn", x, w)
    assert [Fraction(float(e)) for e in want.flat] == list(got.flat)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("exact_exp", jnp.exp),
        ("exact_exp64", jnp.exp),
        ("exact_log", jnp.log),
        ("exact_log64", jnp.log),
        ("exact_log1p64", jnp.log1p),
        ("exact_sqrt", jnp.sqrt),
        ("exact_sigmoid", jax.nn.sigmoid),
        ("exact_tanh", jnp.tanh),
    ],
)
def test_our_transcendental_operations_are_opaque_without_asking(ours, theirs):
    x = np.array([0.5, 2.0], np.float32)
    (got,) = exact(lambda a: bound(ours, a), [x])
    lifted = Lifted(theirs, [x])
    m = Machine(with_opaque(rationals()), opaque=True)
    assert list(got) == list(lifted.primal(m, [m.constant(x)])[0])


def test_a_custom_vjp_written_with_exact_operations_is_checked():
    @jax.custom_vjp
    def cell(x, y):
        return bound("exact_tanh", bound("exact_mul", x, y))

    def forward(x, y):
        value = cell(x, y)
        return value, (x, y, value)

    def backward(residuals, g):
        x, y, value = residuals
        slope = bound("exact_sub", jnp.ones_like(g), bound("exact_mul", value, value))
        inner = bound("exact_mul", g, slope)
        return bound("exact_mul", inner, y), bound("exact_mul", inner, x)

    cell.defvjp(forward, backward)
    report = check_vjp(cell, jnp.zeros(3), jnp.zeros(3))
    assert report.ok, str(report)
    cell.defvjp(forward, lambda r, g: backward(r, g)[::-1])
    assert not check_vjp(cell, jnp.zeros(3), jnp.zeros(3)).ok


def test_every_exact_primitive_of_the_package_has_a_meaning_here():
    tested = {"lane_matmul", "exact_cos_pi", "exact_sqrt", *MEANINGS, *REDUCTIONS}
    tested |= {
        f"exact_{n}"
        for n in ("exp64", "log64", "log1p64", "exp", "log", "sigmoid", "tanh")
    }
    assert set(PACKAGE) == tested
    assert set(PACKAGE) <= set(machine.known_primitives())


def test_a_registered_primitive_gets_its_meaning_and_others_are_refused(monkeypatch):
    monkeypatch.setattr(machine, "_RULES", dict(machine._RULES))
    with pytest.raises(Refused, match="primitive double has no exact meaning"):
        exact(lambda a: bound("double", a), [V])
    machine.register_primitive("double", lambda m, p, x, params: m.t.add(x[0], x[0]))
    (got,) = exact(lambda a: bound("double", a), [V])
    assert list(got) == [2 * Fraction(float(v)) for v in V]


def positive_maximum(v):
    """The largest positive element by integer comparisons of bits, 0 if none."""
    bits = lax.bitcast_convert_type(v, jnp.int32)
    best = jnp.int32(0)
    for k in range(v.shape[0]):
        better = (bits[k] > best) & (bits[k] <= 0x7F800000)
        best = jnp.where(better, bits[k], best)
    return lax.bitcast_convert_type(best, jnp.float32)


def test_integer_views_of_floats_are_compared_as_the_floats():
    assert exact(positive_maximum, [V])[0][()] == 8
    assert exact(positive_maximum, [-abs(V)])[0][()] == 0


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda b: b + 1, "primitive add on integer views"),
        (lambda b: b < b[0], "integer views of two negative floats"),
    ],
)
def test_what_has_no_meaning_on_integer_views_is_refused(use, message):
    def call(v):
        bits = use(lax.bitcast_convert_type(v, jnp.int32))
        return v, bits

    with pytest.raises(Refused, match=message):
        exact(call, [-abs(V)])


@pytest.mark.parametrize("points", ["fractions", "field"])
def test_a_condition_on_bytes_takes_the_branch_of_the_nearest_float(points):
    def island(x):
        first = lax.bitcast_convert_type(x[0], jnp.uint8)[0]
        always = (lax.population_count(first) >> 4) == 0
        return lax.cond(always, lambda v: v * v, jnp.zeros_like, x)

    report = check_vjp(island, jnp.zeros(2), points=points)
    assert report.ok, str(report)
    assert any(note.startswith("bytes of") for note in report.notes)
    assert list(exact(island, [V])[0]) == [Fraction(float(v)) ** 2 for v in V]


def test_a_comparison_of_residues_uses_the_shadow():
    (got,) = exact(lambda v: jnp.maximum(v, 0.0), [V], with_opaque(shadowed_field()))
    assert [e.residue for e in got] == [2, 0, 1, 8, 0]
