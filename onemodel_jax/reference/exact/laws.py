"""The laws of nodes and tapes, as functions that return evidence.

Adjointness alone does not mention the forward map: jvp = vjp = 0 satisfies it for any
function. Hence ``derivative``, which runs forward on dual numbers. Zero preservation
follows from adjointness where the carrier has a unit, and is what makes the skipping
and the total sweep agree (SPEC, "Laws").
"""

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from onemodel_jax.reference.exact.evidence import Evidence, simplify
from onemodel_jax.reference.exact.nodes import Args, Env, Node
from onemodel_jax.reference.exact.tape import (
    Tape,
    TapeError,
    backward_dense_all,
    backward_dense_from,
    single_pack,
)
from onemodel_jax.reference.exact.tensors import (
    Pack,
    Tensor,
    Tensors,
    map_elements,
    same,
    same_pack,
)


def adjointness(node: Node, context: Args, env: Env, rng: Random) -> Evidence:
    """dot(jvp(dx), delta) = dot_list(dx, vjp(delta)) for ALL dx and delta.

    Complete: both are read off the basis and compared entry by entry, and both are
    shown additive and homogeneous on random vectors.
    """
    found = _basis_mismatch(node, context, env)
    cases = node.tensors.zeros(node.out).size * sum(a.size for a in context)
    if found is not None:
        i, p, q = found
        small = simplify(
            node.tensors.carrier,
            context,
            lambda trial: _entry(node, trial, env, i, p, q) is not None,
        )
        left, right = _entry(node, small, env, i, p, q) or (None, None)
        return Evidence(
            f"adjointness of {node.op.name}",
            False,
            cases,
            {
                "context": small,
                "tangent": f"1 at value {i}, element {p}",
                "cotangent": f"1 at element {q} of the result",
                "dot(jvp(dx), delta)": left,
                "dot_list(dx, vjp(delta))": right,
            },
        )
    return _linear(node, context, env, rng, cases)


def _entry(
    node: Node, context: Args, env: Env, i: int, p: int, q: int
) -> tuple[Any, Any] | None:
    """Both sides for one pair of basis vectors, None if they agree."""
    t = node.tensors
    tangents = t.zero_pack(node.context)
    tangents[i] = t.basis(node.context[i], p)
    left = node.jvp(context, tangents, env).reshape(-1)[q]
    pack = node.vjp(context, t.basis(node.out, q), env)
    right = pack[i].reshape(-1)[p]
    return None if left == right else (left, right)


def _basis_mismatch(node: Node, context: Args, env: Env) -> tuple[int, int, int] | None:
    t = node.tensors
    size = t.zeros(node.out).size
    back = [node.vjp(context, t.basis(node.out, q), env) for q in range(size)]
    for i, shape in enumerate(node.context):
        for p in range(t.zeros(shape).size):
            if i not in node.parents:
                column = [t.carrier.zero] * size
            else:
                tangents = t.zero_pack(node.context)
                tangents[i] = t.basis(shape, p)
                column = list(node.jvp(context, tangents, env).flat)
            for q in range(size):
                if back[q][i].reshape(-1)[p] != column[q]:
                    return i, p, q
    return None


def _linear(node: Node, context: Args, env: Env, rng: Random, cases: int) -> Evidence:
    """Additivity and homogeneity of jvp and vjp on one random pair of vectors."""
    t = node.tensors
    factor = t.sample((), rng)
    dx, dy = ([t.sample(s, rng) for s in node.context] for _ in range(2))
    a, b = t.sample(node.out, rng), t.sample(node.out, rng)

    def vjp(delta: Tensor) -> Pack:
        return node.vjp(context, delta, env)

    def jvp(tangents: Pack) -> Pack:
        return [node.jvp(context, tangents, env)]

    def plus(x: Pack, y: Pack) -> Pack:
        return [t.add(u, v) for u, v in zip(x, y, strict=True)]

    def times(x: Pack) -> Pack:
        return [t.mul(factor, u) for u in x]

    checks = {
        "vjp is additive": (vjp(t.add(a, b)), plus(vjp(a), vjp(b))),
        "vjp is homogeneous": (vjp(t.mul(factor, a)), times(vjp(a))),
        "jvp is additive": (jvp(plus(dx, dy)), plus(jvp(dx), jvp(dy))),
        "jvp is homogeneous": (jvp(times(dx)), times(jvp(dx))),
    }
    for claim, (left, right) in checks.items():
        if not same_pack(left, right):
            small = {"claim": claim, "context": list(context), "factor": factor}
            small |= {"delta": a, "other": b, "left": left, "right": right}
            return Evidence(f"adjointness of {node.op.name}", False, cases, small)
    return Evidence(f"adjointness of {node.op.name}", True, cases + len(checks))


def lift(context: Args, tangents: Args) -> Pack:
    """Pair values and tangents into tensors over the dual numbers."""
    return [
        map_elements(lambda a, b: (a, b), x, dx)
        for x, dx in zip(context, tangents, strict=True)
    ]


def value_part(pack: Args) -> Pack:
    """The values of tensors over the dual numbers."""
    return [map_elements(lambda x: x[0], a) for a in pack]


def tangent_part(pack: Args) -> Pack:
    """The tangents of tensors over the dual numbers."""
    return [map_elements(lambda x: x[1], a) for a in pack]


def derivative(
    node: Node, over_duals: Node, context: Args, tangents: Args, env: Env
) -> Evidence:
    """jvp is the derivative of forward: forward over S[eps] has it as its eps part.

    At a kink of the node nothing is claimed and no case is counted.
    """
    law = f"jvp of {node.op.name} against dual numbers"
    if not node.op.smooth([context[p] for p in node.parents], env):
        return Evidence(law, True, 0)
    moved = over_duals.forward(lift(context, tangents), env)
    truth = tangent_part([moved])[0]
    claimed = node.jvp(context, tangents, env)
    if same(truth, claimed) and same(
        value_part([moved])[0], node.forward(context, env)
    ):
        return Evidence(law, True, claimed.size)
    where = {"context": list(context), "tangents": list(tangents)}
    where |= {"jvp": claimed, "eps part of forward": truth}
    return Evidence(law, False, claimed.size, where)


def zero_preserving(node: Node, context: Args, env: Env) -> Evidence:
    """vjp(0) = 0."""
    t = node.tensors
    zeros = t.zero_pack(node.context)
    pack = node.vjp(context, t.zeros(node.out), env)
    law = f"zero preservation of {node.op.name}"
    if same_pack(pack, zeros):
        return Evidence(law, True, len(zeros))

    def fails(trial: Pack) -> bool:
        return not same_pack(node.vjp(trial, t.zeros(node.out), env), zeros)

    small = simplify(t.carrier, context, fails)
    pack = node.vjp(small, t.zeros(node.out), env)
    return Evidence(law, False, len(zeros), {"context": small, "vjp(0)": pack})


def zero_preserving_tape(t: Tensors, tape: Tape) -> Evidence:
    """Every node that requires a gradient answers a zero cotangent with zeros of
    existing parents' shapes; the counterexample lists (id, parent, reason).
    """
    reasons: list[tuple[int, int | None, str]] = []
    for i, node in enumerate(tape):
        if node.requires_grad:
            reasons += [(i, p, why) for p, why in _nonzero(t, tape, i)]
    law = "zero preservation of the tape"
    if not reasons:
        return Evidence(law, True, len(tape))
    return Evidence(law, False, len(tape), {"reasons": reasons})


def _nonzero(t: Tensors, tape: Tape, i: int) -> list[tuple[int | None, str]]:
    try:
        contributions = tape[i].backward(t.zeros(tape[i].value.shape))
    except (TapeError, ArithmeticError) as error:
        return [(None, f"backward raises: {error}")]
    found: list[tuple[int | None, str]] = []
    for parent, grad in contributions:
        if not 0 <= parent < len(tape):
            found.append((parent, "no such id"))
        elif grad.shape != tape[parent].value.shape:
            found.append((parent, f"shape {grad.shape}"))
        elif not same(grad, t.zeros(grad.shape)):
            found.append((parent, "not zero"))
    return found


def witness(t: Tensors, pack: Args) -> tuple[int, Tensor] | None:
    """For a pack that is not zero: a position and a basis tensor that pairs with it to
    something nonzero (the pairing is nondegenerate); None for the zero pack.
    """
    for i, a in enumerate(pack):
        for k, element in enumerate(a.flat):
            if element != t.carrier.zero:
                return i, t.basis(a.shape, k)
    return None


def outcome(sweep: Callable[[], Sequence[Tensor]]) -> Sequence[Tensor] | str:
    """The result of a sweep, or the message or type of the error that stopped it."""
    try:
        return sweep()
    except TapeError as error:
        return str(error)
    except ArithmeticError as error:
        return f"{type(error).__name__}: {error}"


def sweeps_agree(t: Tensors, tape: Tape, output: int, seed: Tensor) -> Evidence:
    """The skipping sweep equals the total sweep from the one-hot seed."""
    skipping = outcome(lambda: backward_dense_all(t, tape, output, seed))
    total = outcome(
        lambda: backward_dense_from(t, tape, single_pack(t, tape, output, seed))
    )
    if isinstance(skipping, str) or isinstance(total, str):
        equal = isinstance(total, str) and skipping == total
    else:
        equal = same_pack(skipping, total)
    where = {"output": output, "seed": seed, "all": skipping, "from": total}
    return Evidence(
        "equality of the two sweeps", equal, len(tape), {} if equal else where
    )
