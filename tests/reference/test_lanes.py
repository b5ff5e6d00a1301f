"""The lane dot against its definition, one scalar operation at a time."""

from fractions import Fraction

import numpy as np
import pytest

from onemodel_jax.reference.lanes.lanes import dot, lane_sum, matmul
from tests.support import assert_bits_equal, hard_values


def round32(value):
    """Round a Fraction to float32, nearest even; results here are normal or zero."""
    if value == 0:
        return Fraction(0)
    exponent = 0
    while abs(value) >= Fraction(2) ** (exponent + 1):
        exponent += 1
    while abs(value) < Fraction(2) ** exponent:
        exponent -= 1
    quantum = Fraction(2) ** (exponent - 23)
    return round(value / quantum) * quantum


def dot_by_definition(x, y):
    partials = [Fraction(0)] * 16
    for k, (a, b) in enumerate(zip(x, y, strict=True)):
        exact = Fraction(float(a)) * Fraction(float(b)) + partials[k % 16]
        partials[k % 16] = round32(exact)
    for half in (8, 4, 2, 1):
        partials = [round32(partials[i] + partials[i + half]) for i in range(half)]
    return np.float32(float(partials[0]))


@pytest.mark.parametrize("length", [0, 1, 2, 15, 16, 17, 31, 33, 100])
def test_dot_equals_its_definition(length):
    rng = np.random.default_rng(length)
    x, y = rng.standard_normal((2, length)).astype(np.float32)
    assert_bits_equal(dot(x, y), dot_by_definition(x, y))


def test_products_in_one_lane_cancel_to_the_rounding_error():
    x, y = np.zeros((2, 17), np.float32)
    x[0], x[16], y[[0, 16]] = 1e20, -1e20, 1e10
    assert dot(x, y).view(np.uint32) == 0xE38758C0
    x[1], x[16], y[1] = -1e20, 0, 1e10
    assert_bits_equal(dot(x, y), np.float32(0))


def test_empty_dot_is_positive_zero():
    empty = np.zeros(0, np.float32)
    assert_bits_equal(dot(empty, empty), np.float32(0.0))
    assert_bits_equal(lane_sum(np.zeros((3, 0))), np.zeros(3, np.float32))


def test_negative_zero_terms_sum_to_positive_zero():
    # Partials start from +0, so no sum of zeros is -0.
    x, y = np.full(3, -0.0, np.float32), np.ones(3, np.float32)
    assert_bits_equal(dot(x, y), np.float32(0.0))


def test_padding_by_zero_times_negative_zero_changes_no_bit():
    rng = np.random.default_rng(5)
    x, y = hard_values(rng, (2, 21))
    x, y = np.nan_to_num(x), np.nan_to_num(y)
    padded = dot(np.append(x, np.zeros(11)), np.append(y, np.full(11, -0.0)))
    assert_bits_equal(padded, dot(x, y))


def test_matmul_elements_are_dots_whatever_the_row_blocking(monkeypatch):
    rng = np.random.default_rng(6)
    x = rng.standard_normal((7, 37)).astype(np.float32)
    w = rng.standard_normal((5, 37)).astype(np.float32)
    want = np.array([[dot(a, b) for b in w] for a in x], np.float32)
    assert_bits_equal(matmul(x, w), want)
    monkeypatch.setattr("onemodel_jax.reference.lanes.lanes._ELEMENTS", 1)
    assert_bits_equal(matmul(x, w), want)


def test_lane_sum_is_the_dot_with_ones_over_the_last_axis():
    rng = np.random.default_rng(7)
    x = rng.standard_normal((2, 3, 40)).astype(np.float32)
    got = lane_sum(x)
    assert got.shape == (2, 3)
    assert_bits_equal(got[1, 2], dot_by_definition(x[1, 2], np.ones(40)))


def test_infinity_and_nan_follow_ieee():
    x = np.array([np.inf, 1], np.float32)
    assert dot(x, np.array([1, -np.inf], np.float32)) != dot(x, x)
    assert np.isnan(dot(x, np.array([1, -np.inf], np.float32)))
    assert np.isnan(dot(x, np.array([0, 1], np.float32)))
    assert dot(x, np.array([2, 1], np.float32)) == np.inf


def test_operands_of_different_length_are_refused():
    with pytest.raises(ValueError, match=r"matmul: operands: expected \(M, K\)"):
        matmul(np.zeros((2, 3)), np.zeros((2, 4)))
