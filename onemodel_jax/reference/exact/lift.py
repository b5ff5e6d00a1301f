"""Lifting a JAX function: its value, tangent and pullback over a carrier.

The pullback is traced through ``jax.vjp``, hence through any hand-written forward and
backward pass; the value and the derivative come from the function itself. Integer,
boolean and key arguments are environment: they keep the example's values.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from onemodel_jax._checks import describe, fail
from onemodel_jax.reference.exact import laws
from onemodel_jax.reference.exact.machine import (
    Machine,
    Value,
    known_primitives,
    register_primitive,
)
from onemodel_jax.reference.exact.primitives import ARITHMETIC, OPAQUE, PACKAGE
from onemodel_jax.reference.exact.primitives_control import CONTROL
from onemodel_jax.reference.exact.primitives_shape import SHAPES
from onemodel_jax.reference.exact.tensors import Shape, Tensor

for _table in (ARITHMETIC, OPAQUE, PACKAGE, SHAPES, CONTROL):
    for _name, _rule in _table.items():
        if _name not in known_primitives():
            register_primitive(_name, _rule)


def _is_float(leaf: Any) -> bool:
    dtype = getattr(leaf, "dtype", None)
    if dtype is None:
        return isinstance(leaf, float)
    return jnp.issubdtype(dtype, jnp.floating)


def _zero_tangent(leaf: Any) -> Any:
    return np.zeros(np.shape(leaf), jax.dtypes.float0)


class Lifted:
    """A function traced at examples, to be run over any carrier.

    Attributes:
      names: of the floating input leaves, e.g. ``args[0]['w']``.
      shapes: their shapes.
      out_names, out_shapes: of the floating output leaves.
      signature: inputs and outputs, for people.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        examples: Sequence[Any],
        nondiff_argnums: Sequence[int] = (),
    ):
        if not callable(fn):
            fail(TypeError, "lift", "fn", "a function", describe(fn))
        self._fn = fn
        self._fixed = {i % len(examples): None for i in nondiff_argnums}
        self._examples = list(examples)
        traced = {i: a for i, a in enumerate(examples) if i not in self._fixed}
        leaves, self._tree = jax.tree_util.tree_flatten_with_path(traced)
        self._leaves = [leaf for _, leaf in leaves]
        self._spots = [k for k, leaf in enumerate(self._leaves) if _is_float(leaf)]
        if not self._spots:
            fail(TypeError, "lift", "examples", "a floating array", "none")
        self.names = ["args" + jax.tree_util.keystr(leaves[k][0]) for k in self._spots]
        self._variables = [jnp.asarray(self._leaves[k]) for k in self._spots]
        self.shapes: list[Shape] = [v.shape for v in self._variables]
        self._trace()

    def _rebuild(self, variables: Sequence[Any], others: Callable[[Any], Any]) -> dict:
        full = [others(leaf) for leaf in self._leaves]
        for k, v in zip(self._spots, variables, strict=True):
            full[k] = v
        return jax.tree_util.tree_unflatten(self._tree, full)

    def _call(self, *variables: Any) -> list[Any]:
        traced = self._rebuild(variables, lambda leaf: leaf)
        args = [traced.get(i, a) for i, a in enumerate(self._examples)]
        return jax.tree_util.tree_leaves(self._fn(*args))

    def _trace(self) -> None:
        xs = self._variables
        outs = jax.eval_shape(self._call, *xs)
        live = [k for k, o in enumerate(outs) if _is_float(o)]
        if not live:
            fail(TypeError, "lift", "fn", "a floating result", "none")
        self._live = live
        self.out_shapes: list[Shape] = [outs[k].shape for k in live]
        self.out_names = [f"out[{k}]" for k in live]
        seeds = [jnp.zeros(outs[k].shape, outs[k].dtype) for k in live]

        self._outs, self._seeds = outs, seeds
        self._primal = jax.make_jaxpr(self._call)(*xs)
        inputs = ", ".join(describe(v) for v in xs)
        results = ", ".join(describe(outs[k]) for k in live)
        self.signature = f"({inputs}) -> ({results})"

    @functools.cached_property
    def _forward(self) -> Any:
        def forward(*variables: Any) -> Any:
            return jax.vjp(self._call, *variables)[0]

        return jax.make_jaxpr(forward)(*self._variables)

    @functools.cached_property
    def _pullback(self) -> Any:
        def pullback(variables: Any, cotangents: Any) -> Any:
            full = [_zero_tangent(o) for o in self._outs]
            for k, c in zip(self._live, cotangents, strict=True):
                full[k] = c
            return jax.vjp(self._call, *variables)[1](full)

        return jax.make_jaxpr(pullback)(self._variables, self._seeds)

    def _floats(self, values: Sequence[Value]) -> list[Tensor]:
        return [values[k] for k in self._live]

    def primal(self, m: Machine, xs: Sequence[Tensor]) -> list[Value]:
        """All outputs of the function itself; integer ones are concrete."""
        return m.run(self._primal, xs)

    def forward(self, m: Machine, xs: Sequence[Tensor]) -> list[Value]:
        """All outputs as the forward pass of the VJP computes them."""
        return m.run(self._forward, xs)

    def tangent(
        self, m: Machine, xs: Sequence[Tensor], dxs: Sequence[Tensor]
    ) -> list[Tensor]:
        """The true derivative of the floating outputs, by dual numbers.

        ``m`` is a machine over ``duals(carrier)``; inputs and result are over the
        carrier.
        """
        outs = m.run(self._primal, laws.lift(xs, dxs))
        return laws.tangent_part(self._floats(outs))

    def pullback(
        self, m: Machine, xs: Sequence[Tensor], cotangents: Sequence[Tensor]
    ) -> list[Tensor]:
        """Cotangents of the floating inputs, as the VJP computes them."""
        return m.run(self._pullback, [*xs, *cotangents])

    def stated(
        self, jvp: Callable[..., Any]
    ) -> Callable[[Machine, Sequence[Tensor], Sequence[Tensor]], list[Tensor]]:
        """Trace ``jvp(args, tangents)``, a stated derivative, to run over a carrier.

        Both arguments are tuples like the differentiable arguments of the function;
        tangents of integer leaves are float0 zeros. The result is like the output.
        """

        def flat(variables: Any, tangents: Any) -> list[Any]:
            at = self._rebuild(variables, lambda leaf: leaf)
            along = self._rebuild(tangents, _zero_tangent)
            result = jvp(tuple(at.values()), tuple(along.values()))
            return jax.tree_util.tree_leaves(result)

        program = jax.make_jaxpr(flat)(self._variables, self._variables)

        def run(
            m: Machine, xs: Sequence[Tensor], dxs: Sequence[Tensor]
        ) -> list[Tensor]:
            outs = m.run(program, [*xs, *dxs])
            return outs if len(outs) == len(self._live) else self._floats(outs)

        return run
