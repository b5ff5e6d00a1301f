"""The structures that keep the state order, and the walk in that order.

The state order (SPEC, "State order") is: a module's parameters in registration
order, then its buffers, then each child, recursively, with dotted paths. JAX sorts
the keys of a plain ``dict`` when it flattens one, so parameters and buffers live in
``collections.OrderedDict``, which both JAX and this walk keep in insertion order.
"""

import itertools
import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

from onemodel_jax._checks import fail
from onemodel_jax._types import Array

Params = OrderedDict[str, Any]
"""Nested ordered mapping: a name to an array, or a child's name to its mapping."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class OptimizerState:
    """State of an optimizer between two steps.

    Attributes:
      step: () int32, number of completed steps.
      learning_rate: () float32, the rate of the next step; a schedule overwrites it.
      slots: state tensors in the order in which a checkpoint lists them, by name
        (``exp_avg.0``, ``exp_avg.1``, ... ``exp_avg_sq.0``, ...); float32 or int32.
      kind: name of the optimizer; static.
      settings: its fixed hyper-parameters as (name, binary64 value), in order; static.
    """

    step: Array
    learning_rate: Array
    slots: Params
    kind: str = field(metadata={"static": True})
    settings: tuple[tuple[str, float], ...] = field(metadata={"static": True})


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TrainState:
    """Everything a training run needs to go on: parameters, buffers, optimizer.

    Attributes:
      params: trained tensors, in parameter order.
      buffers: saved tensors that are not trained; empty for most models.
      optimizer: the optimizer's state, or None for a model alone.
    """

    params: Params
    buffers: Params
    optimizer: OptimizerState | None


def is_child(value: object) -> bool:
    """Return True if ``value`` is a child module's mapping, False for a tensor."""
    return isinstance(value, Mapping)


def state_order(params: Params, buffers: Params | None = None) -> list[tuple[str, Any]]:
    """Return (dotted name, tensor) pairs of a model in the state order.

    Args:
      params: nested ordered mapping of trained tensors.
      buffers: nested ordered mapping of saved tensors, children named as in params.

    Raises:
      ValueError: a name contains a dot, or is both a tensor and a child.
    """
    entries: list[tuple[str, Any]] = []
    _walk("", params, buffers if buffers is not None else OrderedDict(), entries)
    return entries


def _walk(prefix: str, params: Params, buffers: Params, entries: list) -> None:
    for group in (params, buffers):
        for name, value in group.items():
            if "." in name:
                fail(ValueError, "state_order", "name", "no dot", repr(name))
            if not is_child(value):
                entries.append((prefix + name, value))
    children = OrderedDict.fromkeys(
        name for g in (params, buffers) for name in g if is_child(g[name])
    )
    for name in children:
        below = [g.get(name, OrderedDict()) for g in (params, buffers)]
        if not all(is_child(b) for b in below):
            fail(ValueError, "state_order", "name", "tensor or child, not both", name)
        _walk(f"{prefix}{name}.", below[0], below[1], entries)


def join(arrays: Sequence[Array]) -> Array:
    """Return the arrays laid end to end, each in row-major order."""
    return jnp.concatenate([x.reshape(-1) for x in arrays])


def split(flat: Array, shapes: Sequence[tuple[int, ...]]) -> list[Array]:
    """Return the arrays of the given shapes that :func:`join` laid end to end."""
    sizes = [math.prod(shape) for shape in shapes]
    starts = itertools.accumulate(sizes, initial=0)
    return [
        flat[start : start + size].reshape(shape)
        for start, size, shape in zip(starts, sizes, shapes, strict=False)
    ]
