"""Windows that slide: convolution of any rank, sum, mean and maximum pooling.

Layout: (batch, channels, *spatial), kernels (out channels, in channels, *taps).
"""

import math
from collections.abc import Sequence

import numpy as np

from onemodel_jax.reference.exact.nodes import Args, Env, Op, linear_op, require
from onemodel_jax.reference.exact.tensors import (
    Pack,
    Shape,
    Tensor,
    Tensors,
    positions,
    tensor,
    windows,
)

Pairs = Sequence[tuple[int, int]]


def conv(
    t: Tensors,
    shapes: Sequence[Shape],
    *,
    strides: Sequence[int] | None = None,
    padding: Pairs | None = None,
    dilation: Sequence[int] | None = None,
) -> Op:
    """Correlation of x (B, C, *S) with kernel (O, C, *K), zeros outside.

    Args:
      t: tensors of the carrier.
      shapes: of x and of the kernel.
      strides, padding, dilation: one entry a spatial axis; default 1, (0, 0), 1.
    """
    x, kernel = shapes
    rank = len(x) - 2
    good = rank >= 0 and len(kernel) == len(x) and kernel[1] == x[1]
    require("conv", good, "(B, C, *S), (O, C, *K)", list(shapes))
    seen = windows(
        positions(x),
        kernel[2:],
        strides or [1] * rank,
        padding or [(0, 0)] * rank,
        dilation,
    )
    space = seen.shape[2 : 2 + rank]
    taps, places = math.prod(kernel[2:]), math.prod(space)
    seen = seen.reshape(x[0], x[1], places, taps)
    out = (x[0], kernel[0], *space)

    def product(a: Tensor, k: Tensor) -> Tensor:
        rows = t.take(a, seen).transpose(0, 2, 1, 3).reshape(x[0], places, -1)
        flat = t.contract("bpk,ok->bop", rows, k.reshape(kernel[0], -1))
        return flat.reshape(out)

    def vjp(args: Args, delta: Tensor, env: Env) -> Pack:
        delta = delta.reshape(x[0], kernel[0], places)
        weights = args[1].reshape(kernel[0], -1)
        spread = t.contract("bop,ok->bpk", delta, weights)
        spread = spread.reshape(x[0], places, x[1], taps).transpose(0, 2, 1, 3)
        grad_x = t.zeros(x)
        t.add_at(grad_x, seen, spread)
        rows = t.take(args[0], seen).transpose(0, 2, 1, 3)
        rows = rows.reshape(x[0] * places, -1)
        columns = delta.transpose(1, 0, 2).reshape(kernel[0], -1)
        grad_k = t.contract("om,mk->ok", columns, rows).reshape(kernel)
        return [grad_x, grad_k]

    return Op(
        "conv",
        out,
        lambda args, env: product(*args),
        lambda args, dargs, env: t.add(
            product(dargs[0], args[1]), product(args[0], dargs[1])
        ),
        vjp,
    )


def _pool_windows(x: Shape, size: Sequence[int], strides: object) -> np.ndarray:
    rank = len(size)
    require("pool", len(x) == rank + 2, f"rank {rank + 2}", x)
    seen = windows(positions(x), size, strides or size, [(0, 0)] * rank)  # type: ignore[arg-type]
    return seen.reshape(*seen.shape[: 2 + rank], -1)


def sum_pool(
    t: Tensors,
    shapes: Sequence[Shape],
    *,
    size: Sequence[int],
    strides: Sequence[int] | None = None,
) -> Op:
    """Sum of each window; the stride is the window unless given."""
    seen = _pool_windows(shapes[0], size, strides)
    return _summing("sum_pool", t, shapes[0], seen, t.number(1))


def avg_pool(
    t: Tensors,
    shapes: Sequence[Shape],
    *,
    size: Sequence[int],
    strides: Sequence[int] | None = None,
) -> Op:
    """Mean of each window; needs inverses."""
    seen = _pool_windows(shapes[0], size, strides)
    part = t.inverse(t.number(math.prod(size)))
    return _summing("avg_pool", t, shapes[0], seen, part)


def _summing(name: str, t: Tensors, shape: Shape, seen: np.ndarray, part: Tensor) -> Op:
    out = seen.shape[:-1]

    def adjoint(delta: Tensor, env: Env) -> Tensor:
        grad = t.zeros(shape)
        spread = np.broadcast_to(t.mul(part, delta)[..., None], seen.shape)
        t.add_at(grad, seen, spread)
        return grad

    def pool(x: Tensor, env: Env) -> Tensor:
        return t.mul(part, t.sum(t.take(x, seen), [-1]))

    return linear_op(name, out, [pool], [adjoint], t)


def max_pool(
    t: Tensors,
    shapes: Sequence[Shape],
    *,
    size: Sequence[int],
    strides: Sequence[int] | None = None,
) -> Op:
    """Maximum of each window; the first of equal elements gets the cotangent."""
    (shape,) = shapes
    seen = _pool_windows(shape, size, strides)
    out = seen.shape[:-1]

    def winners(args: Args) -> np.ndarray:
        picked = [_first_maximum(t, args[0], row) for row in _rows(seen)]
        return np.array(picked, int).reshape(out)

    def vjp(args: Args, delta: Tensor, env: Env) -> Pack:
        grad = t.zeros(shape)
        t.add_at(grad, winners(args), delta)
        return [grad]

    def smooth(args: Args, env: Env) -> bool:
        flat = args[0].reshape(-1)
        rows = [[flat[p] for p in row] for row in _rows(seen)]
        best = [flat[p] for p in winners(args).flat]
        return all(row.count(b) == 1 for row, b in zip(rows, best, strict=True))

    return Op(
        "max_pool",
        out,
        lambda args, env: t.take(args[0], winners(args)),
        lambda args, dargs, env: t.take(dargs[0], winners(args)),
        vjp,
        smooth=smooth,
    )


def _rows(seen: np.ndarray) -> np.ndarray:
    return seen.reshape(-1, seen.shape[-1])


def _first_maximum(t: Tensors, x: Tensor, row: np.ndarray) -> int:
    flat, best = x.reshape(-1), row[0]
    for p in row[1:]:
        difference = t.sub(tensor((1,), [flat[p]]), tensor((1,), [flat[best]]))
        if t.signs(difference)[0] > 0:
            best = p
    return int(best)
