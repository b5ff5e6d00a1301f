"""Normalization and the mean squared error, over a field (with an opaque sqrt).

With sigma = sqrt(var + eps) and y = (x - mean) / sigma the derivative in x is the
symmetric map u -> (u - mean(u) - y mean(y u)) / sigma. It uses sigma' = var' / (2
sigma) only, so any value of sigma will do.
"""

import math
from collections.abc import Sequence
from fractions import Fraction

from onemodel_jax.reference.exact.nodes import Args, Env, Op, require
from onemodel_jax.reference.exact.tensors import Pack, Shape, Tensor, Tensors


def _normalized(
    t: Tensors, x: Tensor, axes: Sequence[int], eps: Fraction
) -> tuple[Tensor, Tensor]:
    centered = t.sub(x, t.mean(x, axes, keep=True))
    variance = t.mean(t.mul(centered, centered), axes, keep=True)
    sigma = t.opaque("sqrt", t.add(variance, t.number(eps)))
    return t.div(centered, sigma), sigma


def _norm(
    name: str, t: Tensors, shape: Shape, axes: list[int], wide: Shape, eps: Fraction
) -> Op:
    """Normalize over ``axes``; gamma and beta broadcast from shape ``wide``."""
    others = [k for k, n in enumerate(wide) if n == 1 and shape[k] != 1]

    def derivative(x: Tensor, u: Tensor) -> Tensor:
        y, sigma = _normalized(t, x, axes, eps)
        mean = t.mean(u, axes, keep=True)
        slant = t.mul(y, t.mean(t.mul(y, u), axes, keep=True))
        return t.div(t.sub(t.sub(u, mean), slant), sigma)

    def forward(args: Args, env: Env) -> Tensor:
        y, _ = _normalized(t, args[0], axes, eps)
        return t.add(t.mul(args[1].reshape(wide), y), args[2].reshape(wide))

    def jvp(args: Args, dargs: Args, env: Env) -> Tensor:
        y, _ = _normalized(t, args[0], axes, eps)
        scaled = t.mul(args[1].reshape(wide), derivative(args[0], dargs[0]))
        shifted = t.add(t.mul(dargs[1].reshape(wide), y), dargs[2].reshape(wide))
        return t.add(scaled, shifted)

    def vjp(args: Args, delta: Tensor, env: Env) -> Pack:
        y, _ = _normalized(t, args[0], axes, eps)
        grad_x = derivative(args[0], t.mul(args[1].reshape(wide), delta))
        grads = [t.sum(t.mul(delta, y), others), t.sum(delta, others)]
        return [grad_x, *(g.reshape(args[1].shape) for g in grads)]

    return Op(name, shape, forward, jvp, vjp)


def layer_norm(
    t: Tensors, shapes: Sequence[Shape], *, eps: Fraction = Fraction(1, 100)
) -> Op:
    """x (..., D), gamma (D,), beta (D,): normalized over the last axis."""
    x, gamma, beta = shapes
    good = gamma == beta == x[-1:]
    require("layer_norm", good, "(..., D), (D,), (D,)", list(shapes))
    wide = (1,) * (len(x) - 1) + gamma
    return _norm("layer_norm", t, x, [len(x) - 1], wide, eps)


def batch_norm(
    t: Tensors, shapes: Sequence[Shape], *, eps: Fraction = Fraction(1, 100)
) -> Op:
    """x (B, C, ...), gamma (C,), beta (C,): normalized over all axes but C."""
    x, gamma, beta = shapes
    good = len(x) >= 2 and gamma == beta == x[1:2]
    require("batch_norm", good, "(B, C, ...), (C,), (C,)", list(shapes))
    axes = [k for k in range(len(x)) if k != 1]
    wide = tuple(n if k == 1 else 1 for k, n in enumerate(x))
    return _norm("batch_norm", t, x, axes, wide, eps)


def mse(t: Tensors, shapes: Sequence[Shape]) -> Op:
    """Mean of (x - y)^2 over all elements, a scalar."""
    x, y = shapes
    require("mse", x == y, "2 equal shapes", list(shapes))
    axes = list(range(len(x)))
    twice = t.number(Fraction(2, math.prod(x)))

    def forward(args: Args, env: Env) -> Tensor:
        error = t.sub(args[0], args[1])
        return t.mean(t.mul(error, error), axes)

    def jvp(args: Args, dargs: Args, env: Env) -> Tensor:
        error, change = t.sub(args[0], args[1]), t.sub(dargs[0], dargs[1])
        return t.mul(twice, t.sum(t.mul(error, change), axes))

    def vjp(args: Args, delta: Tensor, env: Env) -> Pack:
        grad = t.mul(t.mul(twice, delta), t.sub(args[0], args[1]))
        return [grad, t.neg(grad)]

    return Op("mse", (), forward, jvp, vjp)
