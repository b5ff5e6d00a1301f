"""Cells, kinks, options and shapes of single nodes."""

from fractions import Fraction
from random import Random

import numpy as np
import pytest

from onemodel_jax.reference.exact import (
    nodes_arithmetic,
    nodes_cells,
    nodes_linear,
    nodes_norm,
    nodes_opaque,
    nodes_order,
    nodes_window,
)
from onemodel_jax.reference.exact.carriers import (
    booleans,
    integers,
    integers_mod,
    min_plus,
    naturals,
    rationals,
)
from onemodel_jax.reference.exact.graph import Graph, eval_checked, eval_ctx
from onemodel_jax.reference.exact.graph_laws import input_block_is_adjoint
from onemodel_jax.reference.exact.laws import (
    adjointness,
    derivative,
    zero_preserving,
)
from onemodel_jax.reference.exact.opaque import duals, with_opaque
from onemodel_jax.reference.exact.tensors import Tensors, tensor

H, D = 2, 3
LSTM = [(D,), (H,), (H,), (4 * H, D), (4 * H, H), (4 * H,)]
GRU = [(D,), (H,), (3 * H, D), (3 * H, H), (3 * H,), (3 * H,)]


def one_node(carrier, factory, shapes, **options):
    graph = Graph(carrier, shapes)
    graph.apply(factory, *(graph.index(k) for k in range(len(shapes))), **options)
    return graph


def assert_laws(graph, inputs, env=None):
    env = env or {}
    rng = Random(3)
    node = graph.nodes[0]
    dual = graph.over(duals(graph.carrier))
    tangents = [graph.tensors.sample(s, rng) for s in graph.inputs]
    for evidence in (
        adjointness(node, inputs, env, rng),
        derivative(node, dual.nodes[0], inputs, tangents, env),
        zero_preserving(node, inputs, env),
    ):
        assert evidence, str(evidence)


@pytest.mark.parametrize(
    ("factory", "shapes"),
    [
        (nodes_cells.lstm_cell, LSTM),
        (nodes_cells.gru_cell, GRU),
        (nodes_cells.attention, [(3, 2), (2, 2), (2, 4)]),
        (nodes_opaque.log, [(3,)]),
        (nodes_opaque.sqrt, [(3,)]),
        (nodes_norm.layer_norm, [(2, 2, 3), (3,), (3,)]),
        (nodes_norm.batch_norm, [(2, 2, 2), (2,), (2,)]),
    ],
)
def test_opaque_nodes_obey_the_laws_over_a_prime_field(factory, shapes):
    carrier = with_opaque(integers_mod(2**61 - 1, prime=True))
    graph = one_node(carrier, factory, shapes)
    rng = Random(1)
    assert_laws(graph, [graph.tensors.sample(s, rng) for s in shapes])


def test_the_lstm_cell_has_the_transposed_jacobian_over_fractions():
    graph = one_node(with_opaque(rationals()), nodes_cells.lstm_cell, LSTM)
    rng = Random(2)
    inputs = [graph.tensors.sample(s, rng) for s in LSTM]
    dual = graph.over(duals(graph.carrier))
    evidence = input_block_is_adjoint(graph, dual, inputs, graph.index(6), {})
    assert evidence, str(evidence)
    assert evidence.cases == 4 * sum(int(np.prod(s)) for s in LSTM)


@pytest.mark.parametrize(
    "carrier", [rationals(), integers_mod(6), booleans(), naturals(), min_plus()]
)
@pytest.mark.parametrize(
    ("x", "kernel", "options"),
    [
        ((2, 1, 5), (2, 1, 2), {}),
        ((1, 2, 4, 3), (1, 2, 2, 2), {"padding": [(1, 0), (0, 1)]}),
        ((1, 1, 3, 3, 2), (1, 1, 2, 2, 2), {"strides": [1, 2, 1]}),
        ((1, 1, 7), (1, 1, 3), {"dilation": [2], "strides": [2], "padding": [(2, 1)]}),
        ((2, 3), (4, 3), {}),
    ],
)
def test_convolution_of_any_rank_obeys_the_laws(carrier, x, kernel, options):
    graph = one_node(carrier, nodes_window.conv, [x, kernel], **options)
    rng = Random(5)
    assert_laws(graph, [graph.tensors.sample(s, rng) for s in (x, kernel)])


def test_convolution_agrees_with_sums_written_out():
    graph = one_node(integers(), nodes_window.conv, [(1, 1, 4), (1, 1, 2)])
    x, k = tensor((1, 1, 4), [1, 2, 3, 4]), tensor((1, 1, 2), [10, 1])
    assert list(eval_ctx(graph, [x, k], {})[-1].flat) == [12, 23, 34]


@pytest.mark.parametrize(
    ("factory", "options", "values", "slopes"),
    [
        (nodes_order.relu, {}, [-1, 0, 2], [0, 0, 1]),
        (nodes_order.abs, {}, [-1, 0, 2], [-1, 0, 1]),
        (nodes_order.clamp, {"low": -1, "high": 1}, [-1, 0, 1], [0, 1, 0]),
        (nodes_order.clamp, {"low": -1, "high": 1}, [-2, 0, 2], [0, 1, 0]),
    ],
)
def test_slopes_at_kinks_are_the_stated_ones(factory, options, values, slopes):
    graph = one_node(rationals(), factory, [(3,)], **options)
    t = graph.tensors
    x = t.numbers((3,), values)
    got = graph.nodes[0].vjp([x], t.full((3,), t.carrier.one), {})[0]
    assert list(got) == slopes
    assert adjointness(graph.nodes[0], [x], {}, Random(0))


def test_a_tie_of_maximum_is_adjoint_though_it_is_no_derivative():
    graph = one_node(rationals(), nodes_order.maximum, [(1,), (1,)])
    t = graph.tensors
    point = [t.numbers((1,), [2]), t.numbers((1,), [2])]
    grads = graph.nodes[0].vjp(point, t.numbers((1,), [1]), {})
    assert [g[0] for g in grads] == [Fraction(1, 2)] * 2
    assert adjointness(graph.nodes[0], point, {}, Random(0))
    dual = graph.over(duals(graph.carrier)).nodes[0]
    assert derivative(graph.nodes[0], dual, point, point, {}).cases == 0


def test_overlapping_max_pool_windows_send_both_cotangents_to_the_maximum():
    graph = one_node(
        integers(), nodes_window.max_pool, [(1, 1, 3)], size=[2], strides=[1]
    )
    x = tensor((1, 1, 3), [1, 5, 2])
    grad = graph.nodes[0].vjp([x], tensor((1, 1, 2), [10, 1]), {})[0]
    assert list(grad.flat) == [0, 11, 0]


def test_gather_adds_repeated_rows_and_validates_its_indices():
    graph = one_node(integers(), nodes_linear.gather, [(2, 1)], key="i", count=3)
    table = tensor((2, 1), [7, 8])
    good = {"i": np.array([1, 1, 0])}
    assert list(eval_checked(graph, [table], good)[-1].flat) == [8, 8, 7]
    grad = graph.nodes[0].vjp([table], tensor((3, 1), [1, 2, 4]), good)[0]
    assert list(grad.flat) == [4, 3]
    with pytest.raises(ValueError, match="index 2 out of range"):
        eval_checked(graph, [table], {"i": np.array([0, 2, 0])})
    with pytest.raises(ValueError, match=r"expected shape \(3,\)"):
        eval_checked(graph, [table], {"i": np.array([0])})


def test_a_node_that_reads_one_value_twice_adds_both_cotangents():
    graph = Graph(rationals(), [(2,)])
    graph.apply(nodes_arithmetic.mul, graph.index(0), graph.index(0))
    t = graph.tensors
    x = t.numbers((2,), [3, 5])
    grad = graph.nodes[0].vjp([x], t.numbers((2,), [1, 1]), {})[0]
    assert list(grad) == [6, 10]


def test_shapes_that_do_not_fit_are_refused_by_name():
    t = Tensors(rationals())
    with pytest.raises(ValueError, match="matmul: shapes"):
        nodes_linear.matmul(t, [(2, 3), (2, 3)])
    with pytest.raises(ValueError, match="add: shapes"):
        nodes_arithmetic.add(t, [(2,), (3,)])
    with pytest.raises(ValueError, match="lstm_cell: shapes"):
        nodes_cells.lstm_cell(t, [(D,), *LSTM[:5]])
    graph = Graph(rationals(), [(2,)])
    other = Graph(rationals(), [(3,)])
    with pytest.raises(ValueError, match="expected an index of it"):
        graph.apply(nodes_arithmetic.neg, other.index(0))


def test_structure_that_a_carrier_lacks_is_refused_by_name():
    with pytest.raises(TypeError, match="carrier Bool has no neg"):
        t = Tensors(booleans())
        nodes_arithmetic.neg(t, [()]).forward([t.zeros(())], {})
    with pytest.raises(TypeError, match="carrier Z/6 has no inverse"):
        nodes_linear.mean(Tensors(integers_mod(6)), [(2,)], axes=[0])
