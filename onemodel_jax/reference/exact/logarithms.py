"""Numbers r + ln(q) / n with r and q > 0 rational: exp and log without any invention.

The opaque exp of ``opaque.py`` does not know that exp(a + b) = exp(a) exp(b); programs
in the log domain need it. Here inputs are logarithms of fractions, and every number
such a program meets is r + ln(q) / n, n >= 1, of which equality is decidable: it is 0
only for r = 0 and q = 1, since e^r is transcendental for every rational r but 0. exp
of such a number for r = 0 and n = 1 is q; products of two logarithms, and any other
exp, are outside and raise Undefined.
Unlike ``Special``, infinities and NaN are quiet here: such programs compute them on
branches that they drop.
"""

import math
from fractions import Fraction
from random import Random
from typing import Any

from onemodel_jax.reference.exact.carriers import Carrier, Special, Undefined, order_of

MAX_POWER = 4096
"""The largest numerator, and denominator, of a factor of a logarithm."""
MARGIN = 1e-9
"""Signs closer to zero than this are not decided in binary64."""


class Log:
    """The number ``rational + ln(argument) / root``; rational may be +-inf or NaN."""

    __slots__ = ("argument", "rational", "root")

    def __init__(
        self,
        rational: Fraction | float,
        argument: Fraction = Fraction(1),
        root: int = 1,
    ):
        self.rational = rational
        self.argument = argument
        self.root = root if argument != 1 else 1

    @property
    def is_rational(self) -> bool:
        """True if there is no logarithm in it."""
        return self.argument == 1

    @property
    def is_special(self) -> bool:
        """True for an infinity and for NaN."""
        return isinstance(self.rational, float)

    @property
    def residue(self) -> Any:
        """The ``Special`` that it is, or itself."""
        return Special(float(self.rational)) if self.is_special else self

    @property
    def near(self) -> float:
        """The nearest float64, or one beside it."""
        q = self.argument
        log = math.log(q.numerator) - math.log(q.denominator)
        return float(self.rational) + log / self.root

    def power(self, n: int) -> Fraction:
        """q to the power n / root, for n a multiple of root."""
        return self.argument ** (n // self.root)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Log) or self.rational != other.rational:
            return False
        n = math.lcm(self.root, other.root)
        return self.power(n) == other.power(n)

    def __hash__(self) -> int:
        return hash(self.rational)

    def __repr__(self) -> str:
        if self.is_rational:
            return f"{self.rational}"
        log = f"ln({self.argument})" + (f"/{self.root}" if self.root > 1 else "")
        return log if self.rational == 0 else f"{self.rational} + {log}"


def _add(a: Log, b: Log) -> Log:
    if a.is_special or b.is_special:
        return Log(float(sum(x.rational for x in (a, b) if x.is_special)))
    n = math.lcm(a.root, b.root)
    return Log(a.rational + b.rational, a.power(n) * b.power(n), n)


def _mul(a: Log, b: Log) -> Log:
    if a.is_special or b.is_special:
        signs = [float(x.rational if x.is_special else _sign(x)) for x in (a, b)]
        return Log(signs[0] * signs[1])
    if a.is_rational and b.is_rational:
        return Log(a.rational * b.rational)
    factor, log = (a, b) if a.is_rational else (b, a)
    by = Fraction(factor.rational)
    root = log.root * by.denominator
    if not factor.is_rational or max(abs(by.numerator), root) > MAX_POWER:
        raise Undefined(f"the product of {a} and {b}")
    return Log(by * log.rational, log.argument**by.numerator, root)


def _neg(a: Log) -> Log:
    return Log(-a.rational, 1 / a.argument, a.root)


def _inverse(a: Log) -> Log:
    if a.is_special:
        return a if math.isnan(a.rational) else Log(Fraction(0))
    if a.rational == 0 or not a.is_rational:
        raise Undefined(f"1 / ({a})")
    return Log(1 / Fraction(a.rational))


def _sign(a: Log) -> int:
    """The sign; 1 for NaN, whose comparisons only guide branches that are dropped."""
    if a.is_special:
        return 1 if math.isnan(a.rational) else order_of(a.rational)
    if a.is_rational:
        return order_of(a.rational)
    if a.rational == 0:
        return order_of(a.argument - 1)
    if abs(a.near) < MARGIN:
        raise Undefined(f"the sign of {a}")
    return order_of(a.near)


def _exp(a: Log) -> Log:
    if a.is_special:
        return Log(Fraction(0)) if a.rational == -math.inf else a
    if a.rational != 0 or a.root != 1:
        raise Undefined(f"exp({a})")
    return Log(a.argument)


def _log(a: Log) -> Log:
    if a.is_special and not a.rational < 0:
        return a
    if not a.is_rational:
        raise Undefined(f"log({a})")
    if a.rational <= 0:
        return Log(-math.inf if a.rational == 0 else math.nan)
    return Log(Fraction(0), Fraction(a.rational))


def _function(name: str, a: Log) -> Log:
    if name in ("exp", "log"):
        return (_exp if name == "exp" else _log)(a)
    if name in ("sigmoid", "tanh") and not a.is_special:
        doubled = a if name == "sigmoid" else _add(a, a)
        value = 1 / (1 + Fraction(_exp(_neg(doubled)).rational))
        return Log(value if name == "sigmoid" else 2 * value - 1)
    raise Undefined(f"{name}({a})")


def _embed(q: Any) -> Log:
    return Log(q.value if isinstance(q, Special) else Fraction(q))


def logarithms() -> Carrier:
    """Numbers r + ln(q) / n; a ring only where no two logarithms meet in a product."""

    def sample(rng: Random) -> Log:
        return Log(Fraction(0), Fraction(rng.randint(1, 9), rng.randint(1, 9)))

    return Carrier(
        "Q + ln Q",
        Log(Fraction(0)),
        Log(Fraction(1)),
        _add,
        _mul,
        sample,
        neg=_neg,
        inverse=_inverse,
        sign=_sign,
        embed=_embed,
        opaque=_function,
        logs=True,
    )
