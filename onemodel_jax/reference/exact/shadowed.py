"""The field of 2^61 - 1 elements, with a float64 beside each that decides branches."""

import math
from fractions import Fraction
from random import Random
from typing import Any

from onemodel_jax.reference.exact.carriers import (
    PRIME,
    Carrier,
    Special,
    Undefined,
    order_of,
    true_value,
)


class Unbounded(Special):
    """An infinity beside residues, whose signs are unknown: it has no products."""

    __slots__ = ()

    def _wrap(self, value: float) -> "Unbounded":
        return Unbounded(super()._wrap(value).value)

    def __mul__(self, other: Any) -> "Unbounded":
        raise Undefined(f"a residue times {self.value}")

    def __mod__(self, other: Any) -> "Unbounded":
        return self

    __rmul__ = __mul__


class Shadowed:
    """A residue and a float64 near the rational it stands for; equal by residue."""

    __slots__ = ("near", "residue")

    def __init__(self, residue: Any, near: float):
        self.residue = residue
        self.near = near

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Shadowed) and self.residue == other.residue

    def __hash__(self) -> int:
        return hash(self.residue)

    def __repr__(self) -> str:
        return f"{self.residue}"


def shadowed_field(p: int = PRIME) -> Carrier:
    """Residues mod a prime beside a float64 that decides branches.

    The residue is what laws compare and what ``sign`` calls zero; the float only says
    on which side of zero a nonzero residue lies; Undefined is raised where it cannot.
    p must be 3 mod 4: sqrt is a true root, and Undefined where a residue has none.
    """

    def sign(x: Shadowed) -> int:
        if x.residue == 0:
            return 0
        if not abs(x.near) > 0:
            raise Undefined("the sign of a residue whose float vanishes")
        return order_of(x.near)

    def inverse(x: Shadowed) -> Shadowed:
        if x.residue == 0:
            raise Undefined("division by zero")
        if isinstance(x.residue, Special):
            return Shadowed(0, 0.0)
        return Shadowed(pow(x.residue, -1, p), 1 / x.near if x.near else math.nan)

    def invent(name: str, x: Shadowed, rng: Random) -> Shadowed:
        near = true_value(name, x.near)
        if name != "sqrt":
            return Shadowed(rng.randrange(1, p), near)
        root = pow(x.residue, (p + 1) // 4, p)
        if root * root % p != x.residue:
            raise Undefined("a residue without a square root")
        return Shadowed(root, near)

    def embed(q: Any) -> Shadowed:
        if isinstance(q, Special):
            return Shadowed(Unbounded(q.value), q.value)
        residue = q.numerator * pow(q.denominator, -1, p) % p
        return Shadowed(residue, q.numerator / q.denominator)

    return Carrier(
        f"F_{p}" if p != PRIME else "F_(2^61-1)",
        Shadowed(0, 0.0),
        Shadowed(1, 1.0),
        lambda a, b: Shadowed((a.residue + b.residue) % p, a.near + b.near),
        lambda a, b: Shadowed(a.residue * b.residue % p, a.near * b.near),
        lambda rng: embed(Fraction(rng.randint(-4096, 4096), 1024)),
        neg=lambda a: Shadowed(-a.residue % p, -a.near),
        inverse=inverse,
        sign=sign,
        floor=lambda a: math.floor(a.near),
        embed=embed,
        invent=invent,
        roots=True,
    )
