"""An interpreter of jaxprs over a carrier: floats are exact, integers are concrete.

Floating arrays become tensors over the carrier; integer, boolean and key arrays keep
their values and are computed by JAX itself, so control flow is concrete. Every float
constant is the rational it denotes. A primitive without a rule is refused by name.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Literal

from onemodel_jax.reference.exact.carriers import Carrier, Special
from onemodel_jax.reference.exact.plain import INTEGERS, plain
from onemodel_jax.reference.exact.tensors import (
    Tensor,
    Tensors,
    map_elements,
    tensor,
)

Value = Any
"""A tensor over the carrier (dtype object), or a concrete non-floating array."""

Rule = Callable[["Machine", Any, Sequence[Value], dict[str, Any]], Any]
"""(machine, primitive, inputs, params) -> one value, or a list for several outputs."""


class Refused(TypeError):
    """The program uses something that has no exact meaning here."""


COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
CALLS = (
    "jit pjit closed_call core_call remat remat2 checkpoint custom_jvp_call "
    "custom_vjp_call custom_vjp_call_jaxpr exact_chain"
).split()
LOOPS = ("cond", "while", "scan")
MOVING = (
    "transpose reshape squeeze expand_dims broadcast_in_dim slice dynamic_slice "
    "dynamic_update_slice rev concatenate pad gather scatter split stack unstack tile"
).split()
VIEWABLE = {"bitcast_convert_type", "select_n", *CALLS, *LOOPS, *MOVING}
"""Primitives that may meet an integer view of a float."""

_RULES: dict[str, Rule] = {}


def register_primitive(name: str, rule: Rule) -> None:
    """Give the JAX primitive called ``name`` an exact meaning, replacing any other.

    Args:
      name: as a jaxpr prints it.
      rule: ``rule(machine, primitive, inputs, params)``; inputs are tensors over
        ``machine.carrier`` for floats and NumPy arrays for integers; the result has
        the shapes of the equation's outputs.
    """
    _RULES[name] = rule


def known_primitives() -> tuple[str, ...]:
    """Names of all primitives that have a rule."""
    return tuple(sorted(_RULES))


def is_exact(value: Value) -> bool:
    """True for a tensor over the carrier, False for a concrete array."""
    return value.dtype == object


class Machine:
    """Runs jaxprs over one carrier.

    Attributes:
      carrier, t: the carrier and its tensors.
      opaque: whether JAX's transcendental primitives may be opaque; this package's
        own always are.
      notes: what was assumed on the way, e.g. names of opaque functions.
    """

    def __init__(self, carrier: Carrier, opaque: bool = False):
        self.carrier = carrier
        self.opaque = opaque
        self.t = Tensors(carrier)
        self.notes: set[str] = set()

    def constant(self, value: Any) -> Value:
        """Embed a concrete array: floats as the rationals they denote."""
        if not hasattr(value, "dtype"):
            value = np.asarray(value)
        if jnp.issubdtype(value.dtype, jax.dtypes.extended):
            return value
        if not jnp.issubdtype(value.dtype, jnp.inexact):
            return np.asarray(value)
        if jnp.issubdtype(value.dtype, jnp.complexfloating):
            raise Refused("complex numbers")
        wide = np.asarray(value).astype(np.float64)
        values, which = np.unique(wide, return_inverse=True)
        images = [
            self.carrier.number(Fraction(x) if np.isfinite(x) else Special(x))
            for x in map(float, values)
        ]
        return tensor(wide.shape, [images[k] for k in which.flat])

    def compare(self, a: Tensor, b: Tensor) -> np.ndarray:
        """Signs of a - b; refused where the carrier has no order."""
        if not self.carrier.has("sign", "neg"):
            raise Refused(f"a comparison over {self.carrier.name}")
        sign, add, neg = map(self.carrier.need, ("sign", "add", "neg"))
        value = self.carrier.constant or (lambda x: x)

        def compare(x: Any, y: Any) -> int:
            return 0 if value(x) == value(y) else sign(add(x, neg(y)))

        return map_elements(compare, a, b).astype(int)

    def run(self, program: Any, args: Sequence[Value]) -> list[Value]:
        """Evaluate a jaxpr, closed or not.

        Raises:
          Refused: a primitive has no rule.
          Undefined: the point is outside the domain.
        """
        jaxpr = getattr(program, "jaxpr", program)
        env: dict[Any, Value] = {}
        consts = getattr(program, "consts", ())
        for var, const in zip(jaxpr.constvars, consts, strict=True):
            env[var] = self.constant(const)
        env.update(zip(jaxpr.invars, args, strict=True))

        def read(atom: Any) -> Value:
            return self.constant(atom.val) if isinstance(atom, Literal) else env[atom]

        for eqn in jaxpr.eqns:
            outs = self._step(eqn, [read(v) for v in eqn.invars])
            for var, out in zip(eqn.outvars, outs, strict=True):
                if out.shape != var.aval.shape:
                    name = eqn.primitive.name
                    raise Refused(f"{name}: rule gave {out.shape} for {var.aval}")
                env[var] = out
        return [read(v) for v in jaxpr.outvars]

    def _step(self, eqn: Any, inputs: list[Value]) -> list[Value]:
        name = eqn.primitive.name
        rule = _RULES.get(name)
        concrete = not any(is_exact(x) for x in inputs)
        if concrete and not getattr(rule, "structural", False):
            return self._concrete(eqn, inputs)
        if any(map(_is_view, eqn.invars, inputs)):
            inputs = self._read_views(eqn, inputs)
        if rule is None:
            raise Refused(f"primitive {name} has no exact meaning here")
        params = eqn.params
        if name == "bitcast_convert_type":
            params = params | {"out_shape": eqn.outvars[0].aval.shape}
        out = rule(self, eqn.primitive, inputs, params)
        return out if isinstance(out, list) else [out]

    def _read_views(self, eqn: Any, inputs: list[Value]) -> list[Value]:
        """Integer views of floats may be moved, selected and compared.

        Integers order them as the floats are ordered unless both are negative, and
        integer constants beside them are bits of floats.
        """
        name = eqn.primitive.name
        if name in COMPARISONS or name == "select_n":
            inputs = [
                x if is_exact(x) or x.dtype == bool else self.constant(_floats(x))
                for x in inputs
            ]
        if name in COMPARISONS:
            zero = self.t.number(0)
            below = [self.compare(x, zero) < 0 for x in inputs]
            if (below[0] & below[1]).any():
                raise Refused("a comparison of integer views of two negative floats")
        elif name not in VIEWABLE:
            raise Refused(f"primitive {name} on integer views of floats")
        return inputs

    def _concrete(self, eqn: Any, inputs: list[Value]) -> list[Value]:
        """Let NumPy or JAX compute an equation that has no floating input."""
        aval = eqn.outvars[0].aval
        if inputs and getattr(aval.dtype, "kind", None) in ("b", "i", "u"):
            name = eqn.primitive.name
            result = plain(INTEGERS, name, inputs, eqn.params, aval.dtype)
            if result is not None:
                return [result]
        context = getattr(eqn.ctx, "manager", None) or nullcontext()
        with context:
            out = eqn.primitive.bind(*inputs, **eqn.params)
        outs = out if eqn.primitive.multiple_results else [out]
        return [self.constant(x) for x in outs]


def _is_view(atom: Any, value: Value) -> bool:
    """True for an exact tensor where the program has an integer array."""
    return is_exact(value) and jnp.issubdtype(atom.aval.dtype, jnp.integer)


def _floats(bits: np.ndarray) -> np.ndarray:
    kind = {4: np.float32, 8: np.float64}.get(bits.dtype.itemsize)
    if kind is None:
        raise Refused(f"{bits.dtype} beside integer views of floats")
    return np.ascontiguousarray(bits).view(kind).reshape(bits.shape)


def structural(rule: Rule) -> Rule:
    """Mark a rule that must run even when all inputs are concrete."""
    rule.structural = True  # type: ignore[attr-defined]
    return rule
