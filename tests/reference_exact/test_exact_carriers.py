"""Carriers are the semirings they claim to be; opaque functions keep relations."""

from fractions import Fraction
from random import Random

import numpy as np
import pytest
from exact_cases import CARRIERS

from onemodel_jax.reference.exact.carriers import (
    PRIME,
    Undefined,
    binary32,
    integers_mod,
    rationals,
)
from onemodel_jax.reference.exact.opaque import duals, with_opaque
from onemodel_jax.reference.exact.shadowed import shadowed_field


@pytest.mark.parametrize("name", CARRIERS)
def test_semiring_axioms_hold_on_random_elements(name):
    c = CARRIERS[name]()
    rng = Random(11)
    for _ in range(60):
        x, y, z = (c.sample(rng) for _ in range(3))
        assert c.add(x, y) == c.add(y, x)
        assert c.mul(x, y) == c.mul(y, x)
        assert c.add(c.add(x, y), z) == c.add(x, c.add(y, z))
        assert c.mul(c.mul(x, y), z) == c.mul(x, c.mul(y, z))
        assert c.mul(x, c.add(y, z)) == c.add(c.mul(x, y), c.mul(x, z))
        assert c.add(c.zero, x) == x and c.add(x, c.zero) == x
        assert c.mul(c.one, x) == x and c.mul(c.zero, x) == c.zero
        if c.has("neg"):
            assert c.add(x, c.neg(x)) == c.zero
        if c.has("neg", "inverse") and x != c.zero:
            assert c.mul(x, c.inverse(x)) == c.one


@pytest.mark.parametrize("name", CARRIERS)
def test_the_image_of_a_number_is_a_sum_of_ones(name):
    c = CARRIERS[name]()
    total = c.zero
    for n in range(12):
        assert c.number(n) == total
        total = c.add(total, c.one)
    if c.has("neg", "inverse"):
        third = c.number(Fraction(-1, 3))
        assert c.add(c.add(third, third), third) == c.neg(c.one)


def test_binary32_is_no_semiring():
    c = binary32()
    kept = c.add(c.zero, np.float32(-0.0))
    assert np.signbit(np.float32(-0.0)) and not np.signbit(kept)
    with np.errstate(invalid="ignore"):
        assert np.isnan(c.mul(c.zero, np.float32(np.inf)))


@pytest.mark.parametrize(
    "base", [rationals(), integers_mod(PRIME, prime=True), shadowed_field()]
)
def test_opaque_functions_keep_the_stated_relations(base):
    c = with_opaque(base)
    x, s = c.number(Fraction(3, 4)), c.number(Fraction(5, 2))
    f = c.opaque
    assert f("exp", x) == f("exp", x)
    assert f("log", f("exp", x)) == x
    assert c.mul(f("exp", x), f("exp", c.neg(x))) == c.one
    log_s = f("log", s)
    assert f("exp", log_s) == s
    assert c.mul(f("exp", c.add(x, c.neg(log_s))), s) == f("exp", x)
    one = c.add(f("sigmoid", x), f("sigmoid", c.neg(x)))
    assert one == c.one
    twice = f("sigmoid", c.add(x, x))
    assert c.add(f("tanh", x), c.one) == c.add(twice, twice)


def test_opaque_values_depend_on_the_seed_and_lie_near_the_true_value():
    values = [
        with_opaque(rationals(), seed).opaque("exp", Fraction(1)) for seed in "ab"
    ]
    assert values[0] != values[1]
    assert all(abs(float(v) - np.e) < 1 / 500 for v in values)
    with pytest.raises(Undefined):
        with_opaque(rationals()).opaque("log", Fraction(-1))


@pytest.mark.parametrize(
    "name", ["exp", "log", "sqrt", "sin", "cos", "tanh", "sigmoid"]
)
def test_dual_numbers_follow_the_chain_rule_through_opaque_functions(name):
    """(f(x^2))' at x = a + eps is f'(a^2) 2 a: against the rule on a^2 + eps."""
    c = duals(with_opaque(rationals()))
    a = Fraction(3, 2)
    x = (a, Fraction(1))
    chained = c.opaque(name, c.mul(x, x))
    direct = c.opaque(name, (a * a, Fraction(1)))
    assert chained == (direct[0], direct[1] * 2 * a)


def test_a_function_without_a_derivative_rule_is_refused_only_where_one_is_needed():
    c = duals(with_opaque(rationals()))
    assert c.opaque("cos_pi", (Fraction(1, 3), Fraction(0)))[1] == 0
    with pytest.raises(TypeError, match="no derivative rule for cos_pi"):
        c.opaque("cos_pi", (Fraction(1, 3), Fraction(1)))


def test_the_shadow_decides_signs_and_refuses_where_it_cannot():
    c = shadowed_field()
    assert c.sign(c.number(Fraction(-1, 3))) == -1
    assert c.sign(c.add(c.number(2), c.number(-2))) == 0
    lost = c.add(c.add(c.number(2**60), c.number(1)), c.number(-(2**60)))
    with pytest.raises(Undefined):
        c.sign(lost)
