"""Orders found by probing: known trees, our dot, NumPy's and the compiler's sums."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from onemodel_jax import numerics
from onemodel_jax.numerics.order import reveal_fusion, reveal_order
from onemodel_jax.numerics.reduce import block_sum
from onemodel_jax.numerics.trees import Order, draw
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


LONG = 5000
PLACES = np.random.default_rng(0).permutation(LONG)
LONG_SUMS = {  # and bounds on the calls, 100 of them for the checks
    "from the first": (lambda x: np.cumsum(x)[-1], LONG + 110),
    "from the last": (lambda x: np.cumsum(x[::-1])[-1], 2 * LONG * 9),
    "in a random order": (lambda x: np.cumsum(x[PLACES])[-1], 2 * LONG * 9),
    "of pairs": (lambda x: np.cumsum(x[::2] + x[1::2])[-1], 2 * LONG * 9),
    "NumPy's": (np.sum, 2 * LONG * 9),
}


@pytest.mark.parametrize("name", LONG_SUMS)
def test_sums_of_thousands_are_found_printed_and_compared(name):
    function, most = LONG_SUMS[name]
    calls = []

    def counted(x):
        calls.append(1)
        return function(x)

    order = reveal_order(counted, LONG)
    assert len(calls) <= most
    assert order.accumulator == "float32"
    assert str(order).count(str(LONG - 1)) == 1 and "Order(size=5000" in repr(order)
    assert order == Order(order.tree, LONG) and hash(order) is not None
    if name != "from the first":
        assert order != Order(functools.reduce(lambda t, k: (t, k), range(LONG)), LONG)
    x = np.random.default_rng(1).standard_normal(LONG).astype(F)
    assert_bits_equal(order.evaluate(x), function(x))
    fused = reveal_fusion(lambda x, y: function(x * y), order) if "last" in name else []
    assert not any(fused)


def test_a_chain_of_thousands_is_drawn():
    pytest.importorskip("matplotlib").use("Agg")
    order = Order(functools.reduce(lambda t, k: (t, k), range(LONG)), LONG)
    (joins,) = draw(order).collections
    assert len(joins.get_segments()) == 2 * LONG - 2
    assert len(draw(order).get_xticklabels()) <= 200


def aligned_sum(terms):
    """Add many at once as matrix units do: aligned to the largest, cut, added."""
    terms = np.asarray(terms, np.float64)
    if not terms.any():
        return F(0)
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


def wide_tree(rng, terms):
    """A random tree whose additions have two to five children."""
    if len(terms) == 1:
        return terms[0]
    width = min(len(terms), int(rng.integers(2, 6)))
    cuts = rng.choice(np.arange(1, len(terms)), width - 1, replace=False)
    parts = np.split(np.array(terms), np.sort(cuts))
    return tuple(sorted((wide_tree(rng, p.tolist()) for p in parts), key=first_term))


def evaluate_wide(tree, x, exact):
    if not isinstance(tree, tuple):
        return x[tree]
    parts = [evaluate_wide(child, x, exact) for child in tree]
    if len(parts) == 2:
        return parts[0] + parts[1]
    if exact(tree):  # integers of 2^-160: nothing is lost before the one rounding
        return F(float(sum(int(float(p) * 2.0**160) for p in parts)) * 2.0**-160)
    return aligned_sum(parts)


@pytest.mark.parametrize(
    "exact",
    [lambda t: True, lambda t: False, lambda t: first_term(t) % 2 == 0],
    ids=["exact", "cut", "both"],
)
def test_random_trees_with_wide_nodes_are_found_again(exact):
    rng = np.random.default_rng(0)
    for n in rng.integers(1, 16, 50).tolist():
        tree = wide_tree(rng, rng.permutation(n).tolist())
        found = reveal_order(lambda x, tree=tree: evaluate_wide(tree, x, exact), n)
        assert found == Order(tree, n)


def chain(terms, dtype=F):
    total = dtype(0)
    for term in terms:
        total = dtype(total + dtype(term))
    return total


def kahan(x):
    total, lost = F(0), F(0)
    for term in x:
        term = term - lost
        new = total + term
        lost, total = (new - total) - term, new
    return total


def neumaier(x):
    total, lost = F(0), F(0)
    for term in x:
        big, small = sorted((total, term), key=abs)[::-1]
        new = total + term
        lost, total = lost + ((big - new) + small), new
    return total + lost


def thirds_in_64(x):
    return F(chain([chain(x[:4]), chain(x[4:7]), chain(x[7:])], np.float64))


FLAT = tuple(range(10))
CHAIN = functools.reduce(lambda t, k: (t, k), range(10))
THIRDS = (((((0, 1), 2), 3), ((4, 5), 6)), ((7, 8), 9))
LONGER = np.finfo(np.longdouble).nmant > 52
ACCUMULATORS = {
    "float32": (chain, CHAIN, "float32", "float32"),
    "float64": (lambda x: chain(x, np.float64), CHAIN, "float64", "float64"),
    "float64, rounded": (
        lambda x: F(chain(x, np.float64)),
        CHAIN,
        "float64",
        "float32",
    ),
    "float32, as a Python float": (
        lambda x: float(chain(x)),
        CHAIN,
        "float32",
        "float32",
    ),
    "float64, rounded, as a Python float": (
        lambda x: float(F(chain(x, np.float64))),
        CHAIN,
        "float64",
        "float32",
    ),
    "float64, as a Python float": (
        lambda x: float(chain(x, np.float64)),
        CHAIN,
        "float64",
        "float64",
    ),
    "longer": (
        lambda x: F(chain(x, np.longdouble)),
        CHAIN,
        None if LONGER else "float64",
        "float32",
    ),
    "exact": (math.fsum, FLAT, "float64", "float64"),
    "exact, in 32 bits": (
        lambda x: F(math.fsum(x.tolist())),
        FLAT,
        "float32",
        "float32",
    ),
    "binary32 in binary64": (thirds_in_64, THIRDS, None, "float32"),
    "cut": (aligned_sum, FLAT, None, "float32"),
    "Kahan": (kahan, CHAIN, None, "float32"),
    "Neumaier": (neumaier, FLAT, None, "float32"),
    "sorted by size": (
        lambda x: chain(sorted(x, key=abs)),
        FLAT,
        None,
        "float32",
    ),
}


@pytest.mark.parametrize("name", ACCUMULATORS)
def test_the_accumulator_is_named_where_it_gives_the_bits(name):
    function, tree, accumulator, result = ACCUMULATORS[name]
    found = reveal_order(function, 10)
    assert found.tree == tree
    assert (found.accumulator, found.result) == (accumulator, result)


def test_the_order_found_gives_the_bits_of_a_block_sum_of_binary32():
    function = jax.jit(block_sum)
    order = reveal_order(function, 20)
    assert (order.accumulator, order.result) == ("float64", "float32")
    x = np.random.default_rng(2).standard_normal((20, 20)).astype(F)
    assert_bits_equal(order.evaluate(x), np.stack([function(row) for row in x]))


def test_what_the_function_does_to_its_argument_is_no_harm():
    def in_place(x):
        x[0] += x[1]
        x[0] += x[2]
        return x[0]

    assert reveal_order(in_place, 3).tree == ((0, 1), 2)


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
    def product(fused):
        def dot(x, y):
            total = F(0)
            for a, b in zip(x, y, strict=True):
                product = np.float64(a) * np.float64(b)
                product = product if fused else np.float64(F(product))
                total = F(product + np.float64(total))
            return total

        return dot

    for fused in (False, True):
        dot = product(fused)
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
    (joins,) = axes.collections
    assert len(joins.get_segments()) == 16  # 9 terms, 8 sums; all but the last joined
    labels = [label.get_text() for label in axes.get_xticklabels()]
    assert sorted(map(int, labels)) == list(range(9))


CALLS = iter(range(10**6))
SUM = "expected a sum of its terms, got "
NUMBER = r"expected a function of float32\[6\] to a number, got "
BAD = {
    "a missing term": (lambda x: np.sum(x[:5]), SUM + "5.0 for 6 ones"),
    "a mean": (np.mean, SUM + "1.0 for 6 ones"),
    "a product": (np.prod, SUM + "1.0 for 6 ones"),
    "NaN": (lambda x: np.nan, SUM + "nan for 6 ones"),
    "a constant": (lambda x: 6, SUM + "6.0 for terms that add up to"),
    "sizes": (lambda x: np.sum(abs(x)), SUM + ".* for terms that add up to"),
    "weights": (lambda x: 1.5 * x[0] + 0.5 * x[1] + chain(x[2:]), "expected .*, got "),
    "no small terms": (
        lambda x: np.sum(np.where(abs(x) < 1e-15, F(0), x)),
        SUM + "float32 0.0 for 6 terms of 8.67",
    ),
    "shape": (lambda x: x + 1, NUMBER + r"float32\[6\]"),
    "nothing": (lambda x: None, NUMBER + "TypeError"),
    "complex": (lambda x: np.sum(x) + 0j, NUMBER + "TypeError"),
    "raises": (lambda x: x[6], NUMBER + "IndexError: index 6 is out of bounds"),
    "two arguments": (lambda x, y: 0, NUMBER + "TypeError: .*missing 1 required"),
    "random": (
        lambda x: chain(np.random.default_rng(next(CALLS)).permutation(x)),
        "expected the same result every time, got .*, then ",
    ),
    "value-dependent": (
        lambda x: chain(x if x[0] < 2 else x[::-1]),
        "expected one fixed tree, got ",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_no_sum_is_refused(case):
    function, text = BAD[case]
    with pytest.raises(ValueError, match=f"^reveal_order: sum_fn: {text}") as info:
        reveal_order(function, 6)
    assert "\n" not in str(info.value)


def test_bad_sizes_and_dtypes_are_refused():
    with pytest.raises(ValueError, match="^reveal_order: n: expected 1 to 2"):
        reveal_order(np.sum, 0)
    for n in ("4", 4.0, True, np.True_, None, np.arange(4)):
        with pytest.raises(TypeError, match="^reveal_order: n: expected an integer"):
            reveal_order(np.sum, n)
    assert reveal_order(np.sum, np.int64(4)) == reveal_order(np.sum, 4)
    with pytest.raises(ValueError, match="^reveal_order: dtype: expected one of"):
        reveal_order(np.sum, 4, dtype="float16")
    with pytest.raises(ValueError, match="sum_fn: .* for the one term"):
        reveal_order(lambda x: x[0] * F(1.001 if x[0] < 0 else 1), 1)
