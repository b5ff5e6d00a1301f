"""Widths of additions found by probing: known accumulators, alone and mixed."""

import math
from collections import Counter

import jax
import numpy as np
import pytest

from onemodel_jax import numerics
from onemodel_jax.numerics.order import reveal_order
from onemodel_jax.numerics.widths import Width, reveal_widths
from tests.numerics.test_order import (
    LONGER,
    aligned_sum,
    chain,
    neumaier,
    thirds_in_64,
)

F = np.float32


def widths(function, n=10, dtype="float32"):
    order = reveal_order(function, n, dtype=dtype)
    return reveal_widths(function, order, dtype=dtype)


def toward_zero(x):
    total = 0.0
    for term in x.tolist():
        exact = total + term
        near = float(F(exact))
        outward = abs(near) > abs(exact)
        total = float(np.nextafter(F(near), F(0))) if outward else near
    return F(total)


CHAINS = {
    "binary32": (chain, 24),
    "binary64": (lambda x: F(chain(x, np.float64)), 53),
    "longer": (lambda x: F(chain(x, np.longdouble)), 64 if LONGER else 53),
    "binary32, cut": (toward_zero, 24),
}


@pytest.mark.parametrize("name", CHAINS)
def test_every_addition_of_a_chain_but_the_last_shows_its_width(name):
    function, bits = CHAINS[name]
    want = [Width(0, size, bits) for size in range(2, 10)]
    assert widths(function) == [*want, Width(0, 10, None)]


def test_binary64_terms():
    function = lambda x: chain(x, np.float64)  # noqa: E731
    assert {w.bits for w in widths(function, dtype="float64")} == {53, None}
    assert widths(math.fsum, dtype="float64") == [Width(0, 10, math.inf)]


def test_mixed_widths_are_told_apart():
    found = {(w.first, w.size): w.bits for w in widths(thirds_in_64)}
    assert found.pop((0, 7)) == 53 and found.pop((0, 10)) is None
    assert len(found) == 7 and set(found.values()) == {24}


def test_one_node_of_many_terms_shows_where_it_cuts():
    assert widths(aligned_sum) == [Width(0, 10, 26)]
    assert widths(math.fsum) == [Width(0, 10, math.inf)]
    (compensated,) = widths(neumaier)
    assert compensated.bits > 100


def test_our_sums():
    dot = jax.jit(lambda x: numerics.dot(x, np.ones(20, F)))
    assert Counter(w.bits for w in widths(dot, 20)) == {24: 18, None: 1}
    block = jax.jit(numerics.block_sum)
    assert Counter(w.bits for w in widths(block, 20)) == {53: 18, None: 1}


def test_one_term_has_no_addition_and_a_bad_dtype_is_refused():
    assert widths(chain, 1) == []
    order = reveal_order(chain, 3)
    with pytest.raises(ValueError, match="^reveal_widths: dtype: expected one of"):
        reveal_widths(chain, order, dtype="float16")
