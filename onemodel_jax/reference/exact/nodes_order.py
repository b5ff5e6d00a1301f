"""Piecewise linear nodes, over an ordered ring; maximum and minimum need 1/2.

At a kink the slope is a convention, so only adjointness is claimed there: relu and
clamp have slope 0, abs has slope 0, a tie of maximum or minimum splits in halves.
"""

from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np

from onemodel_jax.reference.exact.nodes import Op, pointwise_op, require
from onemodel_jax.reference.exact.tensors import Shape, Tensor, Tensors


def _choose(
    t: Tensors, signs: np.ndarray, below: int, at: object, above: int
) -> Tensor:
    """Numbers by sign: negative, zero, positive."""
    table = {-1: t.number(below), 0: t.number(at), 1: t.number(above)}  # type: ignore[arg-type]
    out = np.empty(signs.shape, object)
    for index in np.ndindex(*signs.shape):
        out[index] = table[int(signs[index])][()]
    return out


def relu(t: Tensors, shapes: Sequence[Shape]) -> Op:
    """max(x, 0)."""
    slope = lambda x: _choose(t, t.signs(x), 0, 0, 1)  # noqa: E731
    return pointwise_op(
        "relu",
        t,
        shapes[0],
        lambda x: t.mul(slope(x), x),
        lambda x: [slope(x)],
        smooth=lambda args, env: bool(t.signs(args[0]).all()),
    )


def abs(t: Tensors, shapes: Sequence[Shape]) -> Op:
    """|x|."""
    slope = lambda x: _choose(t, t.signs(x), -1, 0, 1)  # noqa: E731
    return pointwise_op(
        "abs",
        t,
        shapes[0],
        lambda x: t.mul(slope(x), x),
        lambda x: [slope(x)],
        smooth=lambda args, env: bool(t.signs(args[0]).all()),
    )


def clamp(
    t: Tensors,
    shapes: Sequence[Shape],
    *,
    low: int | Fraction,
    high: int | Fraction,
) -> Op:
    """min(max(x, low), high) for numbers low < high."""
    require("clamp", low < high, "low < high", (low, high))
    bottom, top = t.number(low), t.number(high)

    def sides(x: Tensor) -> tuple[np.ndarray, np.ndarray]:
        return t.signs(t.sub(x, bottom)), t.signs(t.sub(top, x))

    def forward(x: Tensor) -> Tensor:
        over, under = sides(x)
        return t.where(over < 0, bottom, t.where(under < 0, top, x))

    def slopes(x: Tensor) -> Sequence[Tensor]:
        over, under = sides(x)
        return [t.where((over > 0) & (under > 0), t.number(1), t.number(0))]

    return pointwise_op(
        "clamp",
        t,
        shapes[0],
        forward,
        slopes,
        smooth=lambda args, env: all(s.all() for s in sides(args[0])),
    )


def _extreme(name: str, win: int) -> Callable[[Tensors, Sequence[Shape]], Op]:
    def factory(t: Tensors, shapes: Sequence[Shape]) -> Op:
        require(name, shapes[0] == shapes[1], "2 equal shapes", list(shapes))

        def sign(a: Tensor, b: Tensor) -> np.ndarray:
            return t.signs(t.sub(a, b)) * win

        def slopes(a: Tensor, b: Tensor) -> Sequence[Tensor]:
            half = Fraction(1, 2)
            order = sign(a, b)
            return [_choose(t, order, 0, half, 1), _choose(t, -order, 0, half, 1)]

        return pointwise_op(
            name,
            t,
            shapes[0],
            lambda a, b: t.where(sign(a, b) < 0, b, a),
            slopes,
            smooth=lambda args, env: bool(sign(*args).all()),
        )

    factory.__name__ = name
    factory.__doc__ = f"Elementwise {name} of two tensors."
    return factory


maximum = _extreme("maximum", 1)
minimum = _extreme("minimum", -1)
