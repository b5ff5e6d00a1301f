"""The eager tape: operations recorded as they run, contributing to true parents only.

The theorem about lowered graphs does not cover this tape: that it is zero preserving
is checked on it directly (``laws.zero_preserving_tape``).
"""

from collections.abc import Callable
from typing import Any

from onemodel_jax.reference.exact.carriers import Carrier
from onemodel_jax.reference.exact.nodes import Env, Op, OpFactory
from onemodel_jax.reference.exact.tape import (
    UPSTREAM_SHAPE,
    Contributions,
    TapeError,
    TapeNode,
)
from onemodel_jax.reference.exact.tensors import Pack, Tensor, Tensors


class EagerTape:
    """Records leaves and operations; ids are positions in ``nodes``."""

    def __init__(self, carrier: Carrier, env: Env | None = None):
        self.tensors = Tensors(carrier)
        self.env: Env = env or {}
        self.nodes: list[TapeNode] = []

    def leaf(self, value: Tensor, requires_grad: bool = True) -> int:
        """Record an input or a constant; return its id."""
        self.nodes.append(TapeNode(value, requires_grad=requires_grad))
        return len(self.nodes) - 1

    def apply(self, factory: OpFactory, *parents: int, **options: Any) -> int:
        """Run an operation on earlier ids and record it; return the new id.

        The result requires a gradient if any parent does.

        Raises:
          ValueError: an id is unknown, shapes do not fit, or ``validate`` objects.
        """
        for parent in parents:
            if not 0 <= parent < len(self.nodes):
                raise ValueError(f"EagerTape: parent: expected an id, got {parent}")
        args = [self.nodes[p].value for p in parents]
        op = factory(self.tensors, [a.shape for a in args], **options)
        problem = op.validate(args, self.env)
        if problem is not None:
            raise ValueError(problem)
        needs = any(self.nodes[p].requires_grad for p in parents)
        value = op.forward(args, self.env)
        backward = _backward(op, args, parents, self.env)
        self.nodes.append(TapeNode(value, backward, needs, parents, op.name))
        return len(self.nodes) - 1


def _backward(
    op: Op, args: Pack, parents: tuple[int, ...], env: Env
) -> Callable[[Tensor], Contributions]:
    def backward(cotangent: Tensor) -> Contributions:
        if cotangent.shape != op.out:
            raise TapeError(UPSTREAM_SHAPE)
        return list(zip(parents, op.vjp(args, cotangent, env), strict=True))

    return backward
