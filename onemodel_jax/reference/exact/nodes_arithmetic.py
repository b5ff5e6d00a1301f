"""Arithmetic nodes. Semiring: add, mul, scale. Ring: sub, neg. Field: div, inverse.

Every factory takes the tensors of a carrier and the argument shapes, as in
``OpFactory``. Operands have one shape: broadcasting is a node of its own.
"""

from collections.abc import Sequence
from fractions import Fraction

from onemodel_jax.reference.exact.nodes import (
    Op,
    bilinear_op,
    linear_op,
    pointwise_op,
    require,
)
from onemodel_jax.reference.exact.tensors import Shape, Tensor, Tensors


def _one_shape(name: str, shapes: Sequence[Shape], count: int) -> Shape:
    good = len(shapes) == count and all(s == shapes[0] for s in shapes)
    require(name, good, f"{count} equal shapes", list(shapes))
    return shapes[0]


def add(t: Tensors, shapes: Sequence[Shape]) -> Op:
    """a + b."""
    out = _one_shape("add", shapes, 2)
    same = [lambda x, env: x] * 2
    return linear_op("add", out, same, same, t)


def sub(t: Tensors, shapes: Sequence[Shape]) -> Op:
    """a - b."""
    out = _one_shape("sub", shapes, 2)
    maps = [lambda x, env: x, lambda x, env: t.neg(x)]
    return linear_op("sub", out, maps, maps, t)


def neg(t: Tensors, shapes: Sequence[Shape]) -> Op:
    """-a."""
    out = _one_shape("neg", shapes, 1)
    maps = [lambda x, env: t.neg(x)]
    return linear_op("neg", out, maps, maps, t)


def scale(t: Tensors, shapes: Sequence[Shape], *, factor: int | Fraction) -> Op:
    """factor * a, for a number that is not differentiated."""
    out = _one_shape("scale", shapes, 1)
    constant = t.number(factor)
    maps = [lambda x, env: t.mul(constant, x)]
    return linear_op("scale", out, maps, maps, t)


def mul(t: Tensors, shapes: Sequence[Shape]) -> Op:
    """a * b."""
    out = _one_shape("mul", shapes, 2)
    return bilinear_op("mul", out, t.mul, t.mul, t.mul, t)


def square(t: Tensors, shapes: Sequence[Shape]) -> Op:
    """a * a, slope a + a."""
    out = _one_shape("square", shapes, 1)
    return pointwise_op(
        "square", t, out, lambda x: t.mul(x, x), lambda x: [t.add(x, x)]
    )


def div(t: Tensors, shapes: Sequence[Shape]) -> Op:
    """a / b, slopes 1/b and -a/b^2; b must be invertible."""
    out = _one_shape("div", shapes, 2)

    def slopes(a: Tensor, b: Tensor) -> Sequence[Tensor]:
        below = t.inverse(b)
        return [below, t.neg(t.mul(a, t.mul(below, below)))]

    return pointwise_op("div", t, out, t.div, slopes)


def inverse(t: Tensors, shapes: Sequence[Shape]) -> Op:
    """1 / a, slope -1/a^2."""
    out = _one_shape("inverse", shapes, 1)

    def slopes(a: Tensor) -> Sequence[Tensor]:
        below = t.inverse(a)
        return [t.neg(t.mul(below, below))]

    return pointwise_op("inverse", t, out, t.inverse, slopes)
