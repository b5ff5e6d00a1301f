"""Guarded chains (SPEC, "Guarded chains"): exact bits, mostly at hardware speed."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from onemodel_jax.numerics import guarded, softfloat
from tests.numerics.samples import ARITY, expected, hard_tuple
from tests.support import assert_bits_equal, bits, hard_values

OPERATIONS = ("add", "sub", "mul", "div", "sqrt")
CASES = 1_000_000


@functools.cache
def watched(name):
    """Return jitted operands -> (result, mark) of one hardware operation."""

    def run(*operands):
        marks = [softfloat.subnormal(x) for x in operands]
        result = getattr(guarded._watched(marks), name)(*operands)
        return result, functools.reduce(jnp.bitwise_or, marks)

    return jax.jit(run)


@pytest.mark.parametrize("name", OPERATIONS)
def test_what_is_not_marked_has_the_reference_bits(name):
    operands = hard_tuple(name, "float32", CASES)
    result, marked = (np.asarray(v) for v in watched(name)(*operands))
    want = expected(name, *operands)
    assert_bits_equal(result[~marked], want[~marked], name)
    # The sample reaches both sides, and the hardware does flush some of what is marked.
    assert 0.01 < marked.mean() < 0.9
    assert (bits(result)[marked] != bits(want)[marked]).sum() > 1000


@pytest.mark.parametrize("name", OPERATIONS)
def test_ordinary_operands_are_not_marked(name):
    rng = np.random.default_rng(1)
    # Zeros and differences that cancel belong to ordinary training.
    x = rng.integers(-40, 41, CASES).astype(np.float32) / 8
    y = rng.integers(-40, 41, CASES).astype(np.float32) / 8
    operands = [np.abs(x), y][: ARITY[name]]
    _, marked = watched(name)(*operands)
    assert not np.any(marked)


@pytest.mark.parametrize("divisor", [3.0, -7.5, 1e-30, 1e38, 0.0, np.inf])
def test_a_scalar_divisor_is_not_a_reciprocal(divisor):
    x = np.random.default_rng(2).standard_normal(CASES).astype(np.float32)
    want = expected("div", x, np.float32(divisor))
    for scalar in (np.float32(divisor), jnp.float32(divisor)):
        fixed = jax.jit(lambda x, s=scalar: watched("div")(x, s))
        for result, marked in (fixed(x), watched("div")(x, scalar)):
            assert_bits_equal(np.asarray(result)[~marked], want[~marked])


def body(o, x, y, scalar):
    """A chain with every operation, and what XLA likes to rewrite."""

    product = o.stage(o.mul, x, y)
    total = o.stage(lambda x, y: o.add(o.mul(x, scalar), y), x, y)
    root = o.sqrt(o.mul(y, y))
    ratio = o.div(o.div(x, root), o.add(root, scalar))
    return o.sub(total, o.mul(ratio, o.div(product, scalar))), ratio, product


def reference(x, y, scalar):
    add, sub, mul, div, sqrt = (functools.partial(expected, n) for n in OPERATIONS)
    product, total = mul(x, y), add(mul(x, scalar), y)
    root = sqrt(mul(y, y))
    ratio = div(div(x, root), add(root, scalar))
    return sub(total, mul(ratio, div(product, scalar))), ratio, product


def sample(size, hard):
    """Ordinary operands, ``hard`` of them replaced by hard ones."""
    rng = np.random.default_rng([size, hard])
    x, y = rng.standard_normal((2, size)).astype(np.float32)
    at = rng.choice(size, hard, replace=False)
    x[at], y[at] = hard_values(rng, (2, hard))
    return x, y


SCALARS = (np.float32(0.3), np.float32(1e-8), np.float32(1e-41))


@functools.cache
def compiled():
    return jax.jit(lambda x, y, s: guarded.chain(body, (x, y, s)))


SAMPLES = [
    (1, 0),
    (1, 1),
    (guarded.BLOCK - 1, 0),
    (guarded.BLOCK + 1, 1),
    (guarded.DENSE * guarded.BLOCK, 1),
    (20_001, 0),
    (20_001, 1),
    (20_001, 12),
    (20_001, 20_001),
]


@pytest.mark.parametrize(("size", "hard"), SAMPLES)
def test_a_chain_has_the_reference_bits(size, hard):
    x, y = sample(size, hard)
    for scalar in SCALARS:
        got = compiled()(x, y, scalar)
        for k, want in enumerate(reference(x, y, scalar)):
            assert_bits_equal(got[k], want, f"result {k}, scalar {scalar}")


def plus(o, x, scalar):
    return (o.add(x, scalar),)


@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_no_addition_of_a_zero_is_dropped(zero):
    x = np.float32([-0.0, 0.0, 1.0] * 100)
    fixed = jax.jit(lambda x: guarded.chain(plus, (x, np.float32(zero))))
    traced = jax.jit(lambda x, s: guarded.chain(plus, (x, s)))
    for (result,) in (fixed(x), traced(x, np.float32(zero))):
        assert_bits_equal(result, x + np.float32(zero))


@pytest.mark.parametrize("at", [0, 255, 256, 19_967, 19_968, 20_000])
def test_one_subnormal_anywhere_is_repaired(at):
    x, y = sample(20_001, 0)
    x[at], y[at] = 1e-40, 3.0
    got = compiled()(x, y, SCALARS[0])
    for result, want in zip(got, reference(x, y, SCALARS[0]), strict=True):
        assert_bits_equal(result, want)


def test_only_marked_blocks_are_computed_again(monkeypatch):
    """With operations that give 7 in place of the exact ones."""
    seven = lambda *operands: jnp.full_like(operands[0], 7)  # noqa: E731
    wrong = guarded.Operations(*[seven] * 5, guarded._inline)
    monkeypatch.setattr(guarded, "_EXACT", wrong)
    x, y = sample(20_001, 0)
    x[[300, 20_000]] = 1e-40
    results = guarded.chain(lambda *v: body(*v), (x, y, SCALARS[0]))  # compiled anew
    again = np.zeros(20_001, bool)
    again[256:512] = again[-256:] = True
    for result, want in zip(results, reference(x, y, SCALARS[0]), strict=True):
        np.testing.assert_array_equal(result[again], 7)
        assert_bits_equal(result[~again], want[~again])


def test_eager_vmap_scan_and_64_bit_types_change_nothing():
    x, y = sample(guarded.BLOCK * guarded.DENSE + 1, 3)
    chained = lambda x, y: guarded.chain(body, (x, y, SCALARS[0]))  # noqa: E731
    want = reference(x, y, SCALARS[0])
    batch = [np.stack([v, np.roll(v, 7)]) for v in (x, y)]
    scanned = lambda x, y: jax.lax.scan(  # noqa: E731
        lambda c, v: (c, chained(*v)), 0, (x, y)
    )[1]
    with jax.enable_x64(True):
        ways = [chained(x, y), [r[0] for r in jax.jit(jax.vmap(chained))(*batch)]]
    ways += [[r[1] for r in jax.jit(scanned)(*[np.roll(v, -7, 1) for v in batch])]]
    for results in ways:
        for result, right in zip(results, want, strict=True):
            assert_bits_equal(result, right)


def test_any_operand_may_be_batched():
    x, y = sample(700, 2)
    batch = np.stack([y, np.roll(y, 3)])
    scalars = np.float32([0.3, 1e-41])
    inner = jax.vmap(lambda x, y, s: guarded.chain(body, (x, y, s)), (None, 0, None))
    both = jax.jit(jax.vmap(inner, (None, None, 0), out_axes=1))(x, batch, scalars)
    for k, s in enumerate(scalars):
        for n, row in enumerate(batch):
            for result, want in zip(both, reference(x, row, s), strict=True):
                assert_bits_equal(result[n, k], want)
    alone = jax.vmap(lambda s: guarded.chain(body, (x, y, s)))(scalars)
    for k, s in enumerate(scalars):
        for result, want in zip(alone, reference(x, y, s), strict=True):
            assert_bits_equal(result[k], want)


def test_a_batch_of_none_and_chains_of_nothing():
    one = lambda x: guarded.chain(body, (x, x, SCALARS[0]))  # noqa: E731
    for shape in [(0, 3), (3, 0), (0, 0)]:
        x = np.zeros(shape, np.float32)
        assert [r.shape for r in jax.vmap(one)(x)] == [shape] * 3
        assert [r.shape for r in one(x)] == [shape] * 3
    none = jnp.zeros(0, jnp.float32)
    by_scalar = jax.vmap(
        lambda s: guarded.chain(body, (np.ones(3, np.float32),) * 2 + (s,))
    )
    assert [r.shape for r in by_scalar(none)] == [(0, 3)] * 3


def test_a_chain_is_one_equation_and_has_no_gradient():
    x, y = sample(5, 0)
    program = jax.make_jaxpr(lambda x: guarded.chain(body, (x, y, SCALARS[0])))(x)
    names = [e.primitive.name for e in program.eqns]
    assert names.count("exact_chain") == 1 and "mul" not in names
    with pytest.raises(NotImplementedError, match="exact_chain"):
        jax.grad(lambda x: guarded.chain(body, (x, y, SCALARS[0]))[0].sum())(x)


def test_fast_arithmetic_is_plain():
    x, y = sample(guarded.BLOCK, 0)
    fast = guarded.chain(body, (x, y, SCALARS[0]), arithmetic="fast")
    for result, want in zip(fast, reference(x, y, SCALARS[0]), strict=True):
        np.testing.assert_allclose(result, want, rtol=1e-4, atol=1e-4)
