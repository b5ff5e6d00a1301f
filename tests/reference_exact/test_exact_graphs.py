"""The laws on random graphs over every carrier, and on every kind of node."""

from random import Random

import pytest
from exact_cases import CARRIERS, ENV, INPUTS, NODES, allowed, is_smooth, random_graph

from onemodel_jax.reference.exact.carriers import Undefined, rationals
from onemodel_jax.reference.exact.graph import Graph, eval_ctx
from onemodel_jax.reference.exact.graph_laws import check_graph
from onemodel_jax.reference.exact.opaque import with_opaque


def smooth_point(graph, rng):
    """Random inputs at which every node is defined and smooth."""
    for _ in range(200):
        inputs = [graph.tensors.sample(s, rng) for s in graph.inputs]
        try:
            if is_smooth(graph, eval_ctx(graph, inputs, ENV)):
                return inputs
        except Undefined:
            pass
    return None


@pytest.mark.parametrize("name", CARRIERS)
def test_all_laws_hold_on_forty_random_graphs(name):
    rng = Random(7)
    done = 0
    while done < 40:
        carrier = CARRIERS[name]()
        graph = random_graph(carrier, rng)
        inputs = smooth_point(graph, rng)
        if inputs is None:
            continue
        for evidence in check_graph(graph, inputs, ENV, rng):
            assert evidence, str(evidence)
        done += 1


@pytest.mark.parametrize("kind", NODES)
def test_all_laws_hold_for_every_kind_of_node(kind):
    factory, _, shapes, options = NODES[kind]
    rng = Random(kind)
    graph = Graph(with_opaque(rationals()), shapes)
    graph.apply(factory, *(graph.index(k) for k in range(len(shapes))), **options)
    for _ in range(3):
        inputs = smooth_point(graph, rng)
        for evidence in check_graph(graph, inputs, ENV, rng):
            assert evidence, str(evidence)


def test_each_carrier_gets_the_nodes_that_its_structure_allows():
    assert set(allowed(CARRIERS["fractions"]())) == set(NODES)
    assert "sub" not in allowed(CARRIERS["booleans"]())
    assert "conv1d" in allowed(CARRIERS["min-plus"]())
    assert "relu" in allowed(CARRIERS["integers"]())
    assert "mean" not in allowed(CARRIERS["mod 6"]())
    assert len(INPUTS) == 7
