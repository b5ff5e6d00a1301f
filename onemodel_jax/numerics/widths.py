"""How many bits each addition of a black box keeps, found by probing alone."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from onemodel_jax._checks import check_option
from onemodel_jax.numerics.trees import Order, postorder

#: Exponent of the large terms, and the most bits that are looked for.
_RANGES = {"float32": (100, 150), "float64": (900, 1000)}


class Width(NamedTuple):
    """What one addition of a tree keeps.

    Attributes:
      first: its first term.
      size: number of terms below it.
      bits: width of its sums; inf: all that were looked for (150 for float32, 1000 for
        float64); None: it cannot be seen.
    """

    first: int
    size: int
    bits: float | None


def reveal_widths(
    sum_fn: Callable[[np.ndarray], Any], order: Order, *, dtype: str = "float32"
) -> list[Width]:
    """Return the width of every addition, the last of all at the end.

    Of three terms 1, 2^(1-b) and -1, the first two meet in the addition in question and
    the third joins where its sum goes next, or in the same addition if that has more
    than two children. If 2^(1-b) is left, the addition keeps b bits. So 24 are binary32
    and 53 binary64, rounded to nearest even or towards zero. What a compensated sum
    repairs counts as kept. The last addition, if it has two children, is not seen: no
    term joins it later.

    About 8 calls of sum_fn an addition (10 for float64), 9 times n at most.

    Args:
      sum_fn: maps (order.size,) of ``dtype`` to its sum.
      order: its order, from ``reveal_order``.
      dtype: "float32" or "float64".
    """
    check_option("reveal_widths", "dtype", dtype, tuple(_RANGES))
    top, most = _RANGES[dtype]

    def keeps(bits: int, a: int, b: int, c: int) -> bool:
        x = np.zeros(order.size, dtype)
        x[a], x[b], x[c] = 2.0**top, 2.0 ** (top + 1 - bits), -(2.0**top)
        return float(sum_fn(x)) == 2.0 ** (top + 1 - bits)

    def measure(a: int, b: int, c: int) -> float:
        low, high = 1, most
        if keeps(high, a, b, c):
            return math.inf
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if keeps(middle, a, b, c) else (low, middle)
        return low

    found: list[Width] = []
    # First term, size, and two terms that meet in the addition if it is not yet known.
    stack: list[tuple[int, int, tuple[int, int] | None]] = []
    for node in postorder(order.tree):
        if not isinstance(node, tuple):
            stack.append((node, 1, None))
            continue
        below = stack[len(stack) - len(node) :]
        del stack[len(stack) - len(node) :]
        firsts = [first for first, _, _ in below]
        for first, size, pair in below:
            if pair is not None:
                other = firsts[1] if first == firsts[0] else firsts[0]
                found.append(Width(first, size, measure(*pair, other)))
        size, pair = sum(size for _, size, _ in below), (firsts[0], firsts[1])
        if len(node) > 2:
            found.append(Width(firsts[0], size, measure(*pair, firsts[2])))
            pair = None
        stack.append((firsts[0], size, pair))
    first, size, pair = stack[0]
    return [*found, Width(first, size, None)] if pair else found
