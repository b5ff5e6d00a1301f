"""Graphs over a typed context: evaluation, tangents, cotangents.

A graph over input shapes G is an append-only list of nodes; node k reads the context
G ++ (values of nodes before k). Sharing is free; there is no other structure. The
recipe of each node is kept, so the same graph can be read over another carrier.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from onemodel_jax.reference.exact.carriers import Carrier
from onemodel_jax.reference.exact.nodes import Args, Env, Node, OpFactory
from onemodel_jax.reference.exact.tensors import Pack, Shape, Tensor, Tensors


@dataclass(frozen=True)
class Idx:
    """A position in a context and the shape that is there."""

    position: int
    shape: Shape


@dataclass(frozen=True)
class Recipe:
    """What ``Graph.apply`` was called with."""

    factory: OpFactory
    parents: tuple[Idx, ...]
    options: dict[str, Any]


class Graph:
    """An append-only list of nodes over a carrier and a list of input shapes."""

    def __init__(self, carrier: Carrier, inputs: Sequence[Shape]):
        self.carrier = carrier
        self.tensors = Tensors(carrier)
        self.inputs = tuple(tuple(s) for s in inputs)
        self.nodes: list[Node] = []
        self.recipes: list[Recipe] = []

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """Shapes of the whole context, inputs first."""
        return self.inputs + tuple(node.out for node in self.nodes)

    def index(self, position: int) -> Idx:
        """The typed index of a position; IndexError if there is none."""
        if not 0 <= position < len(self.shapes):
            raise IndexError(f"Graph: position: expected < {len(self.shapes)}")
        return Idx(position, self.shapes[position])

    def apply(self, factory: OpFactory, *parents: Idx, **options: Any) -> Idx:
        """Append the node ``factory`` makes for these parents; return its index.

        Raises:
          ValueError: an index is not of this graph, or the factory refuses the shapes.
        """
        for idx in parents:
            if idx != self.index(idx.position):
                raise ValueError(f"Graph: parent: expected an index of it, got {idx}")
        op = factory(self.tensors, [idx.shape for idx in parents], **options)
        places = tuple(idx.position for idx in parents)
        self.nodes.append(Node(op, self.tensors, self.shapes, places))
        self.recipes.append(Recipe(factory, parents, options))
        return self.index(len(self.shapes) - 1)

    def over(self, carrier: Carrier) -> "Graph":
        """The same graph over another carrier."""
        other = Graph(carrier, self.inputs)
        for recipe in self.recipes:
            other.apply(recipe.factory, *recipe.parents, **recipe.options)
        return other


def eval_ctx(graph: Graph, inputs: Args, env: Env) -> Pack:
    """Inputs and all values, in order."""
    context = list(inputs)
    for node in graph.nodes:
        context.append(node.forward(context, env))
    return context


def eval_checked(graph: Graph, inputs: Args, env: Env) -> Pack:
    """eval_ctx that runs every node's ``validate`` first; ValueError if one objects."""
    context = list(inputs)
    for node in graph.nodes:
        problem = node.validate(context, env)
        if problem is not None:
            raise ValueError(problem)
        context.append(node.forward(context, env))
    return context


def jvp_ctx(graph: Graph, inputs: Args, tangents: Args, env: Env) -> Pack:
    """Tangents of inputs and all values."""
    context, moved = list(inputs), list(tangents)
    for node in graph.nodes:
        moved.append(node.jvp(context, moved, env))
        context.append(node.forward(context, env))
    return moved


def backprop_all_ctx(graph: Graph, inputs: Args, seed: Args, env: Env) -> Pack:
    """Cotangents of inputs and all values for a seed over the whole context.

    The last cotangent is popped, the node's vjp at the context before it is added to
    all that remain, and so on; each entry is the cotangent as it stood when popped.
    """
    t = graph.tensors
    context, remaining = eval_ctx(graph, inputs, env), list(seed)
    popped: list[Tensor] = []
    for position in reversed(range(len(graph.inputs), len(context))):
        delta = remaining.pop()
        popped.append(delta)
        node = graph.nodes[position - len(graph.inputs)]
        pack = node.vjp(context[:position], delta, env)
        remaining = [t.add(a, b) for a, b in zip(remaining, pack, strict=True)]
    return remaining + popped[::-1]


def backprop_ctx(graph: Graph, inputs: Args, seed: Args, env: Env) -> Pack:
    """The input block of backprop_all_ctx."""
    return backprop_all_ctx(graph, inputs, seed, env)[: len(graph.inputs)]
