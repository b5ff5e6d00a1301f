"""Exact meanings of primitives that move, add up or compare along axes.

A primitive that only moves elements is run by JAX on their numbers 1, 2, 3, ..., so
its semantics (modes, clamping, padding) are JAX's own and are not written twice; the
plainest are NumPy's as well (``plain.py``).
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from onemodel_jax.reference.exact.carriers import Special
from onemodel_jax.reference.exact.machine import (
    MOVING,
    Machine,
    Refused,
    Rule,
    Value,
    is_exact,
)
from onemodel_jax.reference.exact.plain import MOVES, plain
from onemodel_jax.reference.exact.tensors import Tensor, positions, tensor, windows


def _moved(m: Machine, p: Any, x: Sequence[Value], params: Any) -> Any:
    """Run the primitive on element numbers; 0 is zero, negative is JAX's NaN fill."""
    moved = plain(MOVES, p.name, x, params, object)
    if moved is not None:
        return moved
    pool: list[Any] = [m.carrier.zero]
    numbered = []
    for value in x:
        if is_exact(value):
            ids = positions(value.shape) + len(pool)
            numbered.append(jnp.asarray(ids, jnp.int32))
            pool += list(value.flat)
        else:
            numbered.append(value)
    with np.errstate(invalid="ignore"):  # a NaN fill becomes a negative number
        out = p.bind(*numbered, **params)
    outs = [_fetch(m, pool, np.asarray(ids)) for ids in (out if _many(p) else [out])]
    return outs if _many(p) else outs[0]


def _many(p: Any) -> bool:
    return p.multiple_results


def _fetch(m: Machine, pool: list[Any], ids: np.ndarray) -> Tensor:
    if (ids < 0).any():
        pool = [*pool, m.carrier.number(Special(float("nan")))]
        ids = np.where(ids < 0, len(pool) - 1, ids)
    return tensor(ids.shape, [pool[i] for i in ids.flat])


def _scatter_add(m: Machine, p: Any, x: Sequence[Value], params: Any) -> Tensor:
    """Where each update lands is read off the transpose of the same scatter."""
    operand, indices, updates = x
    if max(operand.size, updates.size) >= 2**24:
        raise Refused("scatter-add of 2^24 elements or more")

    def scatter(u: Any) -> Any:
        base = jnp.zeros(operand.shape, jnp.float32)
        return p.bind(base, indices, u, **params)

    _, pull = jax.vjp(scatter, jnp.zeros(updates.shape, jnp.float32))
    numbers = jnp.asarray(positions(operand.shape) + 1, jnp.float32)
    at = np.asarray(pull(numbers)[0]).astype(int) - 1
    total = operand.copy()
    m.t.add_at(total, at, updates)
    return total


def _reduce_sum(m: Machine, p: Any, x: Sequence[Tensor], params: Any) -> Tensor:
    return m.t.sum(x[0], params["axes"])


def _rows(x: Tensor, axes: Sequence[int]) -> Tensor:
    """Bring ``axes`` last and flatten them."""
    rest = [k for k in range(x.ndim) if k not in axes]
    lead = tuple(x.shape[k] for k in rest)
    size = [x.shape[k] for k in axes]
    return x.transpose(*rest, *axes).reshape(*lead, int(np.prod(size)))


def _fold_with(combine: Callable[[Machine, Any, Any], Any]) -> Rule:
    def rule(m: Machine, p: Any, x: Sequence[Tensor], params: Any) -> Tensor:
        rows = _rows(x[0], params["axes"])
        if rows.shape[-1] == 0:
            raise Refused(f"{p.name} of nothing")
        fold = functools.partial(functools.reduce, functools.partial(combine, m))
        flat = rows.reshape(-1, rows.shape[-1])
        return tensor(rows.shape[:-1], [fold(list(row)) for row in flat])

    return rule


def _bigger(m: Machine, a: Any, b: Any) -> Any:
    return b if _sign(m, b, a) > 0 else a


def _lesser(m: Machine, a: Any, b: Any) -> Any:
    return b if _sign(m, b, a) < 0 else a


def _sign(m: Machine, a: Any, b: Any) -> int:
    return int(m.compare(tensor((), [a]), tensor((), [b]))[()])


def _arg(better: int) -> Rule:
    """Index of the first best element along the one axis."""

    def rule(m: Machine, p: Any, x: Sequence[Tensor], params: Any) -> Value:
        rows = _rows(x[0], params["axes"])
        found = []
        for row in rows.reshape(-1, rows.shape[-1]):
            best = 0
            for k in range(1, len(row)):
                best = k if _sign(m, row[k], row[best]) == better else best
            found.append(best)
        return np.array(found, params["index_dtype"]).reshape(rows.shape[:-1])

    return rule


def _running(combine: Callable[[Machine, Any, Any], Any]) -> Rule:
    """A cumulative operation along an axis, forwards or in reverse."""

    def rule(m: Machine, p: Any, x: Sequence[Tensor], params: Any) -> Tensor:
        axis = params["axis"]
        out = np.moveaxis(x[0], axis, 0).copy()
        steps = range(1, len(out))
        if params["reverse"]:
            out = out[::-1]
        pair = np.frompyfunc(functools.partial(combine, m), 2, 1)
        for k in steps:
            out[k : k + 1] = pair(out[k - 1 : k], out[k : k + 1])
        return np.moveaxis(out[::-1] if params["reverse"] else out, 0, axis)

    return rule


def _sort(m: Machine, p: Any, x: Sequence[Value], params: Any) -> list[Value]:
    """Stable sort of several operands by the first ``num_keys`` of them."""
    axis, keys = params["dimension"], params["num_keys"]
    moved = [np.moveaxis(v, axis, -1) for v in x]
    flat = [v.reshape(-1, v.shape[-1]).copy() for v in moved]

    def order(row: int, i: int, j: int) -> int:
        for v in flat[:keys]:
            a, b = v[row, i], v[row, j]
            sign = _sign(m, a, b) if is_exact(v) else int(a > b) - int(a < b)
            if sign:
                return sign
        return 0

    for row in range(len(flat[0])):
        key = functools.cmp_to_key(functools.partial(order, row))
        permutation = sorted(range(flat[0].shape[1]), key=key)
        rows = [v[row][permutation] for v in flat]
        for v, sorted_row in zip(flat, rows, strict=True):
            v[row] = sorted_row
    return [
        np.moveaxis(v.reshape(w.shape), -1, axis)
        for v, w in zip(flat, moved, strict=True)
    ]


def _conv(m: Machine, p: Any, x: Sequence[Tensor], params: Any) -> Tensor:
    """Convolution of any rank, strides, dilations and groups."""
    spec = params["dimension_numbers"]
    a, kernel = x[0].transpose(spec.lhs_spec), x[1].transpose(spec.rhs_spec)
    seen = windows(
        positions(a.shape),
        kernel.shape[2:],
        params["window_strides"],
        params["padding"],
        params["rhs_dilation"],
        params["lhs_dilation"],
    )
    space = seen.shape[2 : kernel.ndim]
    rows = m.t.take(a, seen.reshape(*a.shape[:2], int(np.prod(space)), -1))
    flat = kernel.reshape(*kernel.shape[:2], -1)
    batches, groups = params["batch_group_count"], params["feature_group_count"]
    count = max(batches, groups)
    parts = [
        m.t.contract("bcpk,ock->bop", part, weights)
        for part, weights in zip(
            np.split(rows, count, 0 if batches > 1 else 1),
            np.split(flat, count, 0),
            strict=True,
        )
    ]
    out = np.concatenate(parts, 1)
    out = out.reshape(*out.shape[:2], *space)
    return out.transpose(np.argsort(spec.out_spec))


def _seen(shape: tuple[int, ...], params: Any) -> np.ndarray:
    ones = [1] * len(shape)
    return windows(
        positions(shape),
        params["window_dimensions"],
        params["window_strides"],
        params["padding"],
        params.get("window_dilation", ones),
        params.get("base_dilation", ones),
    )


def _window_sum(m: Machine, p: Any, x: Sequence[Tensor], params: Any) -> Tensor:
    seen = _seen(x[0].shape, params)
    return m.t.sum(m.t.take(x[0], seen), range(x[0].ndim, seen.ndim))


def _best_position(m: Machine, x: Tensor, row: np.ndarray, better: int) -> int:
    """Position of the first best element of a window; padding never wins."""
    flat, inside = x.reshape(-1), [q for q in row if q >= 0]
    if not inside:
        raise Refused("a window that sees padding only")
    best = inside[0]
    for q in inside[1:]:
        best = q if _sign(m, flat[q], flat[best]) == better else best
    return int(best)


def _window_best(better: int) -> Rule:
    def rule(m: Machine, p: Any, x: Sequence[Tensor], params: Any) -> Tensor:
        seen = _seen(x[0].shape, params)
        out, flat = seen.shape[: x[0].ndim], x[0].reshape(-1)
        rows = seen.reshape(int(np.prod(out)), -1)
        return tensor(out, [flat[_best_position(m, x[0], r, better)] for r in rows])

    return rule


def _select_and_scatter(m: Machine, p: Any, x: Sequence[Tensor], params: Any) -> Tensor:
    """Gradient of a pooled maximum: each source goes to its window's first best."""
    source, operand = x
    better = {"ge": 1, "le": -1}[params["select_prim"].name]
    seen = _seen(operand.shape, params).reshape(source.size, -1)
    at = [_best_position(m, operand, row, better) for row in seen]
    total = m.t.zeros(operand.shape)
    m.t.add_at(total, np.array(at, int), source)
    return total


def _add(m: Machine, a: Any, b: Any) -> Any:
    return m.carrier.add(a, b)


def _mul(m: Machine, a: Any, b: Any) -> Any:
    return m.carrier.mul(a, b)


SHAPES: dict[str, Rule] = {
    **dict.fromkeys(MOVING, _moved),
    "scatter-add": _scatter_add,
    "scatter_add": _scatter_add,
    "reduce_sum": _reduce_sum,
    "reduce_max": _fold_with(_bigger),
    "reduce_min": _fold_with(_lesser),
    "reduce_prod": _fold_with(_mul),
    "argmax": _arg(1),
    "argmin": _arg(-1),
    "cumsum": _running(_add),
    "cumprod": _running(_mul),
    "cummax": _running(_bigger),
    "cummin": _running(_lesser),
    "sort": _sort,
    "conv_general_dilated": _conv,
    "reduce_window_sum": _window_sum,
    "reduce_window_max": _window_best(1),
    "reduce_window_min": _window_best(-1),
    "select_and_scatter_add": _select_and_scatter,
}
