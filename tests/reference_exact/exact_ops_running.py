"""A machine that runs the package's programs over running error bounds."""

import math
from fractions import Fraction

import numpy as np

from onemodel_jax.reference import bounds
from onemodel_jax.reference.bounds import Bounded
from onemodel_jax.reference.exact.carriers import Carrier, Special, order_of
from onemodel_jax.reference.exact.lift import Lifted
from onemodel_jax.reference.exact.machine import Machine
from onemodel_jax.reference.exact.tensors import Tensors, tensor

FUNCTIONS = {"sigmoid": bounds.sigmoid, "tanh": bounds.tanh}


def running(number):
    """Bounds around Fractions, or around floats: each operation rounds once."""
    return Carrier(
        "running",
        Bounded(number(0)),
        Bounded(number(1)),
        bounds.add,
        bounds.mul,
        lambda rng: Bounded(number(rng.randint(-9, 9))),
        neg=bounds.neg,
        sign=lambda x: order_of(x.value),
        embed=lambda q: Bounded(q.value if isinstance(q, Special) else number(q)),
        opaque=lambda name, x: FUNCTIONS[name](x),
    )


class LaneTensors(Tensors):
    """Tensors whose products are lane dots."""

    def contract(self, spec, a, b):
        assert spec == "gmk,gnk->gmn"
        out = [
            bounds.lane_dot(x, y)
            for left, right in zip(a, b, strict=True)
            for x in left
            for y in right
        ]
        return tensor((a.shape[0], a.shape[1], b.shape[1]), out)


class RunningMachine(Machine):
    """One rounding an operation, the lane order in products."""

    def __init__(self, number):
        super().__init__(running(number))
        self.t = LaneTensors(self.carrier)


def bounded(function, arguments, cotangents, number=Fraction):
    """Return outputs and gradients of ``function`` as Bounded tensors.

    Args:
      function: of floating arrays, pytrees allowed.
      arguments: their binary32 values.
      cotangents: one array an output.
    """
    import jax

    m = RunningMachine(number)
    lifted = Lifted(function, arguments)
    leaves = jax.tree_util.tree_leaves(arguments)
    xs = [m.constant(np.asarray(v)) for v in leaves]
    cts = [m.constant(np.asarray(c)) for c in cotangents]
    return lifted.primal(m, xs), lifted.pullback(m, xs, cts)


def use_of_bound(got, want):
    """Largest |got - value| / error over the elements; fails where a bound is broken.

    An element whose bound is 0 must be equal.
    """
    worst = 0.0
    assert got.shape == want.shape
    for x, (value, error) in zip(np.asarray(got).flat, want.flat, strict=True):
        assert math.isfinite(x)
        off = abs(float(Fraction(float(x)) - Fraction(value)))
        assert off <= error, f"{x!r} is {off} from {float(value)}, bound {error}"
        worst = max(worst, off / error if error else 0.0)
    return worst
