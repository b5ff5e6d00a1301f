"""The order in which a function adds, found from outside by numbers alone.

All terms but two are a tiny unit u, those two a huge M and -M. Every u that meets
either of them before the two meet is swallowed; the others survive and the result
counts them, which gives the number of terms lost where the two meet (Xie et al. 2024,
FPRev, arXiv:2411.00442). From enough pairs the whole tree follows.

What can be told apart, and what cannot (SPEC, "Revealed orders"):

- Whatever the width of an accumulator, its order shows as long as it is too narrow to
  hold M and u at once: M / u is 2^187 for float32 terms, 2^1523 for float64.
- An addition of several terms at once is one node. Either it swallows the others
  (terms aligned to the largest and cut), or it loses none (an exact or very wide
  accumulator, ``math.fsum``). Both mean: no order among these children is visible.
  So a sum that sorts its terms by size first is one node too.
- The two operands of one addition, and so the mirror images of a tree.
- What the additions round to. The tree found is evaluated with binary32, then with
  binary64 additions, and ``accumulator`` says which of them gave the function's bits
  on random terms. None: neither did. The tree then says only which terms meet where:
  accumulators of other or mixed widths, compensated sums, terms cut in a wide node.
  ``result`` is what the last sum was rounded to, which may be narrower than what is
  returned: a Python float of a binary32 sum. The bits that each addition keeps:
  ``reveal_widths``. The last addition of all shows its result's width only.
- Whether products are fused: :func:`reveal_fusion`.
"""

import math
import random
from collections import defaultdict
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

import numpy as np

from onemodel_jax._checks import check_option, describe, describe_error, fail
from onemodel_jax.numerics.trees import Order, Tree, postorder

#: Exponents of u and of M. Far from the subnormals, which hardware may flush.
_SCALES = {"float32": (-60, 127), "float64": (-500, 1023)}
#: Random pairs that are asked again of the finished tree, and random sums.
_PAIRS, _SUMS = 64, 18


def reveal_order(
    sum_fn: Callable[[np.ndarray], Any], n: int, *, dtype: str = "float32"
) -> Order:
    """Return the order in which ``sum_fn`` adds n terms, by probing alone.

    A dot product, or one entry of a matrix product, is revealed through its sum:
    ``reveal_order(lambda x: dot(x, ones), n)``. What is indistinguishable: see the
    module. The finished tree is checked by pairs not asked before and by random sums;
    any contradiction is an error, never a tree.

    Cost in calls of sum_fn: n - 1 for a chain from the first term on; at most about
    2 n ln n expected for any tree of two-term additions, n log2 n for a balanced one;
    k^2 / 2 more for a node of k terms at once (n^2 / 2 for ``math.fsum``); about 100
    for the checks. Each costs O(n) besides.

    Args:
      sum_fn: maps (n,) of ``dtype`` to its sum, a scalar; any function that adds each
        term once in an order that does not depend on the values.
      n: number of terms, 1 to 2^24.
      dtype: "float32" or "float64".

    Raises:
      TypeError: n is no integer.
      ValueError: n is out of range; sum_fn raises, returns no scalar or another result
        the second time; or it is no sum of one fixed tree (terms are missing or
        weighted, or its answers contradict each other).

    Example:
      >>> print(reveal_order(lambda x: (x[0] + x[1]) + (x[2] + x[3]), 4))
      +
      |-- 0 + 1
      `-- 2 + 3
    """
    check_option("reveal_order", "dtype", dtype, tuple(_SCALES))
    if isinstance(n, bool | np.bool_) or not isinstance(n, int | np.integer):
        fail(TypeError, "reveal_order", "n", "an integer", describe(n))
    if not 1 <= n <= 1 << 24:
        fail(ValueError, "reveal_order", "n", "1 to 2^24", n)
    n = int(n)
    black_box = _caller(sum_fn)
    terms, sums = _random_sums(black_box, n, dtype)
    common, keeps = _questions(black_box, n, dtype)
    tree = _grow(n, common, keeps)
    _ask_again(tree, n, common)
    return _with_accumulator(_freeze(tree, n), terms, sums)


def _no_sum(got: str, expected: str = "a sum of its terms") -> NoReturn:
    fail(ValueError, "reveal_order", "sum_fn", expected, got)


def _caller(sum_fn: Callable[[np.ndarray], Any]) -> Callable[[np.ndarray], np.ndarray]:
    """Return sum_fn with a () result for certain; it gets its own copy of x."""

    def call(x: np.ndarray) -> np.ndarray:
        expected = f"a function of {x.dtype}[{x.size}] to a number"
        try:
            value = np.asarray(sum_fn(x.copy()))
            if value.shape == ():
                float(value)
        except Exception as error:
            got = describe_error(error)
            raise ValueError(
                f"reveal_order: sum_fn: expected {expected}, got {got}"
            ) from error
        if value.shape != ():
            shape = ",".join(map(str, value.shape))
            _no_sum(f"{value.dtype}[{shape}]", expected)
        return value

    return call


def _random_terms(n: int, dtype: str) -> np.ndarray:
    """Return terms (S, n): alike, of all sizes, and of all sizes that cancel.

    What is left where terms cancel are rounding errors: they tell accumulators apart.
    """
    rng, half = np.random.default_rng(0), n // 2
    x = rng.standard_normal((_SUMS, n)).astype(dtype)
    wide = 2.0 ** rng.integers(-40, 40, x.shape)
    x[1::3] *= wide[1::3]
    x[2::3] *= wide[2::3]
    x[2::3, half : 2 * half] = -x[2::3, :half]
    x[2::3] = rng.permuted(x[2::3], axis=1)
    return x


def _random_sums(
    call: Callable[[np.ndarray], np.ndarray], n: int, dtype: str
) -> tuple[np.ndarray, np.ndarray]:
    """Return random terms (S, n) and their sums (S,).

    Raises:
      ValueError: a result is no sum at all, or not the same twice.
    """
    ones = np.ones(n, dtype)
    if float(call(ones)) != n:
        _no_sum(f"{float(call(ones))!r} for {n} ones")
    x, sums = _random_terms(n, dtype), []
    for row in x:
        first, second = call(row), call(row)
        if first.tobytes() != second.tobytes():
            got = f"{float(first)!r}, then {float(second)!r} for the same terms"
            _no_sum(got, "the same result every time")
        want, size = math.fsum(row.tolist()), math.fsum(abs(row).tolist())
        if not abs(float(first) - want) <= size / 4:
            _no_sum(f"{float(first)!r} for terms that add up to {want!r}")
        sums.append(first)
    return x, np.stack(sums)


def _questions(
    call: Callable[[np.ndarray], np.ndarray], n: int, dtype: str
) -> tuple[Callable[[int, int], int], Callable[[int, int, int], bool]]:
    """Return ``common(i, j)`` and ``keeps(i, j, k)``.

    common: how many terms, i and j among them, are lost where i and j meet.
    keeps: whether term k is none of them.
    """
    small, huge = (2.0**e for e in _SCALES[dtype])
    units = np.full(n, small, dtype)
    total = call(units)
    if float(total) != n * small:
        _no_sum(f"{total.dtype} {float(total)!r} for {n} terms of {small!r}")

    def ask(x: np.ndarray, i: int, j: int, most: int) -> int:
        x[i], x[j] = huge, -huge
        survivors = float(call(x)) / small
        if not (survivors.is_integer() and 0 <= survivors <= most):
            got = f"{survivors * small!r} where terms {i} and {j} are {huge!r} and "
            got += f"its negative, and {most} others {small!r}"
            _no_sum(got, "one fixed tree")
        return int(survivors)

    def common(i: int, j: int) -> int:
        return n - ask(units.copy(), i, j, n - 2)

    def keeps(i: int, j: int, k: int) -> bool:
        x = np.zeros(n, dtype)
        x[k] = small
        return ask(x, i, j, 1) == 1

    return common, keeps


class _Tree(NamedTuple):
    """A tree while it is found: terms are 0 to n - 1, additions the numbers from n on.

    Attributes:
      children: of each addition, unordered.
      lossless: additions where M and -M leave the other children as they are.
    """

    children: dict[int, list[int]]
    lossless: set[int]

    def join(self, child: int, n: int) -> int:
        """Return a new addition of one child so far."""
        key = n + len(self.children)
        self.children[key] = [child]
        return key


def _grow(
    n: int,
    common: Callable[[int, int], int],
    keeps: Callable[[int, int, int], bool],
) -> _Tree:
    """Return the tree over n terms; addition n is the root above its top.

    A pivot is compared with all terms of a subtree. That gives the path from the
    pivot to the top of the subtree and, as groups, what hangs on it; they come next.
    """
    tree, rng = _Tree({n: []}, set()), random.Random(0)
    # Terms; the addition they belong to; what terms of different children of it lose
    # together; the size of each child, if known; whether the last pivot told little.
    work: list[Any] = [(list(range(n)), n, None, None, False)]
    while work:
        terms, parent, apart, part, poor = work.pop()
        pivot = rng.choice(terms) if poor else terms[0]
        met: dict[int, list[int]] = defaultdict(list)
        for term in terms:
            if term != pivot:
                met[common(pivot, term)].append(term)
        rest = met.pop(apart, [])
        if rest:
            work.append((rest, parent, apart, part, True))
        if part not in (None, len(terms) - len(rest)):
            _contradiction(pivot, part, len(terms) - len(rest))
        top = previous = pivot
        below = start = 1  # terms below the top, and below its child with the pivot
        for size, group in sorted(met.items()):
            apart, part = size, None
            if size == below + len(group):
                top, start = tree.join(top, n), below
            else:
                # Not all below was lost: siblings in an addition that loses nothing.
                if top == pivot or not keeps(pivot, group[0], previous):
                    top, start = tree.join(top, n), below
                tree.lossless.add(top)
                part = size - start
                if part < 1 or len(group) % part:
                    _contradiction(pivot, size, below + len(group))
                apart = 2 * part
            below, previous = below + len(group), group[0]
            work.append((group, top, apart, part, 2 * len(group) > len(terms)))
        tree.children[parent].append(top)
    return tree


def _contradiction(pivot: int, want: int, got: int) -> NoReturn:
    text = f"term {pivot} in a subtree of {want} terms by one answer, {got} by others"
    _no_sum(text, "one fixed tree")


def _top_down(tree: _Tree, n: int) -> list[int]:
    """Return all terms and additions, parents first."""
    out, stack = [], list(tree.children[n])
    while stack:
        out.append(stack.pop())
        stack.extend(tree.children.get(out[-1], ()))
    return out


def _ask_again(tree: _Tree, n: int, common: Callable[[int, int], int]) -> None:
    """Compare the tree with random pairs.

    Raises:
      ValueError: an answer is not that of the tree.
    """
    above = {child: key for key, below in tree.children.items() for child in below}
    size: dict[int, int] = {}
    for key in reversed(_top_down(tree, n)):
        size[key] = sum(size[child] for child in tree.children.get(key, ())) or 1
    rng = random.Random(1)
    for _ in range(_PAIRS if n > 1 else 0):
        i, j = left, right = rng.sample(range(n), 2)
        path = {}
        while left != n:
            path[above[left]] = left
            left = above[left]
        while above[right] not in path:
            right = above[right]
        node = above[right]
        lossless = node in tree.lossless
        want = size[path[node]] + size[right] if lossless else size[node]
        if common(i, j) != want:
            got = f"{common(i, j)} terms lost where {i} and {j} meet, {want} by others"
            _no_sum(got, "one fixed tree")


def _freeze(tree: _Tree, n: int) -> Tree:
    """Return the tree as tuples, children in order of their first term."""
    done: dict[int, tuple[int, Tree]] = {}
    for key in reversed(_top_down(tree, n)):
        if key < n:
            done[key] = (key, key)
            continue
        parts = sorted((done.pop(c) for c in tree.children[key]), key=lambda p: p[0])
        done[key] = (parts[0][0], tuple(part for _, part in parts))
    ((_, frozen),) = done.values()
    return frozen


def _with_accumulator(tree: Tree, terms: np.ndarray, sums: np.ndarray) -> Order:
    """Return the order with the narrowest accumulator that gives all the sums.

    A sum that comes back in a wider dtype, such as a Python float, may have been
    rounded to float32 before: that is tried first.
    """
    size, returned = terms.shape[1], str(sums.dtype)
    widened = np.can_cast(np.float32, sums.dtype)
    results = dict.fromkeys((*(("float32",) if widened else ()), returned))
    for dtype in dict.fromkeys((str(terms.dtype), "float64")):
        for result in results:
            order = Order(tree, size, dtype, result)
            if order.evaluate(terms).astype(returned).tobytes() == sums.tobytes():
                return order
    if size == 1:
        _no_sum(f"{float(sums[0])!r} for the one term {float(terms[0, 0])!r}")
    return Order(tree, size, None, returned)


def reveal_fusion(
    dot_fn: Callable[[np.ndarray, np.ndarray], Any], order: Order
) -> list[bool]:
    """Tell for each term whether its product is added without being rounded first.

    Where the other side of a term's addition holds -RN(a b), a fused addition of a b
    leaves the rounding error of the product and a separate one leaves zero. The first
    term of a chain is added to nothing, so that there is no difference: False.

    Args:
      dot_fn: maps two float32 vectors (size,) to their dot product.
      order: its order, from :func:`reveal_order`.

    Returns:
      One truth value a term.
    """
    a = np.float32(1 + 2.0**-12)
    rounded = a * a  # 1 + 2^-11; the exact product has 2^-24 more
    fused = [False] * order.size
    firsts: list[int] = []
    for node in postorder(order.tree):
        if not isinstance(node, tuple):
            firsts.append(node)
            continue
        below = firsts[len(firsts) - len(node) :]
        del firsts[len(firsts) - len(node) :]
        firsts.append(below[0])
        for k, child in enumerate(node):
            if not isinstance(child, tuple):
                other = below[1] if k == 0 else below[0]
                x, y = np.zeros((2, order.size), np.float32)
                x[child], y[child], x[other], y[other] = a, a, -rounded, 1
                fused[child] = float(dot_fn(x, y)) != 0
    return fused
