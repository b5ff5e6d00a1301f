"""Nodes with transcendental values, over a field with opaque functions.

softmax: p = E(x) / sum E(x) along the last axis, whose derivative u -> p (u - <p, u>)
is symmetric. log_softmax: x - log(sum E(x)), derivative u -> u - <p, u>.
"""

from collections.abc import Callable, Sequence
from typing import Any

from onemodel_jax.reference.exact.nodes import Op, OpFactory, pointwise_op
from onemodel_jax.reference.exact.tensors import Shape, Tensor, Tensors


def _elementwise(name: str, slope: Callable[[Tensors, Tensor, Tensor], Any]) -> Any:
    def factory(t: Tensors, shapes: Sequence[Shape]) -> Op:
        def value(x: Tensor) -> Tensor:
            return t.opaque(name, x)

        slopes = lambda x: [slope(t, x, value(x))]  # noqa: E731
        return pointwise_op(name, t, shapes[0], value, slopes)

    factory.__name__ = name
    factory.__doc__ = f"Elementwise {name}."
    return factory


def _minus_square(t: Tensors, a: Tensor, y: Tensor) -> Tensor:
    return t.sub(a, t.mul(y, y))


exp: OpFactory = _elementwise("exp", lambda t, x, y: y)
log: OpFactory = _elementwise("log", lambda t, x, y: t.inverse(x))
sqrt: OpFactory = _elementwise("sqrt", lambda t, x, y: t.inverse(t.add(y, y)))
tanh: OpFactory = _elementwise("tanh", lambda t, x, y: _minus_square(t, t.number(1), y))
sigmoid: OpFactory = _elementwise("sigmoid", lambda t, x, y: _minus_square(t, y, y))


def probabilities(t: Tensors, x: Tensor) -> Tensor:
    """E(x) / sum E(x) along the last axis."""
    e = t.opaque("exp", x)
    return t.div(e, t.sum(e, [-1], keep=True))


def softmax_map(t: Tensors, p: Tensor, u: Tensor) -> Tensor:
    """p (u - <p, u>), the derivative of softmax and its own transpose."""
    return t.mul(p, t.sub(u, t.sum(t.mul(p, u), [-1], keep=True)))


def softmax(t: Tensors, shapes: Sequence[Shape]) -> Op:
    """Softmax along the last axis."""
    return Op(
        "softmax",
        shapes[0],
        lambda args, env: probabilities(t, args[0]),
        lambda args, dargs, env: softmax_map(t, probabilities(t, args[0]), dargs[0]),
        lambda args, delta, env: [softmax_map(t, probabilities(t, args[0]), delta)],
    )


def log_softmax(t: Tensors, shapes: Sequence[Shape]) -> Op:
    """Logarithm of softmax along the last axis."""

    def forward(x: Tensor) -> Tensor:
        total = t.sum(t.opaque("exp", x), [-1], keep=True)
        return t.sub(x, t.opaque("log", total))

    def jvp(x: Tensor, u: Tensor) -> Tensor:
        return t.sub(u, t.sum(t.mul(probabilities(t, x), u), [-1], keep=True))

    def vjp(x: Tensor, delta: Tensor) -> Tensor:
        total = t.sum(delta, [-1], keep=True)
        return t.sub(delta, t.mul(probabilities(t, x), total))

    return Op(
        "log_softmax",
        shapes[0],
        lambda args, env: forward(args[0]),
        lambda args, dargs, env: jvp(args[0], dargs[0]),
        lambda args, delta, env: [vjp(args[0], delta)],
    )
