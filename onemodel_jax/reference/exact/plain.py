"""Primitives whose meaning NumPy shares, run by NumPy: JAX would compile each shape.

MOVES act on arrays of any kind, elements of a carrier included; INTEGERS on concrete
integers and booleans, results cast to the dtype of the program, which wraps as XLA
does. Everything with modes or edge cases (gather, pad, division) is left to JAX.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Move = Callable[..., np.ndarray]
"""(params, *arrays) -> array."""


def _broadcast(params: Any, x: np.ndarray) -> np.ndarray:
    shape = [1] * len(params["shape"])
    for axis, size in zip(params["broadcast_dimensions"], x.shape, strict=True):
        shape[axis] = size
    return np.broadcast_to(x.reshape(shape), params["shape"])


def _reshape(params: Any, x: np.ndarray) -> np.ndarray:
    order = params.get("dimensions")
    return (x if order is None else x.transpose(order)).reshape(params["new_sizes"])


def _slice(params: Any, x: np.ndarray) -> np.ndarray:
    steps = params["strides"] or (1,) * x.ndim
    bounds = zip(params["start_indices"], params["limit_indices"], steps, strict=True)
    return x[tuple(slice(*b) for b in bounds)]


def _squeeze(params: Any, x: np.ndarray) -> np.ndarray:
    return x.reshape(
        [n for k, n in enumerate(x.shape) if k not in params["dimensions"]]
    )


MOVES: dict[str, Move] = {
    "reshape": _reshape,
    "squeeze": _squeeze,
    "transpose": lambda params, x: x.transpose(params["permutation"]),
    "broadcast_in_dim": _broadcast,
    "slice": _slice,
    "rev": lambda params, x: np.flip(x, params["dimensions"]),
    "concatenate": lambda params, *xs: np.concatenate(xs, params["dimension"]),
}


def _select(params: Any, which: np.ndarray, *cases: np.ndarray) -> np.ndarray:
    stacked = np.stack(cases)
    which = np.broadcast_to(which.astype(int), stacked.shape[1:])
    return np.take_along_axis(stacked, which[None], 0)[0]


def _ufunc(function: Callable[..., np.ndarray]) -> Move:
    return lambda params, *xs: function(*xs)


INTEGERS: dict[str, Move] = MOVES | {
    "convert_element_type": lambda params, x: x.astype(params["new_dtype"]),
    "select_n": _select,
    "add": _ufunc(np.add),
    "sub": _ufunc(np.subtract),
    "mul": _ufunc(np.multiply),
    "max": _ufunc(np.maximum),
    "min": _ufunc(np.minimum),
    "eq": _ufunc(np.equal),
    "ne": _ufunc(np.not_equal),
    "lt": _ufunc(np.less),
    "le": _ufunc(np.less_equal),
    "gt": _ufunc(np.greater),
    "ge": _ufunc(np.greater_equal),
    "and": _ufunc(np.bitwise_and),
    "or": _ufunc(np.bitwise_or),
    "not": _ufunc(np.invert),
}


def plain(
    table: dict[str, Move], name: str, inputs: Sequence[Any], params: Any, dtype: Any
) -> np.ndarray | None:
    """Run a primitive of ``table``; None where NumPy is not to be asked.

    Args:
      table: MOVES, or INTEGERS for concrete inputs only.
      name, params: of the primitive.
      inputs: arrays; all concrete integers and booleans, or all over a carrier.
      dtype: of the result.
    """
    move = table.get(name)
    kinds = "biu" if table is INTEGERS else "O"
    if move is None or not all(
        isinstance(x, np.ndarray) and x.dtype.kind in kinds for x in inputs
    ):
        return None
    result = np.asarray(move(params, *inputs))
    return result if result.dtype == object else result.astype(dtype, copy=False)
