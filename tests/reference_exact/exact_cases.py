"""Carriers, and random graphs over what each of them allows."""

from fractions import Fraction

import numpy as np

from onemodel_jax.reference.exact import (
    carriers,
    nodes_arithmetic,
    nodes_cells,
    nodes_linear,
    nodes_norm,
    nodes_opaque,
    nodes_order,
    nodes_window,
)
from onemodel_jax.reference.exact.graph import Graph
from onemodel_jax.reference.exact.opaque import duals, with_opaque
from onemodel_jax.reference.exact.shadowed import shadowed_field

CARRIERS = {
    "fractions": lambda: with_opaque(carriers.rationals()),
    "prime field": lambda: with_opaque(
        carriers.integers_mod(carriers.PRIME, prime=True)
    ),
    "shadowed field": lambda: with_opaque(shadowed_field()),
    "integers": carriers.integers,
    "mod 6": lambda: carriers.integers_mod(6),
    "mod 4": lambda: carriers.integers_mod(4),
    "mod 2": lambda: carriers.integers_mod(2),
    "trivial": lambda: carriers.integers_mod(1),
    "booleans": carriers.booleans,
    "naturals": carriers.naturals,
    "polynomials": carriers.polynomials,
    "min-plus": carriers.min_plus,
    "duals over mod 6": lambda: duals(carriers.integers_mod(6)),
    "duals over booleans": lambda: duals(carriers.booleans()),
}

RING, FIELD = ("neg",), ("neg", "inverse")
ORDERED = ("neg", "sign")
OPAQUE = ("neg", "inverse", "opaque")
INPUTS = [(2, 3), (3, 2), (2, 3), (3,), (1, 2, 4), (2, 2, 3), (2,)]
ENV = {"rows": np.array([1, 0, 1]), "mask": np.array([True, False, True])}

# name -> (factory, needed structure, argument shapes, options)
NODES = {
    "add": (nodes_arithmetic.add, (), [(2, 3), (2, 3)], {}),
    "mul": (nodes_arithmetic.mul, (), [(2, 3), (2, 3)], {}),
    "scale": (nodes_arithmetic.scale, (), [(2, 3)], {"factor": 3}),
    "square": (nodes_arithmetic.square, (), [(3,)], {}),
    "sub": (nodes_arithmetic.sub, RING, [(2, 3), (2, 3)], {}),
    "neg": (nodes_arithmetic.neg, RING, [(2, 3)], {}),
    "div": (nodes_arithmetic.div, FIELD, [(3,), (3,)], {}),
    "inverse": (nodes_arithmetic.inverse, FIELD, [(3,)], {}),
    "matmul": (nodes_linear.matmul, (), [(2, 3), (3, 2)], {}),
    "linear": (nodes_linear.linear, (), [(2, 3), (2, 3), (2,)], {}),
    "sum": (nodes_linear.sum, (), [(2, 3)], {"axes": [0]}),
    "mean": (nodes_linear.mean, FIELD, [(2, 3)], {"axes": [0]}),
    "broadcast": (nodes_linear.broadcast, (), [(3,)], {"shape": (2, 3)}),
    "reshape": (nodes_linear.reshape, (), [(2, 3)], {"shape": (3, 2)}),
    "transpose": (nodes_linear.transpose, (), [(3, 2)], {"axes": (1, 0)}),
    "concat": (nodes_linear.concat, (), [(2, 3), (2, 3)], {"axis": 1}),
    "slice": (nodes_linear.slice, (), [(2, 3)], {"at": np.s_[1:, ::2]}),
    "pad": (nodes_linear.pad, (), [(3,)], {"width": (1, 0)}),
    "gather": (nodes_linear.gather, (), [(2, 3)], {"key": "rows", "count": 3}),
    "mask": (nodes_linear.mask, (), [(2, 3)], {"key": "mask"}),
    "conv1d": (
        nodes_window.conv,
        (),
        [(1, 2, 4), (2, 2, 3)],
        {"padding": [(1, 1)], "strides": [2]},
    ),
    "sum_pool": (nodes_window.sum_pool, (), [(1, 2, 4)], {"size": [2]}),
    "avg_pool": (nodes_window.avg_pool, FIELD, [(1, 2, 4)], {"size": [2]}),
    "max_pool": (nodes_window.max_pool, ORDERED, [(1, 2, 4)], {"size": [2]}),
    "relu": (nodes_order.relu, ORDERED, [(2, 3)], {}),
    "abs": (nodes_order.abs, ORDERED, [(2, 3)], {}),
    "clamp": (nodes_order.clamp, ORDERED, [(2, 3)], {"low": -2, "high": 3}),
    "maximum": (nodes_order.maximum, FIELD + ORDERED, [(2, 3), (2, 3)], {}),
    "minimum": (nodes_order.minimum, FIELD + ORDERED, [(2, 3), (2, 3)], {}),
    "exp": (nodes_opaque.exp, OPAQUE, [(3,)], {}),
    "tanh": (nodes_opaque.tanh, OPAQUE, [(3,)], {}),
    "sigmoid": (nodes_opaque.sigmoid, OPAQUE, [(3,)], {}),
    "softmax": (nodes_opaque.softmax, OPAQUE, [(2, 3)], {}),
    "log_softmax": (nodes_opaque.log_softmax, OPAQUE, [(2, 3)], {}),
    "layer_norm": (nodes_norm.layer_norm, OPAQUE, [(2, 3), (3,), (3,)], {}),
    "batch_norm": (nodes_norm.batch_norm, OPAQUE, [(2, 3), (3,), (3,)], {}),
    "mse": (nodes_norm.mse, FIELD, [(2, 3), (2, 3)], {}),
    "attention": (
        nodes_cells.attention,
        OPAQUE,
        [(2, 3), (2, 3), (2, 3)],
        {"scale": Fraction(2, 3)},
    ),
}


def allowed(carrier):
    """Names of the nodes whose needs the carrier meets."""
    return [name for name, (_, needs, _, _) in NODES.items() if carrier.has(*needs)]


def random_graph(carrier, rng, depth=4):
    """A graph of up to ``depth`` nodes; parents are drawn among fitting values."""
    graph = Graph(carrier, INPUTS)
    names = allowed(carrier)
    for _ in range(rng.randint(1, depth)):
        factory, _, shapes, options = NODES[rng.choice(names)]
        parents = []
        for shape in shapes:
            fits = [k for k, s in enumerate(graph.shapes) if s == shape]
            parents.append(graph.index(rng.choice(fits)))
        graph.apply(factory, *parents, **options)
    return graph


def is_smooth(graph, context):
    """True if no node sits on a kink."""
    return all(
        node.op.smooth([context[p] for p in node.parents], ENV) for node in graph.nodes
    )
