"""Products, sums and movement, over any semiring (mean needs inverses)."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from onemodel_jax.reference.exact.nodes import (
    Args,
    Env,
    Op,
    bilinear_op,
    linear_op,
    moving_op,
    require,
)
from onemodel_jax.reference.exact.tensors import (
    Pack,
    Shape,
    Tensor,
    Tensors,
    positions,
)


def matmul(t: Tensors, shapes: Sequence[Shape]) -> Op:
    """(M, K) times (K, N)."""
    a, b = shapes
    good = len(a) == len(b) == 2 and a[1] == b[0]
    require("matmul", good, "(M, K), (K, N)", list(shapes))
    return bilinear_op(
        "matmul",
        (a[0], b[1]),
        lambda x, y: t.contract("mk,kn->mn", x, y),
        lambda delta, y: t.contract("mn,kn->mk", delta, y),
        lambda x, delta: t.contract("mk,mn->kn", x, delta),
        t,
    )


def linear(t: Tensors, shapes: Sequence[Shape]) -> Op:
    """x (M, K), weight (N, K), bias (N,): x weight^T + bias."""
    x, w, b = shapes
    good = len(x) == len(w) == 2 and x[1] == w[1] and b == (w[0],)
    require("linear", good, "(M, K), (N, K), (N,)", list(shapes))
    product = matmul_transposed

    def jvp(args: Args, dargs: Args, env: Env) -> Tensor:
        weighted = t.add(product(t, dargs[0], args[1]), product(t, args[0], dargs[1]))
        return t.add(weighted, dargs[2])

    def vjp(args: Args, delta: Tensor, env: Env) -> Pack:
        grad_x = t.contract("mn,nk->mk", delta, args[1])
        grad_w = t.contract("mn,mk->nk", delta, args[0])
        return [grad_x, grad_w, t.sum(delta, [0])]

    def forward(args: Args, env: Env) -> Tensor:
        return t.add(product(t, args[0], args[1]), args[2])

    return Op("linear", (x[0], w[0]), forward, jvp, vjp)


def matmul_transposed(t: Tensors, x: Tensor, w: Tensor) -> Tensor:
    """x w^T for x (M, K), w (N, K)."""
    return t.contract("mk,nk->mn", x, w)


def sum(t: Tensors, shapes: Sequence[Shape], *, axes: Sequence[int]) -> Op:
    """Sum over axes."""
    (shape,) = shapes
    out = tuple(n for k, n in enumerate(shape) if k not in axes)
    total = [lambda x, env: t.sum(x, axes)]
    return linear_op("sum", out, total, [_spread_back(t, shape, axes)], t)


def mean(t: Tensors, shapes: Sequence[Shape], *, axes: Sequence[int]) -> Op:
    """Mean over axes."""
    (shape,) = shapes
    out = tuple(n for k, n in enumerate(shape) if k not in axes)
    part = t.inverse(t.number(math.prod(shape[k] for k in axes)))
    spread = _spread_back(t, shape, axes)
    return linear_op(
        "mean",
        out,
        [lambda x, env: t.mul(part, t.sum(x, axes))],
        [lambda delta, env: t.mul(part, spread(delta, env))],
        t,
    )


def _spread_back(t: Tensors, shape: Shape, axes: Sequence[int]) -> Any:
    def adjoint(delta: Tensor, env: Env) -> Tensor:
        wide = np.expand_dims(delta, tuple(axes)) if axes else delta
        return np.broadcast_to(wide, shape).copy()

    return adjoint


def _move(name: str, t: Tensors, shapes: Sequence[Shape], moved: np.ndarray) -> Op:
    return moving_op(name, shapes, [lambda env: moved], moved.shape, t)


def broadcast(t: Tensors, shapes: Sequence[Shape], *, shape: Shape) -> Op:
    """Repeat to ``shape`` by NumPy's rule."""
    moved = np.broadcast_to(positions(shapes[0]), shape)
    return _move("broadcast", t, shapes, moved)


def reshape(t: Tensors, shapes: Sequence[Shape], *, shape: Shape) -> Op:
    """The same elements in row-major order."""
    return _move("reshape", t, shapes, positions(shapes[0]).reshape(shape))


def transpose(t: Tensors, shapes: Sequence[Shape], *, axes: Sequence[int]) -> Op:
    """Axes permuted."""
    return _move("transpose", t, shapes, positions(shapes[0]).transpose(axes))


def slice(t: Tensors, shapes: Sequence[Shape], *, at: Any) -> Op:
    """A basic NumPy index ``at``, e.g. ``numpy.s_[1:, ::2]``."""
    return _move("slice", t, shapes, np.asarray(positions(shapes[0])[at]))


def pad(t: Tensors, shapes: Sequence[Shape], *, width: Any) -> Op:
    """Zeros around, as numpy.pad counts them."""
    moved = np.pad(positions(shapes[0]), width, constant_values=-1)
    return _move("pad", t, shapes, moved)


def concat(t: Tensors, shapes: Sequence[Shape], *, axis: int) -> Op:
    """Arguments one after another along an axis."""
    total = np.concatenate([positions(s) for s in shapes], axis)
    owner = np.concatenate([np.full(s, k) for k, s in enumerate(shapes)], axis)
    routes = [
        lambda env, k=k: np.where(owner == k, total, -1) for k in range(len(shapes))
    ]
    return moving_op("concat", shapes, routes, total.shape, t)


def gather(t: Tensors, shapes: Sequence[Shape], *, key: str, count: int) -> Op:
    """Rows ``env[key]`` of a (R, ...) table; vjp adds into the rows.

    Args:
      t: tensors of the carrier.
      shapes: one shape, the table's.
      key: name of a (count,) int array in the environment, values in [0, R).
      count: number of rows read.
    """
    (table,) = shapes
    rows = positions(table)

    def validate(args: Args, env: Env) -> str | None:
        index = np.asarray(env[key])
        if index.shape != (count,):
            return f"gather: {key}: expected shape ({count},), got {index.shape}"
        wrong = index[(index < 0) | (index >= table[0])]
        return f"gather: {key}: index {wrong[0]} out of range" if len(wrong) else None

    def route(env: Env) -> np.ndarray:
        index = np.asarray(env[key])
        return rows[np.where((index < 0) | (index >= table[0]), 0, index)]

    out = (count, *table[1:])
    return moving_op("gather", shapes, [route], out, t, validate=validate)


def mask(t: Tensors, shapes: Sequence[Shape], *, key: str) -> Op:
    """Elements where the boolean array ``env[key]`` holds, zero elsewhere."""
    (shape,) = shapes
    kept = positions(shape)
    routes = [lambda env: np.where(np.broadcast_to(env[key], shape), kept, -1)]
    return moving_op("mask", shapes, routes, shape, t)
