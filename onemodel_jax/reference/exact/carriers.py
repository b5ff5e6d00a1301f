"""Carriers: the number systems over which graphs, tapes and pullbacks run exactly.

A carrier is a commutative semiring with the optional structure that some nodes need:
negation, inverses, an order, a floor, and named transcendental functions
(``opaque.py``). Elements are plain Python values compared with ``==``. Binary32 is
here too, but it is no semiring: it exists to show where the laws stop.
"""

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from random import Random
from typing import Any

import numpy as np

PRIME = 2**61 - 1
"""A Mersenne prime: residues fit a machine word, products two."""


class Undefined(ArithmeticError):
    """An operation has no value at this point; another point may do."""


class Special:
    """An infinity or NaN from a program's constants, beside the fractions.

    Infinities add, negate, compare and multiply as in the extended reals; what those
    leave open raises Undefined, and so does any use of NaN.
    """

    __slots__ = ("value",)

    def __init__(self, value: float):
        self.value = value

    def _wrap(self, value: float) -> "Special":
        if math.isnan(value) or math.isnan(self.value):
            raise Undefined(f"arithmetic on {self.value}")
        return Special(value)

    def __add__(self, other: Any) -> "Special":
        other = other.value if isinstance(other, Special) else 0.0
        return self._wrap(self.value + other)

    def __mul__(self, other: Any) -> "Special":
        other = other.value if isinstance(other, Special) else order_of(other)
        return self._wrap(self.value * other)

    __radd__ = __add__
    __rmul__ = __mul__

    def __neg__(self) -> "Special":
        return self._wrap(-self.value)

    def __gt__(self, other: Any) -> bool:
        return self._wrap(self.value).value > 0

    def __lt__(self, other: Any) -> bool:
        return self._wrap(self.value).value < 0

    def __float__(self) -> float:
        return self.value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Special) and self.value == other.value

    def __hash__(self) -> int:
        return hash(self.value)

    def __repr__(self) -> str:
        return f"{self.value}"


@dataclass(frozen=True)
class Carrier:
    """A commutative semiring, and what it has beyond that (SPEC, "Carriers").

    Attributes:
      name: how reports call it.
      zero, one: neutral elements of ``add`` and ``mul``.
      add, mul: binary operations on elements.
      sample: draws an element from a ``random.Random``.
      neg: additive inverse; makes it a ring.
      inverse: multiplicative inverse; raises Undefined where there is none.
      sign: -1, 0 or 1; makes it ordered.
      floor: the greatest integer not above an element.
      embed: shortcut for ``number``; may know ``Special`` constants as well.
      invent: a value for a named function at a point, given a seeded generator.
      opaque: named functions, ``opaque(name, element)``; see ``with_opaque``.
      constant: drops the tangent of a dual number.
      roots: whether sqrt is invented so that r * r is its argument.
      logs: whether exp and log are exact, on logarithms of fractions.
    """

    name: str
    zero: Any
    one: Any
    add: Callable[[Any, Any], Any]
    mul: Callable[[Any, Any], Any]
    sample: Callable[[Random], Any]
    neg: Callable[[Any], Any] | None = None
    inverse: Callable[[Any], Any] | None = None
    sign: Callable[[Any], int] | None = None
    floor: Callable[[Any], int] | None = None
    embed: Callable[[Any], Any] | None = None
    invent: Callable[[str, Any, Random], Any] | None = None
    opaque: Callable[[str, Any], Any] | None = None
    constant: Callable[[Any], Any] | None = None
    roots: bool = False
    logs: bool = False

    def has(self, *structure: str) -> bool:
        """Return True if the carrier has all of e.g. ``("neg", "inverse")``."""
        return all(getattr(self, name) is not None for name in structure)

    def need(self, name: str) -> Callable[..., Any]:
        """Return the optional operation ``name``; TypeError if there is none."""
        operation = getattr(self, name)
        if operation is None:
            raise TypeError(f"carrier {self.name} has no {name}")
        return operation

    def number(self, value: int | Fraction | Special) -> Any:
        """Return the image of a rational: n is 1 + ... + 1, p/q is p times 1/q."""
        if isinstance(value, Special):
            if not self.has("embed", "sign"):
                raise TypeError(f"carrier {self.name} has no {value}")
            return self.need("embed")(value)
        if self.embed is not None:
            return self.embed(Fraction(value))
        value = Fraction(value)
        total, power, rest = self.zero, self.one, abs(value.numerator)
        while rest:
            if rest & 1:
                total = self.add(total, power)
            power, rest = self.add(power, power), rest >> 1
        if value < 0:
            total = self.need("neg")(total)
        if value.denominator == 1:
            return total
        below = self.number(value.denominator)
        return self.mul(total, self.need("inverse")(below))


def _reciprocal(x: Any) -> Fraction:
    if isinstance(x, Special):
        return Fraction(0)
    if x == 0:
        raise Undefined("division by zero")
    return 1 / x


def order_of(x: Any) -> int:
    """-1, 0 or 1 by comparison with zero."""
    return (x > 0) - (x < 0)


def _near(name: str, x: Any, rng: Random) -> Fraction:
    """A rational within 1/1024 above the true value, generic in its last digits."""
    true = true_value(name, float(x))
    return Fraction(math.floor(true * 1024) * 1000 + rng.randint(1, 999), 1024000)


def true_value(name: str, x: float) -> float:
    """Return the real function ``name`` at ``x``; Undefined outside its domain.

    The argument of exp is clamped to [-40, 40]: the value only guides branches.
    """
    if (name == "log" and x <= 0) or (name == "sqrt" and x < 0):
        raise Undefined(f"{name} of {x}")
    if name == "exp":
        return math.exp(max(-40.0, min(40.0, x)))
    if name == "cos_pi":
        return math.cos(math.pi * x)
    return getattr(math, name)(x)


def rationals() -> Carrier:
    """The ordered field of fractions."""
    return Carrier(
        "Q",
        Fraction(0),
        Fraction(1),
        operator.add,
        operator.mul,
        lambda rng: Fraction(rng.randint(-9, 9), rng.randint(1, 9)),
        neg=operator.neg,
        inverse=_reciprocal,
        sign=order_of,
        floor=math.floor,
        embed=lambda q: q,
        invent=_near,
    )


def integers() -> Carrier:
    """The ordered ring of integers."""
    return Carrier(
        "Z",
        0,
        1,
        operator.add,
        operator.mul,
        lambda rng: rng.randint(-9, 9),
        neg=operator.neg,
        sign=order_of,
        floor=int,
    )


def integers_mod(n: int, *, prime: bool = False) -> Carrier:
    """Integers mod n: a ring, with zero divisors for composite n, trivial for n = 1.

    Args:
      n: the modulus, >= 1.
      prime: the caller knows n to be prime, which makes it a field.
    """

    def inverse(x: int) -> int:
        if x == 0:
            raise Undefined("division by zero")
        return pow(x, -1, n)

    return Carrier(
        f"Z/{n}",
        0,
        1 % n,
        lambda a, b: (a + b) % n,
        lambda a, b: a * b % n,
        lambda rng: rng.randrange(n),
        neg=lambda a: -a % n,
        inverse=inverse if prime else None,
        invent=(lambda name, x, rng: rng.randrange(1, n)) if prime else None,
    )


def booleans() -> Carrier:
    """Truth values with or and and."""
    return Carrier(
        "Bool",
        False,
        True,
        lambda a, b: a or b,
        lambda a, b: a and b,
        lambda rng: rng.random() < 0.5,
    )


def naturals() -> Carrier:
    """0, 1, 2, ... with + and *."""
    return Carrier("N", 0, 1, operator.add, operator.mul, lambda rng: rng.randint(0, 9))


def min_plus() -> Carrier:
    """The tropical semiring: min as the sum, + as the product, inf as zero."""
    return Carrier(
        "min-plus",
        math.inf,
        0,
        min,
        operator.add,
        lambda rng: rng.choice([math.inf, 0, 1, 2, 5]),
    )


Polynomial = tuple[tuple[int, int], ...]
"""(exponent, coefficient) pairs, ascending, no zero coefficient."""


def _polynomial(terms: dict[int, int]) -> Polynomial:
    return tuple(sorted((e, c) for e, c in terms.items() if c))


def _add_polynomials(p: Polynomial, q: Polynomial) -> Polynomial:
    terms = dict(p)
    for exponent, coefficient in q:
        terms[exponent] = terms.get(exponent, 0) + coefficient
    return _polynomial(terms)


def _multiply_polynomials(p: Polynomial, q: Polynomial) -> Polynomial:
    terms: dict[int, int] = {}
    for a, u in p:
        for b, v in q:
            terms[a + b] = terms.get(a + b, 0) + u * v
    return _polynomial(terms)


def polynomials() -> Carrier:
    """Polynomials in one variable over the naturals."""
    return Carrier(
        "N[t]",
        (),
        ((0, 1),),
        _add_polynomials,
        _multiply_polynomials,
        lambda rng: _polynomial({rng.randint(0, 3): rng.randint(0, 4) for _ in "ab"}),
    )


def special_of(element: Any) -> Special | None:
    """The infinity or NaN that an element is, if it is one."""
    inner = getattr(element, "residue", element)
    return inner if isinstance(inner, Special) else None


def binary32() -> Carrier:
    """IEEE binary32. NOT a semiring: 0 + (-0) is +0, and 0 * inf is NaN."""
    return Carrier(
        "binary32",
        np.float32(0),
        np.float32(1),
        operator.add,
        operator.mul,
        lambda rng: np.float32(rng.uniform(-3, 3)),
        neg=operator.neg,
        inverse=lambda x: np.float32(1) / x,
        sign=order_of,
    )
