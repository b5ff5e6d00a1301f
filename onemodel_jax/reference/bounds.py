"""Running error bounds of binary32: how far a computed number can be from the real one.

A ``Bounded`` is a real number beside a bound of the distance from it to what the
library computes; each operation carries the bounds of its operands along and adds its
own rounding (Higham 2002, sections 3.1 and 3.3). The real number is a ``Fraction`` or,
behind sigmoid and tanh, a float whose own rounding is charged as well. Bounds are
valid as long as nothing overflows and a comparison comes out as over the reals.
"""

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

LANES = 16
UNIT = 2.0**-24
"""Unit roundoff of binary32: a rounded result is off by at most this, relatively."""
UNDERFLOW = 2.0**-150
"""Half the least subnormal: the absolute error of a product or quotient below it."""
UNIT64 = 2.0**-53
"""Unit roundoff of binary64, in which float values and bounds themselves are kept."""
TREE = 4
"""Additions that a lane's sum passes through in the halving tree."""
ELEMENTARY = 1.0001 * UNIT
"""Relative error of sigmoid and tanh (0.50001 units in the last place at most)."""
SLACK = 1.0 + 2.0**-40
"""Covers the rounding of a bound's own arithmetic."""

Real = Fraction | float


def gamma(roundings: int, unit: float = UNIT) -> float:
    """Return n u / (1 - n u), the bound of |prod (1 + d_i) - 1| for |d_i| <= u.

    Args:
      roundings: n >= 0 with n u < 1.
      unit: u, the unit roundoff.
    """
    return roundings * unit / (1.0 - roundings * unit)


def lane_roundings(terms: int) -> int:
    """Return how many roundings a term of a lane dot passes at most.

    A lane of n = ceil(K / 16) terms is n fused multiply-adds, one rounding each; its
    sum then passes the 4 additions of the tree: n + 4.
    """
    return -(-terms // LANES) + TREE if terms else 0


def lane_dot_bound(terms: int, magnitude: float) -> float:
    """Bound the error of a lane dot of exact operands.

    gamma(n + 4) sum |x y|, to first order (n + 4) u sum |x y|, n = ceil(K / 16), and
    half the least subnormal for each fused multiply-add.

    Args:
      terms: K.
      magnitude: sum of |x y| over the terms.
    """
    relative = gamma(lane_roundings(terms)) * magnitude
    return (relative + terms * UNDERFLOW) * SLACK


class Bounded(NamedTuple):
    """A real number, and how far the computed binary32 number can be from it.

    Attributes:
      value: the real number.
      error: bound of |computed - value|.
    """

    value: Real
    error: float = 0.0

    @property
    def size(self) -> float:
        """Bound of the computed number's magnitude."""
        return (abs(float(self.value)) + self.error) * SLACK


def _rounded(value: Real, inherited: float) -> Bounded:
    """One rounding of a number that is within ``inherited`` of ``value``."""
    magnitude = abs(float(value)) + inherited
    own = UNIT * magnitude + UNDERFLOW + UNIT64 * magnitude
    return Bounded(value, (inherited + own) * SLACK)


def add(x: Bounded, y: Bounded) -> Bounded:
    """Return x + y, rounded once; adding an exact zero is exact."""
    if y == (0, 0.0):
        return x
    if x == (0, 0.0):
        return y
    return _rounded(x.value + y.value, x.error + y.error)


def mul(x: Bounded, y: Bounded) -> Bounded:
    """Return x y, rounded once; exact by an exact 0 or 1."""
    for a, b in ((x, y), (y, x)):
        if a == (0, 0.0):
            return a
        if a == (1, 0.0):
            return b
    return _rounded(x.value * y.value, _of_product(x, y))


def _of_product(x: Bounded, y: Bounded) -> float:
    """What the errors of the operands can do to a product."""
    return abs(float(x.value)) * y.error + x.error * y.size


def neg(x: Bounded) -> Bounded:
    """Return -x, exactly."""
    return Bounded(-x.value, x.error)


def lane_dot(xs: Sequence[Bounded], ys: Sequence[Bounded]) -> Bounded:
    """Return the lane dot of two vectors."""
    pairs = list(zip(xs, ys, strict=True))
    products = [x.value * y.value for x, y in pairs]
    exact = all(isinstance(p, Fraction) for p in products)
    value = sum(products, Fraction(0)) if exact else math.fsum(products)
    inherited = math.fsum(_of_product(x, y) for x, y in pairs)
    magnitude = math.fsum(x.size * y.size for x, y in pairs)
    own = lane_dot_bound(len(pairs), magnitude) + 2 * UNIT64 * magnitude
    return Bounded(value, (inherited + own) * SLACK)


def sigmoid(x: Bounded) -> Bounded:
    """Return 1 / (1 + e^-x): its slope is at most 1/4."""
    value = 0.5 * (1.0 + math.tanh(0.5 * float(x.value)))
    return _elementary(value, x.error / 4)


def tanh(x: Bounded) -> Bounded:
    """Return tanh x: its slope is at most 1."""
    return _elementary(math.tanh(float(x.value)), x.error)


def _elementary(value: float, inherited: float) -> Bounded:
    magnitude = abs(value) + inherited
    own = ELEMENTARY * magnitude + UNDERFLOW + 4 * UNIT64
    return Bounded(value, (inherited + own) * SLACK)
