"""Each exact operation has IEEE's bits, whatever surrounds it and whoever calls it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from onemodel_jax import numerics
from tests.numerics.samples import (
    ARITY,
    CASES,
    WIDTHS,
    exact,
    expected,
    hard_tuple,
    special_tuples,
)
from tests.support import assert_bits_equal, special_values


@pytest.mark.parametrize(("name", "width"), CASES)
def test_bits_are_the_correctly_rounded_ones(name, width):
    # fma on binary64 is checked against exact rationals, which are slow.
    n = 4000 if (name, width) == ("fma", "float64") else 200_000
    operands = hard_tuple(name, width, n)
    if (name, width) == ("fma", "float64"):
        rng = np.random.default_rng(1)
        keep = rng.permutation(operands[0].size - n)[:6000]
        keep = np.concatenate([keep, np.arange(operands[0].size - n, operands[0].size)])
        operands = [v[keep] for v in operands]
    assert_bits_equal(exact(name, *operands), expected(name, *operands), name)


@pytest.mark.parametrize(("name", "width"), CASES)
def test_every_special_constant_on_either_side(name, width):
    """A constant the compiler sees: x + 0, x * 1, x / 3, inf - x and the like."""
    values = special_values(WIDTHS[width])
    arity = ARITY[name]
    operation = getattr(numerics, name)
    traced = hard_tuple(name, width, 64, seed=2)[:2]
    traced = [v[-200:] for v in (traced * 2)[:2]]

    def placed(x, y):
        """Argument lists: the constant in each position, its partners traced."""
        for value in values:
            for position in range(arity):
                rest = [x, y][: arity - 1]
                yield [*rest[:position], value, *rest[position:]]

    def program(x, y):
        return [operation(*operands) for operands in placed(x, y)]

    with jax.enable_x64(True):
        got = jax.jit(program)(*traced)
    for result, operands in zip(got, placed(*traced), strict=True):
        want = expected(name, *operands)
        assert_bits_equal(result, want, f"{name} {operands}")


@pytest.mark.parametrize("width", WIDTHS)
def test_operands_that_are_all_constants(width):
    """The compile-time evaluator has other habits; it must not change a bit."""
    values = special_values(WIDTHS[width])
    pairs = {name: special_tuples(name, width) for name in ARITY}
    rng = np.random.default_rng(3)
    keep = rng.permutation(pairs["fma"][0].size)[:4000]
    pairs["fma"] = [v[keep] for v in pairs["fma"]]

    def arrays():
        return {n: getattr(numerics, n)(*v) for n, v in pairs.items()}

    def scalars():
        return {
            n: [getattr(numerics, n)(*[v] * k) for v in values]
            for n, k in ARITY.items()
        }

    with jax.enable_x64(True):
        whole, single = jax.jit(arrays)(), jax.jit(scalars)()
    for name, arity in ARITY.items():
        assert_bits_equal(whole[name], expected(name, *pairs[name]), name)
        want = expected(name, *[values] * arity)
        assert_bits_equal(np.stack(single[name]), want, f"{name} of scalars")


@pytest.mark.parametrize("width", WIDTHS)
def test_constants_that_the_program_broadcasts(width):
    """One divisor for a row of constants invites a reciprocal; so may other pairs."""
    rng = np.random.default_rng(7)
    x = np.abs(rng.standard_normal((10, 37))).astype(WIDTHS[width])
    y = np.abs(rng.standard_normal((10, 1))).astype(WIDTHS[width])
    places = {
        name: [[x, y, y][:k], [y, x, y][:k], [-x, y, x][:k]]
        for name, k in ARITY.items()
    }

    def program(shift):
        return {
            n: [
                getattr(numerics, n)(first, *[v * shift for v in rest])
                for first, *rest in cases
            ]
            for n, cases in places.items()
        }

    with jax.enable_x64(True):
        folded = jax.jit(lambda: program(WIDTHS[width](1)))()
        traced = jax.jit(program)(np.ones((), WIDTHS[width]))
    for name, cases in places.items():
        for operands, one, other in zip(cases, folded[name], traced[name], strict=True):
            want = expected(name, *operands)
            assert_bits_equal(one, want, f"{name}, all constant")
            assert_bits_equal(other, want, f"{name}, the first constant")


@pytest.mark.parametrize("width", WIDTHS)
def test_operands_that_are_one_and_the_same_array(width):
    """x - x, x / x, x * x: patterns an algebraic pass likes to replace."""
    x = hard_tuple("sqrt", width, 2000)[0]

    def program(x):
        return {n: getattr(numerics, n)(*[x] * k) for n, k in ARITY.items()}

    with jax.enable_x64(True):
        got = jax.jit(program)(x)
    for name, arity in ARITY.items():
        assert_bits_equal(got[name], expected(name, *[x] * arity), name)


def in_scan(operation):
    def scanned(*operands):
        return jax.lax.scan(lambda c, row: (c, operation(*row)), 0, operands)[1]

    return scanned


def in_custom_vjp(operation):
    """The operation in the forward and in the backward of a custom VJP."""

    @jax.custom_vjp
    def wrapped(*operands):
        return operation(*operands)

    def forward(*operands):
        return operation(*operands), operands

    def backward(operands, grad):
        result = operation(*operands)
        return (result, *(jnp.zeros_like(grad) for _ in operands[1:]))

    wrapped.defvjp(forward, backward)

    def both(*operands):
        out, pull = jax.vjp(wrapped, *operands)
        return out, pull(jnp.ones_like(out))[0]

    return both


@pytest.mark.parametrize(("name", "width"), CASES)
def test_same_bits_eager_jit_vmap_scan_and_custom_vjp(name, width):
    rng = np.random.default_rng(4)
    operands = hard_tuple(name, width, 3000)
    operands = [rng.permutation(v)[:900].reshape(30, 30) for v in operands]
    operation = getattr(numerics, name)
    want = expected(name, *operands)
    columns = [1] + [0] * (ARITY[name] - 1)
    turned = [operands[0].T, *operands[1:]]
    with jax.enable_x64(True):
        assert_bits_equal(operation(*operands), want, "eager")
        got = jax.jit(jax.vmap(operation, in_axes=columns))(*turned)
        assert_bits_equal(got, want, "vmap over columns")
        got = jax.jit(jax.vmap(jax.vmap(operation)))(*operands)
        assert_bits_equal(got, want, "vmap of vmap")
        assert_bits_equal(jax.jit(in_scan(operation))(*operands), want, "scan")
        for part in jax.jit(in_custom_vjp(operation))(*operands):
            assert_bits_equal(part, want, "custom VJP")


@pytest.mark.parametrize("name", [n for n, k in ARITY.items() if k > 1])
def test_vmap_with_an_operand_that_has_no_batch_axis(name):
    rng = np.random.default_rng(5)
    operands = [rng.permutation(v)[:35] for v in hard_tuple(name, "float32", 3000)]
    operation = getattr(numerics, name)
    batched = [v.reshape(7, 5) if i == 0 else v[:5] for i, v in enumerate(operands)]
    for shift in range(ARITY[name]):
        args = batched[-shift:] + batched[:-shift] if shift else batched
        axes = [0 if v.ndim == 2 else None for v in args]
        got = jax.vmap(getattr(numerics, name), in_axes=axes)(*args)
        assert_bits_equal(got, expected(name, *args), f"{name} {axes}")
        assert_bits_equal(operation(*args), expected(name, *args), "broadcast")


SHAPES = [
    ((), ()),
    ((0,), ()),
    ((2, 0, 3), (3,)),
    ((3, 1), (1, 4)),
    ((), (2, 2)),
]


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_rank_0_zero_size_and_broadcasting(shapes):
    rng = np.random.default_rng(6)
    for width, dtype in WIDTHS.items():
        x, y = (np.asarray(rng.standard_normal(s), dtype) for s in shapes)
        for name, arity in ARITY.items():
            operands = [x, y, y][:arity]
            got = getattr(numerics, name)(*operands)
            assert_bits_equal(got, expected(name, *operands), f"{name} {width}")


def test_a_python_number_takes_the_dtype_of_its_partner():
    with jax.enable_x64(True):
        for dtype in WIDTHS.values():
            x = np.array([1.0, 3.0], dtype)
            got = numerics.mul(x, 0.1)
            assert_bits_equal(got, x * dtype(0.1))
            assert_bits_equal(numerics.fma(2, x, -1), 2 * x - 1)


@pytest.mark.parametrize("flag", [False, True])
def test_the_users_x64_flag_neither_matters_nor_changes(flag):
    before = jax.config.jax_enable_x64
    with jax.enable_x64(flag):
        for width in WIDTHS:
            for name in ARITY:
                operands = [v[-50:] for v in hard_tuple(name, width, 50)]
                got = getattr(numerics, name)(*operands)
                assert_bits_equal(got, expected(name, *operands), f"{name} {width}")
        x = hard_tuple("mul", "float32", 50)
        got = jax.jit(lambda a, b: numerics.mul(a, b))(*x)
        assert_bits_equal(got, expected("mul", *x), "jit")
        assert jax.config.jax_enable_x64 == flag
    assert jax.config.jax_enable_x64 == before


def test_binary64_inside_a_program_while_the_flag_is_off():
    x = np.float32([0.1, 1 / 3, 3e38])

    def program(v):
        with jax.enable_x64(True):
            wide = v.astype(jnp.float64)
            return numerics.mul(wide, wide).astype(jnp.float32)

    with jax.enable_x64(False):
        got = jax.jit(program)(x)
    with np.errstate(over="ignore"):
        assert_bits_equal(got, (x.astype(np.float64) ** 2).astype(np.float32))


@pytest.mark.parametrize("name", ARITY)
def test_there_is_no_differentiation_rule(name):
    operation = getattr(numerics, name)
    with pytest.raises(NotImplementedError, match=f"exact_{name}"):
        jax.grad(lambda x: operation(*[x] * ARITY[name]))(np.float32(1.5))


@pytest.mark.parametrize("name", ARITY)
def test_a_jaxpr_shows_one_named_operation(name):
    operation = getattr(numerics, name)
    jaxpr = jax.make_jaxpr(operation)(*[np.float32(1)] * ARITY[name])
    assert f"exact_{name}" in str(jaxpr)


F32, F64, I32 = np.float32(1), np.float64(1), np.int32(1)
BAD = {
    "mixed widths": ((F32, F64), TypeError, r"x, y: .*got float32\[\], float64"),
    "integers": ((I32, I32), TypeError, r"x: expected float32 or float64, got int32"),
    "one integer": (
        (F32, I32),
        TypeError,
        r"y: expected float32 or float64, got int32",
    ),
    "half": ((np.float16(1), F32), TypeError, r"x: .*got float16\[\]"),
    "boolean": ((np.bool_(1), F32), TypeError, r"x: .*got bool\[\]"),
    "list": (([1.0], F32), TypeError, r"x: .*got list"),
    "text": (("1", F32), TypeError, r"x: .*got str"),
    "None": ((None, F32), TypeError, r"x: .*got NoneType"),
    "a Python bool": ((True, F32), TypeError, r"x: .*got bool"),
    "two Python numbers": ((1.0, 2.0), TypeError, r"x, y: .*got float, float"),
    "shapes": (
        (np.zeros(2, np.float32), np.zeros(3, np.float32)),
        ValueError,
        r"x, y: expected shapes that broadcast, got \[2\], \[3\]",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_operands_are_refused_by_name(case):
    operands, error, text = BAD[case]
    for name in ("add", "maximum"):
        with pytest.raises(error, match=f"^{name}: {text}"):
            getattr(numerics, name)(*operands)


def test_an_unknown_arithmetic_is_refused():
    expected_text = "^add: arithmetic: expected one of 'exact', 'fast', got 'quick'"
    with pytest.raises(ValueError, match=expected_text):
        numerics.add(F32, F32, arithmetic="quick")
    with pytest.raises(ValueError, match="^add: arithmetic: expected one of 'exact'"):
        numerics.add(F32, F32, arithmetic=np.ones(2))


def test_an_integer_beyond_binary64_is_refused():
    got = "expected .* got an integer beyond binary64$"
    for name, argument, operands in [
        ("add", "y", (F32, 10**400)),
        ("fma", "x", (-(2**1024), F32, F32)),
        ("exp", "x", (10**400,)),
        ("describe", "x", (2**1100,)),
    ]:
        with pytest.raises(ValueError, match=f"^{name}: {argument}: {got}"):
            getattr(numerics, name)(*operands)
    assert_bits_equal(numerics.add(F32 * 0, 2**70), F32 * 0 + np.float32(2.0**70))


def test_fast_arithmetic_is_plain_jnp():
    x = np.float32([2.0, 3.0])
    assert_bits_equal(numerics.add(x, x, arithmetic="fast"), x + x)
    assert_bits_equal(numerics.fma(x, x, x, arithmetic="fast"), x * x + x)
    assert_bits_equal(numerics.sqrt(x * x, arithmetic="fast"), x)


def test_binary64_maximum_counts_a_subnormal_as_zero():
    x, y = np.array([5e-324, -5e-324]), np.array([0.0, -1.0])
    with jax.enable_x64(True):
        assert_bits_equal(numerics.maximum(x, y), np.array([0.0, -0.0]))
        assert_bits_equal(numerics.minimum(x, y), np.array([0.0, -1.0]))
