"""The shape of an optimizer, and what every optimizer here shares."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from onemodel_jax._checks import describe, fail, number
from onemodel_jax._tree import OptimizerState, Params
from onemodel_jax._types import Array, PyTree

Schedule = Callable[[Array], Array]
"""Maps () int32, the number of steps already taken, to the () float32 rate."""


LARGEST_RATE = 2.0**128 - 2.0**103
"""From here on a rate rounds to infinity in binary32."""


class Optimizer(NamedTuple):
    """A pair of pure functions.

    Attributes:
      init: params -> state before the first step.
      step: (params, grads, state) -> (params, state).
    """

    init: Callable[[Params], OptimizerState]
    step: Callable[[Params, Params, OptimizerState], tuple[Params, OptimizerState]]


def check_range(
    function: str, argument: str, value: float, low: float, high: float
) -> float:
    """Return ``value`` as a float, refusing one outside low <= value < high."""
    expected = f"{low} <= value < {high}"
    result = number(function, argument, value, expected)
    if not low <= result < high:
        fail(ValueError, function, argument, expected, repr(value))
    return result


def initial_rate(function: str, learning_rate: float | Schedule) -> Array:
    """Return the rate of the first step, () float32."""
    if callable(learning_rate):
        return _scheduled(function, learning_rate, jnp.zeros((), jnp.int32))
    rate = check_range(function, "learning_rate", learning_rate, 0.0, float("inf"))
    if rate >= LARGEST_RATE:
        fail(ValueError, function, "learning_rate", "finite in float32", repr(rate))
    return jnp.asarray(np.float32(rate))


def rate_of(
    function: str, learning_rate: float | Schedule, state: OptimizerState
) -> Array:
    """Return the rate of the next step: the schedule's, or the one in the state."""
    if callable(learning_rate):
        return _scheduled(function, learning_rate, state.step)
    return state.learning_rate


def _scheduled(function: str, schedule: Schedule, step: Array) -> Array:
    rate = schedule(step)
    _check_array(function, "learning_rate(step)", rate, (), "float32")
    return rate


def words_of(value: Array) -> Array:
    """Return () float64 as (2,) int32, low word first: how a state holds binary64.

    A state must live where 64-bit types are disabled, and a checkpoint has no f64.
    """
    return lax.bitcast_convert_type(value, jnp.int32)


def from_words(words: Array) -> Array:
    """Return the () float64 held by (2,) int32."""
    return lax.bitcast_convert_type(words, jnp.float64)


def _array_of(shape: tuple[int, ...], dtype: str) -> str:
    return describe(jax.ShapeDtypeStruct(shape, dtype))


def _check_array(
    function: str, argument: str, x: Any, shape: tuple[int, ...], dtype: str
) -> None:
    """Raise unless x is an array: TypeError for its dtype, ValueError for its shape."""
    expected = _array_of(shape, dtype)
    if str(getattr(x, "dtype", None)) != dtype:
        fail(TypeError, function, argument, expected, describe(x))
    if x.shape != shape:
        fail(ValueError, function, argument, expected, describe(x))


def check_float32(function: str, argument: str, tree: PyTree) -> None:
    """Raise TypeError unless every leaf of ``tree`` is a float32 array."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        if str(getattr(leaf, "dtype", None)) != "float32":
            where = argument + jax.tree_util.keystr(path)
            fail(TypeError, function, where, "float32", describe(leaf))


def check_grads(function: str, params: Params, grads: Params) -> None:
    """Raise unless grads has the tree and the shapes of float32 params.

    Raises:
      TypeError: a gradient is not float32.
      ValueError: another tree, or another shape.
    """
    want, have = (jax.tree_util.tree_structure(t) for t in (params, grads))
    if want != have:
        fail(ValueError, function, "grads", f"the tree of params, {want}", have)
    pairs = zip(
        jax.tree_util.tree_leaves_with_path(params),
        jax.tree_util.tree_leaves(grads),
        strict=True,
    )
    for (path, p), g in pairs:
        where = f"grads{jax.tree_util.keystr(path)}"
        _check_array(function, where, g, p.shape, "float32")


Slots = OrderedDict[str, tuple[tuple[int, ...], str]]
"""The shape and the dtype of every slot, by its name, in order."""


def check_state(function: str, state: OptimizerState, slots: Slots) -> None:
    """Raise unless ``state`` is one of an optimizer with these slots.

    Raises:
      TypeError: no OptimizerState, or a tensor of another dtype.
      ValueError: a slot is missing or unknown, or has another shape.
    """
    if not isinstance(state, OptimizerState):
        fail(TypeError, function, "state", "OptimizerState", describe(state))
    _check_array(function, "state.step", state.step, (), "int32")
    _check_array(function, "state.learning_rate", state.learning_rate, (), "float32")
    for name in state.slots:
        if name not in slots:
            expected = f"{len(slots)} slots for these params"
            fail(ValueError, function, "state.slots", expected, repr(name))
    for name, (shape, dtype) in slots.items():
        where = f"state.slots[{name!r}]"
        if name not in state.slots:
            fail(ValueError, function, where, _array_of(shape, dtype), "no such slot")
        _check_array(function, where, state.slots[name], shape, dtype)
