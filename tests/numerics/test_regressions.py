"""Bits that were wrong once: each with the right value, on every ISA."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from onemodel_jax import numerics
from onemodel_jax.reference.lanes import lanes as reference
from tests.support import assert_bits_equal


@pytest.mark.parametrize("divisor", [98, 196, 206, 3, 7])
@pytest.mark.parametrize("traced", [True, False])
def test_subnormal_quotients_that_are_ties_survive_one_divisor_for_all(divisor, traced):
    """147 * 2^-149 / 98 is 1.5 * 2^-149: a tie, to even, where a reciprocal is off."""
    x = np.arange(1 << 16, dtype=np.uint32).view(np.float32)
    y = np.float32(divisor)
    if traced:
        got = jax.jit(lambda a, b: numerics.div(a, b))(x, y)
    else:
        got = jax.jit(lambda a: numerics.div(a, y))(x)
    assert_bits_equal(got, x / y)
    assert_bits_equal(jax.jit(lambda a: numerics.div(a, jnp.full_like(a, y)))(x), x / y)


@pytest.mark.parametrize("terms", [1, 17, 40, 700])
def test_sums_of_negative_zeros_are_positive_zero(terms):
    x, w = np.zeros((3, terms), np.float32), -np.ones((18, terms), np.float32)

    def program(x, w):
        return numerics.matmul(x, w), numerics.dot(x[0], w[0]), numerics.lane_sum(-x)

    for result in jax.jit(program)(x, w):
        assert_bits_equal(result, np.zeros(result.shape, np.float32))


def test_the_reference_says_positive_zero():
    zeros = np.zeros((1, 20), np.float32)
    want = reference.matmul(zeros, -np.ones((1, 20), np.float32))
    assert_bits_equal(want, np.zeros((1, 1), np.float32))
