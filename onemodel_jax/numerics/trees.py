"""Summation trees: evaluated, compared, printed and drawn, however deep they are.

A tree is a term's index, or a tuple of trees: the children of one addition, in order
of their first index. Nothing here recurses, so that a chain of thousands is no harm.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

#: A term's index, or the children of an addition in order of their first index.
Tree = Any


@dataclass(frozen=True, eq=False, repr=False)
class Order:
    """The order of a sum of ``size`` terms; equal where tree and size are.

    Attributes:
      tree: an index, or a tuple of the trees that one addition joins.
      size: number of terms.
      accumulator: the dtype to which every addition rounds, once; None: unknown.
      result: the dtype to which the last sum is rounded; None: that of the terms.
    """

    tree: Tree
    size: int
    accumulator: str | None = None
    result: str | None = None

    def __str__(self) -> str:
        return "\n".join(_lines(self.tree))

    def __repr__(self) -> str:
        return f"Order(size={self.size}, depth={self.depth()})"

    def _code(self) -> list[int]:
        nodes = postorder(self.tree)
        return [-len(node) if isinstance(node, tuple) else node for node in nodes]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Order):
            return NotImplemented
        return self.size == other.size and self._code() == other._code()

    def __hash__(self) -> int:
        return hash(tuple(self._code()))

    def evaluate(self, x: np.ndarray) -> Any:
        """Add x (..., size) in this order, each addition rounded once.

        In the accumulator's dtype, by default x's; a node of more than two children
        adds them exactly before it rounds. The last sum is rounded to ``result``.
        """
        result = self.result or x.dtype
        x = x.astype(self.accumulator or x.dtype)
        values: list[Any] = []
        with np.errstate(all="ignore"):
            for node in postorder(self.tree):
                if isinstance(node, tuple):
                    parts = values[len(values) - len(node) :]
                    del values[len(values) - len(node) :]
                    values.append(_add(parts))
                else:
                    values.append(x[..., node])
            return values[0].astype(result)[()]

    def depth(self) -> int:
        """Return the largest number of additions that one term goes through."""
        return max(level for _, level in walk(self.tree))


def _add(parts: Sequence[Any]) -> Any:
    if len(parts) == 2:
        return parts[0] + parts[1]
    columns = np.stack(parts)
    sums = [_add_exactly(c) for c in columns.reshape(len(parts), -1).T]
    return np.array(sums, columns.dtype).reshape(columns.shape[1:])


def _add_exactly(terms: np.ndarray) -> Any:
    """Return the sum of terms (K,), rounded once to their dtype."""
    if not np.isfinite(terms).all() or not terms.any():
        return np.sum(terms)
    exact = sum(map(Fraction, terms.tolist()), Fraction(0))
    try:
        near = float(exact)
    except OverflowError:
        return np.inf if exact > 0 else -np.inf
    if terms.dtype != np.float64 and Fraction(near) != exact:
        # Rounded to odd: the next rounding, to a narrower format, is then the only one.
        if not np.float64(near).view(np.int64) & 1:
            near = np.nextafter(near, np.inf if exact > Fraction(near) else -np.inf)
    return terms.dtype.type(near)


def walk(tree: Tree) -> Iterator[tuple[Tree, int]]:
    """Yield (node, depth), parents first, left to right."""
    stack = [(tree, 0)]
    while stack:
        node, level = stack.pop()
        yield node, level
        if isinstance(node, tuple):
            stack.extend((child, level + 1) for child in reversed(node))


def postorder(tree: Tree) -> list[Tree]:
    """Return the nodes, children first, left to right."""
    out, stack = [], [tree]
    while stack:
        node = stack.pop()
        out.append(node)
        if isinstance(node, tuple):
            stack.extend(node)
    return out[::-1]


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
    lines: list[str] = []
    stack = [(tree, "", "")]
    while stack:
        node, before, below = stack.pop()
        core, links = _chain(node)
        if not isinstance(core, tuple):
            lines.append(before + " + ".join(str(t) for t in (core, *links)))
            continue
        head = "+" if len(core) == 2 else f"+ ({len(core)} at once)"
        if links:
            head += ", then + " + " + ".join(str(t) for t in links)
        lines.append(before + head)
        *others, last = core
        stack.append((last, below + "`-- ", below + "    "))
        stack.extend((c, below + "|-- ", below + "|   ") for c in reversed(others))
    return lines


def draw(order: Order, axes: Any = None) -> Any:
    """Draw the tree with matplotlib: terms below, the final sum on top.

    Args:
      order: from ``reveal_order``.
      axes: matplotlib axes; default: new ones.

    Returns:
      The axes.

    Raises:
      ImportError: matplotlib, an optional extra, is not installed.
    """
    from matplotlib import collections

    if axes is None:
        from matplotlib import pyplot

        width = min(max(4.0, order.size / 6), 100.0)
        axes = pyplot.figure(figsize=(width, 4)).add_subplot()
    terms = [node for node, _ in walk(order.tree) if not isinstance(node, tuple)]
    places = {term: float(k) for k, term in enumerate(terms)}
    stack: list[tuple[float, int]] = []
    sums: list[tuple[float, int]] = []
    lines: list[list[tuple[float, int]]] = []
    for node in postorder(order.tree):
        if not isinstance(node, tuple):
            stack.append((places[node], 0))
            continue
        below = stack[len(stack) - len(node) :]
        del stack[len(stack) - len(node) :]
        x = sum(p[0] for p in below) / len(below)
        stack.append((x, 1 + max(p[1] for p in below)))
        sums.append(stack[-1])
        lines.extend([point, stack[-1]] for point in below)
    axes.add_collection(collections.LineCollection(lines, colors="0.4", linewidths=0.8))
    axes.plot([p[0] for p in sums], [p[1] for p in sums], "o", color="C0", markersize=3)
    step = -(-order.size // 200)
    axes.set_xticks(range(0, order.size, step), [str(t) for t in terms[::step]])
    axes.tick_params(axis="x", labelsize=6)
    axes.set_xlabel("term")
    axes.set_ylabel("additions")
    axes.autoscale_view()
    return axes
