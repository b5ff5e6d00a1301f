"""The shape of an optimizer, and what every optimizer here shares."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from onemodel_jax._checks import fail
from onemodel_jax._tree import OptimizerState, Params
from onemodel_jax._types import Array

Schedule = Callable[[Array], Array]
"""Maps () int32, the number of steps already taken, to the () float32 rate."""


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
    number = float(value)
    if not low <= number < high:
        fail(ValueError, function, argument, f"{low} <= value < {high}", repr(value))
    return number


def initial_rate(function: str, learning_rate: float | Schedule) -> Array:
    """Return the rate of the first step, () float32."""
    if callable(learning_rate):
        return learning_rate(jnp.zeros((), jnp.int32))
    check_range(function, "learning_rate", learning_rate, 0.0, float("inf"))
    return jnp.asarray(np.float32(learning_rate))


def rate_of(learning_rate: float | Schedule, state: OptimizerState) -> Array:
    """Return the rate of the next step: the schedule's, or the one in the state."""
    return learning_rate(state.step) if callable(learning_rate) else state.learning_rate


def words_of(value: Array) -> Array:
    """Return () float64 as (2,) int32, low word first: how a state holds binary64.

    A state must live where 64-bit types are disabled, and a checkpoint has no f64.
    """
    return lax.bitcast_convert_type(value, jnp.int32)


def from_words(words: Array) -> Array:
    """Return the () float64 held by (2,) int32."""
    return lax.bitcast_convert_type(words, jnp.float64)


def check_same_structure(function: str, params: Params, grads: Params) -> None:
    """Raise ValueError unless grads has the tree and the shapes of params."""
    want, have = (jax.tree_util.tree_structure(t) for t in (params, grads))
    if want != have:
        fail(ValueError, function, "grads", f"the tree of params, {want}", have)
    pairs = zip(
        jax.tree_util.tree_leaves_with_path(params),
        jax.tree_util.tree_leaves(grads),
        strict=True,
    )
    for (path, p), g in pairs:
        if p.shape != g.shape or p.dtype != g.dtype:
            where = f"grads{jax.tree_util.keystr(path)}"
            fail(ValueError, function, where, f"{p.dtype}{list(p.shape)}", g)
