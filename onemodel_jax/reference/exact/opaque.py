"""Dual numbers over any carrier, and transcendental functions as opaque values.

exp, log, sqrt, sin and cos have no exact values, and the laws need none: any value
will do as long as the same argument gets the same value and the derivative rule
holds. Kept as well: exp(log s) = s, log(exp x) = x, exp(x - log s) = exp(x) / s,
exp(-x) exp(x) = 1. Not kept: exp(a + b) = exp(a) exp(b) otherwise, sin^2 + cos^2 = 1,
and, over the fractions, r * r = x for r = sqrt(x) (SPEC, "Opaque functions").
"""

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

from onemodel_jax.reference.exact.carriers import (
    Carrier,
    Special,
    Undefined,
    special_of,
)

NAMES = ("exp", "log", "sqrt", "sin", "cos", "cos_pi", "tanh", "sigmoid")


class Opaque:
    """Values of the named functions over one carrier, drawn on first use.

    A value depends on the seed, the name and the argument alone, not on the order
    of the calls; only the exp-log relations look at what was asked before.
    """

    def __init__(self, carrier: Carrier, seed: int = 0):
        self._carrier = carrier
        self._seed = seed
        self._known: dict[tuple[str, Any], Any] = {}
        self._logs: dict[Any, Any] = {}

    def __call__(self, name: str, x: Any) -> Any:
        """Return the value of the function ``name`` at ``x``."""
        special = special_of(x)
        if special is not None:
            return self._at_infinity(name, special)
        if name in ("tanh", "sigmoid"):
            return self._from_exp(name, x)
        if (name, x) not in self._known:
            value = self._related(name, x)
            if value is None:
                rng = Random(f"{self._seed}/{name}/{x}")
                value = self._carrier.need("invent")(name, x, rng)
            self._remember(name, x, value)
        return self._known[name, x]

    def _remember(self, name: str, x: Any, value: Any) -> None:
        self._known[name, x] = value
        if name == "exp":
            self._known.setdefault(("log", value), x)
        if name == "log":
            self._known.setdefault(("exp", value), x)
            self._logs[value] = x

    def _related(self, name: str, x: Any) -> Any:
        if name != "exp":
            return None
        carrier = self._carrier
        inverse, opposite = carrier.need("inverse"), carrier.need("neg")(x)
        if ("exp", opposite) in self._known:
            return inverse(self._known["exp", opposite])
        for log, argument in self._logs.items():
            whole = self._known.get(("exp", carrier.add(x, log)))
            if whole is not None:
                return carrier.mul(whole, inverse(argument))
        return None

    def _at_infinity(self, name: str, x: Special) -> Any:
        if name == "exp" and x < 0:
            return self._carrier.zero
        raise Undefined(f"{name} of {x}")

    def _from_exp(self, name: str, x: Any) -> Any:
        """sigmoid(x) = 1 / (1 + exp(-x)); tanh(x) = 2 sigmoid(2 x) - 1."""
        c = self._carrier
        neg, inverse = c.need("neg"), c.need("inverse")
        if name == "sigmoid":
            return inverse(c.add(c.one, self("exp", neg(x))))
        half = self("sigmoid", c.add(x, x))
        return c.add(c.add(half, half), neg(c.one))


def with_opaque(carrier: Carrier, seed: int = 0) -> Carrier:
    """Return the carrier with fresh opaque functions; it must be a field."""
    return replace(carrier, opaque=Opaque(carrier, seed))


def _derivative(c: Carrier, name: str, x: Any, value: Any) -> Any:
    """The derivative of the function ``name`` at ``x``, where it has ``value``."""
    opaque, neg, inverse = c.need("opaque"), c.need("neg"), c.need("inverse")
    rules: dict[str, Callable[[], Any]] = {
        "exp": lambda: value,
        "log": lambda: inverse(x),
        "sqrt": lambda: inverse(c.add(value, value)),
        "sin": lambda: opaque("cos", x),
        "cos": lambda: neg(opaque("sin", x)),
        "tanh": lambda: c.add(c.one, neg(c.mul(value, value))),
        "sigmoid": lambda: c.add(value, neg(c.mul(value, value))),
    }
    if name not in rules:
        raise TypeError(f"no derivative rule for {name}")
    return rules[name]()


def duals(base: Carrier) -> Carrier:
    """Dual numbers a + b eps with eps^2 = 0 over ``base``; elements are (a, b).

    Structure of the base carries over; order and floor look at a alone.
    """
    add, mul, zero = base.add, base.mul, base.zero

    def product(x: Any, y: Any) -> Any:
        return mul(x[0], y[0]), add(mul(x[0], y[1]), mul(x[1], y[0]))

    def inverse(x: Any) -> Any:
        below = base.need("inverse")(x[0])
        return below, base.need("neg")(mul(x[1], mul(below, below)))

    def opaque(name: str, x: Any) -> Any:
        value = base.need("opaque")(name, x[0])
        if x[1] == zero:
            return value, zero
        return value, mul(_derivative(base, name, x[0], value), x[1])

    return Carrier(
        f"{base.name}[eps]",
        (zero, zero),
        (base.one, zero),
        lambda x, y: (add(x[0], y[0]), add(x[1], y[1])),
        product,
        lambda rng: (base.sample(rng), base.sample(rng)),
        neg=(lambda x: (base.neg(x[0]), base.neg(x[1]))) if base.neg else None,  # type: ignore[misc]
        inverse=inverse if base.inverse else None,
        sign=(lambda x: base.sign(x[0])) if base.sign else None,  # type: ignore[misc]
        floor=(lambda x: base.floor(x[0])) if base.floor else None,  # type: ignore[misc]
        embed=lambda q: (base.number(q), zero),
        constant=lambda x: (x[0], zero),
        roots=base.roots,
        logs=base.logs,
        opaque=opaque if base.opaque else None,
    )
