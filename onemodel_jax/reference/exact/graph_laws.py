"""The laws of whole graphs: both sweeps, duality, derivative, transposed Jacobian."""

from random import Random

from onemodel_jax.reference.exact.evidence import Evidence
from onemodel_jax.reference.exact.graph import (
    Graph,
    Idx,
    backprop_all_ctx,
    eval_ctx,
    jvp_ctx,
)
from onemodel_jax.reference.exact.laws import (
    adjointness,
    derivative,
    lift,
    sweeps_agree,
    tangent_part,
    zero_preserving,
    zero_preserving_tape,
)
from onemodel_jax.reference.exact.nodes import Args, Env
from onemodel_jax.reference.exact.opaque import duals
from onemodel_jax.reference.exact.tape import (
    backward_dense_all,
    backward_dense_from,
    lower_graph_to_tape,
    seed_at,
)
from onemodel_jax.reference.exact.tensors import Tensor, same_pack


def sweep_equals_backprop(
    graph: Graph, inputs: Args, output: Idx, seed: Tensor, env: Env
) -> Evidence:
    """The skipping sweep on the lowered tape equals backprop_all_ctx of the seed."""
    tape = lower_graph_to_tape(graph, inputs, env)
    swept = backward_dense_all(graph.tensors, tape, output.position, seed)
    proved = backprop_all_ctx(graph, inputs, seed_at(graph, output, seed), env)
    equal = same_pack(swept, proved)
    where = {"inputs": list(inputs), "output": output.position, "seed": seed}
    where |= {"sweep": swept, "backprop_all_ctx": proved}
    return Evidence("sweep = backprop", equal, len(tape), {} if equal else where)


def duality(
    graph: Graph, inputs: Args, tangents: Args, output: Idx, seed: Tensor, env: Env
) -> Evidence:
    """dot(jvp_ctx(dx)[o], seed) = dot_list(dx, input block of the sweep at o)."""
    t = graph.tensors
    tape = lower_graph_to_tape(graph, inputs, env)
    moved = jvp_ctx(graph, inputs, tangents, env)
    swept = backward_dense_all(t, tape, output.position, seed)
    left = t.dot(moved[output.position], seed)
    right = t.dot_list(tangents, swept[: len(graph.inputs)])
    where = {"inputs": list(inputs), "tangents": list(tangents), "seed": seed}
    where |= {"forward": left, "backward": right}
    return Evidence("duality", left == right, 1, {} if left == right else where)


def duality_of_total_sweep(
    graph: Graph, inputs: Args, tangents: Args, seeds: Args, env: Env
) -> Evidence:
    """dot_list(jvp_ctx(dx), seeds) = dot_list(dx, input block of the total sweep)."""
    t = graph.tensors
    tape = lower_graph_to_tape(graph, inputs, env)
    swept = backward_dense_from(t, tape, seeds)
    left = t.dot_list(jvp_ctx(graph, inputs, tangents, env), seeds)
    right = t.dot_list(tangents, swept[: len(graph.inputs)])
    where = {"inputs": list(inputs), "tangents": list(tangents), "seeds": list(seeds)}
    where |= {"forward": left, "backward": right}
    return Evidence("duality, total", left == right, 1, {} if left == right else where)


def graph_derivative(
    graph: Graph, over_duals: Graph, inputs: Args, tangents: Args, env: Env
) -> Evidence:
    """jvp_ctx is the eps part of the whole graph over the dual numbers."""
    truth = tangent_part(eval_ctx(over_duals, lift(inputs, tangents), env))
    claimed = jvp_ctx(graph, inputs, tangents, env)
    equal = same_pack(truth, claimed)
    where = {"inputs": list(inputs), "tangents": list(tangents)}
    where |= {"jvp_ctx": claimed, "eps part": truth}
    law = "jvp of the graph against dual numbers"
    return Evidence(law, equal, len(claimed), {} if equal else where)


def input_block_is_adjoint(
    graph: Graph, over_duals: Graph, inputs: Args, output: Idx, env: Env
) -> Evidence:
    """The input block of the sweep is the transposed Jacobian of the evaluation.

    The Jacobian is read off dual numbers alone, so jvp is not trusted.
    """
    t = graph.tensors
    tape = lower_graph_to_tape(graph, inputs, env)
    size = t.zeros(output.shape).size
    rows = [
        backward_dense_all(t, tape, output.position, t.basis(output.shape, q))
        for q in range(size)
    ]
    cases = 0
    for i, shape in enumerate(graph.inputs):
        for p in range(t.zeros(shape).size):
            tangents = t.zero_pack(graph.inputs)
            tangents[i] = t.basis(shape, p)
            moved = eval_ctx(over_duals, lift(inputs, tangents), env)
            column = tangent_part([moved[output.position]])[0].reshape(-1)
            for q in range(size):
                cases += 1
                swept = rows[q][i].reshape(-1)[p]
                if swept != column[q]:
                    where = {"inputs": list(inputs), "input": f"{i}, element {p}"}
                    where |= {"output": f"{output.position}, element {q}"}
                    where |= {"derivative": column[q], "sweep": swept}
                    return Evidence("transposed Jacobian", False, cases, where)
    return Evidence("transposed Jacobian", True, cases)


def check_graph(graph: Graph, inputs: Args, env: Env, rng: Random) -> list[Evidence]:
    """Every law on one graph at one point, with random tangents and seeds.

    Both sweeps and the duality run at every id, leaves and inner values included; the
    transposed Jacobian at the last. Laws about derivatives assume a smooth point.
    """
    t = graph.tensors
    dual = graph.over(duals(graph.carrier))
    context = eval_ctx(graph, inputs, env)
    found: list[Evidence] = []
    for k, node in enumerate(graph.nodes):
        before = context[: len(graph.inputs) + k]
        tangents = [t.sample(a.shape, rng) for a in before]
        found += [
            adjointness(node, before, env, rng),
            derivative(node, dual.nodes[k], before, tangents, env),
            zero_preserving(node, before, env),
        ]
    tape = lower_graph_to_tape(graph, inputs, env)
    tangents = [t.sample(s, rng) for s in graph.inputs]
    found.append(zero_preserving_tape(t, tape))
    for position in range(len(context)):
        output = graph.index(position)
        seed = t.sample(output.shape, rng)
        found += [
            sweeps_agree(t, tape, position, seed),
            sweep_equals_backprop(graph, inputs, output, seed, env),
            duality(graph, inputs, tangents, output, seed, env),
        ]
    seeds = [t.sample(s, rng) for s in graph.shapes]
    last = graph.index(len(context) - 1)
    found += [
        duality_of_total_sweep(graph, inputs, tangents, seeds, env),
        graph_derivative(graph, dual, inputs, tangents, env),
        input_block_is_adjoint(graph, dual, inputs, last, env),
    ]
    return found
