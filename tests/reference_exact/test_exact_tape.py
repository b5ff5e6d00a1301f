"""The two sweeps: where they agree, where they part, and which error comes first."""

import itertools
from fractions import Fraction
from random import Random

import numpy as np
import pytest
from exact_cases import CARRIERS

from onemodel_jax.reference.exact import (
    nodes_arithmetic,
    nodes_linear,
    nodes_order,
    tape,
)
from onemodel_jax.reference.exact.carriers import (
    Carrier,
    Undefined,
    binary32,
    booleans,
    integers_mod,
    rationals,
)
from onemodel_jax.reference.exact.eager import EagerTape
from onemodel_jax.reference.exact.evidence import show
from onemodel_jax.reference.exact.graph import Graph
from onemodel_jax.reference.exact.laws import (
    adjointness,
    derivative,
    outcome,
    sweeps_agree,
    witness,
    zero_preserving,
    zero_preserving_tape,
)
from onemodel_jax.reference.exact.nodes import Op
from onemodel_jax.reference.exact.opaque import duals
from onemodel_jax.reference.exact.tape import TapeError, TapeNode
from onemodel_jax.reference.exact.tensors import Tensors, scalar

T = Tensors(rationals())
ONE = T.number(1)


def leaf(value, requires_grad=True):
    return TapeNode(T.number(value), requires_grad=requires_grad)


def affine(a, b, parent=0):
    """A node whose backward sends a d + b: not zero preserving unless b = 0."""
    return TapeNode(T.number(9), lambda d: [(parent, scalar(a * d[()] + b))])


def raising(d):
    if d[()] == 0:
        raise TapeError("upstream is zero")
    return [(0, d)]


def sweeps(nodes, output, seed=ONE, t=T):
    """Outcomes of both sweeps, as elements or messages, and zero preservation."""
    both = (
        outcome(lambda: tape.backward_dense_all(t, nodes, output, seed)),
        outcome(
            lambda: tape.backward_dense_from(
                t, nodes, tape.single_pack(t, nodes, output, seed)
            )
        ),
    )
    shown = tuple(r if isinstance(r, str) else [a[()] for a in r] for r in both)
    return (*shown, bool(zero_preserving_tape(t, nodes)))


# Leaves 3 and 5 and one node or two; the seed is put on leaf 5 unless stated.
DEAD = {
    "affine": ([affine(2, 1)], [0, 1, 0], [1, 1, 0]),
    "raises at zero": ([TapeNode(ONE, raising)], [0, 1, 0], "upstream is zero"),
    "wrong shape": (
        [TapeNode(ONE, lambda d: [(0, T.zeros((2,)))])],
        [0, 1, 0],
        tape.CONTRIBUTION_SHAPE,
    ),
    "no such parent": (
        [TapeNode(ONE, lambda d: [(7, d)])],
        [0, 1, 0],
        tape.INVALID_PARENT,
    ),
    "two that cancel": (
        [affine(2, 1), affine(2, -1)],
        [0, 1, 0, 0],
        [0, 1, 0, 0],
    ),
}


@pytest.mark.parametrize("name", DEAD)
def test_a_dead_node_that_is_not_zero_preserving(name):
    nodes, skipping, total = DEAD[name]
    assert sweeps([leaf(3), leaf(5), *nodes], 1) == (skipping, total, False)


def test_the_same_affine_node_reached_gives_one_answer():
    assert sweeps([leaf(3), affine(2, 1)], 1) == ([3, 1], [3, 1], False)


@pytest.mark.parametrize("name", ["affine", "wrong shape"])
def test_contributions_to_a_parent_without_gradient_are_dropped_unseen(name):
    nodes = [leaf(3, False), leaf(5), *DEAD[name][0]]
    assert sweeps(nodes, 1) == ([0, 1, 0], [0, 1, 0], False)


def test_forward_self_and_repeated_parents_agree_on_zero_preserving_tapes():
    forward = TapeNode(ONE, lambda d: [(2, d), (0, d)])
    last = TapeNode(ONE, lambda d: [(0, d)])
    assert sweeps([leaf(3), forward, last], 1) == ([1, 1, 1], [1, 1, 1], True)
    own = TapeNode(ONE, lambda d: [(1, d), (0, d)])
    assert sweeps([leaf(3), own], 1) == ([1, 2], [1, 2], True)
    twice = TapeNode(ONE, lambda d: [(0, d), (0, d)])
    assert sweeps([leaf(3), twice], 1) == ([2, 1], [2, 1], True)


def test_an_output_without_gradient_keeps_its_seed_and_sends_nothing():
    frozen = TapeNode(ONE, lambda d: [(0, d)], requires_grad=False)
    assert sweeps([leaf(3), frozen], 1) == ([0, 1], [0, 1], True)
    passing = TapeNode(ONE, lambda d: [(1, d)])
    assert sweeps([leaf(3), frozen, passing], 2) == ([0, 0, 1], [0, 0, 1], True)


PAIR = [leaf(3), leaf(5)]
FROZEN = [leaf(3), leaf(5, False)]
WIDE = T.full((2,), Fraction(1))
ERRORS = {
    "output beyond the end": (PAIR, 9, ONE, tape.INVALID_OUTPUT, [0, 0]),
    "negative output": (PAIR, -1, ONE, tape.INVALID_OUTPUT, [0, 0]),
    "output before seed shape": (PAIR, 9, WIDE, tape.INVALID_OUTPUT, [0, 0]),
    "seed shape": (PAIR, 1, WIDE, tape.SEED_SHAPE, tape.ARRAY_SHAPE),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_of_the_two_sweeps(name):
    nodes, output, seed, skipping, total = ERRORS[name]
    assert sweeps(nodes, output, seed)[:2] == (skipping, total)


def test_the_total_sweep_takes_a_wrong_seed_where_no_gradient_is_required():
    seeds = tape.single_pack(T, FROZEN, 1, WIDE)
    assert show(tape.backward_dense_from(T, FROZEN, seeds)) == "(0, [1, 1])"
    with pytest.raises(TapeError, match=tape.SEED_SHAPE):
        tape.backward_dense_all(T, FROZEN, 1, WIDE)


def test_the_total_sweep_checks_the_length_first():
    with pytest.raises(TapeError, match=tape.WRONG_LENGTH):
        tape.backward_dense_from(T, PAIR, [WIDE])


def test_a_parent_is_checked_before_its_gradient_and_the_gradient_before_shape():
    wrong = TapeNode(ONE, lambda d: [(0, WIDE), (9, d)])
    assert sweeps([leaf(3, False), wrong], 1)[0] == tape.INVALID_PARENT
    assert sweeps([leaf(3), wrong], 1)[0] == tape.CONTRIBUTION_SHAPE


def test_a_lowered_node_refuses_a_cotangent_of_another_shape():
    graph = Graph(rationals(), [()])
    graph.apply(nodes_arithmetic.neg, graph.index(0))
    lowered = tape.lower_graph_to_tape(graph, [ONE], {})
    with pytest.raises(TapeError, match=tape.UPSTREAM_SHAPE):
        lowered[1].backward(WIDE)


def test_a_lowered_tape_visits_every_id_up_to_the_output():
    graph = Graph(rationals(), [(), ()])
    for k in (0, 1):
        graph.apply(nodes_arithmetic.neg, graph.index(k))
    lowered = tape.lower_graph_to_tape(graph, [ONE, ONE], {})
    assert [p for p, _ in lowered[3].backward(ONE)] == [0, 1, 2]
    slots = tape.backward_dense(T, lowered, 2, ONE)
    assert [slot is None for slot in slots] == [False, False, False, True]
    leaf_only = tape.backward_dense(T, lowered, 0, ONE)
    assert [slot is None for slot in leaf_only] == [False, True, True, True]


def eager_example():
    recorded = EagerTape(rationals(), {"i": np.array([1, 1])})
    x = recorded.leaf(T.numbers((2, 1), [3, -4]))
    frozen = recorded.leaf(T.numbers((2, 1), [5, 6]), requires_grad=False)
    y = recorded.apply(nodes_arithmetic.mul, x, frozen)
    z = recorded.apply(nodes_order.relu, y)
    rows = recorded.apply(nodes_linear.gather, x, key="i", count=2)
    dead = recorded.apply(nodes_arithmetic.inverse, x)
    total = recorded.apply(nodes_linear.sum, z, axes=[0, 1])
    return recorded, (x, frozen, y, z, rows, dead, total)


def test_eager_tapes_are_zero_preserving_and_their_sweeps_agree():
    recorded, ids = eager_example()
    assert zero_preserving_tape(recorded.tensors, recorded.nodes)
    for output in ids:
        seed = recorded.tensors.sample(recorded.nodes[output].value.shape, Random(1))
        evidence = sweeps_agree(recorded.tensors, recorded.nodes, output, seed)
        assert evidence, str(evidence)


def test_eager_nodes_send_to_true_parents_only_and_inherit_the_gradient_flag():
    recorded, (x, frozen, y, z, rows, dead, total) = eager_example()
    assert [p for p, _ in recorded.nodes[z].backward(WIDE.reshape(2, 1))] == [y]
    grads = tape.backward_dense(recorded.tensors, recorded.nodes, total, ONE)
    assert show(grads[x]) == "[[5], [0]]"
    assert grads[frozen] is None and grads[rows] is None and grads[dead] is None
    still = recorded.apply(nodes_arithmetic.neg, frozen)
    assert not recorded.nodes[still].requires_grad
    with pytest.raises(ValueError, match="expected an id, got 99"):
        recorded.apply(nodes_arithmetic.neg, 99)


def node_of(jvp, vjp, forward=lambda x: x, carrier=None):
    """A node on one scalar from plain functions of elements."""

    def factory(t, shapes):
        return Op(
            "planted",
            (),
            lambda args, env: scalar(forward(args[0][()])),
            lambda args, dargs, env: scalar(jvp(dargs[0][()])),
            lambda args, delta, env: [scalar(vjp(delta[()]))],
        )

    graph = Graph(carrier or rationals(), [()])
    graph.apply(factory, graph.index(0))
    return graph


def test_adjointness_does_not_mention_forward_and_dual_numbers_do():
    square = node_of(lambda u: u * 0, lambda d: d * 0)
    assert adjointness(square.nodes[0], [T.number(3)], {}, Random(0))
    graph = Graph(rationals(), [()])
    graph.apply(nodes_arithmetic.square, graph.index(0))
    dual = graph.over(duals(rationals())).nodes[0]
    wrong = derivative(square.nodes[0], dual, [T.number(3)], [ONE], {})
    assert not wrong
    assert wrong.counterexample["eps part of forward"][()] == 6


def test_clipping_is_zero_preserving_and_adjoint_to_no_jvp():
    def clip(d):
        return max(Fraction(-1), min(Fraction(1), d))

    for slope in (0, 1, Fraction(1, 2)):
        node = node_of(lambda u, s=slope: s * u, clip).nodes[0]
        assert zero_preserving(node, [ONE], {})
        assert not adjointness(node, [ONE], {}, Random(0))


def test_a_failure_is_reduced_to_zeros_and_ones_and_printed():
    def factory(t, shapes):
        wrong = Op(
            "planted",
            (2,),
            lambda args, env: t.mul(args[0], args[0]),
            lambda args, dargs, env: t.mul(t.add(args[0], args[0]), dargs[0]),
            lambda args, delta, env: [t.mul(args[0], delta)],
        )
        return wrong

    graph = Graph(rationals(), [(2,)])
    graph.apply(factory, graph.index(0))
    point = [T.numbers((2,), [Fraction(7, 3), Fraction(-5, 2)])]
    assert str(adjointness(graph.nodes[0], point, {}, Random(0))) == (
        "adjointness of planted: FAILS\n"
        "  context = ([1, 0])\n"
        "  tangent = 1 at value 0, element 0\n"
        "  cotangent = 1 at element 0 of the result\n"
        "  dot(jvp(dx), delta) = 2\n"
        "  dot_list(dx, vjp(delta)) = 1"
    )


@pytest.mark.parametrize(
    ("carrier", "pairs"),
    [(integers_mod(2), 2), (booleans(), 2), (integers_mod(3), 3)],
)
def test_exactly_the_multiplications_are_adjoint(carrier, pairs):
    """All pairs of functions on a tiny carrier: jvp and vjp of one scalar."""
    elements = list(dict.fromkeys(carrier.number(n) for n in range(3)))
    functions = [
        dict(zip(elements, values, strict=True))
        for values in itertools.product(elements, repeat=len(elements))
    ]
    good = [
        (j, v)
        for j in functions
        for v in functions
        if all(
            carrier.mul(j[dx], d) == carrier.mul(dx, v[d])
            for dx in elements
            for d in elements
        )
    ]
    assert len(functions) == len(elements) ** len(elements)
    assert len(good) == pairs
    for j, v in good:
        assert j == v and v[carrier.zero] == carrier.zero
        graph = node_of(j.get, v.get, carrier=carrier)
        assert adjointness(graph.nodes[0], [scalar(carrier.one)], {}, Random(0))


def test_without_a_unit_adjointness_does_not_force_zero_preservation():
    """{0, 2} mod 4 has all products 0: any jvp and vjp are adjoint there."""
    mod4 = integers_mod(4)
    even = Carrier("2Z/4Z", 0, None, mod4.add, mod4.mul, lambda rng: rng.choice([0, 2]))
    t = Tensors(even)
    node = node_of(lambda u: u, lambda d: even.add(d, 2), carrier=even).nodes[0]
    for u, d in itertools.product([0, 2], repeat=2):
        left = t.dot(node.jvp([scalar(2)], [scalar(u)], {}), scalar(d))
        right = t.dot_list([scalar(u)], node.vjp([scalar(2)], scalar(d), {}))
        assert left == right == 0
    assert node.vjp([scalar(2)], scalar(0), {})[0][()] == 2


@pytest.mark.parametrize("name", [n for n in CARRIERS if n != "trivial"])
def test_the_pairing_is_nondegenerate(name):
    t = Tensors(CARRIERS[name]())
    rng = Random(4)
    assert witness(t, t.zero_pack([(2,), ()])) is None
    for _ in range(20):
        pack = [t.sample((2,), rng), t.sample((), rng)]
        found = witness(t, pack)
        if found is not None:
            position, basis = found
            assert t.dot(basis, pack[position]) != t.carrier.zero


F = Tensors(binary32())


def float_leaf(value):
    return TapeNode(scalar(np.float32(value)))


def test_floats_a_dead_reciprocal_at_zero_is_zero_or_nan():
    with np.errstate(all="ignore"):

        def backward(d):
            below = np.float32(1) / np.float32(0)
            return [(0, scalar(-d[()] * below * below))]

        nodes = [
            float_leaf(0),
            float_leaf(3),
            TapeNode(scalar(np.float32(np.inf)), backward),
        ]
        skipping, total, _ = sweeps(nodes, 1, scalar(np.float32(1)), F)
    assert skipping[0] == 0 and np.isnan(total[0])


def test_fractions_a_dead_reciprocal_at_zero_is_an_error_of_the_total_sweep():
    def backward(d):
        raise Undefined("division by zero")

    nodes = [leaf(0), leaf(3), TapeNode(ONE, backward)]
    skipping, total, preserving = sweeps(nodes, 1)
    assert skipping == [0, 1, 0] and not preserving
    assert total == "Undefined: division by zero"


def test_floats_a_negative_zero_survives_only_the_skipping_sweep():
    minus = TapeNode(
        scalar(np.float32(1)), lambda d: [(0, scalar(d[()] * np.float32(-0.0)))]
    )
    nodes = [float_leaf(1), minus]
    skipping, total, _ = sweeps(nodes, 1, scalar(np.float32(1)), F)
    assert skipping[0].view(np.uint32) == 0x80000000
    assert total[0].view(np.uint32) == 0
