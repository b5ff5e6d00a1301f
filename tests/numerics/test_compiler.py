"""What the compiler does to plain programs here, and that it cannot do it to ours.

Each rewrite has a plain jnp program whose compiled bits differ from IEEE's, and the
same program in exact operations, whose bits do not. A plain program that is right
after an upgrade fails its test on purpose: SPEC.md describes the compiler and needs
the news; nothing of the library's own is wrong then.
"""

import os
import re
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from onemodel_jax import numerics as exact
from onemodel_jax.cli.machine import own_isa, target_features
from onemodel_jax.numerics.softfloat import pin
from onemodel_jax.reference.lanes import lanes as reference_lanes
from tests.numerics.samples import HAS_AVX, HAS_FMA
from tests.support import assert_bits_equal, bits

F = np.float32
OLD = jax.__version_info__ < (0, 12)  # the newer compiler leaves some things alone

RNG = np.random.default_rng(0)
N = 4096
X, Y = (RNG.standard_normal(N).astype(F) for _ in range(2))
POSITIVE, OTHER = np.abs(X) + F(0.1), np.abs(Y) + F(0.1)
NEAR = -(X * Y) * (1 + F(1e-7) * RNG.integers(-3, 4, N).astype(F))
BIG = F(1e6)


class Rewrite(NamedTuple):
    """One rewrite: a program in plain jnp, in exact operations, and IEEE's result."""

    plain: object
    ours: object
    want: np.ndarray
    operands: tuple
    happens: bool = True


def rounded_through_binary64(x):
    with jax.enable_x64(True):
        return x.astype(jnp.float64).astype(jnp.float32)


def bits_and_back(x):
    return lax.bitcast_convert_type(lax.bitcast_convert_type(x, jnp.int32), F)


def contraction(block, happens=HAS_FMA):
    """a * b + c where the product passes ``block`` on its way to the sum."""
    ours = lambda a, b, c: exact.add(exact.mul(a, b), c)  # noqa: E731
    want = X * Y + NEAR
    return Rewrite(lambda a, b, c: block(a * b) + c, ours, want, (X, Y, NEAR), happens)


SUBNORMAL = np.ldexp(RNG.integers(1, 1 << 23, N).astype(F), -149).astype(F)
NORMAL = np.full(N, 2.0**-120, F)
SMALL = F(2.0**-10) * POSITIVE

REWRITES = {
    "a product and a sum become one fused operation": contraction(lambda p: p),
    "an optimization barrier does not stop fusing": contraction(
        lax.optimization_barrier, HAS_FMA and OLD
    ),
    "rounding to 8 and 23 bits does not stop fusing": contraction(
        lambda p: lax.reduce_precision(p, 8, 23)
    ),
    "a round trip through the bits does not stop fusing": contraction(bits_and_back),
    "a round trip through binary64 does not stop fusing": contraction(
        rounded_through_binary64
    ),
    "(x + M) - M becomes x": Rewrite(
        lambda x: (x + BIG) - BIG,
        lambda x: exact.sub(exact.add(x, BIG), BIG),
        (X + BIG) - BIG,
        (X,),
        OLD,
    ),
    "(x c) d is regrouped": Rewrite(
        lambda x: (x * F(3)) * F(1 / 3),
        lambda x: exact.mul(exact.mul(x, F(3)), F(1 / 3)),
        (X * F(3)) * F(1 / 3),
        (X,),
        OLD,
    ),
    "x / constant becomes a product": Rewrite(
        lambda x: x / F(10), lambda x: exact.div(x, F(10)), X / F(10), (X,)
    ),
    "x / traced scalar becomes a product": Rewrite(
        lambda x, s: x / s, exact.div, X / F(0.3), (X, F(0.3))
    ),
    "x / pinned scalar becomes a product": Rewrite(
        lambda x, s: x / pin(s), exact.div, X / F(0.3), (X, F(0.3))
    ),
    "(x / y) / z is regrouped": Rewrite(
        lambda x, y, z: (x / y) / z,
        lambda x, y, z: exact.div(exact.div(x, y), z),
        (X / POSITIVE) / OTHER,
        (X, POSITIVE, OTHER),
    ),
    "x / (y / z) is regrouped": Rewrite(
        lambda x, y, z: x / (y / z),
        lambda x, y, z: exact.div(x, exact.div(y, z)),
        X / (POSITIVE / OTHER),
        (X, POSITIVE, OTHER),
    ),
    "1 / sqrt(x) becomes an approximation": Rewrite(
        lambda x: 1 / jnp.sqrt(x),
        lambda x: exact.div(F(1), exact.sqrt(x)),
        F(1) / np.sqrt(POSITIVE),
        (POSITIVE,),
        HAS_AVX,
    ),
    "y / sqrt(x) becomes an approximation": Rewrite(
        lambda x, y: y / jnp.sqrt(x),
        lambda x, y: exact.div(y, exact.sqrt(x)),
        Y / np.sqrt(POSITIVE),
        (POSITIVE, Y),
    ),
    "x + 0 becomes x": Rewrite(
        lambda x: x + F(0),
        lambda x: exact.add(x, F(0)),
        F([0, 0, 1]),
        (F([-0.0, 0, 1]),),
    ),
    "a subnormal operand counts as zero": Rewrite(
        lambda x, y: x * y, exact.mul, SUBNORMAL * BIG, (SUBNORMAL, np.full(N, BIG))
    ),
    "a subnormal sum becomes zero": Rewrite(
        lambda x, y: x - y,
        exact.sub,
        F(2.0**-126) - SUBNORMAL,
        (np.full(N, F(2.0**-126)), SUBNORMAL),
    ),
    "a subnormal product becomes zero": Rewrite(
        lambda x, y: x * y, exact.mul, NORMAL * SMALL, (NORMAL, SMALL)
    ),
    "the square root of a subnormal is zero": Rewrite(
        jnp.sqrt, exact.sqrt, np.sqrt(SUBNORMAL), (SUBNORMAL,)
    ),
    "a subnormal loses against zero": Rewrite(
        lambda x: jnp.maximum(x, F(0)),
        lambda x: exact.maximum(x, F(0)),
        SUBNORMAL,
        (SUBNORMAL,),
    ),
}


def test_the_flag_decides_what_the_compiler_may_use():
    """What the tests know of this process is what its programs are compiled for."""
    assert ("avx" in target_features()) == HAS_AVX
    assert ("fma" in target_features()) == HAS_FMA
    limit = re.search(r"xla_cpu_max_isa=(\w+)", os.environ.get("XLA_FLAGS", ""))
    if limit:
        assert own_isa() == limit[1]


@pytest.mark.parametrize("name", REWRITES)
def test_a_plain_program_is_rewritten_and_ours_is_not(name):
    case = REWRITES[name]
    assert_bits_equal(jax.jit(case.ours)(*case.operands), case.want, f"ours: {name}")
    got = np.asarray(jax.jit(case.plain)(*case.operands))
    wrong = np.count_nonzero(bits(got) != bits(case.want))
    if case.happens:
        assert wrong, f"the compiler no longer does this: {name}; update SPEC.md"
    else:
        assert not wrong, f"the compiler now does this here: {name}; update SPEC.md"


def test_the_integer_minimum_stops_fusing_in_both_widths():
    for dtype in (np.float32, np.float64):
        x, y = X.astype(dtype) + dtype(1e-9), Y.astype(dtype) * dtype(1.0000001)
        with jax.enable_x64(True):
            got = jax.jit(lambda a, b: pin(a * b) + a)(x, y)
        assert_bits_equal(got, x * y + x)


def test_binary64_products_are_fused_too():
    x, y = X.astype(np.float64) + 1e-9, Y.astype(np.float64) * 1.0000001
    with jax.enable_x64(True):
        plain = np.asarray(jax.jit(lambda a, b: a * b + a)(x, y))
        ours = jax.jit(lambda a, b: exact.add(exact.mul(a, b), a))(x, y)
    assert_bits_equal(ours, x * y + x)
    assert np.any(plain != x * y + x) == HAS_FMA, "contraction changed: update SPEC.md"


def test_chains_keep_their_roundings_in_binary64():
    x, y = X.astype(np.float64) + 1e-9, np.abs(Y.astype(np.float64)) + 0.1
    third, big = 1 / 3, 1e6

    def program(x, y):
        return (
            exact.mul(exact.mul(x, 3.0), third),
            exact.sub(exact.add(x, big), big),
            exact.div(exact.div(x, y), 7.0),
            exact.div(1.0, exact.sqrt(y)),
            exact.div(x, exact.div(y, 7.0)),
            exact.sub(exact.mul(x, y), exact.mul(y, x)),
        )

    want = [
        (x * 3.0) * third,
        (x + big) - big,
        (x / y) / 7.0,
        1.0 / np.sqrt(y),
        x / (y / 7.0),
        np.zeros_like(x),
    ]
    with jax.enable_x64(True):
        for got, value in zip(jax.jit(program)(x, y), want, strict=True):
            assert_bits_equal(got, value)


def test_a_sum_has_an_order_of_the_compilers_choosing():
    x = (RNG.standard_normal(10_000) * 1e3).astype(F)
    in_order = np.cumsum(x, dtype=F)[-1]
    plain = np.asarray(jax.jit(jnp.sum)(x))
    ours = np.asarray(jax.jit(exact.lane_sum)(x))
    assert_bits_equal(ours, reference_lanes.lane_sum(x))
    assert plain != in_order, "jnp.sum now adds in order: update SPEC.md"
    assert plain != ours, "jnp.sum has the lanes' bits here: choose another sample"


def test_copies_keep_subnormals():
    """Flushing happens in arithmetic; moving data around is safe."""
    x = SUBNORMAL.reshape(64, 64)
    got = jax.jit(lambda v: lax.rev(v.T, (0,))[jnp.arange(63, -1, -1)].T)(x)
    assert_bits_equal(got, x)


CONSTANTS = {
    "a subnormal product of constants is kept": (
        lambda x, y: x * y,
        exact.mul,
        (F([1e-38, 3e-39]), F([0.1, 0.3])),
    ),
    "a product and a sum of constants are not fused": (
        lambda x, y: x * y + y,
        lambda x, y: exact.add(exact.mul(x, y), y),
        (X, Y),
    ),
    "a dot of constants has another order": (
        lambda x, y: x @ y,
        exact.dot,
        (np.tile(X, 4), np.tile(Y, 4)),
    ),
}


@pytest.mark.parametrize("name", CONSTANTS)
def test_constants_are_folded_with_other_habits(name):
    plain, ours, operands = CONSTANTS[name]
    traced, folded = jax.jit(ours)(*operands), jax.jit(lambda: ours(*operands))()
    assert_bits_equal(folded, np.asarray(traced), f"ours: {name}")
    if "fused" in name and not HAS_FMA:
        return
    constants = [jnp.asarray(v) for v in operands]
    traced = np.asarray(jax.jit(plain)(*operands))
    folded = np.asarray(jax.jit(lambda: plain(*constants))())
    message = f"constants and traced operands now agree: {name}; update SPEC.md"
    assert np.any(bits(folded) != bits(traced)), message


def test_quotients_that_a_reciprocal_gets_wrong():
    """1e8 / 1e9, 9 / 10 and 5 / 3, as constants, as traced scalars, element-wise."""
    x, y = F([1e8, 9, 5]), F([1e9, 10, 3])
    want = np.uint32([0x3DCCCCCD, 0x3F666666, 0x3FD55555]).view(F)
    assert_bits_equal(jax.jit(exact.div)(x, y), want)
    for a, b, w in zip(x, y, want, strict=True):
        assert_bits_equal(jax.jit(lambda v, b=b: exact.div(v, b))(a), w)
        assert_bits_equal(jax.jit(lambda a=a, b=b: exact.div(a, b))(), w)
    many = np.arange(1, 2001).astype(F)
    for divisor in (F(10), F(3)):
        got = jax.jit(lambda v, d=divisor: exact.div(v, d))(many)
        assert_bits_equal(got, many / divisor)


def test_a_masked_logit_keeps_its_rounding():
    """[0.7, 0.5] + (-1e30 * (1 - 1)), less its maximum: the difference survives."""

    def program(x, mask):
        hidden = exact.mul(F(-1e30), exact.sub(F(1), mask))
        y = exact.add(x, hidden)
        return exact.sub(y, exact.maximum(y[0], y[1]))

    got = jax.jit(program)(F([0.7, 0.5]), F([1, 1]))
    assert_bits_equal(got, np.uint32([0, 0xBE4CCCCC]).view(F))


def test_two_products_of_one_factor_cancel_exactly():
    a, b, x = F(1e20), F(-1e20), F(1e10)
    program = lambda a, b, x: exact.add(exact.mul(a, x), exact.mul(b, x))  # noqa: E731
    assert_bits_equal(jax.jit(program)(a, b, x), F(0))
