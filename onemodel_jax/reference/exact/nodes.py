"""The operation of a node, and the node: the operation placed in a typed context.

An operation knows its own arguments only. A node reads a context (the inputs and the
values computed before it) and its vjp answers for the whole context, zeros where it
reads nothing; that is the form in which the laws are stated.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from onemodel_jax.reference.exact.tensors import Pack, Shape, Tensor, Tensors

Env = Mapping[str, Any]
"""Opaque environment: integer indices, masks, data. Never differentiated."""

Args = Sequence[Tensor]


def _valid(args: Args, env: Env) -> str | None:
    return None


def _smooth(args: Args, env: Env) -> bool:
    return True


@dataclass(frozen=True)
class Op:
    """A differentiable operation on its own arguments.

    Attributes:
      name: how reports call it.
      out: shape of the result.
      forward: (args, env) -> result.
      jvp: (args, tangents, env) -> tangent of the result.
      vjp: (args, cotangent, env) -> one cotangent per argument.
      validate: (args, env) -> None, or what is wrong with the values.
      smooth: (args, env) -> False at a kink, where jvp is a convention and only
        adjointness is claimed.
    """

    name: str
    out: Shape
    forward: Callable[[Args, Env], Tensor]
    jvp: Callable[[Args, Args, Env], Tensor]
    vjp: Callable[[Args, Tensor, Env], Pack]
    validate: Callable[[Args, Env], str | None] = _valid
    smooth: Callable[[Args, Env], bool] = _smooth


OpFactory = Callable[..., Op]
"""(tensors, argument shapes, **options) -> Op over the carrier of ``tensors``."""


@dataclass(frozen=True)
class Node:
    """An operation that reads ``parents`` of a context with the given shapes."""

    op: Op
    tensors: Tensors
    context: tuple[Shape, ...]
    parents: tuple[int, ...]

    @property
    def out(self) -> Shape:
        """Shape of the value."""
        return self.op.out

    def _read(self, context: Sequence[Tensor]) -> list[Tensor]:
        return [context[p] for p in self.parents]

    def forward(self, context: Sequence[Tensor], env: Env) -> Tensor:
        """The value at a context."""
        return self.op.forward(self._read(context), env)

    def jvp(self, context: Args, tangents: Args, env: Env) -> Tensor:
        """The tangent of the value."""
        return self.op.jvp(self._read(context), self._read(tangents), env)

    def vjp(self, context: Args, delta: Tensor, env: Env) -> Pack:
        """The cotangents of the whole context, zeros where nothing is read."""
        pack = self.tensors.zero_pack(self.context)
        grads = self.op.vjp(self._read(context), delta, env)
        for parent, grad in zip(self.parents, grads, strict=True):
            pack[parent] = self.tensors.add(pack[parent], grad)
        return pack

    def validate(self, context: Args, env: Env) -> str | None:
        """What is wrong with the values, or None."""
        return self.op.validate(self._read(context), env)


def require(name: str, good: bool, expected: str, got: object) -> None:
    """Raise ValueError in the library's form unless ``good``."""
    if not good:
        raise ValueError(f"{name}: shapes: expected {expected}, got {got}")


def linear_op(
    name: str,
    out: Shape,
    maps: Sequence[Callable[[Tensor, Env], Tensor]],
    adjoints: Sequence[Callable[[Tensor, Env], Tensor]],
    t: Tensors,
    **more: Any,
) -> Op:
    """The sum of one linear map per argument, with the adjoint of each."""

    def forward(args: Args, env: Env) -> Tensor:
        total = t.zeros(out)
        for function, arg in zip(maps, args, strict=True):
            total = t.add(total, function(arg, env))
        return total

    return Op(
        name,
        out,
        forward,
        lambda args, tangents, env: forward(tangents, env),
        lambda args, delta, env: [adjoint(delta, env) for adjoint in adjoints],
        **more,
    )


def bilinear_op(
    name: str,
    out: Shape,
    product: Callable[[Tensor, Tensor], Tensor],
    left: Callable[[Tensor, Tensor], Tensor],
    right: Callable[[Tensor, Tensor], Tensor],
    t: Tensors,
) -> Op:
    """A bilinear product a, b; ``left(delta, b)`` and ``right(a, delta)`` transpose."""
    return Op(
        name,
        out,
        lambda args, env: product(*args),
        lambda args, dargs, env: t.add(
            product(dargs[0], args[1]), product(args[0], dargs[1])
        ),
        lambda args, delta, env: [left(delta, args[1]), right(args[0], delta)],
    )


def moving_op(
    name: str,
    shapes: Sequence[Shape],
    routes: Sequence[Callable[[Env], np.ndarray]],
    out: Shape,
    t: Tensors,
    **more: Any,
) -> Op:
    """Elements moved, copied or dropped: ``routes[i](env)`` gives, for each element of
    the result, the flat position in argument i that it reads, or -1.
    """

    def there(route: Any) -> Callable[[Tensor, Env], Tensor]:
        return lambda x, env: t.take(x, route(env))

    def back(route: Any, shape: Shape) -> Callable[[Tensor, Env], Tensor]:
        def adjoint(delta: Tensor, env: Env) -> Tensor:
            grad = t.zeros(shape)
            t.add_at(grad, route(env), delta)
            return grad

        return adjoint

    backs = [back(route, s) for route, s in zip(routes, shapes, strict=True)]
    return linear_op(name, out, [there(r) for r in routes], backs, t, **more)


def pointwise_op(
    name: str,
    t: Tensors,
    out: Shape,
    forward: Callable[..., Tensor],
    slopes: Callable[..., Sequence[Tensor]],
    **more: Any,
) -> Op:
    """An elementwise function; ``slopes(*args)`` are its partial derivatives."""

    def jvp(args: Args, dargs: Args, env: Env) -> Tensor:
        total = t.zeros(out)
        for slope, tangent in zip(slopes(*args), dargs, strict=True):
            total = t.add(total, t.mul(slope, tangent))
        return total

    return Op(
        name,
        out,
        lambda args, env: forward(*args),
        jvp,
        lambda args, delta, env: [t.mul(s, delta) for s in slopes(*args)],
        **more,
    )
