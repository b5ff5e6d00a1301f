"""The order in which a function adds, found from outside by numbers alone.

Two of n ones are replaced by a huge value and its negative. Every term that meets
either before the two meet is swallowed; the others survive and the result counts
them, which gives the size of the smallest subtree that holds both (Xie et al. 2024,
FPRev, arXiv:2411.00442). From enough pairs the whole tree follows, nodes of more than
two children included, provided that a huge term swallows the small ones there too.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from onemodel_jax._checks import check_option, fail

#: A term's index, or the children of an addition in order of their first index.
Tree = Any

#: Swallows 2^24 ones in binary32 and in binary64 alike, and does not overflow.
_HUGE = 2.0**100


@dataclass(frozen=True)
class Order:
    """The order of a sum of ``size`` terms.

    Attributes:
      tree: an index, or a tuple of the trees that one addition joins.
      size: number of terms.
    """

    tree: Tree
    size: int

    def __str__(self) -> str:
        return "\n".join(_lines(self.tree))

    def evaluate(self, x: np.ndarray) -> np.floating:
        """Add x (size,) in this order in x's dtype, wide nodes from the left."""
        values: list[Any] = []
        with np.errstate(all="ignore"):
            for node in _postorder(self.tree):
                if isinstance(node, tuple):
                    parts = values[len(values) - len(node) :]
                    del values[len(values) - len(node) :]
                    values.append(_fold(parts))
                else:
                    values.append(x[node])
        return values[0]

    def depth(self) -> int:
        """Return the largest number of additions that one term goes through."""
        return max(level for _, level in _walk(self.tree))


def _fold(parts: Sequence[Any]) -> Any:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def _walk(tree: Tree) -> Iterator[tuple[Tree, int]]:
    """Yield (node, depth), parents first; trees may be thousands deep."""
    stack = [(tree, 0)]
    while stack:
        node, level = stack.pop()
        yield node, level
        if isinstance(node, tuple):
            stack.extend((child, level + 1) for child in reversed(node))


def _postorder(tree: Tree) -> list[Tree]:
    """Return the nodes, children first, left to right."""
    out, stack = [], [tree]
    while stack:
        node = stack.pop()
        out.append(node)
        if isinstance(node, tuple):
            stack.extend(node)
    return out[::-1]


def reveal_order(
    sum_fn: Callable[[np.ndarray], Any], n: int, *, dtype: str = "float32"
) -> Order:
    """Return the order in which ``sum_fn`` adds n terms, by probing alone.

    A dot product, or one entry of a matrix product, is revealed through its sum:
    ``reveal_order(lambda x: dot(x, ones), n)``. Calls sum_fn n - 1 times for a chain,
    about n log2 n times for a balanced tree, n^2 / 2 times at worst.

    Args:
      sum_fn: maps (n,) of ``dtype`` to its sum, a scalar; any function that adds each
        term once in an order that does not depend on the values.
      n: number of terms, 1 to 2^24.
      dtype: "float32" or "float64".

    Raises:
      ValueError: n is out of range, or sum_fn is no sum of one fixed tree (terms are
        missing or weighted, or nothing is swallowed because sums are exact).

    Example:
      >>> print(reveal_order(lambda x: (x[0] + x[1]) + (x[2] + x[3]), 4))
      +
      |-- 0 + 1
      `-- 2 + 3
    """
    check_option("reveal_order", "dtype", dtype, ("float32", "float64"))
    if not 1 <= n <= 1 << 24:
        fail(ValueError, "reveal_order", "n", "1 to 2^24", n)
    ones = np.ones(n, dtype)
    if float(sum_fn(ones)) != n:
        got = f"{float(sum_fn(ones))!r} for {n} ones"
        fail(ValueError, "reveal_order", "sum_fn", "a sum of its terms", got)

    def common(i: int, j: int) -> int:
        """Return the number of terms below the addition where i and j meet."""
        probe = ones.copy()
        probe[i], probe[j] = _HUGE, -_HUGE
        survivors = float(sum_fn(probe))
        if not (survivors.is_integer() and 0 <= survivors <= n - 2):
            got = f"{survivors!r} survivors of terms {i} and {j}"
            fail(ValueError, "reveal_order", "sum_fn", "one fixed tree", got)
        return n - int(survivors)

    return Order(_build(list(range(n)), common), n)


def _build(terms: list[int], common: Callable[[int, int], int]) -> Tree:
    """Return the tree over ``terms``, ascending indices that form one subtree."""
    first, rest = terms[0], terms[1:]
    met: dict[int, list[int]] = {}
    for term in rest:
        met.setdefault(common(first, term), []).append(term)
    tree, below = first, 1
    for size, group in sorted(met.items()):
        if size != below + len(group):
            got = f"{below + len(group)} terms in a subtree of {size}"
            fail(ValueError, "reveal_order", "sum_fn", "one fixed tree", got)
        tree = (tree, *_children(group, size, common))
        below = size
    return tree


def _children(
    group: list[int], size: int, common: Callable[[int, int], int]
) -> list[Tree]:
    """Split ``group``, joined by one addition of ``size`` terms, into its children."""
    children = []
    while group:
        first = group[0]
        inside = [first, *(t for t in group[1:] if common(first, t) < size)]
        children.append(_build(inside, common) if len(inside) > 1 else first)
        taken = set(inside)
        group = [t for t in group if t not in taken]
    return children


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
    for node, _ in _walk(order.tree):
        if not isinstance(node, tuple):
            continue
        for child in node:
            if isinstance(child, tuple):
                continue
            other = next(_first_term(c) for c in node if c is not child)
            x, y = np.zeros((2, order.size), np.float32)
            x[child], y[child], x[other], y[other] = a, a, -rounded, 1
            fused[child] = float(dot_fn(x, y)) != 0
    return fused


def _first_term(tree: Tree) -> int:
    while isinstance(tree, tuple):
        tree = tree[0]
    return tree


def _chain(tree: Tree) -> tuple[Tree, list[int]]:
    """Return (core, terms added to it one by one); the core may be one term."""
    links: list[int] = []
    while isinstance(tree, tuple) and len(tree) == 2:
        left, right = tree
        if isinstance(right, int):
            links.append(right)
            tree = left
        elif isinstance(left, int):
            links.append(left)
            tree = right
        else:
            break
    return tree, links[::-1]


def _lines(tree: Tree) -> list[str]:
    """Return the text of a tree; a chain of single terms takes one line."""
    core, links = _chain(tree)
    if not isinstance(core, tuple):
        return [" + ".join(str(t) for t in (core, *links))]
    children: list[list[str]] = [_lines(child) for child in core]
    head = "+" if len(core) == 2 else f"+ ({len(core)} at once)"
    if links:
        head += ", then + " + " + ".join(str(t) for t in links)
    lines = [head]
    for child in children[:-1]:
        lines.append("|-- " + child[0])
        lines.extend("|   " + line for line in child[1:])
    lines.append("`-- " + children[-1][0])
    lines.extend("    " + line for line in children[-1][1:])
    return lines


def draw(order: Order, axes: Any = None) -> Any:
    """Draw the tree with matplotlib: terms below, the final sum on top.

    Args:
      order: from :func:`reveal_order`.
      axes: matplotlib axes; default: new ones.

    Returns:
      The axes.

    Raises:
      ImportError: matplotlib, an optional extra, is not installed.
    """
    if axes is None:
        from matplotlib import pyplot

        axes = pyplot.figure(figsize=(max(4.0, order.size / 6), 4)).add_subplot()
    places = {term: float(k) for k, term in enumerate(_terms(order.tree))}
    stack: list[tuple[float, int]] = []
    for node in _postorder(order.tree):
        if not isinstance(node, tuple):
            stack.append((places[node], 0))
            continue
        below = stack[len(stack) - len(node) :]
        del stack[len(stack) - len(node) :]
        x = sum(p[0] for p in below) / len(below)
        top = (x, 1 + max(p[1] for p in below))
        for point in below:
            axes.plot([point[0], x], [point[1], top[1]], color="0.4", linewidth=0.8)
        axes.plot([x], [top[1]], "o", color="C0", markersize=3)
        stack.append(top)
    axes.set_xticks(list(places.values()), [str(t) for t in places], fontsize=6)
    axes.set_xlabel("term")
    axes.set_ylabel("additions")
    return axes


def _terms(tree: Tree) -> list[int]:
    return [node for node, _ in _walk(tree) if not isinstance(node, tuple)]
