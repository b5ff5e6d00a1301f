"""Exact operations as JAX primitives: one name in a jaxpr, one rounding, own vmap rule.

A primitive keeps an exact operation visible as itself (a jaxpr shows ``exact_add``,
not what protects it), traces fast, and lets vmap batch the operation
instead of its insides. None of them has a differentiation rule: their insides are
integer operations whose gradient would silently be zero, so JAX must refuse.
Gradients come from the hand-written VJPs of ``onemodel_jax.ops``.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir

from onemodel_jax._types import Array


def define(
    name: str,
    body: Callable[..., Array],
    abstract: Callable[..., ShapedArray],
    batch: Callable[..., tuple[Array, int]],
) -> Primitive:
    """Create a primitive that lowers to ``body``, traced with 64-bit types enabled.

    Args:
      name: the name that jaxprs show.
      body: the implementation in jax.numpy and lax; may use float64 and int64.
      abstract: maps abstract operands to the abstract result.
      batch: JAX batching rule ``(operands, axes) -> (result, axis)``.
    """
    primitive = Primitive(name)
    primitive.def_abstract_eval(abstract)
    batching.primitive_batchers[primitive] = batch
    # One inner jit, so that a program lowers each operation once per shape.
    body.__name__ = name
    shared = jax.jit(body)
    eager = jax.jit(lambda *operands: primitive.bind(*operands))

    def lower(*operands: Array) -> Array:
        with jax.enable_x64(True):
            return shared(*operands)

    def run(*operands: Array) -> Array:
        with jax.enable_x64(True):
            return eager(*operands)

    primitive.def_impl(run)
    mlir.register_lowering(primitive, mlir.lower_fun(lower, multiple_results=False))
    return primitive


def island(body: Callable[..., Any], *operands: Array) -> Any:
    """Return ``body(*operands)``, computed once and stored: nothing fuses across it.

    XLA's fusion copies an element-wise producer into each of its consumers, which
    multiplies the work of long exact chains. A conditional whose predicate the compiler
    cannot evaluate (no byte has 16 set bits) keeps them apart; no other construct does
    so on all supported releases.
    """
    leaves = jax.tree_util.tree_leaves(operands)
    if any(x.size == 0 for x in leaves):
        return body(*operands)
    first = lax.bitcast_convert_type(leaves[0].reshape(-1)[0], jnp.uint8).reshape(-1)
    hidden_true = (lax.population_count(first[0]) >> 4) == 0

    def zeros(*_: Array) -> Any:
        shapes = jax.eval_shape(body, *operands)
        return jax.tree_util.tree_map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)

    return lax.cond(hidden_true, body, zeros, *operands)


def elementwise(name: str, body: Callable[..., Array]) -> Primitive:
    """Create a primitive over operands of one shape; the result is like the first."""

    def abstract(*avals: Any) -> ShapedArray:
        return ShapedArray(avals[0].shape, avals[0].dtype)

    def batch(operands: Sequence[Array], axes: Sequence[int | None]) -> Any:
        size = next(
            x.shape[a] for x, a in zip(operands, axes, strict=True) if a is not None
        )
        fronted = [
            jnp.broadcast_to(x, (size, *x.shape))
            if a is None
            else jnp.moveaxis(x, a, 0)
            for x, a in zip(operands, axes, strict=True)
        ]
        return primitive.bind(*fronted), 0

    primitive = define(name, body, abstract, batch)
    return primitive
