"""Orders found by probing: known trees, our dot, NumPy's and the compiler's sums."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from onemodel_jax import numerics
from onemodel_jax.numerics.order import Order, draw, reveal_fusion, reveal_order
from onemodel_jax.numerics.reduce import block_sum
from tests.numerics.samples import HAS_FMA
from tests.support import assert_bits_equal

F = np.float32


def random_tree(rng, terms):
    """A random binary tree over terms in random places, smaller first index first."""
    if len(terms) == 1:
        return terms[0]
    cut = int(rng.integers(1, len(terms)))
    pair = random_tree(rng, terms[:cut]), random_tree(rng, terms[cut:])
    return tuple(sorted(pair, key=first_term))


def first_term(tree):
    return first_term(tree[0]) if isinstance(tree, tuple) else tree


def lanes_tree(n, lanes=16):
    """The stated order of a dot: term k in lane k mod 16, then halves."""
    chains = [
        functools.reduce(lambda t, k: (t, k), range(i, n, lanes)) for i in range(lanes)
    ]
    while len(chains) > 1:
        half = len(chains) // 2
        chains = [(chains[i], chains[i + half]) for i in range(half)]
    return chains[0]


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_random_tree_is_found_again(seed, dtype):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 40))
    tree = random_tree(rng, rng.permutation(n).tolist())
    found = reveal_order(Order(tree, n).evaluate, n, dtype=dtype)
    assert found == Order(tree, n)


def test_chains_from_either_end():
    n = 50
    forward = functools.reduce(lambda t, k: (t, k), range(n))
    assert reveal_order(lambda x: np.cumsum(x)[-1], n).tree == forward
    backward = functools.reduce(lambda t, k: (k, t), range(n - 2, -1, -1), n - 1)
    assert reveal_order(lambda x: np.cumsum(x[::-1])[-1], n).tree == backward


def aligned_sum(terms):
    """Add many at once as matrix units do: aligned to the largest, cut, added."""
    terms = np.asarray(terms, np.float64)
    quantum = 2.0 ** (np.frexp(np.max(np.abs(terms)))[1] - 26)
    return F(np.sum(np.trunc(terms / quantum)) * quantum)


def test_an_addition_of_many_terms_at_once_is_one_node():
    def blocks_of_four(x):
        total = aligned_sum(x[:4])
        for k in range(4, len(x), 4):
            total = aligned_sum([total, *x[k : k + 4]])
        return total

    found = reveal_order(blocks_of_four, 12)
    assert found.tree == (((0, 1, 2, 3), 4, 5, 6, 7), 8, 9, 10, 11)
    assert "+ (5 at once)" in str(found)

    def pairs_at_once(x):
        return aligned_sum(x[::2] + x[1::2])

    assert reveal_order(pairs_at_once, 6).tree == ((0, 1), (2, 3), (4, 5))


@pytest.mark.parametrize("n", [16, 17, 40])
def test_our_dot_is_16_lanes_and_the_halving_tree(n):
    ones = np.ones(n, F)
    dot = jax.jit(lambda x: numerics.dot(x, ones))
    order = reveal_order(dot, n)
    assert order.tree == lanes_tree(n)
    row = jax.jit(lambda x: numerics.matmul(x[None], np.ones((3, n), F))[0, 1])
    assert reveal_order(row, n).tree == lanes_tree(n)
    assert reveal_order(jax.jit(numerics.lane_sum), n).tree == lanes_tree(n)
    # Every product but the first of each lane is added unrounded.
    assert reveal_fusion(jax.jit(numerics.dot), order) == [k >= 16 for k in range(n)]


def test_a_block_sum_is_8_lanes():
    found = reveal_order(jax.jit(block_sum), 20)
    assert found.tree == lanes_tree(20, 8)
    with jax.enable_x64(True):
        found = reveal_order(jax.jit(block_sum), 20, dtype="float64")
    assert found.tree == lanes_tree(20, 8)


FOREIGN = {
    "jnp.sum": jax.jit(jnp.sum),
    "jnp.dot": jax.jit(lambda x: jnp.dot(x, jnp.ones_like(x))),
    "np.sum": np.sum,
    "np.add.reduce of a column": lambda x: np.add.reduce(x[:, None], axis=0)[0],
}


@pytest.mark.parametrize("n", [7, 64])
@pytest.mark.parametrize("name", FOREIGN)
def test_the_order_found_reproduces_a_foreign_sum(name, n):
    order = reveal_order(FOREIGN[name], n)
    rng = np.random.default_rng(n)
    for _ in range(5):
        x = (rng.standard_normal(n) * 10.0 ** rng.integers(-4, 4, n)).astype(F)
        assert_bits_equal(order.evaluate(x), np.asarray(FOREIGN[name](x)), name)


def test_the_compilers_sum_is_not_the_lanes():
    """Recorded: jnp.sum of 64 is two chains of 32, whose sums are added."""
    order = reveal_order(FOREIGN["jnp.sum"], 64)
    halves = [functools.reduce(lambda t, k: (t, k), range(s, s + 32)) for s in (0, 32)]
    assert order.tree == tuple(halves), "jnp.sum has a new order: update SPEC.md"


def test_fused_and_separate_products_are_told_apart():
    def chain(fused):
        def dot(x, y):
            total = F(0)
            for a, b in zip(x, y, strict=True):
                product = np.float64(a) * np.float64(b)
                product = product if fused else np.float64(F(product))
                total = F(product + np.float64(total))
            return total

        return dot

    for fused in (False, True):
        dot = chain(fused)
        order = reveal_order(lambda x, dot=dot: dot(x, np.ones_like(x)), 6)
        assert reveal_fusion(dot, order) == [False] + [fused] * 5


def test_the_compiler_fuses_where_it_can():
    def plain(x, y):
        total = jnp.float32(0)
        for k in range(5):
            total = total + x[k] * y[k]
        return total

    program = jax.jit(plain)
    order = reveal_order(lambda x: program(x, np.ones(5, F)), 5)
    assert any(reveal_fusion(program, order)) == HAS_FMA


def test_the_text_of_a_tree():
    order = reveal_order(lambda x: ((x[0] + x[2]) + (x[1] + x[3])) + x[4], 5)
    assert str(order) == "+, then + 4\n|-- 0 + 2\n`-- 1 + 3"
    assert str(Order((0, 1, 2), 3)) == "+ (3 at once)\n|-- 0\n|-- 1\n`-- 2"
    assert str(Order(0, 1)) == "0"
    assert order.depth() == 3


def test_the_drawing_has_a_line_for_every_child():
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    order = reveal_order(np.sum, 9)
    axes = draw(order)
    lines = [line for line in axes.lines if line.get_linestyle() == "-"]
    joins = [line for line in lines if line.get_marker() != "o"]
    assert len(joins) == 16  # 9 terms and 8 sums, all but the last below another
    labels = [label.get_text() for label in axes.get_xticklabels()]
    assert sorted(map(int, labels)) == list(range(9))


BAD = {
    "a missing term": (lambda x: x[0] + x[1], 3, "sum_fn: expected a sum of its terms"),
    "a mean": (np.mean, 4, "sum_fn: expected a sum of its terms, got 1.0 for 4 ones"),
    "no terms": (np.sum, 0, "n: expected 1 to 2"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_no_sum_is_refused(case):
    function, n, text = BAD[case]
    with pytest.raises(ValueError, match=f"^reveal_order: {text}"):
        reveal_order(function, n)


def test_an_exact_sum_and_an_unknown_dtype_are_refused():
    with pytest.raises(ValueError, match="^reveal_order: sum_fn: expected one fixed"):
        reveal_order(lambda x: F(math.fsum(x.astype(float))), 5)
    with pytest.raises(ValueError, match="^reveal_order: dtype: expected one of"):
        reveal_order(np.sum, 4, dtype="float16")
